//! What one transaction gets: the next numbers, together, in append order, announced once.

use seqline_testkit::{Role, TestDb, settled};
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};

use super::{DEADLINE, hold_numbering_lock};
use crate::support::{append, assert_nothing_staged, event, log, numbers};

/// A listener on the log's channel.
async fn listener(db: &TestDb) -> PgListener {
    let mut listener = PgListener::connect_with(&db.reader()).await.unwrap();
    listener.listen("event_log").await.unwrap();
    listener
}

/// Everything that was announced until now.
async fn announced(listener: &mut PgListener, pool: &PgPool) -> Vec<String> {
    settled(pool).await;
    sqlx::query("SELECT pg_notify('event_log', 'end of test')").execute(pool).await.unwrap();
    let mut payloads = Vec::new();
    let collecting = async {
        loop {
            let payload = listener.recv().await.unwrap().payload().to_owned();
            if payload == "end of test" {
                break;
            }
            payloads.push(payload);
        }
    };
    tokio::time::timeout(DEADLINE, collecting).await.expect("the last notification arrives");
    payloads
}

#[tokio::test]
async fn a_unit_of_one_gets_1_and_a_unit_of_three_gets_2_to_4() {
    let db = TestDb::new().await;
    let mut ids = append(&db.producer(), [10]).await;
    ids.extend(append(&db.producer(), [20, 21, 22]).await);
    let expected: Vec<_> = (1..=4).zip(ids).collect();
    assert_eq!(log(&mut db.connect(Role::Reader).await).await, expected);
}

#[tokio::test]
async fn each_unit_is_announced_once_with_its_last_number() {
    let db = TestDb::new().await;
    let mut listener = listener(&db).await;
    append(&db.producer(), [1]).await;
    append(&db.producer(), [2, 3, 4]).await;
    // Not in an empty log any more: numbered in another way than the first.
    append(&db.producer(), [5]).await;
    assert_eq!(announced(&mut listener, &db.app()).await, ["1", "4", "5"]);
}

#[tokio::test]
async fn a_transaction_without_events_is_not_announced() {
    let db = TestDb::new().await;
    let mut listener = listener(&db).await;
    sqlx::raw_sql("BEGIN; CREATE TABLE orders (); COMMIT").execute(&db.app()).await.unwrap();
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(announced(&mut listener, &db.app()).await, [""; 0]);
}

#[tokio::test]
async fn a_transaction_without_events_does_not_need_the_numbering_lock() {
    let db = TestDb::at_commit().await;
    let _holder = hold_numbering_lock(&db).await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    sqlx::raw_sql("CREATE TABLE orders (); SAVEPOINT s").execute(&mut *tx).await.unwrap();
    seqline::append(&mut tx, &[event(1)]).await.unwrap();
    sqlx::raw_sql("ROLLBACK TO s").execute(&mut *tx).await.unwrap();
    seqline::append(&mut tx, &[]).await.unwrap();
    // Were it numbered, it would wait in vain and fail.
    seqline::commit(tx).await.unwrap();
}

#[tokio::test]
async fn nothing_has_a_number_before_commit() {
    let db = TestDb::new().await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    let ids = seqline::append(&mut tx, &[event(1)]).await.unwrap();
    assert_eq!(seqline::read::head(&mut tx).await.unwrap(), 0);
    assert_eq!(seqline::read::seq_of(&mut tx, ids[0]).await.unwrap(), None);
}

#[tokio::test]
async fn several_appends_in_one_transaction_are_one_unit() {
    let db = TestDb::new().await;
    let mut listener = listener(&db).await;
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    let mut ids = Vec::new();
    for numbers in [vec![1], vec![2, 3, 4], vec![], vec![5], vec![6, 7]] {
        let events: Vec<_> = numbers.into_iter().map(event).collect();
        ids.extend(seqline::append(&mut tx, &events).await.unwrap());
        // Somebody else's unit goes in front, not in between.
        append(&db.producer(), [100]).await;
    }
    seqline::commit(tx).await.unwrap();
    assert_eq!(announced(&mut listener, &db.app()).await, ["1", "2", "3", "4", "5", "12"]);
    let expected: Vec<_> = (6..=12).zip(ids).collect();
    assert_eq!(log(&mut db.connect(Role::Reader).await).await[5..], expected);
}

