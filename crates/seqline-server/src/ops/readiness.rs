//! Whether a process is ready, decided from what was seen of it and its database. No I/O and no clock.

use std::time::Duration;

use serde::Serialize;

/// How far the process has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stage {
    /// It waits for its database.
    #[default]
    Starting,
    /// It waits until somebody has said which history this is.
    Undecided,
    /// Everything runs.
    Running,
    /// It was asked to stop.
    Stopping,
}

/// What a look at the database showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The highest number in the log.
    pub(crate) head: i64,
    /// Whether the server takes writes.
    pub(crate) writable: bool,
    /// Whether it is the database to which the numbers belong.
    pub(crate) same_history: bool,
}

/// From where on something is late.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How old a look may be.
    pub(crate) look_age_max: Duration,
    /// How long the tail may take to get to a number that was seen.
    pub(crate) tail_lag_max: Duration,
}

/// What is known. All times are those since the process began.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) stage: Stage,
    last: Option<(Duration, Seen)>,
    /// A head that the tail had not reached when it was seen. It stays the goal until it is reached, so that a tail that moves and one that
    /// is stuck can be told apart while the log grows.
    goal: Option<(Duration, i64)>,
}

/// One answer of several.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    pub(crate) check: &'static str,
    pub(crate) ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<&'static str>,
}

impl State {
    pub(crate) fn saw(&mut self, now: Duration, seen: Option<Seen>, tail: Option<i64>) {
        let Some(seen) = seen else {
            self.last = None;
            return;
        };
        self.last = Some((now, seen));
        if let Some(tail) = tail {
            self.goal = self.goal.filter(|(_, goal)| tail < *goal);
            if self.goal.is_none() && tail < seen.head {
                self.goal = Some((now, seen.head));
            }
        }
    }

    /// There is another tail from now on, or none.
    pub(crate) fn forget_tail(&mut self) {
        self.goal = None;
    }

    /// What was seen last, unless that is too old.
    pub(crate) fn seen(&self, now: Duration, limits: &Limits) -> Option<Seen> {
        self.last.filter(|(at, _)| now.saturating_sub(*at) <= limits.look_age_max).map(|(_, seen)| seen)
    }

    /// Everything that has to hold. `tail` is the position of the tail where there is one.
    pub(crate) fn checks(&self, now: Duration, limits: &Limits, tail: Option<i64>) -> Vec<Check> {
        let started = match self.stage {
            Stage::Running => None,
            Stage::Starting => Some("it waits for its database"),
            Stage::Undecided => Some("it waits to know which history the database has"),
            Stage::Stopping => Some("it stops"),
        };
        let seen = self.seen(now, limits);
        let database = match seen {
            None => Some("the database does not answer"),
            Some(seen) if !seen.writable => Some("the database server takes no writes"),
            Some(_) => None,
        };
        let epoch = match seen {
            Some(seen) if !seen.same_history => {
                Some("the database is not the one to which the numbers belong: see seqline doctor")
            }
            _ => None,
        };
        let mut checks = vec![check("started", started), check("database", database), check("epoch", epoch)];
        if let Some(tail) = tail {
            let late = self
                .goal
                .is_some_and(|(since, goal)| tail < goal && now.saturating_sub(since) > limits.tail_lag_max);
            checks.push(check("tail", late.then_some("it does not get to events that the log has")));
        }
        checks
    }
}

fn check(check: &'static str, why: Option<&'static str>) -> Check {
    Check { check, ok: why.is_none(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { look_age_max: Duration::from_secs(6), tail_lag_max: Duration::from_secs(10) };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn seen(head: i64) -> Option<Seen> {
        Some(Seen { head, writable: true, same_history: true })
    }

    fn running() -> State {
        State { stage: Stage::Running, ..State::default() }
    }

    fn failing(state: &State, now: u64, tail: Option<i64>) -> Vec<&'static str> {
        let checks = state.checks(at(now), &LIMITS, tail);
        checks.iter().filter(|check| !check.ok).map(|check| check.check).collect()
    }

    #[test]
    fn it_is_ready_while_it_runs_and_looks_succeed() {
        let mut state = State::default();
        assert_eq!(failing(&state, 0, None), ["started", "database"]);
        state.saw(at(1), seen(0), None);
        assert_eq!(failing(&state, 1, None), ["started"]);
        for (stage, found) in
            [(Stage::Running, &[][..]), (Stage::Undecided, &["started"]), (Stage::Stopping, &["started"])]
        {
            state.stage = stage;
            assert_eq!(failing(&state, 1, None), found, "{stage:?}");
        }
    }

    #[test]
    fn a_look_that_failed_or_is_old_is_no_answer() {
        let mut state = running();
        state.saw(at(1), seen(0), None);
        assert_eq!(failing(&state, 7, None), [""; 0]);
        assert_eq!(failing(&state, 8, None), ["database"]);
        state.saw(at(8), seen(0), None);
        assert_eq!(failing(&state, 8, None), [""; 0]);
        state.saw(at(9), None, None);
        assert_eq!(failing(&state, 9, None), ["database"]);
    }

    #[test]
    fn a_server_that_takes_no_writes_and_another_history_are_not_ready() {
        let mut state = running();
        state.saw(at(1), Some(Seen { head: 0, writable: false, same_history: true }), None);
        assert_eq!(failing(&state, 1, None), ["database"]);
        state.saw(at(1), Some(Seen { head: 0, writable: true, same_history: false }), None);
        assert_eq!(failing(&state, 1, None), ["epoch"]);
    }

    #[test]
    fn a_tail_that_stands_still_is_stuck_after_its_time() {
        let mut state = running();
        for now in 0..=12 {
            state.saw(at(now), seen(5), Some(4));
            let found: &[&str] = if now > 10 { &["tail"] } else { &[] };
            assert_eq!(failing(&state, now, Some(4)), found, "at {now}");
        }
        // It is there, although nobody has looked since.
        assert_eq!(failing(&state, 12, Some(5)), [""; 0]);
    }

    #[test]
    fn a_tail_that_moves_is_not_stuck_however_fast_the_log_grows() {
        let mut state = running();
        for now in 0..100_i64 {
            // Always two seconds behind.
            let (head, tail) = (now * 1000, (now - 2).max(0) * 1000);
            state.saw(at(now.unsigned_abs()), seen(head), Some(tail));
            assert_eq!(failing(&state, now.unsigned_abs(), Some(tail)), [""; 0], "at {now}");
        }
    }

    #[test]
    fn a_tail_that_stands_still_while_the_log_grows_is_stuck_too() {
        let mut state = running();
        for now in 0..=11 {
            state.saw(at(now), seen(5 + i64::try_from(now).unwrap()), Some(4));
        }
        assert_eq!(failing(&state, 11, Some(4)), ["tail"]);
    }
}
