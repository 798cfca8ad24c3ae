//! `seqline append`

use std::io::Read;

use seqline::limits::PAYLOAD_BYTES_MAX;
use seqline::{Actor, Clock, CommitError, NewEvent, Payload};
use serde::Serialize;
use uuid::Uuid;

use crate::cli::{AppendArgs, DatabaseArgs, MemberArgs};
use crate::failure::Failure;
use crate::limits::{NUMBER_POLL_INTERVAL, NUMBER_WAIT_MAX};
use crate::sqlstate;
use crate::{connect, output};

#[derive(Serialize)]
struct Appended {
    /// Absent when the role may append but not read, and while the event waits for its number.
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<i64>,
    id: Uuid,
}

pub(crate) async fn run(database: &DatabaseArgs, args: AppendArgs) -> Result<(), Failure> {
    // Of our own, so that a lost answer can be asked for again.
    let id = args.id.filter(|id| !id.is_nil()).unwrap_or_else(Uuid::now_v7);
    let event = event(&args, id)?;
    let pool = connect::pool(&connect::options(database)?, 1).await?;
    let mut tx = seqline::begin(&pool).await?;
    let ids = seqline::append(&mut tx, &[event]).await?;
    seqline::commit(tx).await.map_err(|error| match error {
        CommitError::Unknown(_) | CommitError::NotKnownDurable(_) => Failure::Unavailable(format!(
            "{error}; run the same command with --id {id}: it cannot append twice"
        )),
        error => error.into(),
    })?;
    let number = number(&pool, ids[0]).await?;
    let appended = Appended { seq: number.seq(), id: ids[0] };
    match appended.seq {
        _ if args.json => output::json(&appended)?,
        Some(seq) => output::line(format!("{seq} {}", appended.id))?,
        None => output::line(appended.id.to_string())?,
    }
    if matches!(number, Number::Waits) {
        eprintln!(
            "seqline: appended, and the event waits for its number: seqline serve --role worker gives it one"
        );
    }
    Ok(())
}

/// What is known of the number of an event that has committed.
enum Number {
    Is(i64),
    /// Events are numbered after commit, and this one is not so far.
    Waits,
    /// The role may not see it.
    Hidden,
}

impl Number {
    fn seq(&self) -> Option<i64> {
        match self {
            Self::Is(seq) => Some(*seq),
            Self::Waits | Self::Hidden => None,
        }
    }
}

/// The number of an event, for which it waits a little: a sequencer that runs takes milliseconds.
async fn number(pool: &sqlx::PgPool, id: Uuid) -> Result<Number, Failure> {
    let clock = Clock::system();
    let mut connection = pool.acquire().await.map_err(seqline::DatabaseError::from)?;
    let until_there = async {
        loop {
            match seqline::read::seq_of(&mut connection, id).await {
                Ok(Some(seq)) => return Ok(Number::Is(seq)),
                Ok(None) => clock.sleep(NUMBER_POLL_INTERVAL).await,
                Err(error) if error.sqlstate() == Some(sqlstate::INSUFFICIENT_PRIVILEGE) => {
                    return Ok(Number::Hidden);
                }
                Err(error) => return Err(error.into()),
            }
        }
    };
    clock.timeout(NUMBER_WAIT_MAX, until_there).await.unwrap_or(Ok(Number::Waits))
}

fn event(args: &AppendArgs, id: Uuid) -> Result<NewEvent, Failure> {
    let text = match args.payload.as_str() {
        "-" => from_stdin()?,
        text => text.to_owned(),
    };
    let payload = if args.strip_nulls { Payload::without_nulls(&text) } else { Payload::from_json(&text) }?;
    let mut builder = NewEvent::builder(
        &args.event_type,
        args.resource_kind.as_deref().unwrap_or_default(),
        &args.members.receive_action,
    )
    .payload(payload)
    .resource_id(args.resource_id.as_deref().unwrap_or_default())
    .client_msg_id(args.client_msg_id.as_deref().unwrap_or_default())
    .traceparent(args.traceparent.as_deref().unwrap_or_default())
    .id(id)
    .truncated(args.truncated);
    if let Some(version) = args.resource_version {
        builder = builder.resource_version(version);
    }
    Ok(with_members(builder, &args.members)?.build()?)
}

/// Adds what does not differ between the events of one command.
pub(crate) fn with_members(
    builder: seqline::event::NewEventBuilder,
    members: &MemberArgs,
) -> Result<seqline::event::NewEventBuilder, Failure> {
    let builder = builder
        .schema_version(members.schema_version)
        .space(members.space.as_deref().unwrap_or_default())
        .channel(members.channel.as_deref().unwrap_or_default())
        .thread(members.thread.as_deref().unwrap_or_default())
        .audience(members.audience.as_deref().unwrap_or_default());
    let Some(kind) = members.actor_kind.as_deref() else { return Ok(builder) };
    let id = members.actor_id.clone().unwrap_or_default();
    let actor = match kind {
        "user" => Actor::User(id),
        "agent" => Actor::Agent(id),
        "app" => Actor::App(id),
        "system" if id.is_empty() => Actor::System,
        "system" => {
            return Err(Failure::Refused(
                "member actor_principal_id needs an actor_kind of user, agent or app".to_owned(),
            ));
        }
        _ => return Err(Failure::Refused("member actor_kind must be user, agent, app or system".to_owned())),
    };
    Ok(builder.actor(actor))
}

fn from_stdin() -> Result<String, Failure> {
    let mut text = Vec::new();
    std::io::stdin().lock().take(PAYLOAD_BYTES_MAX as u64 + 1).read_to_end(&mut text).map_err(|error| {
        Failure::Unavailable(format!("cannot read the payload from standard input: {error}"))
    })?;
    if text.len() > PAYLOAD_BYTES_MAX {
        return Err(Failure::Refused(
            "the payload on standard input is larger than any setting allows".to_owned(),
        ));
    }
    String::from_utf8(text)
        .map_err(|_| Failure::Refused("the payload on standard input is not UTF-8".to_owned()))
}
