//! The crash proof: a server is killed again and again while everything goes on, and what was promised is held against what is left.
//!
//! Writers of all kinds append; a tail, a reader that pages, and a consumer follow. All of them remember outside the database what they
//! were told. At random moments all processes of the server are killed, or one of them, which makes PostgreSQL end all others and recover.
//! After each recovery, and in the end:
//!
//! - every append that was acknowledged is there, once; what has an unknown outcome is there as a whole or not at all;
//! - nothing that an observer was given has vanished or has got another number;
//! - the log is dense, the events of a transaction are together, and the order is that of commits;
//! - the consumer has handled every event once.
//!
//! A killed server only loses what it had not written, which is little. So the server of the proof writes as late as PostgreSQL lets it, and
//! besides, when a commit is acknowledged, another connection looks whether its commit record is flushed by then.
//!
//! A case is decided by its seed, as far as what runs at the same time lets it be.
//!
//! ```no_run
//! # #[tokio::main] async fn main() {
//! use seqline_testkit::crash::{Mode, Plan, prove};
//!
//! let plan = Plan::new(4711, Mode::ALL[0]);
//! println!("{plan}");
//! let report = prove(&plan).await.unwrap_or_else(|failed| panic!("{failed}"));
//! assert!(report.summary.committed > 0);
//! # }
//! ```

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use seqline::settings::{Notification, Sequencing};
use uuid::Uuid;

use crate::check::{Summary, Violation};
use crate::consumption::Misstep;

mod flushed;
mod observers;
mod stage;
mod verdict;
mod writers;

/// One seed instead of some.
const SEED: &str = "SEQLINE_TEST_SEED";

/// How a database numbers and notifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// When events get their numbers.
    pub sequencing: Sequencing,
    /// What tells listeners.
    pub notification: Notification,
}

impl Mode {
    /// All that there are.
    pub const ALL: [Mode; 6] = [
        Mode::new(Sequencing::AtCommit, Notification::InTransaction),
        Mode::new(Sequencing::AfterCommit, Notification::InTransaction),
        Mode::new(Sequencing::AtCommit, Notification::AfterCommit),
        Mode::new(Sequencing::AfterCommit, Notification::AfterCommit),
        Mode::new(Sequencing::AtCommit, Notification::Off),
        Mode::new(Sequencing::AfterCommit, Notification::Off),
    ];

    /// A mode.
    pub const fn new(sequencing: Sequencing, notification: Notification) -> Mode {
        Mode { sequencing, notification }
    }
}

impl Display for Mode {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.sequencing, self.notification)
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        Mode::ALL.into_iter().find(|mode| mode.to_string() == text).ok_or_else(|| {
            let known: Vec<String> = Mode::ALL.iter().map(Mode::to_string).collect();
            format!("no mode {text}: there are {}", known.join(", "))
        })
    }
}

/// Whether writers and observers wait until something is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// As the product does.
    Kept,
    /// Writers say "acknowledged" after a COMMIT that nobody flushes, and observers take what is visible. The proof has to fail.
    LeftOut,
}

/// What happens in a case.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Decides all that is random.
    pub seed: u64,
    /// How the database numbers and notifies.
    pub mode: Mode,
    /// How often the server is killed.
    pub rounds: u32,
    /// Whether it is waited for durability.
    pub waiting: Waiting,
}

impl Plan {
    /// Three rounds in which everything is waited for.
    pub fn new(seed: u64, mode: Mode) -> Plan {
        Plan { seed, mode, rounds: 3, waiting: Waiting::Kept }
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{SEED}={} mode {}, {} rounds", self.seed, self.mode, self.rounds)?;
        match self.waiting {
            Waiting::Kept => Ok(()),
            Waiting::LeftOut => f.write_str(", without waiting"),
        }
    }
}

/// The seed of a case: the one that the variable `SEQLINE_TEST_SEED` names, else any.
///
/// # Panics
///
/// If the variable is not a number.
pub fn seed() -> u64 {
    match std::env::var(SEED) {
        Ok(seed) => seed.parse().unwrap_or_else(|error| panic!("{SEED} takes a number: {error}")),
        Err(_) => fastrand::u64(..),
    }
}

