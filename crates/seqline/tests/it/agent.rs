//! Consumers of agents: acknowledgements, holders and the fence between them.

use std::time::Duration;

use seqline::access::{ChangeError, NewPrincipal, PrincipalKind, Rights, create_principal, delete_principal};
use seqline::agent::{
    AgentConsumer, Cursor, Holder, HolderKind, Lost, LostReason, Save, Saved, Take, Taking, acknowledge,
    cursor, delete, list, lock, lose, release, release_all, release_holder, reset, save, save_all,
    store_window, take,
};
use seqline::consumer::Mode;
use seqline_testkit::{Role, TestDb, eventually};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::support::append;

const CONSUMERS_MAX: u32 = 3;
const EPOCH: Uuid = Uuid::from_u128(0x0198_c8f2_7a4b_7000_8000_0000_0000_0001);

async fn agent(connection: &mut PgConnection, id: &str) {
    let agent =
        NewPrincipal { id: id.to_owned(), kind: PrincipalKind::Agent, name: None, rights: Rights::default() };
    create_principal(connection, &agent, None).await.expect("the agent is created");
}

fn consumer(name: &str) -> AgentConsumer {
    AgentConsumer::new("billing", name).expect("it is a name")
}

fn taking(consumer: &AgentConsumer, session: Uuid, kind: HolderKind, start: i64) -> Taking<'_> {
    Taking {
        consumer,
        session,
        kind,
        start,
        consumers_max: CONSUMERS_MAX,
        unless_seen_within: None,
        unless_after: None,
        but_from: None,
        epoch: EPOCH,
    }
}

/// A log in an epoch that is known.
async fn database() -> TestDb {
    let db = TestDb::new().await;
    sqlx::query("UPDATE seqline.log_identity SET epoch = $1").bind(EPOCH).execute(&db.admin()).await.unwrap();
    db
}

/// Takes a consumer for a new session of the gateway.
async fn taken(connection: &mut PgConnection, consumer: &AgentConsumer, start: i64) -> (Uuid, Cursor) {
    let session = Uuid::now_v7();
    match take(connection, &taking(consumer, session, HolderKind::Gateway, start)).await {
        Ok(Take::Taken { cursor, .. }) => (session, cursor),
        other => panic!("it is not taken: {other:?}"),
    }
}

fn saving(consumer: &AgentConsumer, session: Uuid, acked_seq: i64) -> Save {
    Save { consumer: consumer.clone(), session, acked_seq, knows_lost: true }
}

async fn acked(connection: &mut PgConnection, consumer: &AgentConsumer) -> i64 {
    cursor(connection, consumer).await.unwrap().expect("it is there").acked_seq
}

#[tokio::test]
async fn the_first_who_comes_creates_it_and_the_next_replaces_that() {
    let db = database().await;
    let mut app = db.connect(Role::App).await;
    agent(&mut app, "billing").await;
    let invoices = consumer("invoices");
    assert_eq!(cursor(&mut app, &invoices).await.unwrap(), None);
    let first = Uuid::now_v7();
    let come = take(&mut app, &taking(&invoices, first, HolderKind::Gateway, 7)).await.unwrap();
    let Take::Taken { cursor: created, before: None } = come else { panic!("{come:?}") };
    assert_eq!((created.acked_seq, created.generation), (7, 1));
    let second = Uuid::now_v7();
    let come = take(&mut app, &taking(&invoices, second, HolderKind::Rest, 100)).await.unwrap();
    let Take::Taken { cursor: after, before: Some(Holder { session, kind, .. }) } = come else {
        panic!("{come:?}")
    };
    assert_eq!((session, kind), (first, HolderKind::Gateway));
    assert_eq!((after.acked_seq, after.generation), (7, 2), "it goes on where it was");
    assert_eq!(cursor(&mut app, &invoices).await.unwrap(), Some(after));
}

