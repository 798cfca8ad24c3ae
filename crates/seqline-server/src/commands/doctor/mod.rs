//! `seqline doctor`: what is wrong or about to be, and what to do.
//!
//! Each check stands for itself: it has a transaction of its own that changes nothing, ends in time, and may fail without hiding the others.
//! Nothing that could hold a payload is printed, unless somebody asks for the text of statements.

mod database;
mod finding;
mod sessions;
mod streaming;
mod thresholds;
mod upkeep;

use std::future::Future;
use std::time::Duration;

use seqline::DatabaseError;
use serde::Serialize;
use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;

use self::finding::{Finding, error, summary, unknown};
use self::thresholds::Thresholds;
use super::configuration;
use crate::cli::{DatabaseArgs, DoctorArgs};
use crate::config::Sync;
use crate::failure::Failure;
use crate::limits::{DOCTOR_CHECK_TIMEOUT, DOCTOR_STATEMENT_TIMEOUT};
use crate::{connect, output, store};

/// What every check goes by.
struct Doctor {
    options: PgConnectOptions,
    listen: PgConnectOptions,
    listen_is_given: bool,
    jobs_schema: String,
    sync: Sync,
    show_queries: bool,
    thresholds: Thresholds,
}

#[derive(Serialize)]
struct Report<'a> {
    findings: &'a [Finding],
}

pub(crate) async fn run(database: &DatabaseArgs, args: DoctorArgs) -> Result<(), Failure> {
    let config = configuration(&args.config)?;
    let options = connect::options(database)?.application_name(APPLICATION_NAME);
    let listen_url = args.listen_url.as_deref().filter(|url| !url.is_empty());
    let listen = connect::listen_options(listen_url, &options)?.application_name(APPLICATION_NAME);
    let doctor = Doctor {
        options,
        listen,
        listen_is_given: listen_url.is_some(),
        thresholds: Thresholds::of(&config),
        sync: config.sync,
        jobs_schema: config.jobs.schema,
        show_queries: args.show_queries,
    };
    let (findings, outcome) = doctor.examine().await;
    match args.json {
        true => output::json(&Report { findings: &findings })?,
        false => findings.iter().try_for_each(print)?,
    }
    outcome
}

/// How the sessions of the doctor are called.
const APPLICATION_NAME: &str = "seqline-doctor";

fn print(finding: &Finding) -> Result<(), Failure> {
    let text = |text: &str| output::shortened(text, usize::MAX);
    output::line(format!("{:<9}{:<20}{}", finding.level.text(), finding.id, text(&finding.found)))?;
    match &finding.advice {
        Some(advice) => output::line(format!("{:<29}{}", "", text(advice))),
        None => Ok(()),
    }
}

impl Doctor {
    async fn examine(&self) -> (Vec<Finding>, Result<(), Failure>) {
        let connection = match connect::connect(&self.options).await {
            Ok(connection) => connection,
            Err(failure) => {
                let message = failure.message().unwrap_or_default();
                let advice = "look whether the server runs, and whether the URL is right";
                return (vec![error("connection", message, advice)], Err(failure));
            }
        };
        let mut patient = Patient { options: &self.options, connection: Some(connection) };
        let mut findings = vec![finding::ok("connection", connect::place(&self.options))];
        findings.extend(patient.check("server", database::server).await);
        findings.extend(patient.check("schema", database::schema).await);
        findings.extend(patient.check("roles", database::roles).await);
        findings.extend(patient.check("identity", database::identity).await);
        findings.extend(patient.check("cursors", database::cursors).await);
        let thresholds = &self.thresholds;
        findings
            .extend(patient.check("partitions", async |c| database::partitions(c, thresholds).await).await);
        findings.extend(patient.check("read_only", upkeep::read_only).await);
        findings.extend(patient.check("retention", async |c| upkeep::retention(c, &self.sync).await).await);
        findings.extend(patient.check("consumers", async |c| upkeep::consumers(c, thresholds).await).await);
        findings.extend(patient.check("relay", async |c| streaming::relays(c, thresholds).await).await);
        findings.extend(patient.check("dead_letters", streaming::consumers).await);
        findings
            .extend(patient.check("sequencing", async |c| database::sequencing(c, thresholds).await).await);
        findings.extend(
            patient
                .check("numbering_lock", async |c| {
                    sessions::numbering_lock(c, thresholds, self.show_queries).await
                })
                .await,
        );
        findings.extend(
            patient
                .check("vacuum_horizon", async |c| {
                    sessions::vacuum_horizon(c, thresholds, self.show_queries).await
                })
                .await,
        );
        findings.extend(
            patient
                .check("notification_queue", async |c| sessions::notification_queue(c, thresholds).await)
                .await,
        );
        findings.extend(
            patient.check("jobs", async |c| database::jobs(c, &self.jobs_schema, thresholds).await).await,
        );
        findings.extend(
            patient
                .check("maintenance", async |c| upkeep::maintenance(c, &self.jobs_schema, thresholds).await)
                .await,
        );
        findings.extend(patient.check("clock", async |c| sessions::clock(c, thresholds).await).await);
        findings.push(self.apart("pooler", sessions::pooler(&self.options)).await);
        findings.push(
            self.apart("listen", sessions::listen(&self.options, &self.listen, self.listen_is_given)).await,
        );
        let (errors, text) = summary(&findings);
        let outcome = match errors {
            0 => Ok(()),
            _ => Err(Failure::Refused(text)),
        };
        (findings, outcome)
    }

