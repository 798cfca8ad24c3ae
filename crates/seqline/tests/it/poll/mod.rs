//! `seqline.register_consumer` and `seqline.poll`, called by a login that may do nothing else.

mod arguments;
pub(crate) mod examples;
mod filters;
mod isolation;
mod lanes;
mod loss;
mod random;
mod registration;
mod rights;
mod rounds;
mod scale;
mod workers;

use std::time::Duration;

use seqline_testkit::{Role, TestDb};
use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, PgConnection};

/// For what has to come at all.
const DEADLINE: Duration = Duration::from_secs(60);

/// What PostgreSQL said.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    sqlstate: String,
    constraint: Option<String>,
    message: String,
    hint: Option<String>,
}

impl Refusal {
    /// What a program looks at.
    fn rule(&self) -> (&str, &str) {
        (&self.sqlstate, self.constraint.as_deref().unwrap_or_default())
    }
}

fn refusal(error: &sqlx::Error) -> Refusal {
    let error = error.as_database_error().unwrap_or_else(|| panic!("not from the server: {error:?}"));
    let error: &PgDatabaseError = error.downcast_ref();
    Refusal {
        sqlstate: error.code().to_owned(),
        constraint: error.constraint().map(str::to_owned),
        message: error.message().to_owned(),
        hint: error.hint().map(str::to_owned),
    }
}

/// A session that may poll, in which nothing may have to wait: whoever waits fails.
async fn session(db: &TestDb) -> PgConnection {
    let mut session = db.connect(Role::Consumer).await;
    run(&mut session, "SET lock_timeout = '1ms'; SET statement_timeout = '20s'").await;
    session
}

async fn run(connection: &mut PgConnection, sql: &str) {
    if let Err(error) = sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await {
        panic!("{sql}: {error}");
    }
}

async fn run_refused(connection: &mut PgConnection, sql: &str) -> Refusal {
    match sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await {
        Ok(_) => panic!("accepted: {sql}"),
        Err(error) => refusal(&error),
    }
}

async fn try_register(
    connection: &mut PgConnection,
    name: Option<&str>,
    start_at: Option<&str>,
) -> Result<i64, Refusal> {
    let registered = sqlx::query_scalar("SELECT seqline.register_consumer($1, $2)")
        .bind(name)
        .bind(start_at)
        .fetch_one(connection)
        .await;
    registered.map_err(|error| refusal(&error))
}

async fn register(connection: &mut PgConnection, name: &str, start_at: &str) -> i64 {
    try_register(connection, Some(name), Some(start_at)).await.unwrap_or_else(|refused| panic!("{refused:?}"))
}

async fn try_poll(
    connection: &mut PgConnection,
    consumer: Option<&str>,
    max_events: Option<i32>,
) -> Result<Vec<i64>, Refusal> {
    let polled = sqlx::query_scalar("SELECT seq FROM seqline.poll($1, $2)")
        .bind(consumer)
        .bind(max_events)
        .fetch_all(connection)
        .await;
    polled.map_err(|error| refusal(&error))
}

/// The numbers of the next events, in the order in which they came.
async fn poll(connection: &mut PgConnection, consumer: &str, max_events: i32) -> Vec<i64> {
    try_poll(connection, Some(consumer), Some(max_events))
        .await
        .unwrap_or_else(|refused| panic!("{refused:?}"))
}

/// What is refused, in a transaction that is given up with it.
async fn poll_refused(connection: &mut PgConnection, consumer: &str, max_events: i32) -> Refusal {
    match try_poll(connection, Some(consumer), Some(max_events)).await {
        Ok(seqs) => panic!("returned {seqs:?}"),
        Err(refused) => refused,
    }
}

/// Where a consumer stands.
async fn cursor(db: &TestDb, name: &str) -> i64 {
    sqlx::query_scalar("SELECT last_seq FROM seqline.event_consumer_cursors WHERE name = $1")
        .bind(name)
        .fetch_one(&db.admin())
        .await
        .expect("the consumer has a cursor")
}

async fn lost_ranges(db: &TestDb) -> Vec<(String, i64, i64)> {
    sqlx::query_as("SELECT consumer, lost_from, lost_to FROM seqline.lost_ranges ORDER BY consumer, id")
        .fetch_all(&db.admin())
        .await
        .expect("a superuser reads everything")
}

/// A database with these many events, and a session with a consumer `totals` that has seen none of them.
async fn with_events(count: i64) -> (TestDb, PgConnection) {
    let db = TestDb::new().await;
    if count > 0 {
        crate::support::append(&db.producer(), 1..=count).await;
    }
    let mut session = session(&db).await;
    register(&mut session, "totals", "oldest").await;
    (db, session)
}
