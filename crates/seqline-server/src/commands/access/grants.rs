//! `seqline grants`

use seqline::access::{self, Grant, GrantRow};
use seqline::limits::READ_EVENTS_MAX;
use serde::Serialize;
use sqlx::PgConnection;

use super::{ADD_YES, connect, failed, more, say, unknown};
use crate::cli::{Confirm, DatabaseArgs, GrantArgs, GrantsAction, GrantsArgs};
use crate::failure::Failure;
use crate::output;

pub(crate) async fn run(database: &DatabaseArgs, args: GrantsArgs) -> Result<(), Failure> {
    let (mut connection, json) = (connect(database).await?, args.json);
    let connection = &mut connection;
    match args.action {
        GrantsAction::Add { grant, reason } => add(connection, &grant, reason.as_deref(), json).await,
        GrantsAction::List { principal, after, limit } => {
            list(connection, principal.as_deref(), after, limit, json).await
        }
        GrantsAction::Remove { grant, confirm } => remove(connection, &grant, &confirm, json).await,
    }
}

/// A grant as JSON.
#[derive(Serialize)]
pub(super) struct Row<'a> {
    id: i64,
    principal: &'a str,
    action: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    space_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    channel_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_id: Option<&'a str>,
}

impl<'a> Row<'a> {
    pub(super) fn of(row: &'a GrantRow) -> Self {
        let GrantRow { id, principal, grant } = row;
        Self {
            id: *id,
            principal,
            action: &grant.action,
            space_id: grant.space_id.as_deref(),
            channel_id: grant.channel_id.as_deref(),
            thread_id: grant.thread_id.as_deref(),
        }
    }
}

/// A change as JSON.
#[derive(Serialize)]
struct Report<'a> {
    principal: &'a str,
    action: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    space_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    channel_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_id: Option<&'a str>,
    done: bool,
    changed: bool,
}

impl<'a> Report<'a> {
    fn of(args: &'a GrantArgs, done: bool, changed: bool) -> Self {
        Self {
            principal: &args.principal,
            action: &args.action,
            space_id: args.space.as_deref(),
            channel_id: args.channel.as_deref(),
            thread_id: args.thread.as_deref(),
            done,
            changed,
        }
    }
}

async fn add(
    connection: &mut PgConnection,
    args: &GrantArgs,
    reason: Option<&str>,
    json: bool,
) -> Result<(), Failure> {
    let (principal, grant) = (&args.principal, args.grant());
    let changed = access::grant(connection, principal, &grant, reason).await.map_err(failed)?;
    let (again, events) = (if changed { "" } else { " already" }, events(&grant));
    let sentence = format!("{principal} receives {events}{again}");
    say(json, &Report::of(args, true, changed), sentence)
}

/// Which events a grant is about, for people.
fn events(grant: &Grant) -> String {
    let parts = [("space", &grant.space_id), ("channel", &grant.channel_id), ("thread", &grant.thread_id)]
        .into_iter()
        .filter_map(|(name, id)| Some(format!("{name} {}", id.as_ref()?)));
    match parts.collect::<Vec<_>>()[..] {
        [] => format!("all events of {}", grant.action),
        ref parts => format!("events of {} in {}", grant.action, parts.join(", ")),
    }
}

async fn list(
    connection: &mut PgConnection,
    principal: Option<&str>,
    after: i64,
    limit: u32,
    json: bool,
) -> Result<(), Failure> {
    if let Some(id) = principal {
        access::principal(connection, id).await?.ok_or_else(|| unknown(id))?;
    }
    let mut grants = access::list_grants(connection, principal, after, limit + 1).await?;
    let more = more(&mut grants, limit);
    match (json, grants.is_empty()) {
        (true, _) => output::json(&grants.iter().map(Row::of).collect::<Vec<_>>())?,
        (false, true) => eprintln!("seqline: no grants found"),
        (false, false) => table(&grants)?,
    }
    if let (true, Some(last)) = (more, grants.last()) {
        eprintln!("seqline: there are more: --after {} goes on", last.id);
    }
    Ok(())
}

pub(super) fn table(grants: &[GrantRow]) -> Result<(), Failure> {
    let part = |part: &Option<String>| part.clone().unwrap_or_else(|| "*".to_owned());
    let cells = |row: &GrantRow| {
        vec![
            row.id.to_string(),
            row.principal.clone(),
            row.grant.action.clone(),
            part(&row.grant.space_id),
            part(&row.grant.channel_id),
            part(&row.grant.thread_id),
        ]
    };
    output::table(
        &["grant", "principal", "receives", "space", "channel", "thread"],
        &[0],
        grants.iter().map(cells).collect(),
    )
}

async fn remove(
    connection: &mut PgConnection,
    args: &GrantArgs,
    confirm: &Confirm,
    json: bool,
) -> Result<(), Failure> {
    let (principal, grant) = (&args.principal, args.grant());
    let changed = match confirm.yes {
        true => {
            access::ungrant(connection, principal, &grant, confirm.reason.as_deref()).await.map_err(failed)?
        }
        false => {
            access::principal(connection, principal).await?.ok_or_else(|| unknown(principal))?;
            // No principal has more of them than that.
            let grants = access::list_grants(connection, Some(principal), 0, READ_EVENTS_MAX).await?;
            grants.iter().any(|row| row.grant == grant)
        }
    };
    let events = events(&grant);
    let sentence = match (changed, confirm.yes) {
        (false, _) => format!("{principal} has no such grant: seqline grants list {principal} shows them"),
        (true, false) => format!("would take from {principal}: {events}{ADD_YES}"),
        (true, true) => format!("taken from {principal}: {events}"),
    };
    say(json, &Report::of(args, confirm.yes, changed), sentence)
}
