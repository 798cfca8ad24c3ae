//! `seqline restore finalize`: a new epoch after a restore.

use seqline::DatabaseError;
use seqline::consumer::Mode;
use seqline::identity::{
    self, Difference, EpochError, Finalized, IdentityCheck, Need, RestoredConsumers, Standing, WaitReason,
};
use seqline_nats::relay::operate::{RelayStatus, statuses};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::consumers::{ADD_YES, connect};
use crate::cli::{DatabaseArgs, FinalizeArgs, RestoreAction, RestoreArgs};
use crate::failure::Failure;
use crate::limits::ROUND_WAIT_MAX;
use crate::output;
use crate::output::{count, grouped};
use crate::sqlstate;

/// What a consumer of an agent is called beside those that have lanes.
const AGENT: &str = "agent";

pub(crate) async fn run(database: &DatabaseArgs, args: RestoreArgs) -> Result<(), Failure> {
    let mut connection = connect(database).await?;
    match args.action {
        RestoreAction::Finalize(finalize) => run_finalize(&mut connection, &finalize, args.json).await,
    }
}

#[derive(Serialize)]
struct Report<'a> {
    done: bool,
    /// What speaks for a restore, if anything does.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<String>,
    differences: Vec<&'static str>,
    old_epoch: Uuid,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_epoch: Option<Uuid>,
    head: i64,
    consumers: &'static str,
    moves: Vec<Move<'a>>,
    staged: i64,
    forgotten: i64,
    /// Relays, whose streams have events above the restore point.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    relays: Vec<&'a str>,
}

#[derive(Serialize)]
struct Move<'a> {
    consumer: &'a str,
    kind: &'a str,
    lane: u32,
    from: i64,
    to: i64,
}

async fn run_finalize(connection: &mut PgConnection, args: &FinalizeArgs, json: bool) -> Result<(), Failure> {
    let check = identity::check(connection).await?;
    let need = if args.force { Need::Stated } else { Need::Found };
    let (mode, done) = match args.confirm.mode() {
        Mode::Plan => (Mode::Plan, false),
        apply => (apply, true),
    };
    let finalized = identity::finalize(connection, args.consumers, need, mode).await.map_err(failed)?;
    let relays = unless_unseen(statuses(connection).await)?;
    if json {
        return output::json(&Report {
            relays: relays.iter().map(|relay| relay.name.as_str()).collect(),
            ..report(&check, args.consumers, &finalized, done)
        });
    }
    print(&check, args.consumers, &finalized, done)?;
    relays.iter().try_for_each(|relay| note(relay, &finalized))
}

/// Who may start an epoch need not see relays, and what was done is done.
fn unless_unseen(relays: Result<Vec<RelayStatus>, DatabaseError>) -> Result<Vec<RelayStatus>, Failure> {
    match relays {
        Err(error) if error.sqlstate() == Some(sqlstate::INSUFFICIENT_PRIVILEGE) => Ok(Vec::new()),
        relays => Ok(relays?),
    }
}

/// What is to know about a relay, whose row is of the backup and whose stream is not.
fn note(relay: &RelayStatus, finalized: &Finalized) -> Result<(), Failure> {
    output::line("")?;
    output::line(format!(
        "The stream {} may have events above {}, which the log has no longer. They stay there until they expire, and consumers may have",
        relay.stream,
        grouped(finalized.head)
    ))?;
    output::line(format!(
        "handled them. Relay {} goes on by itself: it compares the ids of what is there with the log, and counts the others as an incident,",
        relay.name
    ))?;
    output::line("orphaned_messages, which seqline relay status shows.")
}

fn report<'a>(
    check: &IdentityCheck,
    consumers: RestoredConsumers,
    finalized: &'a Finalized,
    done: bool,
) -> Report<'a> {
    Report {
        done,
        found: found(check),
        differences: check.differences.iter().map(Difference::name).collect(),
        old_epoch: finalized.old_epoch,
        new_epoch: finalized.new_epoch,
        head: finalized.head,
        consumers: consumers.as_str(),
        moves: finalized
            .moves
            .iter()
            .map(|lane| Move {
                consumer: &lane.consumer,
                kind: &lane.kind,
                lane: lane.lane,
                from: lane.from,
                to: lane.to,
            })
            .collect(),
        staged: finalized.staged,
        forgotten: finalized.forgotten,
        relays: Vec::new(),
    }
}