const APPEND: &str = "SELECT seqline.append('test.happened', '{\"n\": %}', 'test', 'any');";

/// An append of the event with this payload number, as text.
fn append_sql(n: i64) -> String {
    APPEND.replace('%', &n.to_string())
}

async fn run(connection: &mut PgConnection, script: String) {
    sqlx::raw_sql(AssertSqlSafe(script)).execute(connection).await.unwrap();
}

#[tokio::test]
async fn a_string_of_statements_behaves_like_the_client_library() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    let (one, two, three) = (append_sql(1), append_sql(2), append_sql(3));
    run(&mut producer, format!("BEGIN; {one} {two} COMMIT; BEGIN; {three} ROLLBACK; BEGIN; {three} COMMIT"))
        .await;
    // Without BEGIN the whole string is one transaction.
    run(&mut producer, format!("{} {}", append_sql(4), append_sql(5))).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_chained_transaction_is_a_unit_of_its_own() {
    let db = TestDb::at_commit().await;
    let mut listener = listener(&db).await;
    let mut producer = db.connect(Role::Producer).await;
    let [one, two, three, four] = [1, 2, 3, 4].map(append_sql);
    run(
        &mut producer,
        format!("BEGIN; {one} {two} COMMIT AND CHAIN; {three} ROLLBACK AND CHAIN; {four} COMMIT"),
    )
    .await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2, 4]);
    assert_eq!(announced(&mut listener, &db.app()).await, ["2", "3"]);
}

#[tokio::test]
async fn a_procedure_that_commits_makes_a_unit_at_each_commit() {
    let db = TestDb::at_commit().await;
    let mut listener = listener(&db).await;
    let mut app = db.connect(Role::App).await;
    sqlx::raw_sql(
        "CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
         BEGIN
             FOR n IN 1..6 LOOP
                 PERFORM seqline.append('test.happened', jsonb_build_object('n', n), 'test', 'any');
                 PERFORM seqline.append('test.happened', jsonb_build_object('n', n), 'test', 'any');
                 IF n % 3 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
             END LOOP;
         END
         $$;",
    )
    .execute(&mut app)
    .await
    .unwrap();
    sqlx::raw_sql("CALL work()").execute(&mut app).await.unwrap();
    assert_eq!(numbers(&mut app).await, [1, 1, 2, 2, 4, 4, 5, 5]);
    assert_eq!(announced(&mut listener, &db.app()).await, ["2", "4", "6", "8"]);
}

#[tokio::test]
async fn what_the_application_appends_after_numbering_still_follows_without_a_hole() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    // Puts itself behind everything that is queued, many more times than numbering does, and then appends.
    sqlx::raw_sql(
        "CREATE TABLE deep (pass integer NOT NULL DEFAULT 0);
         CREATE FUNCTION go_deep() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF NEW.pass < 30 THEN
                 UPDATE deep SET pass = NEW.pass + 1 WHERE ctid = NEW.ctid;
             ELSE
                 PERFORM seqline.append('test.happened', '{\"n\": 2}', 'test', 'any');
             END IF;
             RETURN NULL;
         END
         $$;
         CREATE CONSTRAINT TRIGGER go_deep AFTER INSERT OR UPDATE ON deep
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION go_deep();",
    )
    .execute(&mut app)
    .await
    .unwrap();
    run(
        &mut app,
        format!("BEGIN; INSERT INTO deep DEFAULT VALUES; {} COMMIT; {}", append_sql(1), append_sql(3)),
    )
    .await;
    assert_eq!(log(&mut app).await.iter().map(|(seq, _)| *seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(numbers(&mut app).await, [1, 2, 3]);
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

#[tokio::test]
async fn an_append_outside_a_transaction_is_committed_by_its_statement() {
    let db = TestDb::new().await;
    let mut producer = db.connect(Role::Producer).await;
    run(&mut producer, append_sql(1)).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1]);
}
