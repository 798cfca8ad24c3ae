//! Consumers in `seqline status`.

use seqline::consumer::{ConsumerState, states};
use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::failure::Failure;
use crate::output;
use crate::output::{grouped, rfc3339};

/// All consumers but those that were retired; `None` where they cannot be seen: as a role that only reads, and in an older schema that has none. The
/// rest of the status is worth showing then.
pub(super) async fn consumers(connection: &mut PgConnection) -> Result<Option<Vec<ConsumerState>>, Failure> {
    const INSUFFICIENT_PRIVILEGE: &str = "42501";
    const UNDEFINED_TABLE: &str = "42P01";
    match states(connection).await {
        Ok(mut states) => {
            states.retain(|state| state.retired_at.is_none());
            Ok(Some(states))
        }
        Err(error) => match error.sqlstate() {
            Some(INSUFFICIENT_PRIVILEGE | UNDEFINED_TABLE) => Ok(None),
            _ => Err(error.into()),
        },
    }
}

/// How a consumer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// Somebody has taken it out of use.
    Retired,
    /// Its cursor belongs to another history, so it does nothing. Never idle, although there is nothing to handle.
    AheadOfHead,
    /// Somebody has paused it.
    Paused,
    /// Its last round failed.
    Failing,
    /// It was for a piece of the log, and has handled all of that.
    Done,
    /// There are events to handle.
    Behind,
    /// It has handled everything.
    Idle,
}

impl State {
    fn of(consumer: &ConsumerState) -> Self {
        if consumer.retired_at.is_some() {
            Self::Retired
        } else if consumer.is_ahead_of_head() {
            Self::AheadOfHead
        } else if consumer.paused_at.is_some() {
            Self::Paused
        } else if consumer.last_failure.as_ref().is_some_and(|failure| failure.current) {
            Self::Failing
        } else if consumer.is_done() {
            Self::Done
        } else if consumer.lag() > 0 {
            Self::Behind
        } else {
            Self::Idle
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Retired => "retired",
            Self::AheadOfHead => "ahead of head",
            Self::Paused => "paused",
            Self::Failing => "failing",
            Self::Done => "done",
            Self::Behind => "behind",
            Self::Idle => "idle",
        }
    }
}

/// The same for people.
pub(in crate::commands) fn state(consumer: &ConsumerState) -> &'static str {
    State::of(consumer).text()
}

#[derive(Serialize)]
pub(in crate::commands) struct Row {
    name: String,
    kind: String,
    lanes: u32,
    last_seq: i64,
    head_seq: i64,
    lag: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_pending_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_age_seconds: Option<i64>,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retired_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until_seq: Option<i64>,
    state: State,
    parked_events: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_parked_seq: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<LastError>,
    lost_events: i64,
    /// What it will have lost when it comes there.
    gone_events: i64,
}

#[derive(Serialize)]
struct LastError {
    #[serde(rename = "type")]
    error_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<i64>,
    at: String,
    current: bool,
}

pub(in crate::commands) fn rows(consumers: Vec<ConsumerState>, now: OffsetDateTime) -> Vec<Row> {
    consumers.into_iter().map(|consumer| row(consumer, now)).collect()
}

pub(in crate::commands) fn row(consumer: ConsumerState, now: OffsetDateTime) -> Row {
    Row {
        lag: consumer.lag(),
        state: State::of(&consumer),
        oldest_pending_at: consumer.oldest_pending_at.map(rfc3339),
        pending_age_seconds: consumer.oldest_pending_at.map(|at| age_seconds(at, now)),
        last_error: consumer.last_failure.map(|failure| LastError {
            error_type: failure.error_type,
            seq: failure.seq,
            at: rfc3339(failure.failed_at),
            current: failure.current,
        }),
        name: consumer.name,
        kind: consumer.kind,
        lanes: consumer.lanes,
        last_seq: consumer.last_seq,
        head_seq: consumer.head_seq,
        updated_at: rfc3339(consumer.updated_at),
        paused_at: consumer.paused_at.map(rfc3339),
        retired_at: consumer.retired_at.map(rfc3339),
        until_seq: consumer.until_seq,
        parked_events: consumer.parked,
        first_parked_seq: consumer.first_parked,
        lost_events: consumer.lost,
        gone_events: consumer.gone,
    }
}

/// A table, if there is anything to show.
pub(super) fn print(consumers: &[ConsumerState], now: OffsetDateTime) -> Result<(), Failure> {
    if consumers.is_empty() {
        return Ok(());
    }
    output::line("")?;
    table(consumers, now)
}

pub(in crate::commands) fn table(consumers: &[ConsumerState], now: OffsetDateTime) -> Result<(), Failure> {
    let cells = |consumer: &ConsumerState| {
        vec![
            consumer.name.clone(),
            consumer.kind.clone(),
            consumer.lanes.to_string(),
            grouped(consumer.last_seq),
            grouped(consumer.lag()),
            consumer.oldest_pending_at.map_or_else(String::new, |at| age(age_seconds(at, now))),
            state(consumer).to_owned(),
            parked(consumer),
            grouped(consumer.lost + consumer.gone),
            last_error(consumer, now),
        ]
    };
    output::table(
        &[
            "consumer",
            "kind",
            "lanes",
            "cursor",
            "lag",
            "oldest pending",
            "state",
            "parked",
            "lost",
            "last error",
        ],
        &[2, 3, 4, 5, 8],
        consumers.iter().map(cells).collect(),
    )
}