/// What speaks for a restore.
pub(super) fn found(check: &IdentityCheck) -> Option<String> {
    match check.standing() {
        Standing::Matches => None,
        Standing::Differs(differences) => Some(WaitReason::Differs(differences.to_vec()).to_string()),
        Standing::Broken(reason) => Some(WaitReason::Broken(reason).to_string()),
    }
}

fn print(
    check: &IdentityCheck,
    consumers: RestoredConsumers,
    finalized: &Finalized,
    done: bool,
) -> Result<(), Failure> {
    output::line(match done {
        true => {
            "a new epoch has begun: readers that hold a position of the old one have to start anew".to_owned()
        }
        false => format!(
            "would start a new epoch: readers that hold a position of the old one have to start anew then{ADD_YES}"
        ),
    })?;
    let nothing = || "nothing that speaks for a restore".to_owned();
    let mut lines = vec![("found", found(check).unwrap_or_else(nothing))];
    lines.push(("old epoch", finalized.old_epoch.to_string()));
    lines.extend(finalized.new_epoch.map(|epoch| ("new epoch", epoch.to_string())));
    lines.push((
        "head",
        format!("{}, the next event gets {}", grouped(finalized.head), grouped(finalized.head + 1)),
    ));
    if finalized.staged > 0 {
        let waiting = count(finalized.staged, "transaction");
        lines.push(("waiting", format!("{waiting} for their numbers, in the new epoch")));
    }
    if finalized.forgotten > 0 {
        let what = count(finalized.forgotten, "event");
        lines.push((
            "forgotten",
            format!("{what} above the head that consumers had parked or were to leave out"),
        ));
    }
    let choice = match consumers {
        RestoredConsumers::Keep => "keep: they handle again what they did after the backup",
        RestoredConsumers::Head => "head: they go on with new events only",
    };
    let choice = if finalized.moves.is_empty() { "there are none" } else { choice };
    lines.push(("consumers", choice.to_owned()));
    let agents = finalized.moves.iter().filter(|it| it.kind == AGENT).count();
    if agents > 0 {
        let what = count(i64::try_from(agents).unwrap_or(i64::MAX), "consumer");
        lines.push(("agents", format!("{what}, told of it until they acknowledge where they go on")));
    }
    lines.into_iter().try_for_each(|(name, value)| output::line(format!("{name:<14}{value}")))?;
    if finalized.moves.is_empty() {
        return Ok(());
    }
    let row = |lane: &identity::Move| {
        let (from, to) = (grouped(lane.from), grouped(lane.to));
        let what = match (lane.to - lane.from, lane.from > finalized.head) {
            (0, _) => "stays".to_owned(),
            (_, true) => "was above the head".to_owned(),
            (passed, false) => format!("passes over {}", count(passed, "event")),
        };
        let number = if lane.kind == AGENT { String::new() } else { lane.lane.to_string() };
        vec![lane.consumer.clone(), lane.kind.clone(), number, from, to, what]
    };
    output::line("")?;
    let header = ["consumer", "kind", "lane", "from", "to", ""];
    output::table(&header, &[2, 3, 4], finalized.moves.iter().map(row).collect())
}

fn failed(error: EpochError) -> Failure {
    const READ_ONLY: &str = "25006";
    match error {
        EpochError::Refused { message, hint: Some(hint), .. } => {
            Failure::Refused(format!("{message}. {}", hint.trim_end_matches('.')))
        }
        EpochError::Database(error) => match error.sqlstate() {
            Some(sqlstate::LOCK_NOT_AVAILABLE) if error.to_string().starts_with("numbering lock") => {
                Failure::Unavailable(format!("{error}: nothing was changed, try again"))
            }
            Some(sqlstate::LOCK_NOT_AVAILABLE) => Failure::Unavailable(format!(
                "a round of a consumer has not ended for {}s: nothing was changed, try again",
                ROUND_WAIT_MAX.as_secs()
            )),
            Some(READ_ONLY) => {
                Failure::Refused("the server is read-only: say this to the one that is written to".to_owned())
            }
            _ => error.into(),
        },
        error => Failure::Refused(error.to_string()),
    }
}