/// Something that was promised and is not so.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A commit was acknowledged, and its record was not flushed.
    NotFlushed {
        /// The transaction.
        xid: String,
        /// How far the log of the server was flushed.
        flushed: String,
    },
    /// An acknowledged event is neither in the log nor on its way there.
    Lost {
        /// The event.
        id: Uuid,
    },
    /// An observer was given an event that is not there any more, or not under that number.
    Vanished {
        /// Who was given it.
        observer: &'static str,
        /// Its number then.
        seq: i64,
        /// The event.
        id: Uuid,
        /// What has the number now.
        now: Option<Uuid>,
    },
    /// An observer was not given an event, or was given it twice.
    NotGiven {
        /// Who.
        observer: &'static str,
        /// The number that was due.
        seq: i64,
    },
    /// An observer could not go on.
    Ended {
        /// Who.
        observer: &'static str,
        /// What it said.
        error: String,
    },
    /// The log is not what writers were told.
    Log(Violation),
    /// The consumer has not handled every event once.
    Handled(Misstep),
    /// The consumer was given another event under this number than the log has.
    HandledOther {
        /// The number.
        seq: i64,
    },
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NotFlushed { xid, flushed } => {
                write!(
                    f,
                    "the commit of transaction {xid} was acknowledged and is not in what is flushed, up to {flushed}"
                )
            }
            Fault::Lost { id } => write!(f, "event {id} was acknowledged and is gone"),
            Fault::Vanished { observer, seq, id, now: None } => {
                write!(f, "{observer} was given event {id} as {seq}, which is not in the log")
            }
            Fault::Vanished { observer, seq, id, now: Some(now) } => {
                write!(f, "{observer} was given event {id} as {seq}, which is {now} now")
            }
            Fault::NotGiven { observer, seq } => write!(f, "{observer} was not given {seq} when it was due"),
            Fault::Ended { observer, error } => write!(f, "{observer} could not go on: {error}"),
            Fault::Log(violation) => violation.fmt(f),
            Fault::Handled(misstep) => write!(f, "the consumer: {misstep}"),
            Fault::HandledOther { seq } => write!(f, "the consumer was given another event as {seq}"),
        }
    }
}

/// A case in which a promise was broken.
#[derive(Debug, Clone)]
pub struct Failed {
    /// What was done.
    pub plan: Plan,
    /// In which round it was found out; the number of rounds if in the end.
    pub round: u32,
    /// What is wrong.
    pub faults: Vec<Fault>,
}

impl Display for Failed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(f, "{}: {} faults in round {}", self.plan, self.faults.len(), self.round)?;
        self.faults.iter().take(SHOWN).try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

impl std::error::Error for Failed {}

/// What a case that passed consists of, so that a test can tell whether it was about anything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Transactions and events.
    pub summary: Summary,
    /// How often all processes of the server were killed.
    pub all_killed: u32,
    /// How often one of them was.
    pub one_killed: u32,
    /// Commits whose record was looked for in what was flushed when they were acknowledged.
    pub flushes_checked: u64,
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Report { summary, all_killed, one_killed, flushes_checked } = self;
        write!(
            f,
            "{} events of {} acknowledged transactions, {} rolled back, {} unknown ({} of them there), killed {all_killed} + {one_killed} \
             times, {flushes_checked} flushes checked",
            summary.events, summary.committed, summary.rolled_back, summary.unknown, summary.unknown_present
        )
    }
}

/// Runs a case.
///
/// # Errors
///
/// [`Failed`], with everything that is wrong when it is found out.
///
/// # Panics
///
/// If the server cannot be started, or nothing moves any more.
pub async fn prove(plan: &Plan) -> Result<Report, Box<Failed>> {
    stage::run(plan).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_modes_are_read_back() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("at_commit".parse::<Mode>().unwrap_err().contains("at_commit/off"));
    }
}