#[tokio::test]
async fn who_was_replaced_saves_nothing() {
    let db = database().await;
    let mut app = db.connect(Role::App).await;
    agent(&mut app, "billing").await;
    let invoices = consumer("invoices");
    let (old, _) = taken(&mut app, &invoices, 0).await;
    assert_eq!(save(&mut app, &saving(&invoices, old, 5)).await.unwrap(), Saved::Done);
    let (new, _) = taken(&mut app, &invoices, 0).await;
    assert_eq!(save(&mut app, &saving(&invoices, old, 9)).await.unwrap(), Saved::Replaced);
    assert_eq!(release(&mut app, &saving(&invoices, old, 9)).await.unwrap(), Saved::Replaced);
    let lost = Lost { reason: LostReason::Retention, after: 5, position: 2 };
    assert_eq!(lose(&mut app, &invoices, old, &lost).await.unwrap(), Saved::Replaced);
    assert_eq!(acked(&mut app, &invoices).await, 5);
    // The same in one statement with others, and an acknowledgement never becomes lower.
    let (letters, other) = (consumer("letters"), consumer("other"));
    let (of_letters, _) = taken(&mut app, &letters, 0).await;
    let saves = [
        saving(&invoices, old, 9),
        saving(&letters, of_letters, 3),
        saving(&invoices, new, 4),
        saving(&other, new, 4),
    ];
    let expected = [Saved::Replaced, Saved::Done, Saved::Done, Saved::Released].map(Some);
    assert_eq!(save_all(&mut app, &saves).await.unwrap(), expected);
    assert_eq!((acked(&mut app, &invoices).await, acked(&mut app, &letters).await), (5, 3));
}

#[tokio::test]
async fn those_whose_rows_are_free_are_saved_while_somebody_has_another_one_locked() {
    let db = database().await;
    let mut app = db.connect(Role::App).await;
    let pool = db.pool(Role::App, 1);
    agent(&mut app, "billing").await;
    let (invoices, letters) = (consumer("invoices"), consumer("letters"));
    let (of_invoices, _) = taken(&mut app, &invoices, 0).await;
    let (of_letters, _) = taken(&mut app, &letters, 0).await;
    let saves = [saving(&invoices, of_invoices, 3), saving(&letters, of_letters, 3)];
    let mut tx = seqline::begin(&pool).await.unwrap();
    lock(&mut tx, &invoices, EPOCH).await.unwrap().expect("it is there");
    assert_eq!(save_all(&mut app, &saves).await.unwrap(), [None, Some(Saved::Done)]);
    // Somebody who takes it and has not committed is not somebody else yet.
    take(&mut tx, &taking(&invoices, Uuid::now_v7(), HolderKind::Rest, 0)).await.unwrap();
    assert_eq!(save_all(&mut app, &saves).await.unwrap(), [None, Some(Saved::Done)]);
    seqline::commit(tx).await.unwrap();
    assert_eq!(save_all(&mut app, &saves).await.unwrap(), [Some(Saved::Replaced), Some(Saved::Done)]);
    assert_eq!((acked(&mut app, &invoices).await, acked(&mut app, &letters).await), (0, 3));
    // Those who give it up are told apart in the same way.
    let mut tx = seqline::begin(&pool).await.unwrap();
    lock(&mut tx, &letters, EPOCH).await.unwrap().expect("it is there");
    assert_eq!(release_all(&mut app, &saves).await.unwrap(), [Some(Saved::Replaced), None]);
    tx.rollback().await.unwrap();
    let done = [Some(Saved::Replaced), Some(Saved::Done)];
    assert_eq!(release_all(&mut app, &saves).await.unwrap(), done);
    assert_eq!(cursor(&mut app, &letters).await.unwrap().unwrap().holder, None);
}

