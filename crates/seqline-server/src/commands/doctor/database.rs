//! What the doctor looks at in the database itself.

use seqline::identity::{self, Standing, WaitReason};
use seqline::settings::Sequencing;
use seqline::status::status;
use seqline::{Clock, DatabaseError, migrate};
use sqlx::PgConnection;

use super::finding;
use super::finding::{Finding, Waiting, error, ok, unknown, warning};
use super::thresholds::Thresholds;
use crate::failure::Failure;
use crate::jobs::schema::{check_for_work, schema_name};
use crate::limits::OPEN_TRANSACTIONS_MAX;
use crate::output::{count, grouped};
use crate::store;
use crate::store::settings::OpenWith;

type Found = Result<Vec<Finding>, DatabaseError>;

pub(super) async fn server(connection: &mut PgConnection) -> Found {
    let server = store::doctor::server(connection).await?;
    let mut findings = vec![match (server.in_recovery, server.read_only_default) {
        (true, _) => error(
            "server",
            format!("PostgreSQL {}, in recovery: nothing can be appended or handled here", server.version),
            "connect to the primary",
        ),
        (false, true) => error(
            "server",
            format!(
                "PostgreSQL {}, default_transaction_read_only is on: nothing can be appended",
                server.version
            ),
            "set it to off, for the server, the database or the role that has it",
        ),
        (false, false) => ok("server", format!("PostgreSQL {}", server.version)),
    }];
    findings.push(match &server.unsafe_settings[..] {
        [] => ok("durability", "fsync, full_page_writes and synchronous_commit are on"),
        names => warning(
            "durability",
            format!("{} off: a crash can lose what was committed", are(names)),
            "set them to on where the data is worth it",
        ),
    });
    Ok(findings)
}

fn are(names: &[String]) -> String {
    format!("{} {}", names.join(", "), if names.len() == 1 { "is" } else { "are" })
}

pub(super) async fn schema(connection: &mut PgConnection) -> Found {
    let known = migrate::newest_version();
    if !store::doctor::schema_exists(connection).await? {
        return Ok(vec![finding::schema(None, known)]);
    }
    Ok(vec![finding::schema(store::schema::version(connection).await?, known)])
}

pub(super) async fn roles(connection: &mut PgConnection) -> Found {
    let roles = store::doctor::roles(connection).await?;
    let mut findings = vec![match &roles.missing[..] {
        [] => ok("roles", "all five exist"),
        missing => error("roles", format!("missing: {}", missing.join(", ")), "run seqline migrate"),
    }];
    let (user, has) = (&roles.user, roles.has.join(", "));
    findings.push(if roles.superuser {
        warning(
            "privileges",
            format!("{user} is a superuser: it may do everything, also by mistake"),
            "give the application a role of its own: GRANT seqline_app TO it",
        )
    } else if roles.has.is_empty() {
        error(
            "privileges",
            format!("{user} has no role of the product and may do nothing"),
            format!("have somebody GRANT seqline_app TO {user}, or seqline_producer, seqline_reader, seqline_consumer"),
        )
    } else {
        ok("privileges", format!("{user} has {has}"))
    });
    Ok(findings)
}

pub(super) async fn identity(connection: &mut PgConnection) -> Found {
    const ADVICE: &str = "after a restore: seqline restore finalize; after a failover in which nothing was lost: epoch.on_change = \"accept\"";
    let check = identity::check(connection).await?;
    Ok(vec![match check.standing() {
        Standing::Matches => ok("identity", format!("log {}, epoch {}", check.log_id, check.epoch)),
        Standing::Broken(reason) => error(
            "identity",
            WaitReason::Broken(reason).to_string(),
            "start a new epoch: seqline restore finalize",
        ),
        Standing::Differs(differences) => {
            error("identity", WaitReason::Differs(differences.to_vec()).to_string(), ADVICE)
        }
    }])
}

pub(super) async fn cursors(connection: &mut PgConnection) -> Found {
    let check = identity::check(connection).await?;
    let above = &check.cursors_above;
    Ok(vec![match above.first() {
        None => ok("cursors", format!("none is above the head {}", grouped(check.head))),
        Some(first) => error(
            "cursors",
            format!(
                "{} above the head {}, among them that of {} at {}: such a consumer does nothing",
                count(above.len().try_into().unwrap_or(i64::MAX), "cursor"),
                grouped(check.head),
                first.consumer,
                grouped(first.last_seq),
            ),
            "start a new epoch: seqline restore finalize",
        ),
    }])
}

