//! An agent: what runs in the processes that are killed, paused and replaced.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use seqline::Clock;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::journal::{What, Writer, fingerprint};

mod gateway;
mod rest;

/// The argument that makes an agent of this program.
pub(crate) const ARGUMENT: &str = "agent";
/// What an agent is told: how it gets its events, which instance it is, the address of the server, its token and where the journal is.
pub(crate) const OVER: &str = "DEMO_AGENT_OVER";
pub(crate) const INSTANCE: &str = "DEMO_AGENT_INSTANCE";
pub(crate) const ADDRESS: &str = "DEMO_AGENT_ADDRESS";
pub(crate) const TOKEN: &str = "DEMO_AGENT_TOKEN";
pub(crate) const JOURNAL: &str = "DEMO_AGENT_JOURNAL";
/// All instances run the same consumer of the same agent.
pub(crate) const AGENT: &str = "demo-agent";
pub(crate) const CONSUMER: &str = "webhooks";

/// One event in so many takes long, so that there is time to be killed in the middle of the work.
const SLOW_ONE_IN: i64 = 50;
const SLOW: Duration = Duration::from_millis(20);
/// Before it comes again.
const PAUSE: Duration = Duration::from_millis(100);

/// How it gets its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Gateway,
    Rest,
}

impl Over {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Rest => "rest",
        }
    }
}

struct Agent {
    address: String,
    token: String,
    journal: Writer,
    clock: Clock,
    /// Nothing takes long any more.
    hurry: CancellationToken,
}

/// What an agent looks at of an event.
#[derive(Deserialize)]
struct Event {
    seq: i64,
    id: Uuid,
    payload: Value,
    #[serde(default)]
    redelivered: bool,
}

impl Agent {
    /// Does what is to be done about an event: once this returns it is done for good.
    async fn handle(&mut self, event: &Event) -> anyhow::Result<()> {
        if event.seq % SLOW_ONE_IN == 0 && !self.hurry.is_cancelled() {
            self.clock.sleep(SLOW).await;
        }
        let Event { seq, id, redelivered, .. } = *event;
        self.journal.write(What::Handled { seq, id, payload: fingerprint(&event.payload), redelivered })
    }
}

/// Works until it is replaced, or until the process that started it lets go of it.
pub(crate) async fn run() -> anyhow::Result<()> {
    let told = |name: &str| std::env::var(name).context("an agent is started by the demo");
    let instance = told(INSTANCE)?.parse()?;
    let parent = Parent::listen();
    let agent = Agent {
        address: told(ADDRESS)?,
        token: told(TOKEN)?,
        journal: Writer::open(&PathBuf::from(told(JOURNAL)?), instance)?,
        clock: Clock::system(),
        hurry: parent.hurry.clone(),
    };
    let over = told(OVER)?;
    let working = async {
        match over.as_str() {
            over if over == Over::Gateway.as_str() => gateway::run(agent).await,
            over if over == Over::Rest.as_str() => rest::run(agent, &parent).await,
            over => bail!("there is no way over {over}"),
        }
    };
    tokio::select! {
        ended = working => ended,
        () = parent.gone.cancelled() => Ok(()),
    }
}

/// What the process that started this one says: to go on.
pub(crate) const GO_ON: u8 = 0;
/// That there is not much time any more.
pub(crate) const HURRY: u8 = 1;

/// What it has said.
struct Parent {
    word: Arc<Notify>,
    hurry: CancellationToken,
    /// It let go, or is gone itself.
    gone: CancellationToken,
}

impl Parent {
    /// On a thread of its own, which keeps nobody from ending.
    fn listen() -> Self {
        let parent = Self {
            word: Arc::new(Notify::new()),
            hurry: CancellationToken::new(),
            gone: CancellationToken::new(),
        };
        let (word, hurry, gone) = (parent.word.clone(), parent.hurry.clone(), parent.gone.clone());
        std::thread::spawn(move || {
            for byte in std::io::stdin().lock().bytes() {
                match byte {
                    Ok(HURRY) => hurry.cancel(),
                    Ok(_) => word.notify_one(),
                    Err(_) => break,
                }
            }
            gone.cancel();
        });
        parent
    }
}

/// The number in a position.
fn seq_of(position: &Value) -> anyhow::Result<i64> {
    let (_, seq) = position.as_str().and_then(|text| text.rsplit_once(':')).context("it is no position")?;
    Ok(seq.parse()?)
}