#[tokio::test]
async fn one_who_goes_leaves_it_to_nobody() {
    let db = database().await;
    let mut app = db.connect(Role::App).await;
    agent(&mut app, "billing").await;
    let invoices = consumer("invoices");
    let (session, _) = taken(&mut app, &invoices, 0).await;
    assert_eq!(release(&mut app, &saving(&invoices, session, 4)).await.unwrap(), Saved::Done);
    let free = cursor(&mut app, &invoices).await.unwrap().unwrap();
    assert_eq!((free.acked_seq, free.holder), (4, None));
    assert_eq!(release(&mut app, &saving(&invoices, session, 6)).await.unwrap(), Saved::Released, "once");
}

#[tokio::test]
async fn whoever_wants_to_replace_nobody_is_told_who_is_there() {
    let db = database().await;
    let mut app = db.connect(Role::App).await;
    agent(&mut app, "billing").await;
    let invoices = consumer("invoices");
    let polite = |session| Taking {
        unless_seen_within: Some(Duration::from_secs(60)),
        ..taking(&invoices, session, HolderKind::Gateway, 0)
    };
    let come = take(&mut app, &polite(Uuid::now_v7())).await.unwrap();
    let Take::Taken { cursor: mine, .. } = come else { panic!("{come:?}") };
    let come = take(&mut app, &polite(Uuid::now_v7())).await.unwrap();
    assert_eq!(come, Take::Held(mine.clone()));
    // A holder of which nothing was heard for longer is gone.
    sqlx::query("UPDATE seqline.agent_consumer_cursors SET seen_at = clock_timestamp() - interval '61 s'")
        .execute(&mut app)
        .await
        .unwrap();
    let come = take(&mut app, &polite(Uuid::now_v7())).await.unwrap();
    assert!(matches!(come, Take::Taken { .. }), "{come:?}");
    // One that saves is heard of, also when it has nothing new.
    let session = cursor(&mut app, &invoices).await.unwrap().unwrap().holder.unwrap().session;
    sqlx::query("UPDATE seqline.agent_consumer_cursors SET seen_at = clock_timestamp() - interval '61 s'")
        .execute(&mut app)
        .await
        .unwrap();
    save(&mut app, &saving(&invoices, session, 0)).await.unwrap();
    assert!(matches!(take(&mut app, &polite(Uuid::now_v7())).await.unwrap(), Take::Held(_)));
}

#[tokio::test]
async fn whoever_had_it_once_does_not_take_it_back_from_who_came_since() {
    let db = database().await;
    let mut app = db.connect(Role::App).await;
    agent(&mut app, "billing").await;
    let invoices = consumer("invoices");
    let again = |generation| Taking {
        unless_seen_within: Some(Duration::from_secs(60)),
        unless_after: Some(generation),
        ..taking(&invoices, Uuid::now_v7(), HolderKind::Gateway, 0)
    };
    // What is not there is created, whatever there was before.
    let come = take(&mut app, &again(9)).await.unwrap();
    assert!(matches!(&come, Take::Taken { cursor, .. } if cursor.generation == 1), "{come:?}");
    // Its own session of before is nobody else.
    let come = take(&mut app, &again(1)).await.unwrap();
    assert!(matches!(&come, Take::Taken { cursor, .. } if cursor.generation == 2), "{come:?}");
    let (_, theirs) = taken(&mut app, &invoices, 0).await;
    assert_eq!(take(&mut app, &again(2)).await.unwrap(), Take::Held(theirs));
    let forget = "UPDATE seqline.agent_consumer_cursors SET seen_at = clock_timestamp() - interval '61 s'";
    sqlx::query(forget).execute(&mut app).await.unwrap();
    let come = take(&mut app, &again(2)).await.unwrap();
    assert!(
        matches!(&come, Take::Taken { cursor, .. } if cursor.generation == 4),
        "one that is gone: {come:?}"
    );
    let (session, _) = taken(&mut app, &invoices, 0).await;
    // Once that one has given it up, it is free.
    release(&mut app, &saving(&invoices, session, 0)).await.unwrap();
    let come = take(&mut app, &again(2)).await.unwrap();
    assert!(matches!(&come, Take::Taken { cursor, .. } if cursor.generation == 6), "{come:?}");
}

