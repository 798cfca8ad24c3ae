//! The connection to a broker: opened when it is first needed, kept, and opened again when it was closed.
//!
//! Nothing waits for a broker to be there: whoever needs it now is told that it is away, by name, and comes again.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ClientError, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use seqline::Clock;
use tokio::sync::Mutex;

use crate::limits::{CONNECT_ANEW_AFTER, CONNECT_TIMEOUT, REQUEST_TIMEOUT};
use crate::subject::percent_decoded;

/// Where a broker is unless somebody says so.
pub const DEFAULT_URL: &str = "nats://localhost:4222";

/// How a broker is reached, and as whom.
///
/// ```
/// use seqline_nats::broker::{Broker, BrokerConfig};
///
/// let broker = Broker::new(BrokerConfig::new("nats://broker.example.com:4222"));
/// // Nothing has happened yet: the connection is opened by whoever needs it first.
/// assert_eq!(broker.place(), "broker.example.com:4222");
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct BrokerConfig {
    /// One URL, or several of a cluster separated by commas. May hold a user and a password, or a token before the `@`, with what is no letter and
    /// no digit percent-encoded; those of the first that has some count for all. Never shown.
    pub url: String,
    /// What the broker shows for the connection.
    pub name: String,
    /// A file with credentials: a JWT and the seed of its key.
    pub credentials_file: Option<PathBuf>,
    /// A file with the seed of an nkey.
    pub nkey_seed_file: Option<PathBuf>,
    /// Refuse a broker that does not speak TLS.
    pub tls_required: bool,
    /// A file with certificates to trust beside those of the system.
    pub tls_ca_file: Option<PathBuf>,
    /// A file with the certificate to show to the broker, and one with its key.
    pub tls_client_files: Option<(PathBuf, PathBuf)>,
    /// How long the broker may take to answer. 5 seconds.
    pub request_timeout: Duration,
}

impl BrokerConfig {
    /// A broker at a URL, without more than that says.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            name: "seqline".to_owned(),
            credentials_file: None,
            nkey_seed_file: None,
            tls_required: false,
            tls_ca_file: None,
            tls_client_files: None,
            request_timeout: REQUEST_TIMEOUT,
        }
    }
}

impl BrokerConfig {
    /// Whether the URL is one, which shows only when it is used otherwise. Nothing is connected.
    ///
    /// # Errors
    ///
    /// [`BrokerError::Url`].
    pub fn check(&self) -> Result<(), BrokerError> {
        servers(&self.url).map(drop)
    }
}

impl fmt::Debug for BrokerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerConfig").field("place", &place(&self.url)).finish_non_exhaustive()
    }
}

/// Why a broker cannot be used now.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// Nobody answers there. Time may mend it.
    #[error("the broker at {place} does not answer")]
    Unreachable {
        /// Host and port.
        place: String,
    },
    /// The broker does not want this login.
    #[error("the broker at {place} refuses the login")]
    LoginRefused {
        /// Host and port.
        place: String,
    },
    /// TLS could not be agreed on.
    #[error("the broker at {place} cannot be spoken to by TLS")]
    Tls {
        /// Host and port.
        place: String,
    },
    /// The URL is none.
    #[error("the URL of the broker is none: nats://HOST:PORT, or several separated by commas")]
    Url,
    /// A file that was named cannot be used. What is in it is not shown.
    #[error("the file {path} cannot be used: {reason}")]
    File {
        /// Its path.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl BrokerError {
    /// Whether trying again later may help without anybody changing anything here.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::LoginRefused { .. } | Self::Tls { .. })
    }
}

/// A broker, shared by all that use it. Cloning is cheap.
#[derive(Clone)]
pub struct Broker(Arc<Inner>);

struct Inner {
    config: BrokerConfig,
    clock: Clock,
    open: Mutex<Option<Open>>,
}

/// A connection that was opened. It connects again by itself, with the login that it began with.
struct Open {
    client: Client,
    /// Whether the broker has refused that login since.
    is_refused: Arc<AtomicBool>,
    /// When it was first seen to be away.
    away_since: Option<Duration>,
}

