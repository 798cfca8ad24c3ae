//! `seqline principals`

use seqline::access::{self, NewPrincipal, Principal};
use serde::Serialize;
use sqlx::PgConnection;

use super::{ADD_YES, connect, failed, grants, more, rights_text, say, tokens, unknown};
use crate::cli::{
    DatabaseArgs, NewPrincipalArgs, PrincipalChange, PrincipalsAction, PrincipalsArgs, RightsArgs,
};
use crate::failure::Failure;
use crate::limits::ACCESS_SHOWN_MAX;
use crate::output::{self, count, grouped, rfc3339, seconds};

pub(crate) async fn run(database: &DatabaseArgs, args: PrincipalsArgs) -> Result<(), Failure> {
    let (mut connection, json) = (connect(database).await?, args.json);
    let connection = &mut connection;
    match args.action {
        PrincipalsAction::Create(args) => create(connection, args, json).await,
        PrincipalsAction::List { after, limit } => list(connection, after.as_deref(), limit, json).await,
        PrincipalsAction::Show { id } => show(connection, &id, json).await,
        PrincipalsAction::Rights(args) => rights(connection, &args, json).await,
        PrincipalsAction::Disable(change) => disable(connection, &change, json).await,
        PrincipalsAction::Enable(change) => enable(connection, &change, json).await,
        PrincipalsAction::Delete(change) => delete(connection, &change, json).await,
    }
}

/// A principal as JSON.
#[derive(Serialize)]
struct Row<'a> {
    id: &'a str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    rights: Vec<&'static str>,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    disabled_at: Option<String>,
    tokens: i64,
    grants: i64,
}

impl<'a> Row<'a> {
    fn of(principal: &'a Principal) -> Self {
        Self {
            id: &principal.id,
            kind: principal.kind.as_str(),
            name: principal.name.as_deref(),
            rights: principal.rights.names(),
            created_at: rfc3339(principal.created_at),
            disabled_at: principal.disabled_at.map(rfc3339),
            tokens: principal.tokens,
            grants: principal.grants,
        }
    }
}

async fn find(connection: &mut PgConnection, id: &str) -> Result<Principal, Failure> {
    access::principal(connection, id).await?.ok_or_else(|| unknown(id))
}

async fn create(connection: &mut PgConnection, args: NewPrincipalArgs, json: bool) -> Result<(), Failure> {
    let new = NewPrincipal {
        id: args.id,
        kind: args.kind,
        name: args.name,
        rights: args.rights.unwrap_or_default(),
    };
    access::create_principal(connection, &new, args.reason.as_deref()).await.map_err(failed)?;
    let principal = find(connection, &new.id).await?;
    say(json, &Row::of(&principal), format!("{} {} is created", new.kind, new.id))
}

async fn list(
    connection: &mut PgConnection,
    after: Option<&str>,
    limit: u32,
    json: bool,
) -> Result<(), Failure> {
    let mut principals = access::list_principals(connection, after, limit + 1).await?;
    let more = more(&mut principals, limit);
    match (json, principals.is_empty()) {
        (true, _) => output::json(&principals.iter().map(Row::of).collect::<Vec<_>>())?,
        (false, true) => eprintln!("seqline: no principals found"),
        (false, false) => table(&principals)?,
    }
    if let (true, Some(last)) = (more, principals.last()) {
        eprintln!("seqline: there are more: --after {} goes on", last.id);
    }
    Ok(())
}

fn table(principals: &[Principal]) -> Result<(), Failure> {
    let cells = |principal: &Principal| {
        vec![
            principal.id.clone(),
            principal.kind.to_string(),
            principal.name.clone().unwrap_or_default(),
            rights_text(principal.rights),
            grouped(principal.tokens),
            grouped(principal.grants),
            state(principal),
        ]
    };
    output::table(
        &["id", "kind", "name", "rights", "tokens", "grants", "state"],
        &[4, 5],
        principals.iter().map(cells).collect(),
    )
}

fn state(principal: &Principal) -> String {
    principal
        .disabled_at
        .map_or_else(|| "enabled".to_owned(), |since| format!("disabled since {}", seconds(since)))
}

#[derive(Serialize)]
struct Details<'a> {
    principal: Row<'a>,
    tokens: Vec<tokens::Row<'a>>,
    grants: Vec<grants::Row<'a>>,
}