#[tokio::test]
async fn of_those_who_come_together_the_last_one_has_it() {
    let db = database().await;
    agent(&mut db.connect(Role::App).await, "billing").await;
    let pool = db.pool(Role::App, 8);
    let tasks: Vec<_> = (0..32)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(
                async move { taken(&mut pool.acquire().await.unwrap(), &consumer("invoices"), 0).await },
            )
        })
        .collect();
    let mut taken = Vec::new();
    for task in tasks {
        let (session, cursor) = task.await.unwrap();
        taken.push((cursor.generation, session));
    }
    taken.sort_unstable();
    let generations: Vec<i64> = taken.iter().map(|(generation, _)| *generation).collect();
    assert_eq!(generations, (1..=32).collect::<Vec<_>>(), "each has one of its own");
    let mut connection = pool.acquire().await.unwrap();
    let saves: Vec<_> = taken.iter().map(|(_, session)| saving(&consumer("invoices"), *session, 1)).collect();
    let mut expected = vec![Some(Saved::Replaced); 31];
    expected.push(Some(Saved::Done));
    assert_eq!(save_all(&mut connection, &saves).await.unwrap(), expected);
}

#[tokio::test]
async fn an_agent_has_so_many_consumers_and_goes_with_all_of_them() {
    let db = database().await;
    let mut app = db.connect(Role::App).await;
    agent(&mut app, "billing").await;
    for name in ["a", "b", "c"] {
        taken(&mut app, &consumer(name), 0).await;
    }
    let fourth = consumer("d");
    let come = take(&mut app, &taking(&fourth, Uuid::now_v7(), HolderKind::Rest, 0)).await.unwrap();
    assert_eq!(come, Take::TooMany);
    taken(&mut app, &consumer("a"), 0).await;
    delete_principal(&mut app, "billing", Mode::Apply { why: None }).await.unwrap();
    assert_eq!(list(&mut app, None, None, 10).await.unwrap(), []);
    let session = Uuid::now_v7();
    let come = take(&mut app, &taking(&fourth, session, HolderKind::Rest, 0)).await.unwrap();
    assert_eq!(come, Take::NoAgent);
}

#[tokio::test]
async fn anybody_acknowledges_over_rest_unless_with_another_generation() {
    let db = database().await;
    let mut app = db.connect(Role::App).await;
    agent(&mut app, "billing").await;
    let invoices = consumer("invoices");
    assert_eq!(acknowledge(&mut app, &invoices, 3, None, EPOCH).await.unwrap(), None);
    taken(&mut app, &invoices, 0).await;
    for (seq, generation, right, now) in [
        (3, None, true, 3),
        (2, None, true, 3),
        (5, Some(1), true, 5),
        (9, Some(2), false, 5),
        (9, Some(0), false, 5),
    ] {
        let (cursor, was_right) =
            acknowledge(&mut app, &invoices, seq, generation, EPOCH).await.unwrap().unwrap();
        assert_eq!((was_right, cursor.acked_seq, cursor.generation), (right, now, 1), "{seq} {generation:?}");
        assert!(cursor.holder.is_some(), "it takes nothing from the holder");
    }
}

