//! What the doctor looks at between sessions: locks, old transactions, notifications, clocks, and what is in between.

use seqline::{Clock, DatabaseError};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions, PgConnection};
use uuid::Uuid;

use super::APPLICATION_NAME;
use super::database::hidden;
use super::finding;
use super::finding::{Finding, Probe, error, named, ok, seconds, warning};
use super::thresholds::Thresholds;
use crate::limits::{DOCTOR_CLOCK_LOOKS, DOCTOR_LISTEN_TIMEOUT};
use crate::output::{count, shortened};
use crate::store;
use crate::store::doctor::{Session, kind_of};

type Found = Result<Vec<Finding>, DatabaseError>;

/// How much of a statement is shown when somebody asks for it.
const QUERY_CHARS_MAX: usize = 200;

/// What PostgreSQL shows of a session that this role may not look at.
const HIDDEN_QUERY: &str = "<insufficient privilege>";

/// Who a session is, for people. Of its statement only the kind, unless the text is asked for: it can hold literals.
fn describe(session: &Session, show_queries: bool) -> String {
    let Some(pid) = session.pid else { return "a prepared transaction".to_owned() };
    let mut text = format!("process {pid}");
    if let Some(application) = session.application.as_deref().filter(|name| !name.is_empty()) {
        text.push_str(&format!(" ({})", shortened(application, 64)));
    }
    if let Some(state) = &session.state {
        text.push_str(&format!(", {state}"));
    }
    match session.query.as_deref().filter(|query| !query.is_empty() && *query != HIDDEN_QUERY) {
        Some(query) if show_queries => text.push_str(&format!(", {}", shortened(query, QUERY_CHARS_MAX))),
        Some(query) => text.push_str(&format!(", {}", kind_of(query))),
        None => {}
    }
    if let Some(age) = session.age_seconds {
        text.push_str(&format!(", for {}", seconds(age)));
    }
    text
}

pub(super) async fn numbering_lock(
    connection: &mut PgConnection,
    thresholds: &Thresholds,
    show_queries: bool,
) -> Found {
    const ID: &str = "numbering_lock";
    let lock = store::doctor::numbering_lock(connection).await?;
    let holder = lock.holder.map(|holder| describe(&holder, show_queries));
    let holder = holder.unwrap_or_else(|| "nobody".to_owned());
    let wait = lock.longest_wait_seconds.unwrap_or(0.0);
    Ok(vec![match lock.waiters {
        0 => ok(ID, format!("held by {holder}, nobody waits")),
        waiters => {
            let waiting = format!(
                "held by {holder}; {} wait, the first for {}",
                count(waiters, "session"),
                seconds(wait)
            );
            match wait > thresholds.numbering_lock_wait.as_secs_f64() {
                true => warning(
                    ID,
                    waiting,
                    "its COMMIT holds up all others: end it with pg_terminate_backend if it hangs, and look what it waits for",
                ),
                false => ok(ID, waiting),
            }
        }
    }])
}

pub(super) async fn vacuum_horizon(
    connection: &mut PgConnection,
    thresholds: &Thresholds,
    show_queries: bool,
) -> Found {
    const ID: &str = "vacuum_horizon";
    const ADVICE: &str =
        "rows that are dead cannot be removed meanwhile, and everything becomes slower: end it";
    const SLOT_ADVICE: &str = "start what uses them, or SELECT pg_drop_replication_slot('NAME')";
    let horizon = store::horizon::horizon(connection).await?;
    let limit = thresholds.oldest_transaction_age.as_secs_f64();
    let mut findings = Vec::new();
    match &horizon.oldest {
        Some(oldest) if oldest.age_seconds.unwrap_or(0.0) > limit => {
            findings.push(warning(
                ID,
                format!("an old transaction: {}", describe(oldest, show_queries)),
                ADVICE,
            ));
        }
        _ => {}
    }
    if let Some((name, age)) = horizon.prepared.as_ref().filter(|(_, age)| *age > limit) {
        let text = format!("prepared transaction {} is {} old", shortened(name, 64), seconds(*age));
        findings.push(warning(ID, text, "end it with COMMIT PREPARED or ROLLBACK PREPARED"));
    }
    if !horizon.slots.is_empty() {
        let text = format!("replication slots that nobody uses keep rows: {}", named(&horizon.slots));
        findings.push(warning(ID, text, SLOT_ADVICE));
    }
    if !horizon.catalog_slots.is_empty() {
        let names = named(&horizon.catalog_slots);
        let text = format!("replication slots that nobody uses keep rows of the system catalogs: {names}");
        findings.push(warning(ID, text, SLOT_ADVICE));
    }
    if horizon.hidden > 0 {
        findings.push(hidden(ID, horizon.hidden));
    }
    if findings.is_empty() {
        let age = horizon.oldest.and_then(|oldest| oldest.age_seconds).map_or_else(
            || "no transaction is open".to_owned(),
            |age| format!("the oldest transaction has been open for {}", seconds(age)),
        );
        findings.push(ok(ID, age));
    }
    Ok(findings)
}

