//! `seqline consumers show`

use seqline::Clock;
use seqline::consumer::{ConsumerDetails, Filter, Trying};
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::commands::audit;
use crate::commands::status::consumers as view;
use crate::connect;
use crate::failure::Failure;
use crate::limits::AUDIT_CELL_CHARS_MAX;
use crate::operate::consumers::{self, Report, State};
use crate::output::{self, count, grouped, seconds, shortened};

pub(super) async fn run(connection: &mut PgConnection, name: &str, json: bool) -> Result<(), Failure> {
    connect::refuse_older_schema(connection).await?;
    let found = consumers::show(connection, name).await?;
    let now = Clock::system().now();
    if json { output::json(&Report::of(found, now)) } else { print(&found, now) }
}

fn print(details: &ConsumerDetails, now: OffsetDateTime) -> Result<(), Failure> {
    for (name, value) in lines(details, now) {
        output::line(format!("{name:<14}{value}"))?;
    }
    output::line("")?;
    let goal = details.state.last_seq + details.state.lag();
    let cells = details.lanes.iter().map(|lane| {
        let lag = (goal - lane.last_seq).max(0);
        let tries = lane.trying.as_ref().map_or_else(String::new, tries);
        vec![lane.lane.to_string(), grouped(lane.last_seq), grouped(lag), seconds(lane.updated_at), tries]
    });
    output::table(&["lane", "cursor", "lag", "moved", "tries"], &[0, 1, 2], cells.collect())?;
    if details.audit.is_empty() {
        return Ok(());
    }
    output::line("")?;
    let cell = |text: &str| shortened(text, AUDIT_CELL_CHARS_MAX);
    let cells = details.audit.iter().map(|entry| {
        let why = entry.why.as_deref().unwrap_or_default();
        let who = audit::who(entry);
        let texts = [&who, &entry.action, why, &entry.before, &entry.after].map(cell);
        [vec![seconds(entry.at)], texts.to_vec()].concat()
    });
    output::table(&["when", "who", "what", "why", "before", "after"], &[], cells.collect())
}

/// What there is to say; what does not apply is left out.
fn lines(details: &ConsumerDetails, now: OffsetDateTime) -> Vec<(&'static str, String)> {
    let ConsumerDetails { state, .. } = details;
    let name = &state.name;
    let pending = state.oldest_pending_at.map(|at| view::age(output::age_seconds(at, now)));
    let pending = pending.map_or_else(String::new, |age| format!(", the next one {age} old"));
    let mut lines = vec![
        ("consumer", name.clone()),
        ("kind", state.kind.clone()),
        ("state", State::of(state).text().to_owned()),
        ("cursor", format!("{}, {} behind{pending}", grouped(state.last_seq), count(state.lag(), "event"))),
        ("head", grouped(state.head_seq)),
    ];
    lines.extend(state.until_seq.map(|seq| ("ends at", grouped(seq))));
    lines.push(("asks for", asks_for(&details.filter)));
    lines.push(("lanes", format!("{} by {}", state.lanes, details.lane_key)));
    lines.extend(state.paused_at.map(|at| ("paused", format!("since {}", seconds(at)))));
    lines.extend(state.retired_at.map(|at| ("retired", format!("since {}", seconds(at)))));
    if state.last_failure.is_some() {
        lines.push(("last error", view::last_error(state, now)));
    }
    lines.extend(state.first_parked.map(|first| {
        let parked = count(state.parked, "event");
        ("parked", format!("{parked} from seq {} (seqline parked list {name})", grouped(first)))
    }));
    if !details.skipped.is_empty() {
        let seqs = details.skipped.iter().map(|seq| grouped(*seq)).collect();
        lines.push(("leaves out", format!("seq {}", some_of(seqs, details.skipped_count))));
    }
    if !details.losses.is_empty() {
        let ranges = details.losses.iter().map(|loss| match loss.from == loss.to {
            true => grouped(loss.from),
            false => format!("{} to {}", grouped(loss.from), grouped(loss.to)),
        });
        let ranges = some_of(ranges.collect(), details.losses_count);
        let lost = count(state.lost, "event");
        lines.push(("lost", format!("{lost}: seq {ranges} (seqline consumers acknowledge {name})")));
    }
    if state.gone > 0 {
        let gone = count(state.gone, "event");
        lines.push((
            "gone",
            format!("{gone} that it has not come to: lost when it does, retention has taken them"),
        ));
    }
    lines
}

fn some_of(texts: Vec<String>, count: i64) -> String {
    let more = count - texts.len() as i64;
    let more = if more > 0 { format!(" and {} more", grouped(more)) } else { String::new() };
    format!("{}{more}", texts.join("; "))
}

fn asks_for(filter: &Filter) -> String {
    let lists: Vec<String> =
        filter.lists().map(|(what, values)| format!("{what} {}", values.join(", "))).collect();
    if lists.is_empty() { "everything".to_owned() } else { lists.join("; ") }
}

/// Such as `seq 4: attempt 2 ended with handler, the next is due at ...`.
fn tries(trying: &Trying) -> String {
    let (seq, ended) = match trying.seq.zip(trying.error_type.as_deref()) {
        // The mark is older than what it says.
        Some((seq, "aborted")) => (seq, "is under way or its process has died".to_owned()),
        Some((seq, error_type)) => (seq, format!("ended with {error_type}")),
        None => return format!("events up to seq {}", grouped(trying.until_seq)),
    };
    format!(
        "seq {}: attempt {} {ended}, the next is due at {}",
        grouped(seq),
        trying.attempts,
        seconds(trying.next_attempt_at)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_tried_says_how_the_last_attempt_ended() {
        let trying = |attempts, error_type: Option<&str>| {
            let next_attempt_at = OffsetDateTime::UNIX_EPOCH;
            let error_type = error_type.map(str::to_owned);
            let seq = (attempts > 0).then_some(1004);
            tries(&Trying { until_seq: 1012, seq, attempts, next_attempt_at, error_type })
        };
        assert_eq!(trying(0, None), "events up to seq 1,012");
        assert_eq!(
            trying(2, Some("handler")),
            "seq 1,004: attempt 2 ended with handler, the next is due at 1970-01-01T00:00:00Z"
        );
        assert!(trying(1, Some("aborted")).contains(": attempt 1 is under way or its process has died, "));
    }

    #[test]
    fn a_filter_is_one_line() {
        assert_eq!(asks_for(&Filter::everything()), "everything");
        let filter = Filter::everything().types(["order.*", "invoice.paid"]).resource_kinds(["order"]);
        assert_eq!(asks_for(&filter), "type order.*, invoice.paid; resource kind order");
    }

    #[test]
    fn what_is_left_out_of_a_line_is_counted() {
        assert_eq!(some_of(vec!["1".to_owned(), "3 to 5".to_owned()], 2), "1; 3 to 5");
        assert_eq!(some_of(vec!["1".to_owned()], 1001), "1 and 1,000 more");
    }
}
