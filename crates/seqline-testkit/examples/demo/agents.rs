//! Running an agent in several instances, and doing to them and to their servers what can happen.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seqline::Clock;
use seqline::access::{self, Grant, NewPrincipal, PrincipalKind, Rights};
use seqline::agent::AgentConsumer;
use seqline_testkit::{FaultProxy, Role, TestDb};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::agent::{self, GO_ON, Over};
use crate::journal::{Entry, How, Reader, What, Writer};
use crate::serving::{ACK_TIMEOUT, Serving};
use crate::writers;

/// How long anything may take that has to happen.
const SOON: Duration = Duration::from_secs(60);
/// How long whoever was replaced may take to go.
const LEAVE: Duration = Duration::from_secs(15);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// When things happen, in hundredths of the time that writers have. In the middle PostgreSQL is killed, by somebody else.
const CUT_AT: u32 = 8;
const KILLS_AT: [u32; 3] = [16, 24, 32];
const PAUSE_AT: u32 = 58;
const TAKEOVER_AT: u32 = 72;
const SERVER_KILL_AT: u32 = 79;
const LAST_AT: u32 = 87;
/// How long a server may take to save what it has read. What was not sent before its agent was paused is never saved.
const SAVED: Duration = Duration::from_secs(5);
/// How often something is done that may meet a moment in which it has no effect.
const TRIES: usize = 5;
/// So many events are handled before anything is done to whoever handles them.
const EVENTS: usize = 100;

/// The instances, their servers, and what they write. All processes end with this program, however it ends.
pub(crate) struct Agents<'a> {
    db: &'a TestDb,
    clock: Clock,
    token: String,
    server: Serving,
    /// What stands between that server and the agents.
    network: FaultProxy,
    folder: TempDir,
    journal: Reader,
    own: Writer,
    first: Child,
    deeds: Deeds,
}

/// What was done to agents.
#[derive(Debug, Default)]
pub(crate) struct Deeds {
    pub(crate) kills: usize,
    /// Those after which something was handled and not acknowledged.
    pub(crate) kills_in_the_middle: usize,
    /// What a holder that was paused acknowledged when it woke up after it was replaced.
    pub(crate) late: Option<Late>,
}

/// An acknowledgement that came too late.
#[derive(Debug)]
pub(crate) struct Late {
    pub(crate) seq: i64,
    /// What was stored before and after.
    pub(crate) before: i64,
    pub(crate) after: i64,
}

/// What is left when all is done.
pub(crate) struct Outcome {
    pub(crate) entries: Vec<Entry>,
    pub(crate) deeds: Deeds,
    /// The acknowledgement that is stored.
    pub(crate) acked: i64,
}

impl<'a> Agents<'a> {
    /// Starts the server, and the first instance on the log as it is.
    pub(crate) async fn start(db: &'a TestDb) -> anyhow::Result<Self> {
        let token = create_agent(db).await.context("create the agent")?;
        let server = Serving::start(db).await?;
        let network = FaultProxy::start(server.address).await?;
        let folder = TempDir::with_prefix("seqline-demo-")?;
        let path = folder.path().join("journal");
        let own = Writer::open(&path, 0)?;
        let journal = Reader::open(&path)?;
        let first = start(1, Over::Gateway, network.addr().to_string(), &token, path)?;
        let (clock, deeds) = (Clock::system(), Deeds::default());
        let mut agents = Self { db, clock, token, server, network, folder, journal, own, first, deeds };
        agents.until("the first instance begins", |entry| begins(entry, 1)).await?;
        Ok(agents)
    }