pub(super) async fn notification_queue(connection: &mut PgConnection, thresholds: &Thresholds) -> Found {
    let usage = store::doctor::notification_queue(connection).await?;
    Ok(vec![finding::notification_queue(usage, thresholds)])
}

pub(super) async fn clock(connection: &mut PgConnection, thresholds: &Thresholds) -> Found {
    let clock = Clock::system();
    let mut best: Option<(i128, i128)> = None;
    for _ in 0..DOCTOR_CLOCK_LOOKS {
        let before = clock.now();
        let there = store::doctor::time(connection).await?;
        let round_trip = clock.now() - before;
        // It was read some time on the way.
        let skew = (there - (before + round_trip / 2_i32)).whole_milliseconds();
        let uncertain = round_trip.whole_milliseconds() / 2 + 1;
        if best.is_none_or(|(_, known)| uncertain < known) {
            best = Some((skew, uncertain));
        }
    }
    let (skew, uncertain) = best.unwrap_or_default();
    Ok(vec![finding::clock(skew, uncertain, thresholds)])
}

/// Two sessions at the same time, of which one has a transaction.
pub(super) async fn pooler(options: &PgConnectOptions) -> Result<Finding, DatabaseError> {
    let mut one = options.connect().await?;
    let (first, name) = store::doctor::backend(&mut one).await?;
    let mut other = options.connect().await?;
    store::doctor::begin_check(&mut other, DOCTOR_LISTEN_TIMEOUT.as_millis()).await?;
    let (second, _) = store::doctor::backend(&mut other).await?;
    let first_again = match first == second {
        true => None,
        false => Some(store::doctor::backend(&mut one).await?.0),
    };
    store::doctor::end_check(&mut other).await?;
    Ok(finding::pooler(&Probe { first, second, first_again, name_is_kept: name == APPLICATION_NAME }))
}

/// Listens on one connection and notifies on another, on a channel of its own.
pub(super) async fn listen(
    options: &PgConnectOptions,
    listen: &PgConnectOptions,
    is_given: bool,
) -> Result<Finding, DatabaseError> {
    const ID: &str = "listen";
    const POLLING: &str = "workers and tails hear of new events when they poll";
    let mut there = listen.connect().await?;
    let mut here = options.connect().await?;
    if store::doctor::place(&mut there).await? != store::doctor::place(&mut here).await? {
        return Ok(error(
            ID,
            "--listen-url is another database than --database-url: nothing is ever heard there",
            "give both the same database",
        ));
    }
    drop(there);
    let advice = match is_given {
        true => "--listen-url has to go to the server itself, past any pooler",
        false => "give --listen-url a connection to the server itself, past any pooler",
    };
    let heard = tokio::time::timeout(DOCTOR_LISTEN_TIMEOUT, call_and_hear(&mut here, listen)).await;
    Ok(match heard {
        Ok(Ok(())) => ok(ID, "a notification was heard"),
        Ok(Err(error)) => warning(ID, format!("listening does not work: {error}; {POLLING}"), advice),
        Err(_) => warning(
            ID,
            format!("nothing was heard within {} s: {POLLING}", DOCTOR_LISTEN_TIMEOUT.as_secs()),
            advice,
        ),
    })
}

/// Notifies on one connection and returns when that is heard on another.
async fn call_and_hear(here: &mut PgConnection, listen: &PgConnectOptions) -> Result<(), DatabaseError> {
    let channel = format!("seqline_doctor_{}", Uuid::new_v4().simple());
    // A pool of one that nobody else uses: the driver offers notifications only through a pool.
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(listen.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    store::doctor::listen(&mut listener, &channel).await?;
    store::doctor::notify(here, &channel).await?;
    match listener.try_recv().await? {
        Some(_) => Ok(()),
        None => Err(sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into()).into()),
    }
}
