//! Reaching the database that the user means, with a sentence of its own for each way in which that fails.

use std::str::FromStr;
use std::time::Duration;

use seqline::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, PgConnection, PgPool};

use crate::cli::DatabaseArgs;
use crate::failure::Failure;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The URL as given, from the option, SEQLINE_DATABASE_URL or DATABASE_URL.
pub(crate) fn given_url(args: &DatabaseArgs) -> Option<String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|url| !url.is_empty());
    args.database_url
        .clone()
        .or_else(|| variable("SEQLINE_DATABASE_URL"))
        .or_else(|| variable("DATABASE_URL"))
}

pub(crate) fn options(args: &DatabaseArgs) -> Result<PgConnectOptions, Failure> {
    let url = given_url(args).ok_or_else(|| {
        Failure::Usage(
            "no database: give --database-url, or set SEQLINE_DATABASE_URL or DATABASE_URL (seqline up starts one)"
                .to_owned(),
        )
    })?;
    parse(&url)
}

/// Never quotes the URL, which can hold a password.
pub(crate) fn parse(url: &str) -> Result<PgConnectOptions, Failure> {
    let usable = url.starts_with("postgres://") || url.starts_with("postgresql://");
    let options = usable.then(|| PgConnectOptions::from_str(url).ok()).flatten();
    let options = options.ok_or_else(|| {
        Failure::Usage(
            "the database URL is not valid: expected postgres://user:password@host:port/database".to_owned(),
        )
    })?;
    Ok(options.application_name("seqline"))
}

pub(crate) async fn connect(options: &PgConnectOptions) -> Result<PgConnection, Failure> {
    match tokio::time::timeout(CONNECT_TIMEOUT, options.connect()).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(explain(options, error.into())),
        Err(_) => Err(Failure::Unavailable(format!("{} does not answer", place(options)))),
    }
}

/// A pool whose first connection has been made, so that a wrong URL is told at once.
pub(crate) async fn pool(options: &PgConnectOptions, connections: u32) -> Result<PgPool, Failure> {
    drop(connect(options).await?);
    Ok(PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(CONNECT_TIMEOUT)
        .connect_lazy_with(options.clone()))
}

fn explain(options: &PgConnectOptions, error: DatabaseError) -> Failure {
    let place = place(options);
    match error.sqlstate() {
        Some("28P01" | "28000") => {
            Failure::Refused(format!("{place} refused the login of role {}: {error}", options.get_username()))
        }
        Some("3D000") => Failure::Refused(format!("{place} has no such database: {error}")),
        Some(_) => Failure::Unavailable(format!("{place} refused the connection: {error}")),
        None => Failure::Unavailable(format!("no PostgreSQL server answers at {place}: {error}")),
    }
}

fn place(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => format!("{} (port {})", socket.display(), options.get_port()),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}
