//! Who sees which events: the same in SQL and for an event in hand.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use seqline::access::{Grant, Viewer, disable_principal, of_principal};
use seqline::{NewEvent, StoredEvent, append, begin, commit, read};
use seqline_testkit::{Role, TestDb};
use sqlx::PgConnection;

use super::{grant, users};

const PRINCIPALS: [&str; 4] = ["alex", "sam", "robin", "nobody"];
const ACTIONS: [&str; 4] = ["any", "message.read", "message", "order.read"];
const PARTS: [Option<&str>; 3] = [None, Some("a"), Some("b")];

fn any_of<T: Copy + std::fmt::Debug, const N: usize>(values: [T; N]) -> impl Strategy<Value = T> {
    (0..N).prop_map(move |index| values[index])
}

/// A scope of which each part is given or not.
fn scope() -> impl Strategy<Value = [Option<&'static str>; 3]> {
    [any_of(PARTS), any_of(PARTS), any_of(PARTS)]
}

fn grants() -> impl Strategy<Value = Vec<(usize, Grant)>> {
    let grant = (0..3_usize, any_of(ACTIONS), scope()).prop_map(|(who, action, [space, channel, thread])| {
        let own = |part: Option<&str>| part.map(str::to_owned);
        let (space_id, channel_id, thread_id) = (own(space), own(channel), own(thread));
        (who, Grant { action: action.to_owned(), space_id, channel_id, thread_id })
    });
    prop::collection::vec(grant, 0..8)
}

fn event() -> impl Strategy<Value = NewEvent> {
    (any_of(ACTIONS), scope(), prop::option::weighted(0.2, any_of(PRINCIPALS))).prop_map(
        |(action, [space, channel, thread], audience)| {
            NewEvent::builder("test.happened", "test", action)
                .space(space.unwrap_or_default())
                .channel(channel.unwrap_or_default())
                .thread(thread.unwrap_or_default())
                .audience(audience.unwrap_or_default())
                .build()
                .expect("the event is valid")
        },
    )
}

/// What the principal sees of these events by SQL.
async fn seen(connection: &mut PgConnection, principal: &str) -> Vec<i64> {
    sqlx::query_scalar(
        "SELECT e.seq FROM seqline.event_log e
         WHERE EXISTS (SELECT FROM seqline.visible_to($1, e.audience_principal_id, e.receive_action, e.space_id, e.channel_id, e.thread_id))
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
    let mut runner = TestRunner::new(Config::default());
    users(&mut app, &PRINCIPALS[..3]).await;
    disable_principal(&mut app, "robin", None).await.unwrap();

    let events: Vec<NewEvent> = (0..400).map(|_| event().new_tree(&mut runner).unwrap().current()).collect();
    let mut tx = begin(&db.app()).await.unwrap();
    append(&mut tx, &events).await.unwrap();
    commit(tx).await.unwrap();
    db.settled().await;
    let events = read::events_after(&mut app, 0, 1_000).await.unwrap();

    let mut some = 0;
    for _ in 0..150 {
        let grants = grants().new_tree(&mut runner).unwrap().current();
        sqlx::query("DELETE FROM seqline.grants").execute(&mut app).await.unwrap();
        for (who, grant) in &grants {
            sqlx::query(
                "INSERT INTO seqline.grants (principal_id, action, space_id, channel_id, thread_id)
                 VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
            )
            .bind(PRINCIPALS[*who])
            .bind(&grant.action)
            .bind(&grant.space_id)
            .bind(&grant.channel_id)
            .bind(&grant.thread_id)
            .execute(&mut app)
            .await
            .unwrap();
        }
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
         WHERE EXISTS (SELECT FROM seqline.visible_to('alex', e.audience_principal_id, e.receive_action, e.space_id, e.channel_id, e.thread_id))",
    )
    .fetch_all(&mut db.connect(Role::App).await)
    .await
    .unwrap();
    let plan = plan.join("\n");
    assert!(!plan.contains("visible_to"), "{plan}");
    assert!(plan.contains("seqline.grants"), "{plan}");
}