    /// Does everything to them while there are writers, and leaves the last instance to itself.
    pub(crate) async fn disturb(mut self, duration: Duration) -> anyhow::Result<Last<'a>> {
        let begin = self.clock.elapsed();
        let clock = self.clock.clone();
        let at = async |hundredths: u32| {
            let due = duration * hundredths / 100;
            clock.sleep((begin + due).saturating_sub(clock.elapsed())).await;
        };
        at(CUT_AT).await;
        self.progress(1).await?;
        self.network.cut();
        self.until("the first instance resumes its session", |entry| {
            matches!(entry.what, What::Begins { how: How::Resumed, .. })
        })
        .await?;
        for kill in KILLS_AT {
            at(kill).await;
            self.kill_first().await?;
        }
        at(PAUSE_AT).await;
        self.pause_first().await?;
        at(TAKEOVER_AT).await;
        let mut second = self.take_over().await?;
        at(SERVER_KILL_AT).await;
        self.kill_server().await?;
        at(LAST_AT).await;
        let elsewhere = Serving::start(self.db).await?;
        let mut third = self.replace_while_paused(&mut second, &elsewhere).await?;
        for _ in 1..TRIES {
            if self.deeds.late.as_ref().is_some_and(|late| late.seq > late.before) {
                break;
            }
            // It was told before it woke up, as happens now and then: the server looks for that.
            say(&mut third, GO_ON).await?;
            self.own.write(What::Replaces)?;
            second = self.start_over(2, Over::Gateway, self.network.addr().to_string())?;
            self.until("the second instance begins over", |entry| begins(entry, 2)).await?;
            leaves(&mut third).await?;
            third = self.replace_while_paused(&mut second, &elsewhere).await?;
        }
        say(&mut third, GO_ON).await?;
        Ok(Last { agents: self, third, _elsewhere: elsewhere })
    }

    /// Kills the first instance, and starts it again.
    async fn kill_first(&mut self) -> anyhow::Result<()> {
        self.progress(1).await?;
        // Right after it has done something.
        let clock = self.clock.clone();
        let done = async {
            while !matches!(self.journal.read()?.last().map(|entry| &entry.what), Some(What::Handled { .. }))
            {
                clock.sleep(LOOK).await;
            }
            Ok(())
        };
        soon("the first instance handles an event", done).await?;
        self.first.kill().await?;
        let last = self.journal.read()?.last().context("it has done something")?;
        self.deeds.kills += 1;
        self.deeds.kills_in_the_middle += usize::from(matches!(last.what, What::Handled { .. }));
        self.own.write(What::Replaces)?;
        self.first = self.start_over(1, Over::Gateway, self.network.addr().to_string())?;
        self.until("the first instance begins again", |entry| begins(entry, 1)).await
    }

    /// Stops the first instance for longer than it has to acknowledge.
    async fn pause_first(&mut self) -> anyhow::Result<()> {
        self.progress(1).await?;
        signal(&self.first, Signal::SIGSTOP)?;
        // There is something that it is given and does not acknowledge.
        let due = self.head().await? + i64::try_from(EVENTS)?;
        let written = async {
            while self.head().await? < due {
                self.clock.sleep(LOOK).await;
            }
            Ok(())
        };
        soon("there are events for an instance that is paused", written).await?;
        self.clock.sleep(ACK_TIMEOUT + ACK_TIMEOUT / 4).await;
        signal(&self.first, Signal::SIGCONT)?;
        self.until("events come again, and are marked", |entry| {
            matches!(entry.what, What::Handled { redelivered: true, .. })
        })
        .await
    }

    /// Starts a second instance while the first one lives, which has to go.
    async fn take_over(&mut self) -> anyhow::Result<Child> {
        self.progress(1).await?;
        // Right after a save, and when there is something that was taken and not saved.
        let before = self.stored().await?;
        let saved = async {
            loop {
                let stored = self.stored().await?;
                if stored > before {
                    return Ok(stored);
                }
                self.clock.sleep(LOOK).await;
            }
        };
        let saved = soon("acknowledgements of the first instance are saved", saved).await?;
        self.until(
            "the server takes a further one",
            |entry| matches!(entry.what, What::Taken { seq } if entry.instance == 1 && seq > saved),
        )
        .await?;
        self.own.write(What::Replaces)?;
        let second = self.start_over(2, Over::Gateway, self.network.addr().to_string())?;
        self.until("the second instance begins", |entry| begins(entry, 2)).await?;
        leaves(&mut self.first).await?;
        Ok(second)
    }

    /// Kills the server in the middle of everything, and starts it again.
    async fn kill_server(&mut self) -> anyhow::Result<()> {
        self.progress(2).await?;
        self.say_what_is_stored().await?;
        self.server.kill().await?;
        self.server = Serving::start(self.db).await?;
        self.network.lead_to(self.server.address);
        self.until("the second instance begins at the new server", |entry| begins(entry, 2)).await
    }

    /// Stops the second instance, lets a third one take the consumer at another server, and wakes the second one: it acknowledges what it does
    /// then to a server that has not heard of the third.
    async fn replace_while_paused(
        &mut self,
        second: &mut Child,
        elsewhere: &Serving,
    ) -> anyhow::Result<Child> {
        self.pause_with_nothing_to_save(second).await?;
        self.say_what_is_stored().await?;
        let third = self.start_over(3, Over::Rest, elsewhere.address.to_string())?;
        self.until("the third instance is given an event", |entry| {
            entry.instance == 3 && matches!(entry.what, What::Handled { .. })
        })
        .await?;
        let before = self.stored().await?;
        signal(second, Signal::SIGCONT)?;
        leaves(second).await?;
        let (seq, after) = (self.acknowledged_by(2)?, self.stored().await?);
        self.deeds.late = Some(Late { seq, before, after });
        Ok(third)
    }

    /// Stops the second instance when everything is stored that it has acknowledged: its server has nothing to save until it wakes up.
    async fn pause_with_nothing_to_save(&mut self, second: &Child) -> anyhow::Result<()> {
        for _ in 0..TRIES {
            self.progress(2).await?;
            signal(second, Signal::SIGSTOP)?;
            let acknowledged = self.acknowledged_by(2)?;
            let saved = async {
                while self.stored().await? < acknowledged {
                    self.clock.sleep(LOOK).await;
                }
                anyhow::Ok(())
            };
            if let Ok(saved) = tokio::time::timeout(SAVED, saved).await {
                return saved;
            }
            // It was stopped between saying that it acknowledges and doing it.
            signal(second, Signal::SIGCONT)?;
        }
        bail!("what the second instance acknowledged was not stored within {SAVED:?}, {TRIES} times")
    }

    fn start_over(&self, instance: u32, over: Over, address: String) -> anyhow::Result<Child> {
        start(instance, over, address, &self.token, self.folder.path().join("journal"))
    }

    /// What this instance has acknowledged.
    fn acknowledged_by(&mut self, instance: u32) -> anyhow::Result<i64> {
        let acknowledged = self.journal.read()?.iter().rev().find_map(|entry| match entry.what {
            What::Acknowledges { seq } if entry.instance == instance => Some(seq),
            _ => None,
        });
        acknowledged.context("it has acknowledged something")
    }

    /// Waits until this instance has done some of its work, since now.
    async fn progress(&mut self, instance: u32) -> anyhow::Result<()> {
        // What was written before does not count.
        self.journal.read()?;
        let mut left = EVENTS;
        self.until("an instance handles events", |entry| {
            let counts = entry.instance == instance && matches!(entry.what, What::Handled { .. });
            left = left.saturating_sub(usize::from(counts));
            left == 0
        })
        .await
    }

    /// Waits for an entry, from the next one on.
    async fn until(&mut self, what: &str, mut is_it: impl FnMut(&Entry) -> bool) -> anyhow::Result<()> {
        let mut seen = self.journal.entries.len();
        let looking = async {
            loop {
                let entries = self.journal.read()?;
                if entries[seen..].iter().any(&mut is_it) {
                    return anyhow::Ok(());
                }
                seen = entries.len();
                self.clock.sleep(LOOK).await;
            }
        };
        soon(what, looking).await
    }

    /// Says in the journal what is stored, before something happens after which nothing else counts.
    async fn say_what_is_stored(&mut self) -> anyhow::Result<()> {
        let stored = self.stored().await?;
        self.own.write(What::Unsaved { stored })
    }

    /// The acknowledgement that is stored.
    async fn stored(&self) -> anyhow::Result<i64> {
        let consumer = AgentConsumer::new(agent::AGENT, agent::CONSUMER)?;
        let cursor =
            self.ask(async |connection| Ok(seqline::agent::cursor(connection, &consumer).await?)).await?;
        cursor.map(|cursor| cursor.acked_seq).context("there is such a consumer")
    }

    async fn head(&self) -> anyhow::Result<i64> {
        self.ask(async |connection| Ok(seqline::read::head(connection).await?)).await
    }

    /// Asks PostgreSQL, which may be away for a moment.
    async fn ask<T>(
        &self,
        question: impl AsyncFn(&mut PgConnection) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let asking = async {
            loop {
                if let Ok(mut connection) = PgConnection::connect_with(&self.db.options(Role::App)).await
                    && let Ok(answer) = question(&mut connection).await
                {
                    return answer;
                }
                self.clock.sleep(LOOK).await;
            }
        };
        tokio::time::timeout(SOON, asking).await.context("PostgreSQL does not answer")
    }
}

