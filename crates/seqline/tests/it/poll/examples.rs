//! The examples run as they are: events in, projection out, also when they are killed in the middle.

mod jobs;
pub(crate) mod programs;

use seqline::{NewEvent, Payload};
use seqline_testkit::{Role, TestDb, eventually, settled};
use sqlx::{AssertSqlSafe, PgPool};

use self::programs::{Program, psql, python, rust};
use super::*;

const SQL: &str = include_str!("../../../../../examples/sql/consume.sql");
const PYTHON: &str = include_str!("../../../../../examples/python/consume.py");
const RUST: &str = include_str!("../../../examples/projection.rs");
const GUIDE: &str = include_str!("../../../../../docs/guide/consume.md");

/// A customer, the number of orders and what they were worth.
type Total = (String, i64, i64);

const CUSTOMERS: [&str; 3] = ["Alex", "Sam", "Robin"];

/// Appends orders of all customers, and as many events that no projection wants.
async fn sell(pool: &PgPool, orders: i64) {
    let mut tx = seqline::begin(pool).await.unwrap();
    for order in 0..orders {
        let payload = format!(r#"{{"customer": "{}", "amount": {order}}}"#, CUSTOMERS[order as usize % 3]);
        let events = ["order.paid", "order.shipped"].map(|event_type| {
            let payload = Payload::from_json(&payload).unwrap();
            NewEvent::builder(event_type, "order", "any").payload(payload).build().unwrap()
        });
        seqline::append(&mut tx, &events).await.unwrap();
    }
    seqline::commit(tx).await.unwrap();
    settled(pool).await;
}

/// What the log says, worked out here and now.
async fn expected(db: &TestDb) -> Vec<Total> {
    sqlx::query_as(
        "SELECT payload ->> 'customer', count(*), sum((payload ->> 'amount')::bigint)::bigint
         FROM seqline.event_log WHERE type = 'order.paid' GROUP BY 1 ORDER BY 1",
    )
    .fetch_all(&db.reader())
    .await
    .unwrap()
}

/// One of the two programs and what it keeps.
struct Example {
    program: fn(&TestDb) -> Program,
    role: Role,
    /// Of the consumer and of the table.
    name: &'static str,
}

const IN_PYTHON: Example =
    Example { program: |db| python(db, "consume"), role: Role::Consumer, name: "customer_totals" };
const IN_RUST: Example =
    Example { program: |db| rust(db, "projection"), role: Role::App, name: "order_totals" };

impl Example {
    async fn totals(&self, db: &TestDb) -> Vec<Total> {
        let sql = format!("SELECT customer, orders, amount FROM {} ORDER BY customer", self.name);
        sqlx::query_as(AssertSqlSafe(sql)).fetch_all(&db.admin()).await.unwrap()
    }

    async fn assert_exact(&self, db: &TestDb) {
        let expected = expected(db).await;
        assert_eq!(self.totals(db).await, expected);
        assert_eq!(expected.len(), 3);
    }

    async fn handles_what_is_there_and_ends(&self) {
        let db = TestDb::new().await;
        sell(&db.producer(), 30).await;
        (self.program)(&db).arg("--once").succeed().await;
        self.assert_exact(&db).await;
        sell(&db.producer(), 3).await;
        for _ in 0..2 {
            (self.program)(&db).arg("--once").succeed().await;
            self.assert_exact(&db).await;
        }
    }

    /// Makes each order take its time, so that there is a middle.
    async fn slow_down(&self, db: &TestDb) {
        let sql = format!(
            "CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN PERFORM pg_sleep(0.001); RETURN NEW; END';
             CREATE TRIGGER take_time BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION take_time()",
            self.name
        );
        run(&mut db.connect(self.role).await, &sql).await;
    }

    /// Counts something about the sessions of the program.
    async fn sessions(&self, db: &TestDb, counted: &str) -> i64 {
        let sql = format!(
            "SELECT count({counted}) FROM pg_stat_activity WHERE datname = current_database() AND usename = '{}'",
            self.role.login()
        );
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&db.admin()).await.unwrap()
    }

    async fn is_at_work(&self, db: &TestDb) -> bool {
        self.sessions(db, "CASE WHEN wait_event = 'PgSleep' THEN 1 END").await > 0
    }

    async fn is_exact_although_it_was_killed(&self) {
        let db = TestDb::new().await;
        (self.program)(&db).arg("--once").succeed().await;
        self.slow_down(&db).await;
        sell(&db.producer(), 1_000).await;
        for killed in 0..3 {
            let before = cursor(&db, self.name).await;
            let mut running = (self.program)(&db).start();
            eventually(DEADLINE, "a round after another", async || {
                cursor(&db, self.name).await > before && self.is_at_work(&db).await
            })
            .await;
            running.kill().await.unwrap();
            assert!(cursor(&db, self.name).await < 2_000, "all was handled before kill {killed}");
            // Its session notices a little later. Until then the consumer is in hand.
            eventually(DEADLINE, "the end of its session", async || self.sessions(&db, "*").await == 0).await;
        }
        (self.program)(&db).arg("--once").succeed().await;
        self.assert_exact(&db).await;
        assert_eq!(cursor(&db, self.name).await, 2_000);
    }

    async fn follows_until_it_is_interrupted(&self) {
        let db = TestDb::new().await;
        let running = (self.program)(&db).start();
        for _ in 0..2 {
            sell(&db.producer(), 6).await;
            eventually(DEADLINE, "the totals", async || {
                // The table is made by the program.
                let made = "SELECT to_regclass($1) IS NOT NULL";
                sqlx::query_scalar::<_, bool>(made).bind(self.name).fetch_one(&db.admin()).await.unwrap()
                    && self.totals(&db).await == expected(&db).await
            })
            .await;
        }
        programs::interrupt(running).await;
        assert_eq!(cursor(&db, self.name).await, 24);
    }

    async fn goes_on_when_its_sessions_are_ended(&self) {
        let db = TestDb::new().await;
        (self.program)(&db).arg("--once").succeed().await;
        self.slow_down(&db).await;
        sell(&db.producer(), 300).await;
        let mut running = (self.program)(&db).start();
        for _ in 0..2 {
            eventually(DEADLINE, "a round", async || self.is_at_work(&db).await).await;
            self.sessions(&db, "pg_terminate_backend(pid)").await;
        }
        eventually(DEADLINE, "the totals", async || self.totals(&db).await == expected(&db).await).await;
        assert!(running.try_wait().unwrap().is_none(), "it ended");
        programs::interrupt(running).await;
    }
}