impl Open {
    /// Whether it is of use, or may be soon.
    fn is_of_use(&mut self, now: Duration) -> bool {
        if self.client.connection_state() == State::Connected {
            self.is_refused.store(false, Ordering::Relaxed);
            self.away_since = None;
            return true;
        }
        let since = *self.away_since.get_or_insert(now);
        !self.is_refused.load(Ordering::Relaxed) && now.saturating_sub(since) < CONNECT_ANEW_AFTER
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Broker").field(&self.place()).finish()
    }
}

impl Broker {
    /// Opens nothing yet.
    #[must_use]
    pub fn new(config: BrokerConfig) -> Self {
        Self::with_clock(config, Clock::system())
    }

    /// The same by another clock, for tests of what takes long.
    #[must_use]
    pub fn with_clock(config: BrokerConfig, clock: Clock) -> Self {
        Self(Arc::new(Inner { config, clock, open: Mutex::new(None) }))
    }

    /// Host and port, for people. Never more of the URL.
    #[must_use]
    pub fn place(&self) -> String {
        place(&self.0.config.url)
    }

    /// How long it may take to answer.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        self.0.config.request_timeout
    }

    /// The connection, opened if there is none. One that was lost is being opened again in the background: requests over it fail until then. Where
    /// that goes on for half a minute, or the broker refuses the login, another one is opened in its place, for which the files of the login and the
    /// certificates are read again.
    ///
    /// Cancel safe: a connection that is not ready yet is given up.
    ///
    /// # Errors
    ///
    /// [`BrokerError`] by name. Nothing is tried again here.
    pub async fn client(&self) -> Result<Client, BrokerError> {
        let mut open = self.0.open.lock().await;
        let now = self.0.clock.elapsed();
        if let Some(open) = open.as_mut()
            && open.is_of_use(now)
        {
            return Ok(open.client.clone());
        }
        *open = None;
        let opened = connect(&self.0.config).await?;
        let client = opened.client.clone();
        *open = Some(opened);
        Ok(client)
    }

    /// The same, for JetStream.
    ///
    /// # Errors
    ///
    /// Those of [`client`](Self::client).
    pub async fn jetstream(&self) -> Result<Context, BrokerError> {
        let client = self.client().await?;
        Ok(jetstream::ContextBuilder::new().timeout(self.0.config.request_timeout).build(client))
    }

    /// Whether there is a connection now. Opens none.
    pub async fn is_connected(&self) -> bool {
        let open = self.0.open.lock().await;
        open.as_ref().is_some_and(|open| open.client.connection_state() == State::Connected)
    }

    /// Sends what is under way and closes the connection. Who needs it afterwards opens another.
    pub async fn close(&self) {
        if let Some(open) = self.0.open.lock().await.take() {
            // A connection that is lost already has nothing to send.
            let _ = open.client.drain().await;
        }
    }
}

fn servers(urls: &str) -> Result<Vec<ServerAddr>, BrokerError> {
    let servers = urls.split(',').map(|url| url.trim().parse::<ServerAddr>());
    servers.collect::<Result<_, _>>().map_err(|_| BrokerError::Url)
}

async fn connect(config: &BrokerConfig) -> Result<Open, BrokerError> {
    let servers = servers(&config.url)?;
    let is_refused = Arc::new(AtomicBool::new(false));
    let seen = is_refused.clone();
    let options = with_login(options(config).await?, &servers)?.event_callback(move |event| {
        if is_refusal(&event) {
            seen.store(true, Ordering::Relaxed);
        }
        std::future::ready(())
    });
    let connecting = async_nats::connect_with_options(servers, options);
    let connected = connecting.await.map(|client| Open { client, is_refused, away_since: None });
    connected.map_err(|error| {
        let place = place(&config.url);
        match error.kind() {
            ConnectErrorKind::ServerParse => BrokerError::Url,
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                BrokerError::LoginRefused { place }
            }
            ConnectErrorKind::Tls => BrokerError::Tls { place },
            _ => BrokerError::Unreachable { place },
        }
    })
}

