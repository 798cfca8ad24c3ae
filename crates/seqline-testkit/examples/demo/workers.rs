//! Running worker processes, and killing them.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seqline::Clock;
use seqline_testkit::{Role, TestDb, eventually};
use sqlx::{Connection, PgConnection};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use crate::worker;

const WORKERS: usize = 2;
/// From a kill to the next.
const PAUSE: Duration = Duration::from_millis(200);
/// Between two looks for a worker in a round, and how many of them there are before any worker is killed instead.
const LOOK: Duration = Duration::from_millis(3);
const LOOKS: usize = 100;
/// How long PostgreSQL may take to see that a worker is gone, and a worker to stop.
const SOON: Duration = Duration::from_secs(20);

/// Kills of workers.
#[derive(Debug, Default)]
pub(crate) struct Kills {
    pub(crate) all: usize,
    /// Those that ended a round: its transaction was open before, and rolled back after.
    pub(crate) in_a_round: usize,
}

/// The worker processes. They end with this program, however it ends: each watches a pipe that closes then.
pub(crate) struct Workers {
    url: String,
    running: Vec<Child>,
}

/// A round that was seen under way.
struct Seen {
    worker: u32,
    backend: i32,
    xid: String,
}

impl Workers {
    pub(crate) fn start(db: &TestDb) -> anyhow::Result<Workers> {
        let url = db.url(Role::App);
        let running = (0..WORKERS).map(|_| start(&url)).collect::<anyhow::Result<_>>()?;
        Ok(Workers { url, running })
    }

    pub(crate) fn number(&self) -> usize {
        self.running.len()
    }

    /// Kills one worker after the other with SIGKILL, if possible in the middle of a round, and starts it again.
    pub(crate) async fn kill_over_and_over(
        &mut self,
        db: &TestDb,
        stop: &CancellationToken,
    ) -> anyhow::Result<Kills> {
        let clock = Clock::system();
        let mut kills = Kills::default();
        while !stop.is_cancelled() {
            clock.sleep(PAUSE).await;
            // The server may be away for a moment.
            let Ok(mut admin) = PgConnection::connect_with(&db.options(Role::Admin)).await else { continue };
            let Ok(seen) = find_round(&mut admin, &clock).await else { continue };
            let victim = seen.as_ref().map_or_else(|| self.any(), |seen| seen.worker);
            if !self.kill(victim).await? {
                continue;
            }
            kills.all += 1;
            if let Some(seen) = seen
                && rolled_back(&mut admin, &seen, &clock).await.unwrap_or(false)
            {
                kills.in_a_round += 1;
            }
        }
        Ok(kills)
    }

    /// Asks all workers to stop and waits until they have.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        for mut worker in self.running {
            let pid = worker.id().context("a worker ended although nobody asked for it")?;
            kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGTERM)?;
            let ended = tokio::time::timeout(SOON, worker.wait()).await;
            let status = ended.context("a worker did not stop after SIGTERM")??;
            ensure!(status.success(), "a server stopped with {status} after SIGTERM");
        }
        Ok(())
    }

    fn any(&self) -> u32 {
        self.running[fastrand::usize(..self.running.len())].id().unwrap_or_default()
    }

    /// Whether there was such a worker: a backend can outlive its own for a moment.
    async fn kill(&mut self, pid: u32) -> anyhow::Result<bool> {
        for worker in &mut self.running {
            if let Some(status) = worker.try_wait()? {
                bail!("a worker ended with {status} although nobody asked for it");
            }
        }
        let worker = self.running.iter_mut().find(|worker| worker.id() == Some(pid));
        let Some(worker) = worker else { return Ok(false) };
        worker.kill().await?;
        *worker = start(&self.url)?;
        Ok(true)
    }
}

fn start(url: &str) -> anyhow::Result<Child> {
    Command::new(std::env::current_exe()?)
        .arg(worker::ARGUMENT)
        .env(worker::DATABASE_URL, url)
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("start a worker")
}

/// A transaction of a worker that has written: for a while it is looked for.
async fn find_round(admin: &mut PgConnection, clock: &Clock) -> anyhow::Result<Option<Seen>> {
    for _ in 0..LOOKS {
        let seen: Option<(String, i32, String)> = sqlx::query_as(
            "SELECT application_name, pid, backend_xid::text FROM pg_stat_activity
             WHERE starts_with(application_name, $1) AND backend_xid IS NOT NULL",
        )
        .bind(worker::APPLICATION_NAME)
        .fetch_optional(&mut *admin)
        .await?;
        if let Some((name, backend, xid)) = seen {
            let worker = name.trim_start_matches(worker::APPLICATION_NAME).parse()?;
            return Ok(Some(Seen { worker, backend, xid }));
        }
        clock.sleep(LOOK).await;
    }
    Ok(None)
}

/// Whether the round was ended by the kill. One that was committed just before was not.
async fn rolled_back(admin: &mut PgConnection, seen: &Seen, clock: &Clock) -> anyhow::Result<bool> {
    let is_there = async |admin: &mut PgConnection| -> sqlx::Result<bool> {
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)")
            .bind(seen.backend)
            .fetch_one(admin)
            .await
    };
    let gone = async {
        while is_there(admin).await? {
            clock.sleep(LOOK).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(SOON, gone).await.context("a killed worker's backend is still there")??;
    // Transaction numbers have not wrapped around on a server this young.
    let status: Option<String> =
        sqlx::query_scalar("SELECT pg_xact_status($1::xid8)").bind(&seen.xid).fetch_one(admin).await?;
    Ok(status.as_deref() == Some("aborted"))
}

/// Waits until the consumer has reached the head.
pub(crate) async fn catch_up(connection: &mut PgConnection, head: i64, deadline: Duration) {
    eventually(deadline, "the workers reaching the head", async || {
        cursor(connection).await.is_ok_and(|cursor| cursor == Some(head))
    })
    .await;
}

/// Where the consumer stands.
pub(crate) async fn cursor(connection: &mut PgConnection) -> anyhow::Result<Option<i64>> {
    let states = seqline::consumer::states(connection).await?;
    Ok(states.iter().find(|state| state.name == worker::CONSUMER).map(|state| state.last_seq))
}

/// One row that a worker wrote.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effect {
    pub(crate) seq: i64,
    pub(crate) worker: i64,
    pub(crate) part: i32,
}

/// All of them, by event.
pub(crate) async fn effects(connection: &mut PgConnection) -> sqlx::Result<Vec<Effect>> {
    let rows: Vec<(i64, i64, i32)> =
        sqlx::query_as("SELECT seq, worker, part FROM effects ORDER BY seq, part")
            .fetch_all(connection)
            .await?;
    Ok(rows.into_iter().map(|(seq, worker, part)| Effect { seq, worker, part }).collect())
}