pub(super) async fn partitions(connection: &mut PgConnection, thresholds: &Thresholds) -> Found {
    let status = status(connection).await?;
    Ok(vec![finding::partitions(status.headroom, status.partitions, thresholds)])
}

pub(super) async fn sequencing(connection: &mut PgConnection, thresholds: &Thresholds) -> Found {
    let status = status(connection).await?;
    let (settings, staged) = (status.settings, status.staged);
    if settings.is_at_commit_only() {
        return Ok(vec![ok("sequencing", "events are numbered at commit")]);
    }
    let seen = Waiting {
        sequencing: settings.sequencing,
        sequencer_runs: staged.sequencer.is_some(),
        transactions: staged.transactions,
        seconds: staged.oldest_at.map_or(0.0, |at| (Clock::system().now() - at).as_seconds_f64()),
    };
    let mut findings = vec![finding::sequencing(seen, thresholds)];
    if settings.sequencing == Sequencing::AtCommit && settings.staging_open {
        let limit = i64::try_from(OPEN_TRANSACTIONS_MAX).unwrap_or(i64::MAX);
        let open = store::settings::open_transactions(connection, OpenWith::Staged, limit).await?;
        let prepared: Vec<String> = open.into_iter().filter_map(|open| open.prepared).collect();
        findings.push(match &prepared[..] {
            [] => warning(
                "staging",
                "the change to numbering at commit is not complete",
                "wait for open transactions to end",
            ),
            names => warning(
                "staging",
                format!(
                    "prepared transactions keep the change to numbering at commit from being complete: {}",
                    names.join(", ")
                ),
                "end them with COMMIT PREPARED or ROLLBACK PREPARED",
            ),
        });
    }
    Ok(findings)
}

pub(super) async fn jobs(connection: &mut PgConnection, schema: &str, thresholds: &Thresholds) -> Found {
    const ID: &str = "jobs";
    if let Err(failure) = check_for_work(connection, schema).await {
        return Ok(vec![unusable(ID, &failure)]);
    }
    let name = match schema_name(schema) {
        Ok(name) => name,
        Err(failure) => return Ok(vec![unusable(ID, &failure)]),
    };
    let (waiting, running, discarded) = store::jobs::counts(connection, &name).await?;
    let look = store::jobs::look(connection, &name, thresholds.jobs_overdue_after).await?;
    let mut findings = Vec::new();
    if look.overdue > 0 {
        let text = format!(
            "{} due for more than {}",
            count(look.overdue, "job"),
            humantime::format_duration(thresholds.jobs_overdue_after)
        );
        findings.push(warning(ID, text, "run a worker: seqline serve --role worker"));
    }
    if discarded > 0 {
        let text = format!("{} given up", count(discarded, "job"));
        findings.push(warning("jobs_discarded", text, "seqline jobs list --state discarded"));
    }
    if !look.paused.is_empty() {
        let text = format!("paused queues, whose jobs wait: {}", look.paused.join(", "));
        let advice = format!(
            "resume one with River's own tools, or UPDATE {} SET paused_at = NULL, updated_at = now() WHERE name = '...'; workers look every few seconds",
            name.qualify("river_queue")
        );
        findings.push(warning("jobs_paused", text, advice));
    }
    if findings.is_empty() {
        findings.push(ok(ID, format!("{waiting} waiting, {running} running, none overdue or discarded")));
    }
    Ok(findings)
}

/// Why workers cannot do jobs, or why that cannot be seen.
fn unusable(id: &'static str, failure: &Failure) -> Finding {
    let message = failure.message().unwrap_or_default();
    match failure {
        Failure::Refused(_) => match message.rsplit_once(": ") {
            Some((found, advice)) => error(id, format!("{found}; workers do not start"), advice),
            None => error(id, message, "run seqline migrate"),
        },
        Failure::MissingRights { .. } => unknown(id, message, "grant this role seqline_app"),
        _ => unknown(id, message, "try again"),
    }
}

/// What a role that sees too little is told.
pub(super) fn hidden(id: &'static str, sessions: i64) -> Finding {
    unknown(
        id,
        format!("{} of other roles cannot be seen", count(sessions, "session")),
        "have somebody GRANT pg_read_all_stats TO this role",
    )
}