async fn show(connection: &mut PgConnection, id: &str, json: bool) -> Result<(), Failure> {
    let principal = find(connection, id).await?;
    let mut tokens = access::list_tokens(connection, Some(id), None, ACCESS_SHOWN_MAX + 1).await?;
    let mut grants = access::list_grants(connection, Some(id), 0, ACCESS_SHOWN_MAX + 1).await?;
    let more = (more(&mut tokens, ACCESS_SHOWN_MAX), more(&mut grants, ACCESS_SHOWN_MAX));
    if json {
        output::json(&Details {
            principal: Row::of(&principal),
            tokens: tokens.iter().map(tokens::Row::of).collect(),
            grants: grants.iter().map(grants::Row::of).collect(),
        })?;
    } else {
        let mut lines = vec![("id", principal.id.clone()), ("kind", principal.kind.to_string())];
        lines.extend(principal.name.clone().map(|name| ("name", name)));
        lines.push(("rights", rights_text(principal.rights)));
        lines.push(("state", state(&principal)));
        lines.push(("created", seconds(principal.created_at)));
        for (name, value) in lines {
            output::line(format!("{name:<10}{value}"))?;
        }
        if !tokens.is_empty() {
            output::line("")?;
            tokens::table(&tokens)?;
        }
        if !grants.is_empty() {
            output::line("")?;
            grants::table(&grants)?;
        }
    }
    for (more, what) in [(more.0, "tokens"), (more.1, "grants")] {
        if more {
            eprintln!("seqline: there are more {what}: seqline {what} list {id} shows all");
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct RightsReport<'a> {
    principal: &'a str,
    before: Vec<&'static str>,
    rights: Vec<&'static str>,
    done: bool,
    changed: bool,
}

async fn rights(connection: &mut PgConnection, args: &RightsArgs, json: bool) -> Result<(), Failure> {
    let (id, to, done) = (&args.id, args.to, args.confirm.yes);
    let before = match done {
        false => find(connection, id).await?.rights,
        true => {
            access::set_rights(connection, id, to, args.confirm.reason.as_deref()).await.map_err(failed)?
        }
    };
    let (old, new) = (rights_text(before), rights_text(to));
    let sentence = match (before == to, done) {
        (true, _) => format!("the rights of {id} are {new} already"),
        (false, false) => format!("would set the rights of {id} to {new}; they are {old}{ADD_YES}"),
        (false, true) => format!("the rights of {id} are {new}; they were {old}"),
    };
    let report = RightsReport {
        principal: id,
        before: before.names(),
        rights: to.names(),
        done,
        changed: before != to,
    };
    say(json, &report, sentence)
}

#[derive(Serialize)]
struct StateReport<'a> {
    principal: &'a str,
    done: bool,
    changed: bool,
}

async fn disable(connection: &mut PgConnection, change: &PrincipalChange, json: bool) -> Result<(), Failure> {
    let (id, done) = (&change.id, change.confirm.yes);
    let changed = match done {
        false => find(connection, id).await?.disabled_at.is_none(),
        true => access::disable_principal(connection, id, change.confirm.reason.as_deref())
            .await
            .map_err(failed)?,
    };
    let sentence = match (changed, done) {
        (false, _) => format!("principal {id} is disabled already"),
        (true, false) => format!(
            "would disable principal {id}: its tokens open nothing then, and it sees nothing{ADD_YES}"
        ),
        (true, true) => format!("principal {id} is disabled"),
    };
    say(json, &StateReport { principal: id, done, changed }, sentence)
}

async fn enable(connection: &mut PgConnection, change: &PrincipalChange, json: bool) -> Result<(), Failure> {
    let (id, done) = (&change.id, change.confirm.yes);
    let found = find(connection, id).await?;
    let changed = match done {
        false => found.disabled_at.is_some(),
        true => access::enable_principal(connection, id, change.confirm.reason.as_deref())
            .await
            .map_err(failed)?,
    };
    let sentence = match (changed, done) {
        (false, _) => format!("principal {id} is not disabled"),
        (true, false) => format!(
            "would enable principal {id}, with {} and {}{ADD_YES}",
            count(found.tokens, "token"),
            count(found.grants, "grant")
        ),
        (true, true) => format!("principal {id} is enabled"),
    };
    say(json, &StateReport { principal: id, done, changed }, sentence)
}

#[derive(Serialize)]
struct DeleteReport<'a> {
    principal: &'a str,
    tokens: i64,
    grants: i64,
    done: bool,
}

async fn delete(connection: &mut PgConnection, change: &PrincipalChange, json: bool) -> Result<(), Failure> {
    let (id, done) = (&change.id, change.confirm.yes);
    let gone = access::delete_principal(connection, id, change.confirm.mode()).await.map_err(failed)?;
    let what = format!("{} and {}", count(gone.tokens, "token"), count(gone.grants, "grant"));
    let sentence = match done {
        false => format!("would delete principal {id} with {what}; events go on to name it{ADD_YES}"),
        true => format!("principal {id} is deleted, with {what}"),
    };
    say(json, &DeleteReport { principal: id, tokens: gone.tokens, grants: gone.grants, done }, sentence)
}
