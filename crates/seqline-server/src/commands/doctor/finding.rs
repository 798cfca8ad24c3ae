//! What the doctor says. Pure: what was seen comes in, a finding goes out.

use std::time::Duration;

use seqline::settings::Sequencing;
use serde::Serialize;

use super::thresholds::Thresholds;
use crate::limits::DOCTOR_NAMES_MAX;
use crate::output::{count, grouped};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    Ok,
    /// Nothing is wrong yet, or something is slower than it need be.
    Warning,
    /// Something does not work.
    Error,
    /// It could not be looked at.
    Unknown,
}

impl Level {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Unknown => "unknown",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) id: &'static str,
    pub(super) level: Level,
    pub(super) found: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

pub(super) fn ok(id: &'static str, found: impl Into<String>) -> Finding {
    Finding { id, level: Level::Ok, found: found.into(), advice: None }
}

pub(super) fn warning(id: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { id, level: Level::Warning, found: found.into(), advice: Some(advice.into()) }
}

pub(super) fn error(id: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { id, level: Level::Error, found: found.into(), advice: Some(advice.into()) }
}

pub(super) fn unknown(id: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { id, level: Level::Unknown, found: found.into(), advice: Some(advice.into()) }
}

/// Which schema is there, and which this program knows.
pub(super) fn schema(found: Option<i32>, known: i32) -> Finding {
    const ID: &str = "schema";
    match found {
        None | Some(0) => error(ID, "there is no Seqline schema in this database", "run seqline migrate"),
        Some(found) if found < known => error(
            ID,
            format!("version {found}, this program needs {known}: workers do not start"),
            "run seqline migrate",
        ),
        Some(found) if found > known => {
            error(ID, format!("version {found}, this program knows {known}"), "use a newer program")
        }
        Some(found) => ok(ID, format!("version {found}")),
    }
}

pub(super) fn partitions(headroom: i64, partitions: usize, thresholds: &Thresholds) -> Finding {
    const ID: &str = "partitions";
    let room = format!("{partitions}, room for {} more events", grouped(headroom));
    match headroom {
        ..=0 => error(ID, format!("{room}: nothing gets a number"), "run seqline partitions ensure"),
        room_left if room_left < thresholds.partition_headroom => warning(
            ID,
            room,
            "run a worker, which keeps partitions ahead, or seqline partitions ensure; with many events raise event_log_partition_size",
        ),
        _ => ok(ID, room),
    }
}

/// What is known of events that get their numbers after commit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) sequencing: Sequencing,
    pub(super) sequencer_runs: bool,
    pub(super) transactions: i64,
    /// For how long the first of them has waited.
    pub(super) seconds: f64,
}

/// Where events can wait for their numbers.
pub(super) fn sequencing(seen: Waiting, thresholds: &Thresholds) -> Finding {
    const ID: &str = "sequencing";
    const RUN_ONE: &str = "run a worker: seqline serve --role worker";
    let waiting = match seen.transactions {
        0 => "no transaction waits for its numbers".to_owned(),
        1 => format!("1 transaction waits for its numbers, for {}", seconds(seen.seconds)),
        many => format!(
            "{} transactions wait for their numbers, the first for {}",
            grouped(many),
            seconds(seen.seconds)
        ),
    };
    match (seen.sequencing, seen.sequencer_runs) {
        (_, false) if seen.transactions > 0 => error(ID, format!("no sequencer runs; {waiting}"), RUN_ONE),
        (Sequencing::AfterCommit, false) => {
            warning(ID, "events are numbered after commit, and no sequencer runs", RUN_ONE)
        }
        _ if seen.transactions > 0 && seen.seconds > thresholds.staged_age.as_secs_f64() => warning(
            ID,
            waiting,
            "look at the log of the worker that numbers, and at numbering_lock and partitions here",
        ),
        (Sequencing::AfterCommit, true) => ok(ID, format!("events are numbered after commit; {waiting}")),
        (Sequencing::AtCommit, _) => {
            ok(ID, format!("events are numbered at commit, the change to that is under way; {waiting}"))
        }
    }
}

