//! `seqline agents consumers`: how far the consumers of agents are, and who holds them.
//!
//! What changes something says first what it would do. Whatever the database refuses is said in its words.

use seqline::agent::{self, AgentConsumer, Cursor};
use seqline::consumer::Mode;
use seqline::read;
use serde::Serialize;
use sqlx::PgConnection;

use super::access::{connect, failed, more, say};
use super::consumers::ADD_YES;
use crate::cli::{AgentConsumersAction, AgentsArgs, AgentsPart, Confirm, DatabaseArgs, OneConsumer};
use crate::failure::Failure;
use crate::output::{self, grouped, rfc3339};

pub(crate) async fn run(database: &DatabaseArgs, args: AgentsArgs) -> Result<(), Failure> {
    let AgentsPart::Consumers(args) = args.part;
    let (mut connection, json) = (connect(database).await?, args.json);
    let connection = &mut connection;
    match args.action {
        AgentConsumersAction::List { agent, after, limit } => {
            list(connection, agent.as_deref(), after.as_ref(), limit, json).await
        }
        AgentConsumersAction::Show(one) => show(connection, &named(one)?, json).await,
        AgentConsumersAction::Reset { consumer, to, confirm } => {
            reset(connection, &named(consumer)?, to, &confirm, json).await
        }
        AgentConsumersAction::Release { consumer, confirm } => {
            release(connection, &named(consumer)?, &confirm, json).await
        }
        AgentConsumersAction::Delete { consumer, confirm } => {
            delete(connection, &named(consumer)?, &confirm, json).await
        }
    }
}

fn named(OneConsumer { agent, consumer }: OneConsumer) -> Result<AgentConsumer, Failure> {
    AgentConsumer::new(agent, consumer).map_err(|error| Failure::Refused(error.to_string()))
}

/// A consumer as JSON.
#[derive(Serialize)]
struct Row<'a> {
    agent: &'a str,
    consumer: &'a str,
    acked_seq: i64,
    lag: i64,
    generation: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<HolderRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<LostRow>,
    created_at: String,
    updated_at: String,
}

#[derive(Serialize)]
struct HolderRow {
    session: String,
    over: &'static str,
    since: String,
    seen_at: String,
}

#[derive(Serialize)]
struct LostRow {
    reason: &'static str,
    after: i64,
    position: i64,
}

impl<'a> Row<'a> {
    fn of(cursor: &'a Cursor, head: i64) -> Self {
        Self {
            agent: cursor.consumer.agent(),
            consumer: cursor.consumer.name(),
            acked_seq: cursor.acked_seq,
            lag: (head - cursor.acked_seq).max(0),
            generation: cursor.generation,
            holder: cursor.holder.map(|holder| HolderRow {
                session: holder.session.to_string(),
                over: holder.kind.as_str(),
                since: rfc3339(holder.since),
                seen_at: rfc3339(holder.seen_at),
            }),
            lost: cursor.lost.map(|lost| LostRow {
                reason: lost.reason.as_str(),
                after: lost.after,
                position: lost.position,
            }),
            created_at: rfc3339(cursor.created_at),
            updated_at: rfc3339(cursor.updated_at),
        }
    }
}

async fn list(
    connection: &mut PgConnection,
    agent: Option<&str>,
    after: Option<&AgentConsumer>,
    limit: u32,
    json: bool,
) -> Result<(), Failure> {
    let head = read::head(connection).await?;
    let mut cursors = agent::list(connection, agent, after, limit + 1).await?;
    let more = more(&mut cursors, limit);
    let rows: Vec<_> = cursors.iter().map(|cursor| Row::of(cursor, head)).collect();
    match (json, rows.is_empty()) {
        (true, _) => output::json(&rows)?,
        (false, true) => eprintln!("seqline: no consumers of agents found"),
        (false, false) => {
            let cells = |row: &Row<'_>| {
                let holder = row.holder.as_ref();
                vec![
                    row.agent.to_owned(),
                    row.consumer.to_owned(),
                    grouped(row.acked_seq),
                    grouped(row.lag),
                    holder.map_or("-", |holder| holder.over).to_owned(),
                    holder.map_or_else(|| "-".to_owned(), |holder| holder.since.clone()),
                    row.lost.as_ref().map_or("-", |lost| lost.reason).to_owned(),
                ]
            };
            output::table(
                &["agent", "consumer", "acked", "lag", "held over", "since", "lost"],
                &[2, 3],
                rows.iter().map(cells).collect(),
            )?;
        }
    }
    if let (true, Some(last)) = (more, cursors.last()) {
        eprintln!("seqline: there are more: --after {} goes on", last.consumer);
    }
    Ok(())
}

