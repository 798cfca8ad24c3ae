//! A connection that listens for commits, for as long as somebody wants to be woken.
//!
//! It makes things faster and nothing more: a wake-up says "look now", never what is there. Losing the connection loses
//! nothing, because whoever waits also polls. After every successful LISTEN it wakes once, since a commit between the
//! waiter's last look and the LISTEN was announced to nobody. A half-open connection, over which nothing will ever
//! come, is found out by a heartbeat.
//!
//! Behind a pooler that hands a server connection to somebody else after each transaction, LISTEN succeeds and nothing is
//! ever heard. So each new connection is called once from another one, and given up when it does not hear that.

use std::convert::Infallible;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::deadline::{Lease, within};
use crate::error::DatabaseError;
use crate::store;

/// How to listen.
pub(crate) struct Listener {
    pub(crate) options: PgConnectOptions,
    /// Where the call comes from that a new connection has to hear.
    pub(crate) probe: PgPool,
    pub(crate) clock: Clock,
    pub(crate) backoff: Backoff,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) heartbeat_timeout: Duration,
}

/// Listens until the future is dropped, or does nothing until then.
pub(crate) async fn run(
    listener: Option<Listener>,
    wake: &Notify,
    connected: &watch::Sender<bool>,
) -> Infallible {
    match listener {
        Some(listener) => listener.run(wake, connected).await,
        None => std::future::pending().await,
    }
}

impl Listener {
    /// Listens until the future is dropped. `wake` coalesces: any number of commits while nobody waits is one wake-up.
    /// `connected` shows whether LISTEN is in effect.
    async fn run(mut self, wake: &Notify, connected: &watch::Sender<bool>) -> Infallible {
        let mut said = Said::default();
        // One for all its connections: behind a pooler each LISTEN stays with the server's.
        let probe = format!("seqline_probe_{}", Uuid::new_v4().simple());
        loop {
            match self.connect(&probe).await {
                Ok(listener) => {
                    self.backoff.reset();
                    if std::mem::take(&mut said) != Said::default() {
                        tracing::info!("event log listener recovered");
                    }
                    connected.send_replace(true);
                    wake.notify_one();
                    let error = self.receive(listener, wake).await.into();
                    connected.send_replace(false);
                    said.say(&error);
                }
                Err(error) => said.say(&error),
            }
            let pause = self.backoff.next(fastrand::f64());
            self.clock.sleep(pause).await;
        }
    }

    async fn connect(&self, probe: &str) -> Result<PgListener, Outage> {
        let mut listener = within(self.heartbeat_timeout, async {
            // A pool of one that nobody else uses: the driver offers notifications only through a pool.
            let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(self.options.clone());
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.eager_reconnect(false);
            store::listen::listen(&mut listener, probe).await?;
            Ok::<_, DatabaseError>(listener)
        })
        .await?;
        let called = within(self.heartbeat_timeout, async {
            let mut lease = Lease::acquire(&self.probe).await?;
            lease.alone(async |connection| store::listen::call(connection, probe).await).await?;
            lease.done();
            Ok::<_, DatabaseError>(())
        });
        // Nothing can be said when all connections are busy. Then it is believed.
        if called.await.is_ok() {
            let heard = within(self.heartbeat_timeout, async { Ok(listener.try_recv().await?) });
            match heard.await {
                Ok(Some(_)) => {}
                Ok(None) => return Err(lost().into()),
                Err(error) if DatabaseError::is_late(&error) => return Err(Outage::Deaf),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(listener)
    }

    /// Wakes for each notification until the connection fails.
    async fn receive(&self, mut listener: PgListener, wake: &Notify) -> DatabaseError {
        loop {
            let received = self.clock.timeout(self.heartbeat_interval, listener.try_recv()).await;
            match received {
                Some(Ok(Some(_))) => wake.notify_one(),
                Some(Ok(None)) => return lost(),
                Some(Err(error)) => return error.into(),
                None => {
                    let ping = async { Ok(store::listen::ping(&mut listener).await?) };
                    if let Err(error) = within::<_, DatabaseError, _>(self.heartbeat_timeout, ping).await {
                        return error;
                    }
                }
            }
        }
    }
}

fn lost() -> DatabaseError {
    sqlx::Error::Io(std::io::Error::new(
        std::io::ErrorKind::ConnectionAborted,
        "connection closed by the server",
    ))
    .into()
}

/// Why nothing is heard.
enum Outage {
    Lost(DatabaseError),
    Deaf,
}

impl From<DatabaseError> for Outage {
    fn from(error: DatabaseError) -> Self {
        Self::Lost(error)
    }
}

/// What was said about an outage: each kind once, however many attempts it takes. A connection that was lost first and hears
/// nothing then is another thing to know.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    lost: bool,
    deaf: bool,
}

impl Said {
    fn say(&mut self, outage: &Outage) {
        match outage {
            Outage::Lost(error) => {
                if !std::mem::replace(&mut self.lost, true) {
                    tracing::warn!(error = %error, "event log listener lost, polling goes on");
                }
            }
            Outage::Deaf => {
                if !std::mem::replace(&mut self.deaf, true) {
                    tracing::warn!(
                        "event log listener hears nothing, polling goes on: give it a connection without a pooler in between"
                    );
                }
            }
        }
    }
}
