//! Whoever could see an event learns that it was redacted, and nobody else does.

use seqline::StoredEvent;
use seqline::redact::Notice;
use sqlx::AssertSqlSafe;

use super::*;
use crate::support::log;

/// Who can see an event: space, channel, thread, audience, receive action.
type Seen = (Option<String>, Option<String>, Option<String>, Option<String>, String);

fn seen_by(event: &StoredEvent) -> Seen {
    (
        event.space_id.clone(),
        event.channel_id.clone(),
        event.thread_id.clone(),
        event.audience_principal_id.clone(),
        event.receive_action.clone(),
    )
}

async fn events(db: &TestDb) -> Vec<StoredEvent> {
    db.settled().await;
    seqline::read::events_after(&mut db.connect(Role::Reader).await, 0, 1000).await.unwrap()
}

/// The notices of the log with the events that they name.
async fn notices(db: &TestDb) -> Vec<(StoredEvent, Vec<i64>)> {
    let known = log(&mut db.connect(Role::Reader).await).await;
    let told = |event: StoredEvent| {
        let notice = Notice::of(&event)?;
        let named = notice.events.iter().inspect(|named| assert!(known.contains(&(named.seq, named.id))));
        Some((event.clone(), named.map(|named| named.seq).collect()))
    };
    events(db).await.into_iter().filter_map(told).collect()
}

fn scoped(action: &str, space: &str, channel: &str, thread: &str, audience: &str) -> NewEvent {
    let payload = Payload::from_json(&format!("{{\"card\": \"{PLANTED}\"}}")).unwrap();
    NewEvent::builder("order.paid", "order", action)
        .resource_id("17")
        .payload(payload)
        .space(space)
        .channel(channel)
        .thread(thread)
        .audience(audience)
        .build()
        .unwrap()
}

#[tokio::test]
async fn whoever_could_see_an_event_gets_a_notice_and_nobody_else() {
    let db = TestDb::new().await;
    small_partitions(&db, 3, 10).await;
    let all = || {
        [
            scoped("any", "", "", "", ""),
            scoped("any", "shop-1", "", "", ""),
            scoped("any", "shop-1", "orders", "", ""),
            scoped("any", "shop-1", "orders", "t-1", ""),
            scoped("any", "shop-1", "", "t-1", ""),
            scoped("any", "shop-2", "orders", "", ""),
            scoped("order.read", "shop-1", "orders", "", ""),
            scoped("any", "shop-1", "orders", "", "robin"),
            scoped("self", "shop-1", "orders", "", "robin"),
            scoped("self", "", "", "", "alex"),
        ]
    };
    append(&db.producer(), all()).await;
    append(&db.producer(), all()).await;
    let before = events(&db).await;
    assert_eq!(redact_resource(&db.app(), "17", APPLY).await.unwrap().events, 20);

    let notices = notices(&db).await;
    assert_eq!(notices.len(), 10, "one for all whom it is for");
    for (notice, named) in &notices {
        let same: Vec<i64> = before.iter().filter(|e| seen_by(e) == seen_by(notice)).map(|e| e.seq).collect();
        assert_eq!((named, named.len()), (&same, 2));
        let about = (notice.resource_kind.as_str(), notice.resource_id.as_deref(), notice.resource_version);
        assert_eq!(about, ("order", Some("17"), None));
        let by = (notice.actor_kind.as_deref(), notice.actor_principal_id.as_deref());
        assert_eq!(by, (Some("system"), None));
        assert!(!notice.redacted && notice.client_msg_id.is_none() && notice.trace_context.is_none());
    }
    assert_eq!(audit(&db).await[0].4["notices"], 10);
}

