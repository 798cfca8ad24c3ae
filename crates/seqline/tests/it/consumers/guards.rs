//! What the code of an application can do to a worker, and what it finds out.

use std::any::Any;
use std::error::Error;
use std::fmt;

use super::*;

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("dropped"));
    }
}

/// An error that breaks whoever looks at it.
#[derive(Debug)]
enum Trap {
    InItsText,
    InItsCause,
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InItsText => std::panic::resume_unwind(Box::new("sprung")),
            Self::InItsCause => f.write_str("trap"),
        }
    }
}

impl Error for Trap {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::InItsText => None,
            Self::InItsCause => std::panic::resume_unwind(Box::new("sprung")),
        }
    }
}

/// Runs a consumer with this handler until it has failed with a panic, beside a healthy one that goes on; then lets it
/// recover.
async fn outlives(handler: impl Handler, switch: Switch, config: ConsumerConfig) {
    // So that errors are looked at.
    let (captured, _guard) = Captured::start();
    let db = database().await;
    append(&db.producer(), [1]).await;
    let list = [Consumer::new(name("healthy"), plain()), probe(handler)];
    let running = Running::on(&db, config, Clock::system(), list);
    eventually(DEADLINE, "the panic", async || {
        state_of(&db, PROBE).await.last_failure.is_some_and(|failure| failure.error_type == "panic")
    })
    .await;
    append(&db.producer(), [2]).await;
    reaches(&db, "healthy", 2).await;
    assert_eq!((cursor(&db, PROBE).await, effects_of(&db, PROBE).await), (0, vec![]));
    switch.off();
    reaches(&db, PROBE, 2).await;
    eventually(DEADLINE, "the end", async || captured.count("event consumer recovered") == 1).await;
    running.stops().await;
}

/// Does this while the switch is on, else what a handler should.
fn while_on(
    switch: &Switch,
    what: impl Fn() -> BoxFuture<'static, Result<(), HandlerError>> + Send + Sync + 'static,
) -> impl Handler {
    let on = switch.on.clone();
    acting(move |_, _| if on.load(Ordering::SeqCst) { what() } else { Box::pin(async { Ok(()) }) })
}

#[tokio::test]
async fn a_handler_that_panics_when_its_time_is_over_fails_the_round_and_not_the_worker() {
    let switch = Switch::on();
    let handler = while_on(&switch, || {
        Box::pin(async {
            let _bomb = Bomb;
            std::future::pending().await
        })
    });
    outlives(handler, switch, ConsumerConfig { event_timeout: SHORT, ..quick() }).await;
}

#[tokio::test]
async fn a_panic_that_carries_another_panic_fails_the_round_and_not_the_worker() {
    let switch = Switch::on();
    let handler = while_on(&switch, || {
        Box::pin(async {
            let bomb: Box<dyn Any + Send> = Box::new(Bomb);
            std::panic::resume_unwind(bomb)
        })
    });
    outlives(handler, switch, quick()).await;
}

#[tokio::test]
async fn an_error_that_panics_when_its_cause_is_asked_for_fails_the_round_and_not_the_worker() {
    let switch = Switch::on();
    let handler = while_on(&switch, || Box::pin(async { Err(Trap::InItsCause.into()) }));
    outlives(handler, switch, quick()).await;
}

#[tokio::test]
async fn an_error_that_panics_when_it_is_shown_fails_the_round_and_not_the_worker() {
    let switch = Switch::on();
    let handler = while_on(&switch, || Box::pin(async { Err(Trap::InItsText.into()) }));
    outlives(handler, switch, quick()).await;
}

#[tokio::test]
async fn each_kind_of_failure_is_logged_once_until_the_consumer_has_recovered() {
    let (captured, _guard) = Captured::start();
    let db = database().await;
    append(&db.producer(), 1..=2).await;
    let switch = Switch::on();
    let running = Running::on(&db, quick(), Clock::system(), [probe(switch.failing_at(1))]);
    eventually(DEADLINE, "attempts", async || switch.times() >= 4).await;
    // The database is taken back meanwhile.
    set_cursor(&db, 10).await;
    let fails_with = async |error_type: &str| {
        eventually(DEADLINE, error_type, async || {
            state_of(&db, PROBE).await.last_failure.is_some_and(|failure| failure.error_type == error_type)
        })
        .await;
    };
    fails_with("ahead_of_head").await;
    set_cursor(&db, 0).await;
    fails_with("handler").await;
    switch.off();
    reaches(&db, PROBE, 2).await;
    eventually(DEADLINE, "the end", async || captured.count("event consumer recovered") == 1).await;
    let errors = captured.said(tracing::Level::ERROR);
    let of = |error_type: &str| errors.iter().filter(|line| line.contains(error_type)).count();
    assert_eq!((errors.len(), of("handler"), of("ahead_of_head")), (2, 1, 1), "{errors:?}");
    running.stops().await;
}

/// Takes so long for each event and sends no statement.
struct Silent(Duration);

