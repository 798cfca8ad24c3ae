//! Reaching the database that the user means, with a sentence of its own for each way in which that fails.

use std::str::FromStr;
use std::time::Duration;

use seqline::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, PgConnection, PgPool};

use crate::cli::DatabaseArgs;
use crate::failure::Failure;
use crate::limits::CONNECT_TIMEOUT;
use crate::store;

/// A URL, and the option or variable that gave it.
pub(crate) struct GivenUrl {
    pub(crate) url: String,
    pub(crate) origin: &'static str,
}

/// All URLs that are given, the one to use first.
pub(crate) fn given_urls(args: &DatabaseArgs) -> Vec<GivenUrl> {
    let variable = |name: &str| std::env::var(name).ok().filter(|url| !url.is_empty());
    [
        ("--database-url", args.database_url.clone()),
        ("SEQLINE_DATABASE_URL", variable("SEQLINE_DATABASE_URL")),
        ("DATABASE_URL", variable("DATABASE_URL")),
    ]
    .into_iter()
    .filter_map(|(origin, url)| Some(GivenUrl { url: url?, origin }))
    .collect()
}

pub(crate) fn options(args: &DatabaseArgs) -> Result<PgConnectOptions, Failure> {
    let given = given_urls(args).into_iter().next().ok_or_else(|| {
        Failure::Usage(
            "no database: give --database-url, or set SEQLINE_DATABASE_URL or DATABASE_URL (seqline up starts one)"
                .to_owned(),
        )
    })?;
    parse(&given.url)
}

/// How to reach the database for listening: as otherwise, unless a URL of its own is given. An empty one is none.
pub(crate) fn listen_options(
    url: Option<&str>,
    otherwise: &PgConnectOptions,
) -> Result<PgConnectOptions, Failure> {
    let Some(url) = url.filter(|url| !url.is_empty()) else { return Ok(otherwise.clone()) };
    parse_named("the URL of --listen-url or SEQLINE_LISTEN_URL", url)
}

pub(crate) fn parse(url: &str) -> Result<PgConnectOptions, Failure> {
    parse_named("the database URL", url)
}

/// Never quotes the URL, which can hold a password.
fn parse_named(what: &str, url: &str) -> Result<PgConnectOptions, Failure> {
    let usable = url.starts_with("postgres://") || url.starts_with("postgresql://");
    let options = usable.then(|| PgConnectOptions::from_str(url).ok()).flatten();
    let options = options.ok_or_else(|| {
        Failure::Usage(format!("{what} is not valid: expected postgres://user:password@host:port/database"))
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

/// A connection to a log that this program knows. For everything but a migration, which looks closer.
pub(crate) async fn connect_to_log(options: &PgConnectOptions) -> Result<PgConnection, Failure> {
    let mut connection = connect(options).await?;
    match tokio::time::timeout(CONNECT_TIMEOUT, refuse_newer_schema(&mut connection)).await {
        Ok(checked) => checked.map(|()| connection),
        Err(_) => Err(Failure::Unavailable(format!("{} does not answer", place(options)))),
    }
}

async fn refuse_newer_schema(connection: &mut PgConnection) -> Result<(), Failure> {
    let known = seqline::migrate::newest_version();
    match store::schema::version(connection).await.map_err(DatabaseError::from) {
        Ok(Some(found)) if found > known => Err(Failure::Refused(format!(
            "the schema has version {found}, this program knows {known}: use a newer program"
        ))),
        Ok(_) => Ok(()),
        // Only some roles may look; what the others may do has kept its meaning.
        Err(error) if error.sqlstate() == Some("42501") => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A connection beside the pool, for what looks at the database now and then: a look need not wait for work that is stuck. It is made
/// when it is needed, and kept as long as it answers well.
#[derive(Debug)]
pub(crate) struct OwnConnection {
    options: PgConnectOptions,
    statement_timeout: Duration,
    kept: Option<PgConnection>,
}

impl OwnConnection {
    /// `name` is what the database knows it by.
    pub(crate) fn new(options: &PgConnectOptions, name: &str, statement_timeout: Duration) -> Self {
        Self { options: options.clone().application_name(name), statement_timeout, kept: None }
    }

    /// Asks something. A connection on which that failed, or was given up by dropping the future, is closed.
    pub(crate) async fn ask<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut PgConnection) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let mut connection = match self.kept.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let answer = question(&mut connection).await?;
        self.kept = Some(connection);
        Ok(answer)
    }

    /// Makes a new connection for the next question: after a failover the old one may lead to a server that only follows.
    pub(crate) fn forget(&mut self) {
        self.kept = None;
    }

    /// The server ends what takes too long as well: a client that gives up does not end it. Behind a pooler a setting would be somebody
    /// else's a moment later.
    async fn connect(&self) -> Result<PgConnection, DatabaseError> {
        let mut connection = self.options.connect().await?;
        if !seqline::pool::keeps_no_statements(&self.options) {
            store::watch::bound_statements(&mut connection, self.statement_timeout).await?;
        }
        Ok(connection)
    }

    /// The same of statements with arguments: behind a pooler in transaction mode they are in a transaction, where one that is refused
    /// fails them all.
    pub(crate) async fn read<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut PgConnection) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        if !seqline::pool::keeps_no_statements(&self.options) {
            return self.ask(question).await;
        }
        let in_transaction = async |connection: &mut PgConnection| {
            store::watch::begin_to_read_pooled(connection).await?;
            let answer = question(connection).await?;
            store::watch::commit(connection).await?;
            Ok(answer)
        };
        self.ask(in_transaction).await
    }
}

/// For what runs on its own, where nobody sees that a part of the schema is missing.
pub(crate) async fn refuse_older_schema(connection: &mut PgConnection) -> Result<(), Failure> {
    let known = seqline::migrate::newest_version();
    match store::schema::version(connection).await.map_err(DatabaseError::from)? {
        Some(found) if found < known => Err(Failure::Refused(format!(
            "the schema has version {found}, this program needs {known}: run seqline migrate"
        ))),
        _ => Ok(()),
    }
}

/// A pool for what writes, after a connection of its own has been tried, so that a wrong URL or an unknown schema is told at once. After a
/// failover it does not stay with the old primary.
pub(crate) async fn pool(options: &PgConnectOptions, connections: u32) -> Result<PgPool, Failure> {
    pool_with(seqline::pool::only_for_writes(PgPoolOptions::new()), options, connections).await
}

/// A pool for what only reads, which a standby serves as well.
pub(crate) async fn pool_to_read(options: &PgConnectOptions, connections: u32) -> Result<PgPool, Failure> {
    pool_with(PgPoolOptions::new(), options, connections).await
}

async fn pool_with(
    pool: PgPoolOptions,
    options: &PgConnectOptions,
    connections: u32,
) -> Result<PgPool, Failure> {
    drop(connect_to_log(options).await?);
    Ok(pool.max_connections(connections).acquire_timeout(CONNECT_TIMEOUT).connect_lazy_with(options.clone()))
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

/// Where the server is: nothing in it is secret.
pub(crate) fn place(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => format!("{} (port {})", socket.display(), options.get_port()),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}