/// Whether a connection that was lost is not opened again because of its login. The client says what went wrong in words alone.
fn is_refusal(event: &Event) -> bool {
    let Event::ClientError(ClientError::Other(words)) = event else { return false };
    [ConnectErrorKind::Authentication, ConnectErrorKind::AuthorizationViolation]
        .iter()
        .any(|kind| words.starts_with(&kind.to_string()))
}

/// The login of the first URL that has one, for all of them: the client does not look for it there.
fn with_login(options: ConnectOptions, servers: &[ServerAddr]) -> Result<ConnectOptions, BrokerError> {
    let login = servers.iter().find_map(|server| Some((server.username()?, server.password())));
    let decoded = |text: &str| percent_decoded(text).ok_or(BrokerError::Url);
    Ok(match login {
        None => options,
        Some((user, Some(password))) => options.user_and_password(decoded(user)?, decoded(password)?),
        // One without a password is a token.
        Some((token, None)) => options.token(decoded(token)?),
    })
}

async fn options(config: &BrokerConfig) -> Result<ConnectOptions, BrokerError> {
    let mut options = ConnectOptions::new()
        .name(&config.name)
        .connection_timeout(CONNECT_TIMEOUT)
        .request_timeout(Some(config.request_timeout))
        .require_tls(config.tls_required);
    if let Some(path) = &config.credentials_file {
        let text = read(path).await?;
        options = options.credentials(&text).map_err(|_| file(path, "it holds no credentials"))?;
    }
    if let Some(path) = &config.nkey_seed_file {
        options = options.nkey(read(path).await?.trim().to_owned());
    }
    if let Some(path) = &config.tls_ca_file {
        // Looked at here, because the client would only say that TLS failed.
        read(path).await?;
        options = options.add_root_certificates(path.clone());
    }
    if let Some((certificate, key)) = &config.tls_client_files {
        read(certificate).await?;
        read(key).await?;
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    Ok(options)
}

async fn read(path: &PathBuf) -> Result<String, BrokerError> {
    tokio::fs::read_to_string(path).await.map_err(|_| file(path, "it cannot be read"))
}

fn file(path: &std::path::Path, reason: &'static str) -> BrokerError {
    BrokerError::File { path: path.display().to_string(), reason }
}

/// Host and port of each URL: what comes before an `@` can be a password.
fn place(url: &str) -> String {
    let places = url.split(',').map(|url| {
        let url = url.trim();
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        rest.rsplit_once('@').map_or(rest, |(_, place)| place).trim_end_matches('/')
    });
    places.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_login_is_shown() {
        let config = BrokerConfig::new("nats://robin:secret@a.example.com:4222/,tls://token@b.example.com");
        let broker = Broker::new(config.clone());
        assert_eq!(broker.place(), "a.example.com:4222,b.example.com");
        let shown = format!("{config:?} {broker:?}");
        assert!(!shown.contains("secret") && !shown.contains("robin") && !shown.contains("token"), "{shown}");
    }

    #[tokio::test]
    async fn a_url_that_is_none_is_told_without_it() {
        assert!(matches!(BrokerConfig::new("http s://secret").check(), Err(BrokerError::Url)));
        assert!(BrokerConfig::new("nats://a.example.com, tls://b.example.com:4222").check().is_ok());
        let error = Broker::new(BrokerConfig::new("http s://secret")).client().await.unwrap_err();
        assert!(matches!(error, BrokerError::Url), "{error}");
        assert!(!error.is_retryable());
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_is_named() {
        let mut config = BrokerConfig::new(DEFAULT_URL);
        config.credentials_file = Some("/nowhere/user.creds".into());
        let error = Broker::new(config).client().await.unwrap_err();
        assert_eq!(error.to_string(), "the file /nowhere/user.creds cannot be used: it cannot be read");
    }
}