impl Handler for Silent {
    async fn handle(&self, _: &StoredEvent, _: &mut Round<'_>) -> Result<(), HandlerError> {
        Clock::system().sleep(self.0).await;
        Ok(())
    }
}

#[tokio::test]
async fn a_round_whose_handlers_send_nothing_for_long_is_not_taken_for_dead() {
    let db = database().await;
    append(&db.producer(), 1..=10).await;
    let idle = 4 * SHORT;
    let config = ConsumerConfig { idle_in_tx_timeout: idle, ..config() };
    // Longer than that in all, each event far below.
    let config = ConsumerConfig { event_timeout: idle / 2, ..config };
    let list = [probe(Silent(idle / 5))];
    let consumers = consumers(db.app(), db.options(Role::App), config, Clock::system(), list);
    consumers.ensure().await.unwrap();
    assert_eq!(consumers.round(&name(PROBE)).await.unwrap().processed, 10);
}

#[tokio::test]
async fn a_round_that_the_server_ended_is_recorded() {
    let db = database().await;
    append(&db.producer(), [1]).await;
    let config = ConsumerConfig { idle_in_tx_timeout: SHORT, event_timeout: DEADLINE, ..quick() };
    let running = Running::on(&db, config, Clock::system(), [probe(Silent(2 * SHORT))]);
    eventually(DEADLINE, "the failure", async || {
        state_of(&db, PROBE).await.last_failure.is_some_and(|failure| failure.error_type == "database")
    })
    .await;
    running.stops().await;
}

#[tokio::test]
async fn a_session_that_is_read_only_by_default_handles_events() {
    let db = database().await;
    append(&db.producer(), 1..=2).await;
    let options = db.options(Role::App).options([("default_transaction_read_only", "on")]);
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let list = [probe(plain())];
    let consumers = consumers(pool, db.options(Role::App), config(), Clock::system(), list);
    consumers.ensure().await.unwrap();
    assert_eq!(consumers.round(&name(PROBE)).await.unwrap().processed, 2);
}

#[tokio::test]
async fn a_session_that_stays_in_the_way_of_new_cursors_does_not_collect_backends() {
    let db = database().await;
    let squatter = registers_and_stays(&db).await;
    let config = ConsumerConfig { statement_timeout: SHORT, lock_timeout: SHORT / 2, ..quick() };
    let (captured, _guard) = Captured::start();
    let running = Running::on(&db, config, Clock::system(), [probe(plain())]);
    // Several attempts later there is still one at most.
    let mut waited = std::collections::HashSet::new();
    eventually(DEADLINE, "five attempts", async || {
        let waiting: Vec<(i32, String)> = sqlx::query_as(
            "SELECT pid, query_start::text FROM pg_stat_activity WHERE datname = current_database()
             AND wait_event_type = 'Lock' AND query LIKE '%ensure_consumer%'",
        )
        .fetch_all(&db.admin())
        .await
        .unwrap();
        assert!(waiting.len() <= 1, "{waiting:?}");
        waited.extend(waiting);
        waited.len() >= 5
    })
    .await;
    assert_eq!(captured.count("event consumers cannot begin"), 1);
    drop(squatter);
    reaches(&db, PROBE, 0).await;
    running.stops().await;
}

#[tokio::test]
async fn a_consumer_whose_cursor_is_gone_gets_one_whatever_the_snapshots() {
    let db = database().await;
    append(&db.producer(), 1..=5).await;
    let mut first = db.connect(Role::Consumer).await;
    let mut stale = db.connect(Role::Consumer).await;
    sqlx::raw_sql("SELECT seqline.register_consumer('c', 'oldest')").execute(&mut first).await.unwrap();
    as_admin(&db, "DELETE FROM seqline.event_consumer_cursors").await;
    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1";
    sqlx::raw_sql(snapshot).execute(&mut stale).await.unwrap();
    sqlx::raw_sql("SELECT seqline.register_consumer('c', 'oldest')").execute(&mut first).await.unwrap();
    let refused = sqlx::raw_sql("SELECT seqline.register_consumer('c', 'head')").execute(&mut stale).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some("40001"));
    drop(stale);
    assert_eq!(cursor(&db, "c").await, 0);
    let polled: Vec<i64> =
        sqlx::query_scalar("SELECT seq FROM seqline.poll('c', 10)").fetch_all(&mut first).await.unwrap();
    assert_eq!(polled, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_cursor_moves_forward_only() {
    let db = database().await;
    append(&db.producer(), 1..=5).await;
    sqlx::raw_sql("SELECT seqline.register_consumer('c', '3')").execute(&db.consumer()).await.unwrap();
    for to in ["1", "2"] {
        let sql =
            format!("SELECT seqline.advance_consumer('c', 0, 2, {to}, pg_current_xact_id()::text, true)");
        let error = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&db.app()).await.unwrap_err();
        assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("22023"));
    }
    assert_eq!(cursor(&db, "c").await, 2);
}