/// Readers that see the notice find the event redacted: it is one transaction.
#[tokio::test]
async fn a_notice_of_one_event_is_for_those_who_saw_it() {
    let db = TestDb::new().await;
    let ids = append(&db.producer(), [scoped("self", "shop-1", "orders", "", "robin"), order("17")]).await;
    redact_event(&db.app(), ids[0], APPLY).await.unwrap();
    let notices = notices(&db).await;
    let [(notice, named)] = &notices[..] else { panic!("{notices:?}") };
    assert_eq!((notice.seq, named.as_slice()), (3, &[1][..]));
    assert_eq!(seen_by(notice), seen_by(&events(&db).await[0]));
}

#[tokio::test]
async fn a_notice_names_no_more_than_500_and_together_they_name_all() {
    let db = TestDb::new().await;
    let of = |n: i64| if n % 2 == 0 { scoped("any", "shop-1", "", "", "") } else { order("17") };
    append(&db.producer(), (0..1202).map(of)).await;
    assert_eq!(redact_resource(&db.app(), "17", APPLY).await.unwrap().events, 1202);
    let lists = rows(&db).await.split_off(1202);
    let lists: Vec<Vec<i64>> = lists
        .iter()
        .map(|row| {
            let named = row["payload"]["events"].as_array().unwrap();
            named.iter().map(|named| named["seq"].as_i64().unwrap()).collect()
        })
        .collect();
    let lengths: Vec<usize> = lists.iter().map(Vec::len).collect();
    assert_eq!(lengths, [500, 500, 101, 101]);
    assert!(lists.iter().all(|list| list.is_sorted()));
    let mut named: Vec<i64> = lists.concat();
    named.sort_unstable();
    assert_eq!(named, (1..=1202).collect::<Vec<i64>>());
}

/// They are taken in slices of 10,000.
#[tokio::test]
async fn a_resource_with_many_events_is_redacted_as_a_whole_and_each_is_named_once() {
    let db = TestDb::new().await;
    small_partitions(&db, 20_000, 3).await;
    let batch = "SELECT seqline.append_batch((SELECT jsonb_agg(jsonb_build_object('type', 'order.paid', 'resource_kind', 'order',
        'resource_id', CASE WHEN n % 10 = 0 THEN '18' ELSE '17' END, 'receive_action', 'any', 'payload', '{\"n\": 1}'::jsonb))
        FROM generate_series(1, 10000) n))";
    for _ in 0..3 {
        sqlx::query(batch).execute(&db.producer()).await.unwrap();
    }
    db.settled().await;
    let redaction = redact_resource(&db.app(), "17", APPLY).await.unwrap();
    assert_eq!((counts(&redaction), redaction.partitions.len()), ((27_000, 0, 0), 2));
    let (redacted, named, distinct, most): (i64, i64, i64, i64) = sqlx::query_as(
        "WITH named AS (
             SELECT e.seq AS notice, n.seq FROM seqline.event_log e
             CROSS JOIN LATERAL jsonb_to_recordset(e.payload -> 'events') AS n (id uuid, seq bigint)
             JOIN seqline.event_log o ON o.seq = n.seq AND o.id = n.id AND o.redacted_at IS NOT NULL AND o.payload = '{}'
             WHERE e.type = 'log.redacted'
         )
         SELECT (SELECT count(*) FROM seqline.event_log WHERE redacted_at IS NOT NULL AND resource_id = '17'),
             (SELECT count(*) FROM named), (SELECT count(DISTINCT seq) FROM named),
             (SELECT max(c) FROM (SELECT count(*) AS c FROM named GROUP BY notice) s)",
    )
    .fetch_one(&db.admin())
    .await
    .unwrap();
    assert_eq!((redacted, named, distinct, most), (27_000, 27_000, 27_000, 500));
    assert_eq!(counts(&redact_resource(&db.app(), "17", Mode::Plan).await.unwrap()), (0, 27_000, 0));
}