pub(super) fn notification_queue(usage: f64, thresholds: &Thresholds) -> Finding {
    const ID: &str = "notification_queue";
    let percent = usage * 100.0;
    let found = format!("{percent:.0} percent full");
    match percent > thresholds.notification_queue_percent {
        true => warning(
            ID,
            format!("{found}: when it is full every COMMIT that notifies fails"),
            "a session that listens has a transaction open for long: end it, or run seqline settings notification after_commit",
        ),
        false => ok(ID, found),
    }
}

/// How the clocks of this machine and of the database differ, in milliseconds, and how well that is known.
pub(super) fn clock(skew_ms: i128, uncertain_ms: i128, thresholds: &Thresholds) -> Finding {
    const ID: &str = "clock";
    let found = format!(
        "the clock of this machine is {} ms off that of the database, give or take {uncertain_ms}",
        skew_ms.abs()
    );
    let limit = i128::try_from(thresholds.clock_skew.as_millis()).unwrap_or(i128::MAX);
    match skew_ms.abs() - uncertain_ms > limit {
        true => warning(
            ID,
            found,
            "keep both in step, with NTP for example: pauses of jobs are told by the clocks of workers",
        ),
        false => ok(ID, found),
    }
}

/// What two sessions of the same program have seen: the process that serves the first, then the one that serves the second while that has
/// a transaction, and meanwhile the first again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) first: i32,
    pub(super) second: i32,
    /// None when it was clear by then: the first would have to wait for the second.
    pub(super) first_again: Option<i32>,
    /// Whether the session is called what this program has called it.
    pub(super) name_is_kept: bool,
}

/// A direct connection has a process of its own for as long as it lives.
pub(super) fn pooler(probe: &Probe) -> Finding {
    const ID: &str = "pooler";
    const ADVICE: &str = "give --listen-url a connection to the server itself, let the pooler know prepared statements, and migrate without it";
    if probe.first == probe.second || probe.first_again.is_some_and(|again| again != probe.first) {
        warning(
            ID,
            "sessions share processes of the server: a pooler in transaction mode is in between",
            ADVICE,
        )
    } else if !probe.name_is_kept {
        warning(ID, "something in between gives sessions another application_name", ADVICE)
    } else {
        ok(ID, "none that divides sessions")
    }
}

