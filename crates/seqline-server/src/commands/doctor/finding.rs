//! What the doctor says. Pure: what was seen comes in, a finding goes out.

use std::time::Duration;

use serde::Serialize;

use super::thresholds::Thresholds;
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

pub(super) fn notification_queue(usage: f64, thresholds: &Thresholds) -> Finding {
    const ID: &str = "notification_queue";
    let percent = usage * 100.0;
    let found = format!("{percent:.0} percent full");
    match percent >= thresholds.notification_queue_percent {
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
            clock(skew, uncertain, &Thresholds::of(&crate::config::Config::default().alert)).level
        };
        assert_eq!([level(2000, 0), level(-2000, 0), level(2500, 500)], [Level::Ok; 3]);
        assert_eq!([level(2001, 0), level(-2001, 0), level(2501, 500)], [Level::Warning; 3]);
    }

    #[test]
    fn thresholds_are_the_ones_that_are_worth_a_warning() {
        let thresholds = Thresholds::of(&crate::config::Config::default().alert);
        let room = |headroom| partitions(headroom, 2, &thresholds).level;
        assert_eq!(
            [room(500_000), room(499_999), room(1), room(0)],
            [Level::Ok, Level::Warning, Level::Warning, Level::Error]
        );
        let queue = |usage| notification_queue(usage, &thresholds).level;
        assert_eq!([queue(0.49), queue(0.5)], [Level::Ok, Level::Warning]);
        let version = |found| schema(found, 5).level;
        assert_eq!([version(None), version(Some(0)), version(Some(4)), version(Some(6))], [Level::Error; 4]);
        assert_eq!(version(Some(5)), Level::Ok);
    }
}