/// Also when it had waited for the row that the new epoch changes.
#[tokio::test]
async fn in_a_new_epoch_nothing_is_taken_locked_or_acknowledged_for_the_one_before() {
    let db = database().await;
    let (mut app, mut admin) = (db.connect(Role::App).await, db.connect(Role::Admin).await);
    agent(&mut app, "billing").await;
    let invoices = consumer("invoices");
    append(&db.producer(), 1..=5).await;
    db.settled().await;
    taken(&mut app, &invoices, 2).await;
    let finalize = "BEGIN; SELECT seqline.finalize_restore('keep', true, true, 'restored')";
    sqlx::raw_sql(finalize).execute(&mut admin).await.unwrap();
    let waiting = {
        let (invoices, pool) = (invoices.clone(), db.pool(Role::App, 3));
        tokio::spawn(async move {
            let (mut a, mut b) = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
            let locked = async {
                let mut tx = seqline::begin(&pool).await.unwrap();
                lock(&mut tx, &invoices, EPOCH).await.map(drop)
            };
            let take_it = taking(&invoices, Uuid::now_v7(), HolderKind::Rest, 5);
            let (acknowledged, taken, locked) =
                tokio::join!(acknowledge(&mut a, &invoices, 5, None, EPOCH), take(&mut b, &take_it), locked);
            [acknowledged.map(drop), taken.map(drop), locked.map(drop)]
        })
    };
    eventually(Duration::from_secs(30), "all three wait", async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0";
        sqlx::query_scalar::<_, i64>(waiting).fetch_one(&db.admin()).await.unwrap() == 3
    })
    .await;
    let before = cursor(&mut admin, &invoices).await.unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut admin).await.unwrap();
    let another = |outcome: Result<(), seqline::DatabaseError>| {
        let error = outcome.expect_err("it is of the epoch before");
        assert!(error.is_retryable() && error.to_string().contains("another epoch"), "{error}");
    };
    waiting.await.unwrap().into_iter().for_each(another);
    another(acknowledge(&mut app, &invoices, 5, None, EPOCH).await.map(drop));
    another(
        take(&mut app, &taking(&consumer("totals"), Uuid::now_v7(), HolderKind::Gateway, 5)).await.map(drop),
    );
    assert_eq!(cursor(&mut app, &consumer("totals")).await.unwrap(), None);
    let after = cursor(&mut app, &invoices).await.unwrap();
    assert_eq!(after, before);
    let lost = Lost { reason: LostReason::EpochChanged, after: 2, position: 2 };
    assert_eq!(
        after.map(|cursor| (cursor.acked_seq, cursor.holder, cursor.lost)),
        Some((2, None, Some(lost)))
    );
}

#[tokio::test]
async fn what_was_lost_is_kept_until_it_is_known() {
    let db = database().await;
    let mut app = db.connect(Role::App).await;
    agent(&mut app, "billing").await;
    let invoices = consumer("invoices");
    let (session, _) = taken(&mut app, &invoices, 100).await;
    let lost = Lost { reason: LostReason::CursorAhead, after: 100, position: 40 };
    assert_eq!(lose(&mut app, &invoices, session, &lost).await.unwrap(), Saved::Done);
    let moved = cursor(&mut app, &invoices).await.unwrap().unwrap();
    assert_eq!((moved.acked_seq, moved.lost), (40, Some(lost)), "lower, for once");
    // Not by a save of one who does not know, nor by an acknowledgement before it, nor by another holder.
    let unknowing = Save { knows_lost: false, ..saving(&invoices, session, 40) };
    assert_eq!(save(&mut app, &unknowing).await.unwrap(), Saved::Done);
    // Nor of one who has lost nothing as far as it knows, and is not there yet.
    assert_eq!(save(&mut app, &saving(&invoices, session, 39)).await.unwrap(), Saved::Done);
    acknowledge(&mut app, &invoices, 39, None, EPOCH).await.unwrap();
    let (session, again) = taken(&mut app, &invoices, 0).await;
    assert_eq!(again.lost, Some(lost));
    let (known, _) = acknowledge(&mut app, &invoices, 40, None, EPOCH).await.unwrap().unwrap();
    assert_eq!((known.lost, known.acked_seq), (None, 40));
    let lost = Lost { reason: LostReason::Retention, after: 40, position: 60 };
    assert_eq!(lose(&mut app, &invoices, session, &lost).await.unwrap(), Saved::Done);
    assert_eq!(save(&mut app, &saving(&invoices, session, 60)).await.unwrap(), Saved::Done);
    assert_eq!(cursor(&mut app, &invoices).await.unwrap().unwrap().lost, None);
}

