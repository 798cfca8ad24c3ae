//! What reading for somebody costs with many partitions and many grants.

use seqline::access::Grant;
use seqline::consumer::Filter;
use seqline::{NewEvent, append, begin, commit, read};
use seqline_testkit::{Role, TestDb};
use sqlx::PgConnection;

use super::{grant, users};
use crate::partitions::{ensure, set_sizes, small_partitions};

/// The log and two of its partitions with seven indexes each, and the small tables: much less than one for every partition.
const A_HANDFUL: i64 = 64;

async fn locks(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_locks l WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation'
         AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
         AND l.relation IN (SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'seqline'::regnamespace)",
    )
    .fetch_one(connection)
    .await
    .unwrap()
}

#[tokio::test]
async fn reading_for_somebody_locks_a_handful_of_relations_with_300_partitions() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 300).await;
    let mut app = db.connect(Role::App).await;
    users(&mut app, &["alex"]).await;
    grant(&mut app, "alex", Grant::of("read").space("shop-1")).await;
    let events: Vec<NewEvent> = (0..2_995)
        .map(|n| {
            let event = NewEvent::builder("test.happened", "test", "read").space("shop-1");
            event.resource_id(format!("{}", n % 599)).build().unwrap()
        })
        .collect();
    let mut tx = begin(&db.app()).await.unwrap();
    append(&mut tx, &events).await.unwrap();
    commit(tx).await.unwrap();
    db.settled().await;
    set_sizes(&db, 10, 2).await;
    ensure(&db.app()).await;

    let id = read::events_after(&mut app, 1_499, 1).await.unwrap()[0].id;
    for after in [0, 1_500, 2_993] {
        let mut tx = begin(&db.app()).await.unwrap();
        let page = read::visible_after(&mut tx, "alex", after, &Filter::everything(), 5, 10).await.unwrap();
        assert_eq!(page.events.len(), 5.min(2_995 - usize::try_from(after).unwrap()));
        let held = locks(&mut tx).await;
        assert!((1..=A_HANDFUL).contains(&held), "after {after}: {held} locks");
    }
    let mut tx = begin(&db.app()).await.unwrap();
    let history = read::history_after(&mut tx, "alex", "test", "17", 0, 100).await.unwrap();
    assert_eq!(
        history.events.iter().map(|event| event.seq).collect::<Vec<_>>(),
        [18, 617, 1_216, 1_815, 2_414]
    );
    assert_eq!(history.position, 2_995);
    let held = locks(&mut tx).await;
    assert!((1..=A_HANDFUL).contains(&held), "a history: {held} locks");
    drop(tx);
    let mut tx = begin(&db.app()).await.unwrap();
    assert!(read::visible_event(&mut tx, "alex", id).await.unwrap().is_some());
    let held = locks(&mut tx).await;
    assert!((1..=A_HANDFUL).contains(&held), "one event: {held} locks");
}
