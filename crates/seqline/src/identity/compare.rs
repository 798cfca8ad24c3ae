//! What was found is compared, and what becomes of it decided. Nothing is asked and nothing done here.

use std::fmt;

use time::OffsetDateTime;
use uuid::Uuid;

/// What tells servers and databases apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The cluster: a copy made with files has the same one, one that was loaded from a dump another.
    pub system_identifier: i64,
    /// Goes up with each promotion. None on a server in recovery, which is on nobody's way to write.
    pub timeline: Option<i32>,
    /// The database in its cluster.
    pub database_oid: i64,
}

/// One thing in which a server is not the one that is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// Another cluster: a dump that was loaded, an upgrade, a logical replica.
    System {
        /// The system identifier that is recorded.
        recorded: i64,
        /// That of the server.
        server: i64,
    },
    /// Another timeline: a standby was promoted, or a backup was recovered to a point in time.
    Timeline {
        /// The timeline that is recorded.
        recorded: i32,
        /// That of the server.
        server: i32,
    },
    /// Another database: a copy, or a dump that was loaded.
    Database {
        /// The oid that is recorded.
        recorded: i64,
        /// That of the database.
        server: i64,
    },
}

impl Difference {
    /// Its name in reports: `system`, `timeline` or `database`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::System { .. } => "system",
            Self::Timeline { .. } => "timeline",
            Self::Database { .. } => "database",
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System { recorded, server } => {
                write!(f, "system identifier {server} instead of {recorded}")
            }
            Self::Timeline { recorded, server } => write!(f, "timeline {server} instead of {recorded}"),
            Self::Database { recorded, server } => write!(f, "database oid {server} instead of {recorded}"),
        }
    }
}

impl Identity {
    /// In what `server` is not what is recorded. What is not known of either is no difference.
    ///
    /// ```
    /// use seqline::identity::{Difference, Identity};
    ///
    /// let recorded = Identity { system_identifier: 7, timeline: Some(1), database_oid: 5 };
    /// let promoted = Identity { timeline: Some(2), ..recorded };
    /// assert_eq!(recorded.compare(&promoted), [Difference::Timeline { recorded: 1, server: 2 }]);
    /// assert!(recorded.compare(&Identity { timeline: None, ..recorded }).is_empty());
    /// ```
    #[must_use]
    pub fn compare(&self, server: &Self) -> Vec<Difference> {
        let mut differences = Vec::new();
        if self.system_identifier != server.system_identifier {
            let (recorded, server) = (self.system_identifier, server.system_identifier);
            differences.push(Difference::System { recorded, server });
        }
        if let Some((recorded, server)) = self.timeline.zip(server.timeline).filter(|(a, b)| a != b) {
            differences.push(Difference::Timeline { recorded, server });
        }
        if self.database_oid != server.database_oid {
            let (recorded, server) = (self.database_oid, server.database_oid);
            differences.push(Difference::Database { recorded, server });
        }
        differences
    }
}

/// How it was seen that history went back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrokenReason {
    /// A process had seen more of the log than there is.
    HeadWentBack,
    /// A consumer had come further than the log goes.
    CursorAboveHead,
}

impl BrokenReason {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::HeadWentBack, Self::CursorAboveHead];

    /// Its name in the database and in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HeadWentBack => "head_went_back",
            Self::CursorAboveHead => "cursor_above_head",
        }
    }
}

impl fmt::Display for BrokenReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A lane of a consumer that is above the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorAbove {
    /// The consumer.
    pub consumer: String,
    /// Which of its lanes.
    pub lane: u32,
    /// Where it stands.
    pub last_seq: i64,
}

/// What a database says of its history.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdentityCheck {
    /// The id of the log: it stays through all epochs.
    pub log_id: Uuid,
    /// The history that its numbers belong to.
    pub epoch: Uuid,
    /// The highest number.
    pub head: i64,
    /// The server that the epoch belongs to.
    pub recorded: Identity,
    /// The server that answers.
    pub server: Identity,
    /// In what they differ.
    pub differences: Vec<Difference>,
    /// That somebody has seen history go back, and when that was recorded.
    pub broken: Option<(BrokenReason, OffsetDateTime)>,
    /// Lanes of consumers that are above the head.
    pub cursors_above: Vec<CursorAbove>,
}

/// What a check comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing<'a> {
    /// The epoch belongs to this server, and nothing speaks against it.
    Matches,
    /// It belongs to another one.
    Differs(&'a [Difference]),
    /// History went back, whatever the server is.
    Broken(BrokenReason),
}