/// The last instance at work.
pub(crate) struct Last<'a> {
    agents: Agents<'a>,
    third: Child,
    _elsewhere: Serving,
}

impl Last<'_> {
    /// Waits until everything up to here is acknowledged, as long as that helps: what is not is in the proof.
    pub(crate) async fn finish(self, head: i64, deadline: Duration) -> anyhow::Result<Outcome> {
        let Self { mut agents, mut third, _elsewhere } = self;
        // The writers have stopped. If it has ended already, the proof says what is missing.
        let _ = say(&mut third, agent::HURRY).await;
        let acknowledged = async {
            while agents.stored().await? < head && third.try_wait()?.is_none() {
                agents.clock.sleep(LOOK).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(deadline, acknowledged).await.unwrap_or(Ok(()))?;
        drop(third.stdin.take());
        leaves(&mut third).await?;
        let acked = agents.stored().await?;
        agents.journal.read()?;
        Ok(Outcome { entries: agents.journal.entries, deeds: agents.deeds, acked })
    }
}

/// An agent that may see what most events of writers ask for. Returns its token.
async fn create_agent(db: &TestDb) -> anyhow::Result<String> {
    let mut connection = db.connect(Role::App).await;
    let principal = NewPrincipal {
        id: agent::AGENT.to_owned(),
        kind: PrincipalKind::Agent,
        name: None,
        rights: Rights::default(),
    };
    access::create_principal(&mut connection, &principal, None).await?;
    access::grant(&mut connection, &principal.id, &Grant::of(writers::READ), None).await?;
    let created = access::create_token(&mut connection, &principal.id, None, None, None).await?;
    Ok(created.token.reveal().to_owned())
}

fn start(instance: u32, over: Over, address: String, token: &str, journal: PathBuf) -> anyhow::Result<Child> {
    Command::new(std::env::current_exe()?)
        .arg(agent::ARGUMENT)
        .env(agent::OVER, over.as_str())
        .env(agent::INSTANCE, instance.to_string())
        .env(agent::ADDRESS, address)
        .env(agent::TOKEN, token)
        .env(agent::JOURNAL, journal)
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("start an agent")
}

/// Says something to an agent.
async fn say(agent: &mut Child, word: u8) -> anyhow::Result<()> {
    Ok(agent.stdin.as_mut().context("the agent listens")?.write_u8(word).await?)
}

/// What this comes to, which has to be soon.
async fn soon<T>(what: &str, done: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let done = tokio::time::timeout(SOON, done).await;
    done.with_context(|| format!("{what}: that did not happen within {SOON:?}"))?
}

fn begins(entry: &Entry, instance: u32) -> bool {
    entry.instance == instance && matches!(entry.what, What::Begins { .. })
}

fn signal(agent: &Child, signal: Signal) -> anyhow::Result<()> {
    let pid = agent.id().context("an agent ended although nobody asked for it")?;
    Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
}

/// Waits until it has ended on its own. One that does not is killed, and the proof finds that it was not told to.
async fn leaves(agent: &mut Child) -> anyhow::Result<()> {
    // Waiting would let go of it.
    let _held = agent.stdin.take();
    let Ok(status) = tokio::time::timeout(LEAVE, agent.wait()).await else { return Ok(agent.kill().await?) };
    let status = status?;
    ensure!(status.success(), "an agent ended with {status}");
    Ok(())
}