async fn show(connection: &mut PgConnection, consumer: &AgentConsumer, json: bool) -> Result<(), Failure> {
    let head = read::head(connection).await?;
    let cursor = agent::cursor(connection, consumer).await?.ok_or_else(|| {
        Failure::Refused(format!(
            "there is no consumer {consumer}: seqline agents consumers list shows those that there are"
        ))
    })?;
    let row = Row::of(&cursor, head);
    if json {
        return output::json(&row);
    }
    let mut lines = vec![
        format!("consumer      {consumer}"),
        format!("acknowledged  {}", grouped(row.acked_seq)),
        format!("lag           {}", grouped(row.lag)),
        format!("generation    {}", grouped(row.generation)),
    ];
    lines.push(match &row.holder {
        None => "held          by nobody".to_owned(),
        Some(holder) => format!(
            "held          over {} since {}, heard of at {}",
            holder.over, holder.since, holder.seen_at
        ),
    });
    if let Some(lost) = &row.lost {
        lines.push(format!(
            "lost          what came after {} ({}): it goes on after {}, and the agent has not said that it knows",
            grouped(lost.after),
            lost.reason,
            grouped(lost.position)
        ));
    }
    lines.push(format!("created       {}", row.created_at));
    lines.push(format!("changed       {}", row.updated_at));
    lines.into_iter().try_for_each(output::line)
}

/// A change as JSON.
#[derive(Serialize)]
struct Report<'a> {
    agent: &'a str,
    consumer: &'a str,
    /// What it had acknowledged before.
    acked_seq: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<i64>,
    /// Over which way somebody held it before.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_over: Option<&'static str>,
    done: bool,
    changed: bool,
}

impl<'a> Report<'a> {
    fn of(before: &'a Cursor, to: Option<i64>, done: bool, changed: bool) -> Self {
        Self {
            agent: before.consumer.agent(),
            consumer: before.consumer.name(),
            acked_seq: before.acked_seq,
            to,
            held_over: before.holder.map(|holder| holder.kind.as_str()),
            done,
            changed,
        }
    }
}

fn mode(confirm: &Confirm) -> Mode<'_> {
    match confirm.yes {
        true => Mode::Apply { why: confirm.reason.as_deref() },
        false => Mode::Plan,
    }
}

async fn reset(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
    to: i64,
    confirm: &Confirm,
    json: bool,
) -> Result<(), Failure> {
    let before = agent::reset(connection, consumer, to, mode(confirm)).await.map_err(failed)?;
    let (from, at) = (grouped(before.acked_seq), grouped(to));
    let sentence = match confirm.yes {
        false => format!("would set {consumer} from {from} to {at}{ADD_YES}"),
        true => format!("{consumer} is set from {from} to {at}: whoever comes next is given what follows"),
    };
    say(json, &Report::of(&before, Some(to), confirm.yes, true), sentence)
}

async fn release(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
    confirm: &Confirm,
    json: bool,
) -> Result<(), Failure> {
    let before = agent::release_holder(connection, consumer, mode(confirm)).await.map_err(failed)?;
    let sentence = match (&before.holder, confirm.yes) {
        (None, _) => format!("nobody holds {consumer}"),
        (Some(holder), false) => format!(
            "would take {consumer} from who holds it over {} since {}{ADD_YES}",
            holder.kind,
            rfc3339(holder.since)
        ),
        (Some(holder), true) => format!(
            "{consumer} is taken from who held it over {} since {}: that one finds out when it saves next",
            holder.kind,
            rfc3339(holder.since)
        ),
    };
    say(json, &Report::of(&before, None, confirm.yes, before.holder.is_some()), sentence)
}

async fn delete(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
    confirm: &Confirm,
    json: bool,
) -> Result<(), Failure> {
    let before = agent::delete(connection, consumer, mode(confirm)).await.map_err(failed)?;
    let acked = grouped(before.acked_seq);
    let held = before.holder.as_ref().map_or_else(
        || "held by nobody".to_owned(),
        |holder| format!("held over {} since {}", holder.kind, rfc3339(holder.since)),
    );
    let sentence = match confirm.yes {
        false => format!(
            "would delete {consumer}, which has acknowledged up to {acked} and is {held}: whoever comes under this name begins at the head{ADD_YES}"
        ),
        true => format!(
            "{consumer} is deleted, which had acknowledged up to {acked} and was {held}: whoever comes under this name begins at the head"
        ),
    };
    say(json, &Report::of(&before, None, confirm.yes, true), sentence)
}