impl IdentityCheck {
    /// What it comes to, the worst first.
    #[must_use]
    pub fn standing(&self) -> Standing<'_> {
        match (self.broken, &self.differences[..]) {
            (Some((reason, _)), _) => Standing::Broken(reason),
            (None, _) if !self.cursors_above.is_empty() => Standing::Broken(BrokenReason::CursorAboveHead),
            (None, []) => Standing::Matches,
            (None, differences) => Standing::Differs(differences),
        }
    }

    /// Whether the server only follows another one and cannot be written to.
    #[must_use]
    pub fn in_recovery(&self) -> bool {
        self.server.timeline.is_none()
    }
}

/// What becomes of a log whose server is not the one that is recorded (`epoch.on_change`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnChange {
    /// Nothing is handed out until somebody has said `seqline restore finalize`.
    #[default]
    Refuse,
    /// A new epoch is started, and cursors stay where they are: those above the head are set to it.
    NewEpoch,
    /// What a clean failover does is taken for one, and the epoch goes on. All else waits as with [`Refuse`](Self::Refuse).
    Accept,
}

impl OnChange {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Refuse, Self::NewEpoch, Self::Accept];

    /// Its name in the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::NewEpoch => "new_epoch",
            Self::Accept => "accept",
        }
    }
}

impl fmt::Display for OnChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for OnChange {
    type Err = UnknownRule;

    fn from_str(text: &str) -> Result<Self, UnknownRule> {
        Self::ALL.into_iter().find(|rule| rule.as_str() == text).ok_or(UnknownRule)
    }
}

/// A text that is none of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected one of refuse, new_epoch, accept")]
pub struct UnknownRule;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Positions may be handed out.
    GoOn,
    /// Nothing may be handed out, and somebody has to do something.
    Wait(WaitReason),
    /// A new epoch is to be started, with the cursors kept.
    Finalize,
    /// This server is to be recorded in the same epoch.
    AcceptIdentity,
}

/// Why nothing is handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitReason {
    /// History went back.
    Broken(BrokenReason),
    /// The server is another one, and the rule does not cover it.
    Differs(Vec<Difference>),
    /// It would have to be written, and the server is in recovery.
    InRecovery(Vec<Difference>),
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, differences: &[Difference]| {
            let texts: Vec<String> = differences.iter().map(ToString::to_string).collect();
            f.write_str(&texts.join(", "))
        };
        match self {
            Self::Broken(BrokenReason::HeadWentBack) => f.write_str(
                "the log has fewer events than a process had seen: it was taken back to an earlier state",
            ),
            Self::Broken(BrokenReason::CursorAboveHead) => {
                f.write_str("a cursor is above the head of the log: it was taken back to an earlier state")
            }
            Self::Differs(differences) => {
                f.write_str("the log belongs to another server: ")?;
                list(f, differences)
            }
            Self::InRecovery(differences) if differences.is_empty() => {
                f.write_str("the server is in recovery, and a new epoch is due")
            }
            Self::InRecovery(differences) => {
                f.write_str("the server is in recovery, and the log belongs to another one: ")?;
                list(f, differences)
            }
        }
    }
}

/// Decides what becomes of what was found. `seen_head` is the highest durable number of this epoch that the process has seen, if it has
/// seen any. Pass none for a log that was empty.
///
/// A rule never makes good what is known to be broken, but for a new epoch. [`OnChange::Accept`] takes another timeline of the same database
/// for a failover; another cluster only when the process had seen the log and nothing of that is missing.
#[must_use]
pub fn decide(check: &IdentityCheck, rule: OnChange, seen_head: Option<i64>) -> Decision {
    // A standby that is behind has lost nothing: it has not been told yet.
    let went_back = !check.in_recovery() && seen_head.is_some_and(|seen| seen > check.head);
    let standing = check.standing();
    let broken = match standing {
        Standing::Broken(reason) => Some(reason),
        _ if went_back => Some(BrokenReason::HeadWentBack),
        Standing::Matches => return Decision::GoOn,
        Standing::Differs(_) => None,
    };
    let differences = || check.differences.clone();
    let wait =
        || Decision::Wait(broken.map_or_else(|| WaitReason::Differs(differences()), WaitReason::Broken));
    let step = match (rule, broken) {
        (OnChange::Refuse, _) | (OnChange::Accept, Some(_)) => return wait(),
        (OnChange::NewEpoch, _) => Decision::Finalize,
        (OnChange::Accept, None) if is_of_failover(&check.differences, seen_head) => Decision::AcceptIdentity,
        (OnChange::Accept, None) => return wait(),
    };
    if check.in_recovery() { Decision::Wait(WaitReason::InRecovery(differences())) } else { step }
}

/// Whether a failover in which nothing was lost explains all of it. That nothing is missing was looked at before.
fn is_of_failover(differences: &[Difference], seen_head: Option<i64>) -> bool {
    let has = |name| differences.iter().any(|difference| difference.name() == name);
    match (has("system"), has("database")) {
        (true, _) => seen_head.is_some(),
        (false, true) => false,
        (false, false) => true,
    }
}