#[tokio::test]
async fn the_python_example_handles_what_is_there_and_ends() {
    IN_PYTHON.handles_what_is_there_and_ends().await;
}

#[tokio::test]
async fn the_rust_example_handles_what_is_there_and_ends() {
    IN_RUST.handles_what_is_there_and_ends().await;
}

#[tokio::test]
async fn the_python_example_is_exact_although_it_was_killed() {
    IN_PYTHON.is_exact_although_it_was_killed().await;
}

#[tokio::test]
async fn the_rust_example_is_exact_although_it_was_killed() {
    IN_RUST.is_exact_although_it_was_killed().await;
}

#[tokio::test]
async fn the_python_example_follows_until_it_is_interrupted() {
    IN_PYTHON.follows_until_it_is_interrupted().await;
}

#[tokio::test]
async fn the_rust_example_follows_until_it_is_interrupted() {
    IN_RUST.follows_until_it_is_interrupted().await;
}

#[tokio::test]
async fn the_python_example_goes_on_when_its_sessions_are_ended() {
    IN_PYTHON.goes_on_when_its_sessions_are_ended().await;
}

#[tokio::test]
async fn the_rust_example_goes_on_when_its_sessions_are_ended() {
    IN_RUST.goes_on_when_its_sessions_are_ended().await;
}

#[tokio::test]
async fn the_python_example_that_cannot_begin_says_why_and_fails() {
    let db = TestDb::new().await;
    let said =
        python(&db, "consume").env("SEQLINE_DATABASE_URL", &db.url(Role::Nobody)).arg("--once").fail().await;
    assert!(said.starts_with("error: permission denied for schema"), "{said}");
    let said = python(&db, "consume").env("SEQLINE_DATABASE_URL", "").arg("--once").fail().await;
    assert!(said.ends_with("error: set SEQLINE_DATABASE_URL\n"), "{said}");
}

#[tokio::test]
async fn an_example_that_cannot_handle_an_event_does_not_say_what_is_in_it() {
    let payload = r#"{"customer": "Alex", "amount": "swordfish"}"#;
    let sql = format!("SELECT seqline.append('order.paid', '{payload}', 'order', 'any')");
    for example in [&IN_PYTHON, &IN_RUST] {
        let db = TestDb::new().await;
        (example.program)(&db).arg("--once").succeed().await;
        run(&mut db.connect(Role::Producer).await, &sql).await;
        db.settled().await;
        let said = (example.program)(&db).arg("--once").fail().await;
        assert!(!said.is_empty() && !said.contains("swordfish"), "{said}");
    }
}

async fn counts(db: &TestDb) -> Vec<(String, i64)> {
    sqlx::query_as("SELECT type, events FROM event_counts ORDER BY type")
        .fetch_all(&db.admin())
        .await
        .unwrap()
}

#[tokio::test]
async fn the_sql_example_counts_each_event_once_however_often_it_is_run() {
    let db = TestDb::new().await;
    psql(&db, SQL).await;
    assert_eq!(counts(&db).await, []);
    for orders in [5, 10, 15] {
        sell(&db.producer(), 5).await;
        for _ in 0..2 {
            psql(&db, SQL).await;
            let expected = ["order.paid", "order.shipped"].map(|event_type| (event_type.to_owned(), orders));
            assert_eq!(counts(&db).await, expected);
        }
    }
}

/// The blocks of the guide in this language.
fn blocks(language: &str) -> Vec<&'static str> {
    let beginning = format!("```{language}\n");
    let blocks = GUIDE.split(&beginning).skip(1);
    blocks.map(|rest| rest.split_once("```").expect("the block ends").0).collect()
}

#[test]
fn the_guide_shows_the_rust_example_as_it_runs() {
    let blocks = blocks("rust");
    assert!(blocks.len() > 1);
    for block in blocks {
        // The example may have it further to the right.
        let within = |indent: &str| {
            let lines = block
                .lines()
                .map(|line| if line.is_empty() { String::new() } else { format!("{indent}{line}") });
            RUST.contains(&lines.collect::<Vec<_>>().join("\n"))
        };
        assert!(within("") || within("    "), "the example has no such lines:\n{block}");
    }
}

#[test]
fn the_guide_shows_the_python_example_as_it_runs() {
    let blocks = blocks("python");
    assert!(!blocks.is_empty());
    for block in blocks {
        assert!(PYTHON.contains(block.trim_end()), "the example has no such lines:\n{block}");
    }
}

#[tokio::test]
async fn the_sql_of_the_guide_runs_and_counts_each_event_once() {
    let db = TestDb::new().await;
    sell(&db.producer(), 5).await;
    let mut session = session(&db).await;
    let blocks = blocks("sql");
    assert!(blocks.len() > 1);
    for block in &blocks {
        run(&mut session, block).await;
    }
    let expected = ["order.paid", "order.shipped"].map(|event_type| (event_type.to_owned(), 5));
    assert_eq!(counts(&db).await, expected);
}