    /// A check with connections of its own.
    async fn apart(
        &self,
        id: &'static str,
        check: impl Future<Output = Result<Finding, DatabaseError>>,
    ) -> Finding {
        match tokio::time::timeout(DOCTOR_CHECK_TIMEOUT, Box::pin(check)).await {
            Ok(Ok(finding)) => finding,
            Ok(Err(error)) => explain(id, &error),
            Err(_) => late(id, DOCTOR_CHECK_TIMEOUT),
        }
    }
}

/// The database, and a connection to it that is made again when a check has spoilt it.
struct Patient<'a> {
    options: &'a PgConnectOptions,
    connection: Option<PgConnection>,
}

impl Patient<'_> {
    /// Runs a check in a transaction of its own. Whatever becomes of it, something is said under this name.
    async fn check(
        &mut self,
        id: &'static str,
        check: impl AsyncFnOnce(&mut PgConnection) -> Result<Vec<Finding>, DatabaseError>,
    ) -> Vec<Finding> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => match connect::connect(self.options).await {
                Ok(connection) => connection,
                Err(failure) => {
                    return vec![unknown(id, failure.message().unwrap_or_default(), "try again")];
                }
            },
        };
        let examined = async {
            store::doctor::begin_check(&mut connection, DOCTOR_STATEMENT_TIMEOUT.as_millis()).await?;
            let findings = check(&mut connection).await;
            let ended = store::doctor::end_check(&mut connection).await;
            let findings = findings?;
            ended?;
            Ok::<_, DatabaseError>(findings)
        };
        match tokio::time::timeout(DOCTOR_CHECK_TIMEOUT, Box::pin(examined)).await {
            Ok(examined) => {
                // One that was lost is made again for the next.
                let is_lost = matches!(&examined, Err(error) if error.is_connection_failure());
                self.connection = (!is_lost).then_some(connection);
                examined.unwrap_or_else(|error| vec![explain(id, &error)])
            }
            // It may be in the middle of an answer.
            Err(_) => vec![late(id, DOCTOR_CHECK_TIMEOUT)],
        }
    }
}

/// Why something could not be looked at.
fn explain(id: &'static str, error: &DatabaseError) -> Finding {
    let advice = match error.sqlstate() {
        Some("42501") => "grant this role seqline_app",
        Some("42P01" | "3F000" | "42883" | "42703") => "run seqline migrate",
        // A prepared statement that is there already, or not.
        Some("42P05" | "26000") => {
            "a pooler in transaction mode is in between that does not know prepared statements"
        }
        Some("57014" | "55P03") => "something is in the way, or the database is very busy: try again",
        _ => "try again",
    };
    unknown(id, error.to_string(), advice)
}

fn late(id: &'static str, limit: Duration) -> Finding {
    unknown(id, format!("no answer within {} s", limit.as_secs()), "the database is very busy: try again")
}

#[cfg(test)]
mod tests {
    use super::finding::Level;
    use super::*;

    #[test]
    fn what_could_not_be_looked_at_is_unknown_and_no_error() {
        let finding = late("clock", Duration::from_secs(5));
        assert_eq!((finding.level, finding.found.as_str()), (Level::Unknown, "no answer within 5 s"));
        assert_eq!(summary(&[finding]).0, 0);
    }
}