#[tokio::test]
async fn a_window_over_rest_is_in_the_row_until_somebody_else_comes() {
    let db = database().await;
    let mut app = db.connect(Role::App).await;
    let pool = db.pool(Role::App, 2);
    agent(&mut app, "billing").await;
    let invoices = consumer("invoices");
    let mut tx = seqline::begin(&pool).await.unwrap();
    assert_eq!(lock(&mut tx, &invoices, EPOCH).await.unwrap(), None);
    let session = Uuid::now_v7();
    take(&mut tx, &taking(&invoices, session, HolderKind::Rest, 0)).await.unwrap();
    assert!(store_window(&mut tx, &saving(&invoices, session, 2), "a window").await.unwrap());
    seqline::commit(tx).await.unwrap();

    let mut tx = seqline::begin(&pool).await.unwrap();
    let locked = lock(&mut tx, &invoices, EPOCH).await.unwrap().expect("it is there");
    assert_eq!((locked.window.as_deref(), locked.cursor.acked_seq), (Some("a window"), 2));
    let now: i64 = sqlx::query_scalar("SELECT extract(epoch FROM clock_timestamp())::bigint")
        .fetch_one(&mut app)
        .await
        .unwrap();
    let now = Duration::from_secs(now.unsigned_abs());
    assert!(
        now.abs_diff(locked.now) < Duration::from_secs(600),
        "the time of the database: {:?}",
        locked.now
    );
    drop(tx);

    let (gateway, _) = taken(&mut app, &invoices, 0).await;
    let mut tx = seqline::begin(&pool).await.unwrap();
    assert_eq!(lock(&mut tx, &invoices, EPOCH).await.unwrap().unwrap().window, None);
    assert!(!store_window(&mut tx, &saving(&invoices, session, 2), "late").await.unwrap());
    assert!(!store_window(&mut tx, &saving(&invoices, gateway, 2), "not over REST").await.unwrap());
}