/// So many of them as one reads at once, and how many there are beyond.
pub(super) fn named(names: &[String]) -> String {
    let shown = &names[..names.len().min(DOCTOR_NAMES_MAX)];
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A time for people, to the second.
pub(super) fn seconds(seconds: f64) -> String {
    let whole = Duration::from_secs(seconds.max(0.0) as u64);
    if whole.is_zero() {
        "less than a second".to_owned()
    } else {
        humantime::format_duration(whole).to_string()
    }
}

/// How it ended, in one line.
pub(super) fn summary(findings: &[Finding]) -> (usize, String) {
    let of = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (errors, warnings, unknown) = (of(Level::Error), of(Level::Warning), of(Level::Unknown));
    let many = |number: usize, what: &str| count(i64::try_from(number).unwrap_or(i64::MAX), what);
    (errors, format!("{}, {}, {} unknown", many(errors, "error"), many(warnings, "warning"), unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direct_connection_is_never_taken_for_a_pooler() {
        let direct = Probe { first: 7, second: 8, first_again: Some(7), name_is_kept: true };
        assert_eq!(pooler(&direct).level, Level::Ok);
        for probe in [
            Probe { second: 7, first_again: None, ..direct.clone() },
            Probe { first_again: Some(9), ..direct.clone() },
            Probe { second: 7, ..direct.clone() },
            Probe { name_is_kept: false, ..direct },
        ] {
            assert_eq!(pooler(&probe).level, Level::Warning, "{probe:?}");
        }
    }

    #[test]
    fn the_round_trip_is_taken_off_the_skew() {
        let level = |skew, uncertain| {
            clock(skew, uncertain, &Thresholds::of(&crate::config::Config::default())).level
        };
        assert_eq!([level(2000, 0), level(-2000, 0), level(2500, 500)], [Level::Ok; 3]);
        assert_eq!([level(2001, 0), level(-2001, 0), level(2501, 500)], [Level::Warning; 3]);
    }

    #[test]
    fn thresholds_are_the_ones_that_are_worth_a_warning() {
        let thresholds = Thresholds::of(&crate::config::Config::default());
        let room = |headroom| partitions(headroom, 2, &thresholds).level;
        assert_eq!(
            [room(500_000), room(499_999), room(1), room(0)],
            [Level::Ok, Level::Warning, Level::Warning, Level::Error]
        );
        let queue = |usage| notification_queue(usage, &thresholds).level;
        assert_eq!([queue(0.5), queue(0.501)], [Level::Ok, Level::Warning]);
        let waits = |seconds| {
            let seen = Waiting {
                sequencing: Sequencing::AfterCommit,
                sequencer_runs: true,
                transactions: 1,
                seconds,
            };
            sequencing(seen, &thresholds).level
        };
        assert_eq!([waits(10.0), waits(10.1)], [Level::Ok, Level::Warning]);
        let version = |found| schema(found, 5).level;
        assert_eq!([version(None), version(Some(0)), version(Some(4)), version(Some(6))], [Level::Error; 4]);
        assert_eq!(version(Some(5)), Level::Ok);
    }

    #[test]
    fn what_is_said_of_events_that_wait_is_a_sentence() {
        let thresholds = Thresholds::of(&crate::config::Config::default());
        let said = |sequencing_, sequencer_runs, transactions, seconds| {
            let seen = Waiting { sequencing: sequencing_, sequencer_runs, transactions, seconds };
            let finding = sequencing(seen, &thresholds);
            (finding.level, finding.found)
        };
        use Level::{Error, Ok, Warning};
        use Sequencing::{AfterCommit, AtCommit};
        for (seen, level, text) in [
            (
                said(AfterCommit, false, 3, 12.7),
                Error,
                "no sequencer runs; 3 transactions wait for their numbers, the first for 12s",
            ),
            (
                said(AtCommit, false, 1, 0.2),
                Error,
                "no sequencer runs; 1 transaction waits for its numbers, for less than a second",
            ),
            (
                said(AfterCommit, false, 0, 0.0),
                Warning,
                "events are numbered after commit, and no sequencer runs",
            ),
            (
                said(AfterCommit, true, 1234, 75.0),
                Warning,
                "1,234 transactions wait for their numbers, the first for 1m 15s",
            ),
            (said(AfterCommit, true, 1, 12.0), Warning, "1 transaction waits for its numbers, for 12s"),
            (
                said(AfterCommit, true, 0, 0.0),
                Ok,
                "events are numbered after commit; no transaction waits for its numbers",
            ),
            (
                said(AfterCommit, true, 2, 3.0),
                Ok,
                "events are numbered after commit; 2 transactions wait for their numbers, the first for 3s",
            ),
            (
                said(AtCommit, false, 0, 0.0),
                Ok,
                "events are numbered at commit, the change to that is under way; no transaction waits for its numbers",
            ),
        ] {
            assert_eq!(seen, (level, text.to_owned()));
        }
    }

    #[test]
    fn ten_are_named_and_the_rest_is_counted() {
        let names = |number: usize| named(&(0..number).map(|n| format!("c{n}")).collect::<Vec<_>>());
        assert_eq!(names(2), "c0, c1");
        assert_eq!(names(10), "c0, c1, c2, c3, c4, c5, c6, c7, c8, c9");
        assert_eq!(names(12), "c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 and 2 more");
    }
}
