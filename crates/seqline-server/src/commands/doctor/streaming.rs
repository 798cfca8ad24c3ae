//! What the doctor looks at of relays and of consumers of their streams: what the database knows. It asks no broker.

use seqline::DatabaseError;
use seqline_nats::dead_letter::{ConsumerBacklog, backlogs};
use seqline_nats::relay::operate::{RelayStatus, statuses};
use sqlx::PgConnection;
use time::OffsetDateTime;

use super::finding::{Finding, named, ok, seconds, warning};
use super::thresholds::Thresholds;
use crate::commands::relay::state;
use crate::output::{count, grouped};
use crate::store;

/// Nothing where there is no relay.
pub(super) async fn relays(
    connection: &mut PgConnection,
    thresholds: &Thresholds,
) -> Result<Vec<Finding>, DatabaseError> {
    let relays = statuses(connection).await?;
    let now = store::doctor::time(connection).await?;
    Ok(relays.iter().flat_map(|relay| of_relay(relay, now, thresholds)).collect())
}

fn of_relay(relay: &RelayStatus, now: OffsetDateTime, thresholds: &Thresholds) -> Vec<Finding> {
    const ID: &str = "relay";
    let name = &relay.name;
    let mut findings = Vec::new();
    let age = relay.oldest_unpublished_at.filter(|_| relay.behind() > 0).map(|at| now - at);
    let is_late = age.is_some_and(|age| age > thresholds.relay_backlog_age);
    let behind = count(relay.behind(), "event");
    let old =
        age.map_or_else(String::new, |age| format!(", the first {} old", seconds(age.as_seconds_f64())));
    let standing = format!("{name}: {}; {behind} behind{old}", state(relay));
    if relay.stalled_by.is_some() {
        findings.push(warning(
            ID,
            standing,
            "seqline relay status, and the section RelayStalled of the runbook, say what to do",
        ));
    } else if is_late {
        findings.push(warning(
            ID,
            standing,
            "seqline relay status, and the section RelayBehind of the runbook, say what to do",
        ));
    } else {
        findings.push(ok(ID, standing));
    }
    if relay.paused_since.is_some() {
        findings.push(warning(
            "relay_paused",
            format!("paused: {name}"),
            "seqline relay resume NAME --yes when it shall go on: until then nothing gets into its stream, and retention waits",
        ));
    }
    if !relay.incidents.is_empty() {
        let kinds: Vec<String> =
            relay.incidents.iter().map(|it| format!("{} {}", it.kind, grouped(it.count))).collect();
        findings.push(warning(
            "relay_incidents",
            format!("{name} has met, not acknowledged: {}", named(&kinds)),
            "the section RelayIncident of the runbook says what they mean; then seqline relay acknowledge --yes --reason TEXT",
        ));
    }
    findings
}

/// Nothing where there is no consumer of a stream.
pub(super) async fn consumers(connection: &mut PgConnection) -> Result<Vec<Finding>, DatabaseError> {
    Ok(of_consumers(&backlogs(connection).await?).into_iter().collect())
}

fn of_consumers(backlogs: &[ConsumerBacklog]) -> Option<Finding> {
    const ID: &str = "dead_letters";
    let of = |consumer: &ConsumerBacklog| {
        (consumer.dead_letters > 0)
            .then(|| format!("{} {}", consumer.consumer, grouped(consumer.dead_letters)))
    };
    let dead: Vec<String> = backlogs.iter().filter_map(of).collect();
    match (backlogs.len(), dead.is_empty()) {
        (0, _) => None,
        (consumers, true) => {
            let consumers = count(consumers.try_into().unwrap_or(i64::MAX), "consumer");
            Some(ok(ID, format!("none of {consumers} of the stream")))
        }
        (_, false) => Some(warning(
            ID,
            format!("given up: {}", named(&dead)),
            "seqline dead-letters list says why; mend that, then seqline dead-letters replay NAME --yes",
        )),
    }
}
