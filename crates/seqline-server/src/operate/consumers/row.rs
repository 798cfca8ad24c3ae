//! Where a consumer stands, and how it is.

use seqline::consumer::ConsumerState;
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::ToSchema;

use crate::output::{age_seconds, rfc3339};

/// How a consumer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ConsumerStanding)]
pub(crate) enum State {
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
    pub(crate) fn of(consumer: &ConsumerState) -> Self {
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

    /// The same for people.
    pub(crate) fn text(self) -> &'static str {
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

/// Where a consumer stands, and how it is.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Consumer)]
pub(crate) struct Row {
    /// Its name.
    pub(crate) name: String,
    /// Who runs it: `worker` or `poll`.
    kind: String,
    /// How many lanes it has.
    lanes: u32,
    /// The last event that it has passed, in the lane that is furthest behind.
    last_seq: i64,
    /// The newest event of the log.
    head_seq: i64,
    /// How many events are before it.
    lag: i64,
    /// When the next event was appended, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    oldest_pending_at: Option<String>,
    /// How long that is ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pending_age_seconds: Option<i64>,
    /// When it was moved last.
    #[schema(format = DateTime)]
    updated_at: String,
    /// Since when it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    paused_at: Option<String>,
    /// Since when it is out of use.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    retired_at: Option<String>,
    /// The last event that it gets, if it is for a piece of the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    until_seq: Option<i64>,
    /// How it is.
    pub(crate) state: State,
    /// How many events it has put aside.
    parked_events: i64,
    /// The first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    first_parked_seq: Option<i64>,
    /// Its last failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last_error: Option<LastError>,
    /// How many events it has lost to retention, and nobody has acknowledged.
    lost_events: i64,
    /// How many it will have lost when it comes there.
    gone_events: i64,
}

/// The last failure of a consumer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ConsumerError)]
struct LastError {
    /// What kind of failure.
    #[serde(rename = "type")]
    error_type: String,
    /// The event that failed, if it was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    seq: Option<i64>,
    /// When it happened.
    #[schema(format = DateTime)]
    at: String,
    /// Whether no round has succeeded since.
    current: bool,
}

impl Row {
    pub(crate) fn of(consumer: ConsumerState, now: OffsetDateTime) -> Self {
        Self {
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

    pub(crate) fn all(consumers: Vec<ConsumerState>, now: OffsetDateTime) -> Vec<Self> {
        consumers.into_iter().map(|consumer| Self::of(consumer, now)).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use seqline::consumer::Failure;
    use time::Duration;

    use super::*;

    pub(crate) const NOW: OffsetDateTime = OffsetDateTime::UNIX_EPOCH;

    /// One that has come so far, with where it failed 200 seconds ago and whether it still does.
    pub(crate) fn consumer(
        last_seq: i64,
        head_seq: i64,
        failure: Option<(Option<i64>, bool)>,
    ) -> ConsumerState {
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
    fn lag_and_age_are_never_negative() {
        let mut late = consumer(9, 8, None);
        late.oldest_pending_at = Some(NOW + Duration::hours(1));
        let row = Row::of(late, NOW);
        assert_eq!((row.lag, row.pending_age_seconds), (0, Some(0)));
    }
}
