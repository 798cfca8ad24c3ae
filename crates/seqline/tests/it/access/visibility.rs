//! Who sees which events: the same in SQL and for an event in hand.

use seqline::access::{Grant, Viewer, disable_principal, of_principal};
use seqline::{NewEvent, StoredEvent, append, begin, commit};
use seqline_testkit::{Role, TestDb};
use sqlx::PgConnection;

use super::random::{PRINCIPALS, Random};
use super::{grant, users};

/// What the principal sees of these events by SQL.
async fn seen(connection: &mut PgConnection, principal: &str) -> Vec<i64> {
    sqlx::query_scalar(
        "SELECT e.seq FROM seqline.event_log e
         CROSS JOIN LATERAL seqline.visible_to($1, e.audience_principal_id, e.receive_action, e.space_id, e.channel_id, e.thread_id)
         ORDER BY e.seq",
    )
    .bind(principal)
    .fetch_all(connection)
    .await
    .expect("the log can be read")
}

fn seen_by(viewer: &Viewer, events: &[StoredEvent]) -> Vec<i64> {
    events.iter().filter(|event| viewer.sees(event)).map(|event| event.seq).collect()
}

#[tokio::test]
async fn sql_and_the_pure_function_agree_for_any_principals_grants_and_events() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    let mut random = Random::new();
    let events = random.log(&db, 400).await;

    let mut some = 0;
    for _ in 0..150 {
        let grants = random.grants(&mut app).await;
        for principal in PRINCIPALS {
            let by_sql = seen(&mut app, principal).await;
            let access = of_principal(&mut app, principal).await.unwrap();
            let by_viewer = access.as_ref().map_or_else(Vec::new, |access| seen_by(&access.viewer, &events));
            assert_eq!(by_sql, by_viewer, "what {principal} sees with {grants:?}");
            assert_eq!(access.is_some(), matches!(principal, "alex" | "sam"));
            some += by_sql.len();
        }
    }
    assert!(some > 10_000, "{some}: they agree about nothing much");
}

#[tokio::test]
async fn these_are_seen_and_those_are_not() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    users(&mut app, &["alex", "sam", "robin"]).await;
    grant(&mut app, "alex", Grant::of("message.read").space("shop-1")).await;
    grant(&mut app, "sam", Grant::of("message.read").channel("support").thread("17")).await;
    grant(&mut app, "robin", Grant::of("message.read")).await;

    // Action, space, channel, thread, audience.
    let events = [
        ("any", "", "", "", ""),
        ("message.read", "shop-1", "support", "17", ""),
        ("message.read", "shop-2", "support", "17", ""),
        ("message.read", "", "", "", ""),
        ("message.read", "", "support", "", ""),
        ("message.write", "shop-1", "support", "17", ""),
        ("message.read", "shop-1", "", "", "sam"),
        ("self", "", "", "", "alex"),
        ("any", "", "", "", "unknown"),
    ];
    let mut tx = begin(&db.app()).await.unwrap();
    for (action, space, channel, thread, audience) in events {
        let event = NewEvent::builder("test.happened", "test", action).space(space).channel(channel);
        let event = event.thread(thread).audience(audience).build().unwrap();
        append(&mut tx, &[event]).await.unwrap();
    }
    commit(tx).await.unwrap();
    db.settled().await;

    assert_eq!(seen(&mut app, "alex").await, [1, 2, 8], "a grant on a space covers its channels");
    assert_eq!(seen(&mut app, "sam").await, [1, 2, 3, 7], "each part that is given has to be equal");
    assert_eq!(
        seen(&mut app, "robin").await,
        [1, 2, 3, 4, 5],
        "a grant without a scope covers all but what is for one"
    );
    assert_eq!(seen(&mut app, "unknown").await, [0; 0], "nobody has this id");
    disable_principal(&mut app, "robin", None).await.unwrap();
    assert_eq!(seen(&mut app, "robin").await, [0; 0]);
}

/// A function that is called for each event costs more than reading it.
#[tokio::test]
async fn planning_puts_the_predicate_in_the_place_of_its_call() {
    let db = TestDb::new().await;
    let plan: Vec<String> = sqlx::query_scalar(
        "EXPLAIN (VERBOSE) SELECT e.seq FROM seqline.event_log e
         CROSS JOIN LATERAL seqline.visible_to('alex', e.audience_principal_id, e.receive_action, e.space_id, e.channel_id, e.thread_id)",
    )
    .fetch_all(&mut db.connect(Role::App).await)
    .await
    .unwrap();
    let plan = plan.join("\n");
    assert!(!plan.contains("visible_to"), "{plan}");
    assert!(plan.contains("seqline.grants"), "{plan}");
}