#[tokio::test]
async fn people_release_and_reset_them() {
    let db = database().await;
    let mut app = db.connect(Role::App).await;
    append(&db.pool(Role::Producer, 1), 1..=5).await;
    agent(&mut app, "billing").await;
    let invoices = consumer("invoices");
    let apply = Mode::Apply { why: Some("stuck") };
    let rule = |error| match error {
        ChangeError::Refused { rule, .. } => rule,
        error => panic!("{error:?}"),
    };
    let error = release_holder(&mut app, &invoices, apply).await.unwrap_err();
    assert_eq!(rule(error), "agent_consumer_unknown");
    let (session, _) = taken(&mut app, &invoices, 3).await;
    release_holder(&mut app, &invoices, Mode::Plan).await.unwrap();
    assert_eq!(save(&mut app, &saving(&invoices, session, 3)).await.unwrap(), Saved::Done, "only a plan");
    let before = release_holder(&mut app, &invoices, apply).await.unwrap();
    assert_eq!(before.holder.map(|holder| holder.session), Some(session));
    assert_eq!(save(&mut app, &saving(&invoices, session, 4)).await.unwrap(), Saved::Released);
    let (session, taken_again) = taken(&mut app, &invoices, 0).await;
    assert_eq!((taken_again.acked_seq, taken_again.generation), (3, 3));
    for wrong in [-1, 6] {
        let error = reset(&mut app, &invoices, wrong, apply).await.unwrap_err();
        assert_eq!(rule(error), "agent_consumer_position");
    }
    assert_eq!(reset(&mut app, &invoices, 1, apply).await.unwrap().acked_seq, 3);
    assert_eq!(save(&mut app, &saving(&invoices, session, 5)).await.unwrap(), Saved::Released);
    assert_eq!(acked(&mut app, &invoices).await, 1);
    let written: Vec<(String, String, String, String, Option<String>)> = sqlx::query_as(
        "SELECT action, subject, before::text, after::text, why FROM seqline.audit_log
         WHERE action LIKE 'agent.%' ORDER BY id",
    )
    .fetch_all(&mut app)
    .await
    .unwrap();
    let facts = |acked: i64, generation: i64, held: bool| {
        let holder = if held { r#", "holder_kind": "gateway""# } else { "" };
        format!(r#"{{"acked_seq": {acked}, "generation": {generation}{holder}}}"#)
    };
    let row = |action: &str, before: String, after: String| {
        (action.to_owned(), "billing/invoices".to_owned(), before, after, Some("stuck".to_owned()))
    };
    assert_eq!(
        written,
        [
            row("agent.release", facts(3, 1, true), facts(3, 2, false)),
            row("agent.reset", facts(3, 3, true), facts(1, 4, false)),
        ]
    );
}

#[tokio::test]
async fn people_delete_one_that_is_out_of_use_and_its_name_begins_anew() {
    let db = database().await;
    let mut app = db.connect(Role::App).await;
    agent(&mut app, "billing").await;
    let (invoices, letters) = (consumer("invoices"), consumer("letters"));
    let apply = Mode::Apply { why: Some("out of use") };
    let (session, before) = taken(&mut app, &invoices, 3).await;
    taken(&mut app, &letters, 4).await;
    for mode in [Mode::Plan, apply] {
        for unknown in [consumer("other"), AgentConsumer::new("support", "invoices").unwrap()] {
            match delete(&mut app, &unknown, mode).await.unwrap_err() {
                ChangeError::Refused { rule, .. } => assert_eq!(rule, "agent_consumer_unknown"),
                error => panic!("{error:?}"),
            }
        }
    }
    assert_eq!(delete(&mut app, &invoices, Mode::Plan).await.unwrap(), before);
    assert_eq!(cursor(&mut app, &invoices).await.unwrap().as_ref(), Some(&before), "only a plan");
    assert_eq!(delete(&mut app, &invoices, apply).await.unwrap(), before);
    assert_eq!(cursor(&mut app, &invoices).await.unwrap(), None);
    assert_eq!(save(&mut app, &saving(&invoices, session, 9)).await.unwrap(), Saved::Released);
    let (_, anew) = taken(&mut app, &invoices, 7).await;
    assert_eq!((anew.acked_seq, anew.generation), (7, 1));
    assert_eq!(save(&mut app, &saving(&invoices, session, 9)).await.unwrap(), Saved::Replaced);
    assert_eq!((acked(&mut app, &invoices).await, acked(&mut app, &letters).await), (7, 4));
    let written: Vec<(String, String, String, String, Option<String>)> = sqlx::query_as(
        "SELECT action, subject, before::text, after::text, why FROM seqline.audit_log
         WHERE action LIKE 'agent.%' ORDER BY id",
    )
    .fetch_all(&mut app)
    .await
    .unwrap();
    let facts = r#"{"acked_seq": 3, "generation": 1, "holder_kind": "gateway"}"#;
    let row = ["agent.delete", "billing/invoices", facts, "{}"].map(str::to_owned);
    let [action, subject, facts, after] = row;
    assert_eq!(written, [(action, subject, facts, after, Some("out of use".to_owned()))]);
}

#[tokio::test]
async fn they_are_listed_page_by_page() {
    let db = database().await;
    let mut app = db.connect(Role::App).await;
    for id in ["billing", "support"] {
        agent(&mut app, id).await;
        for name in ["a", "b"] {
            taken(&mut app, &AgentConsumer::new(id, name).unwrap(), 0).await;
        }
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = list(&mut app, None, after.as_ref(), 3).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.consumer.clone());
        seen.extend(page.iter().map(|cursor| cursor.consumer.to_string()));
    }
    assert_eq!(seen, ["billing/a", "billing/b", "support/a", "support/b"]);
    let of_one = list(&mut app, Some("support"), None, 10).await.unwrap();
    assert_eq!(of_one.len(), 2);
}