/// Nothing that was found out by a setting of the database keeps something from being redacted.
#[tokio::test]
async fn notices_keep_to_the_size_of_payloads() {
    for (bytes, lists) in
        [(14 + 2 * 76, vec![2, 1]), (14 + 76, vec![1, 1, 1]), (14 + 75, vec![0]), (2, vec![0])]
    {
        let db = TestDb::new().await;
        append(&db.producer(), ["17", "17", "17"].map(order)).await;
        let set = format!("UPDATE seqline.settings SET event_payload_max_bytes = {bytes}");
        sqlx::query(AssertSqlSafe(set)).execute(&db.admin()).await.unwrap();
        assert_eq!(redact_resource(&db.app(), "17", APPLY).await.unwrap().events, 3);
        let named: Vec<usize> = notices(&db).await.iter().map(|(_, named)| named.len()).collect();
        assert_eq!(named, lists, "{bytes} bytes");
        assert_eq!(counts(&redact_resource(&db.app(), "17", APPLY).await.unwrap()), (0, 3, 0));
    }
}

#[tokio::test]
async fn a_notice_is_not_redacted_itself() {
    let db = TestDb::new().await;
    let ids = append(&db.producer(), [order("17")]).await;
    redact_event(&db.app(), ids[0], APPLY).await.unwrap();
    let notice = notices(&db).await[0].0.id;
    for mode in [Mode::Plan, APPLY] {
        let said = refusal(redact_event(&db.app(), notice, mode).await);
        assert_eq!(said, format!("event {notice} says that others were redacted"));
        assert_eq!(counts(&redact_resource(&db.app(), "17", mode).await.unwrap()), (0, 1, 0));
    }
    assert_eq!((redacted(&db).await, head(&db).await), (vec![1], 2));
}

/// Whoever may append can append an event that looks like a notice, and cannot keep what it says from being redacted.
#[tokio::test]
async fn what_only_looks_like_a_notice_is_redacted() {
    let db = TestDb::new().await;
    let id = Uuid::now_v7();
    let entry = |more: &str| format!("{{\"events\": [{{\"id\": \"{id}\", \"seq\": 1{more}}}]}}");
    let says_something = [
        format!("{{\"card\": \"{PLANTED}\"}}"),
        format!("{{\"events\": [], \"card\": \"{PLANTED}\"}}"),
        format!("{{\"events\": \"{PLANTED}\"}}"),
        format!("{{\"events\": [\"{PLANTED}\"]}}"),
        format!("{{\"events\": [{{\"id\": \"{PLANTED}\", \"seq\": 1}}]}}"),
        format!("{{\"events\": [{{\"id\": \"{id}\", \"seq\": \"1\"}}]}}"),
        format!("{{\"events\": [{{\"id\": \"{id}\", \"seq\": 1.5}}]}}"),
        format!("{{\"events\": [{{\"id\": \"{id}\"}}]}}"),
        format!("{{\"events\": [{{\"id\": [\"{id}\"], \"seq\": 1}}]}}"),
        entry(&format!(", \"card\": \"{PLANTED}\"")),
    ];
    let says_nothing = ["{}".to_owned(), "{\"events\": []}".to_owned(), entry("")];
    let event = |payload: &String| {
        let payload = Payload::from_json(payload).unwrap();
        NewEvent::builder("log.redacted", "order", "any").resource_id("17").payload(payload).build().unwrap()
    };
    let ids = append(&db.producer(), says_something.iter().chain(&says_nothing).map(event)).await;
    let redaction = redact_resource(&db.app(), "17", APPLY).await.unwrap();
    assert_eq!(redaction.events, says_something.len() as i64);
    assert_eq!(redacted(&db).await, (1..=says_something.len() as i64).collect::<Vec<_>>());
    assert!(!rows(&db).await.iter().any(|row| row["payload"].to_string().contains(PLANTED)));
    // What they say now looks like a notice.
    for id in &ids[..says_something.len()] {
        assert_eq!(counts(&redact_event(&db.app(), *id, APPLY).await.unwrap()), (0, 1, 0));
    }
}