/// Such as `2 from seq 17`.
fn parked(consumer: &ConsumerState) -> String {
    let first = consumer.first_parked.map_or_else(String::new, |seq| format!(" from seq {}", grouped(seq)));
    format!("{}{first}", grouped(consumer.parked))
}

/// Such as `handler at seq 17, for 3m`.
pub(in crate::commands) fn last_error(consumer: &ConsumerState, now: OffsetDateTime) -> String {
    let Some(failure) = &consumer.last_failure else { return String::new() };
    let seq = failure.seq.map_or_else(String::new, |seq| format!(" at seq {}", grouped(seq)));
    let since = age(age_seconds(failure.failed_at, now));
    let when = if failure.current { format!("for {since}") } else { format!("{since} ago, recovered") };
    format!("{}{seq}, {when}", failure.error_type)
}

/// Clocks of two machines differ, so what is just over can seem to come.
pub(in crate::commands) fn age_seconds(at: OffsetDateTime, now: OffsetDateTime) -> i64 {
    (now - at).whole_seconds().max(0)
}

/// A time span at a glance: its largest unit.
pub(in crate::commands) fn age(seconds: i64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use seqline::consumer::Failure;
    use time::Duration;

    use super::*;

    const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

    fn consumer(last_seq: i64, head_seq: i64, failure: Option<(Option<i64>, bool)>) -> ConsumerState {
        ConsumerState {
            name: "recorder".to_owned(),
            kind: "worker".to_owned(),
            last_seq,
            head_seq,
            oldest_pending_at: None,
            updated_at: NOW,
            paused_at: None,
            retired_at: None,
            until_seq: None,
            lanes: 1,
            parked: 0,
            first_parked: None,
            last_failure: failure.map(|(seq, current)| Failure {
                error_type: "handler".to_owned(),
                seq,
                failed_at: NOW - Duration::seconds(200),
                current,
            }),
            lost: 0,
            gone: 0,
        }
    }

    #[test]
    fn a_cursor_above_the_head_is_never_idle_and_a_failure_counts_while_it_lasts() {
        for (last_seq, failure, state) in [
            (9, None, State::AheadOfHead),
            (9, Some((None, true)), State::AheadOfHead),
            (8, None, State::Idle),
            (8, Some((None, true)), State::Failing),
            (8, Some((Some(3), false)), State::Idle),
            (7, None, State::Behind),
            (7, Some((Some(8), true)), State::Failing),
        ] {
            assert_eq!(State::of(&consumer(last_seq, 8, failure)), state, "{last_seq} {failure:?}");
        }
    }

    #[test]
    fn one_that_is_out_of_use_paused_or_done_is_neither_behind_nor_idle() {
        let done = ConsumerState { until_seq: Some(5), ..consumer(5, 8, None) };
        assert_eq!(State::of(&done), State::Done);
        let not_yet = ConsumerState { until_seq: Some(5), ..consumer(4, 8, None) };
        assert_eq!((State::of(&not_yet), not_yet.lag()), (State::Behind, 1));
        let paused = ConsumerState { paused_at: Some(NOW), ..done };
        assert_eq!(State::of(&paused), State::Paused);
        let retired = ConsumerState { retired_at: Some(NOW), ..consumer(9, 8, None) };
        assert_eq!(State::of(&retired), State::Retired);
    }

    #[test]
    fn parked_events_are_counted_from_the_first() {
        let mut parking = consumer(8, 8, None);
        assert_eq!(parked(&parking), "0");
        (parking.parked, parking.first_parked) = (2, Some(1017));
        assert_eq!(parked(&parking), "2 from seq 1,017");
    }

    #[test]
    fn the_last_error_says_where_when_and_whether_it_is_over() {
        for (failure, text) in [
            (None, ""),
            (Some((Some(1017), true)), "handler at seq 1,017, for 3m"),
            (Some((Some(17), false)), "handler at seq 17, 3m ago, recovered"),
            (Some((None, true)), "handler, for 3m"),
        ] {
            assert_eq!(last_error(&consumer(8, 8, failure), NOW), text);
        }
    }

    #[test]
    fn lag_and_age_are_never_negative() {
        let mut late = consumer(9, 8, None);
        late.oldest_pending_at = Some(NOW + Duration::hours(1));
        let row = &rows(vec![late], NOW)[0];
        assert_eq!((row.lag, row.pending_age_seconds), (0, Some(0)));
    }

    #[test]
    fn an_age_is_in_its_largest_unit() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3599, "59m"),
            (3600, "1h"),
            (86_399, "23h"),
            (172_800, "2d"),
        ] {
            assert_eq!(age(seconds), text);
        }
    }
}
