//! `seqline import`: the lines of a file become events, each exactly once.
//!
//! Lines are taken in chunks. A chunk's events and the note that its lines are done go into one transaction, so an import
//! that is killed at any moment and run again neither loses nor repeats a line. A line that cannot be an event goes
//! into a file of rejects with its number and the reason; everything else is committed.

mod convert;
mod input;
mod rejects;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use sqlx::PgPool;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::convert::Converter;
use self::input::{Chunk, Chunks, Done, Input};
use self::rejects::Rejects;
use super::asked_to_stop;
use crate::cli::{DatabaseArgs, ImportArgs};
use crate::failure::Failure;
use crate::limits::{CHUNKS_WAITING_PER_WRITER, IMPORT_NAME_CHARS_MAX};
use crate::store::import as store;
use crate::{connect, output};

/// What an import did.
#[derive(Debug, Default, Clone, Serialize)]
struct Outcome {
    imported: i64,
    rejected: i64,
    /// Lines that earlier runs had done.
    skipped: i64,
    /// How many of those had been rejected.
    rejected_before: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rejects_file: Option<PathBuf>,
}

/// Counts of lines that are done, which the writers add to.
#[derive(Debug, Default)]
struct Tally {
    imported: AtomicI64,
    rejected: AtomicI64,
}

/// What the reading end gave to the writers.
struct Fed {
    lines: i64,
    /// Whether the input has ended, and not the patience of the user.
    complete: bool,
}

/// An import that has begun.
struct Import {
    args: ImportArgs,
    name: Option<String>,
    run: Uuid,
    pool: PgPool,
    converter: Arc<Converter>,
    rejects: Arc<Mutex<Rejects>>,
    tally: Arc<Tally>,
    stop: CancellationToken,
}

pub(crate) async fn run(database: &DatabaseArgs, args: ImportArgs) -> Result<(), Failure> {
    let stop = asked_to_stop();
    let options = connect::options(database)?;
    let converter = Arc::new(Converter::new(&args)?);
    let begun = begin(&options, args, converter, stop.clone());
    tokio::select! {
        begun = begun => {
            let (import, input, done) = begun?;
            import.run(input, done).await
        }
        () = stop.cancelled() => Err(Failure::Interrupted("interrupted before anything was imported".to_owned())),
    }
}

/// Everything up to the first line.
async fn begin(
    options: &sqlx::postgres::PgConnectOptions,
    args: ImportArgs,
    converter: Arc<Converter>,
    stop: CancellationToken,
) -> Result<(Import, Input, Done), Failure> {
    let file = args.file.clone();
    let input = on_a_thread(move || Input::open(&file)).await??;
    let name = name(&args, input.path())?;
    let rejects = Rejects::new(rejects_path(&args, input.path()));
    rejects.check()?;
    let pool = connect::pool(options, u32::from(args.writers) + 1).await?;
    let run = Uuid::now_v7();
    let (input, done) = match &name {
        Some(name) => begin_or_resume(&pool, name, run, input).await?,
        None => (input, Done::default()),
    };
    let rejects = Arc::new(Mutex::new(rejects));
    Ok((Import { args, name, run, pool, converter, rejects, tally: Arc::default(), stop }, input, done))
}

impl Import {
    async fn run(self, input: Input, done: Done) -> Result<(), Failure> {
        let mut outcome =
            Outcome { skipped: done.lines(), rejected_before: done.rejected(), ..Outcome::default() };
        let progress = progress_bar(input.total_bytes());
        let (send, receive) = mpsc::channel(usize::from(self.args.writers) * CHUNKS_WAITING_PER_WRITER);
        let writers = self.start_writers(receive, &progress);
        let chunks = Chunks::new(input, self.args.batch as usize, self.args.line_max_bytes, done);
        let fed = feed(read_in_background(chunks), send, &self.stop).await;
        let written = all(writers).await;
        progress.finish_and_clear();

        outcome.imported = self.tally.imported.load(Ordering::Relaxed);
        outcome.rejected = self.tally.rejected.load(Ordering::Relaxed);
        if outcome.rejected + outcome.rejected_before > 0 {
            outcome.rejects_file = Some(self.rejects.lock().await.path().to_owned());
        }
        // What went wrong with the import matters more than that nobody reads the counts.
        let reported = report(&outcome, self.args.json);
        // The writers first: when all have failed, feeding ends too.
        let fed = written.and(fed).map_err(|failure| failure.and(&self.how_to_go_on(&outcome)))?;
        if !fed.complete || fed.lines > outcome.imported + outcome.rejected {
            return Err(Failure::Interrupted(format!("interrupted: {}", self.how_to_go_on(&outcome))));
        }
        match &outcome.rejects_file {
            Some(file) => {
                Err(Failure::Partly(format!("rejected lines and reasons are in {}", file.display())))
            }
            None => reported,
        }
    }

    fn start_writers(
        &self,
        chunks: mpsc::Receiver<Chunk>,
        progress: &ProgressBar,
    ) -> tokio::task::JoinSet<Result<(), Failure>> {
        // Only the writers hold the receiving end: when all have failed, sending fails and reading ends.
        let chunks = Arc::new(Mutex::new(chunks));
        let mut writers = tokio::task::JoinSet::new();
        for _ in 0..self.args.writers {
            writers.spawn(writer::run(writer::Writer {
                pool: self.pool.clone(),
                name: self.name.clone(),
                run: self.run,
                converter: Arc::clone(&self.converter),
                chunks: Arc::clone(&chunks),
                rejects: Arc::clone(&self.rejects),
                tally: Arc::clone(&self.tally),
                progress: progress.clone(),
                stop: self.stop.clone(),
            }));
        }
        writers
    }

    /// Without a name nothing tells which lines are done: doing them again would double them.
    fn how_to_go_on(&self, outcome: &Outcome) -> String {
        match &self.name {
            Some(_) => "run the same command again to go on".to_owned(),
            None => format!(
                "{} lines are in the log, and an import of standard input without --name cannot be resumed",
                outcome.imported
            ),
        }
    }
}

/// Waits for all writers and returns a failure of one of them.
async fn all(mut writers: tokio::task::JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    let mut result = Ok(());
    while let Some(joined) = writers.join_next().await {
        let joined =
            joined.unwrap_or_else(|error| Err(Failure::Unexpected(format!("a writer failed: {error}"))));
        result = joined.and(result);
    }
    result
}

/// Hands chunks to the writers until the input or the user's patience ends.
async fn feed(
    mut chunks: mpsc::Receiver<Result<Chunk, Failure>>,
    send: mpsc::Sender<Chunk>,
    stop: &CancellationToken,
) -> Result<Fed, Failure> {
    let mut fed = Fed { lines: 0, complete: false };
    loop {
        let chunk = tokio::select! {
            chunk = chunks.recv() => chunk,
            () = stop.cancelled() => return Ok(fed),
        };
        let Some(chunk) = chunk.transpose()? else { return Ok(Fed { complete: true, ..fed }) };
        let lines = chunk.lines.len() as i64;
        tokio::select! {
            // The writers are gone when all have failed or were stopped.
            sent = send.send(chunk) => if sent.is_err() { return Ok(fed) },
            () = stop.cancelled() => return Ok(fed),
        }
        fed.lines += lines;
    }
}

/// Reads the input on a thread of its own and not of the runtime, which would wait for it at the end: a read of standard
/// input cannot be ended.
fn read_in_background(mut chunks: Chunks) -> mpsc::Receiver<Result<Chunk, Failure>> {
    let (send, receive) = mpsc::channel(1);
    std::thread::spawn(move || {
        while let Some(chunk) = chunks.next().transpose() {
            let failed = chunk.is_err();
            if send.blocking_send(chunk).is_err() || failed {
                return;
            }
        }
    });
    receive
}

/// Does one thing that can wait for long, as [`read_in_background`] does.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    let (send, receive) = oneshot::channel();
    // Nobody waits for the result when the import was interrupted.
    std::thread::spawn(move || drop(send.send(work())));
    receive.await.map_err(|_| Failure::Unexpected("the input could not be read".to_owned()))
}

fn report(outcome: &Outcome, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(outcome);
    }
    let before = match (outcome.skipped, outcome.rejected_before) {
        (0, _) => String::new(),
        (skipped, 0) => format!(", {skipped} lines were done before"),
        (skipped, rejected) => format!(", {skipped} lines were done before ({rejected} of them rejected)"),
    };
    output::line(format!("{} imported, {} rejected{before}", outcome.imported, outcome.rejected))
}

/// Notes that the import exists, or checks that it is about the same input, and tells which lines are done.
async fn begin_or_resume(
    pool: &PgPool,
    name: &str,
    run: Uuid,
    mut input: Input,
) -> Result<(Input, Done), Failure> {
    let failed = |error: sqlx::Error| Failure::from(seqline::DatabaseError::from(error));
    let mut connection = pool.acquire().await.map_err(failed)?;
    // Before the input is waited for, so that a missing right is told at once.
    let known = store::registered(&mut connection, name).await.map_err(failed)?;
    let (input, head) = on_a_thread(move || input.head().map(|head| (input, head))).await??;
    if known.is_none() {
        store::register(&mut connection, name, &head.fingerprint(), run).await.map_err(failed)?;
    }
    drop(connection);
    let mut tx = seqline::begin(pool).await?;
    store::wait_for_others(&mut tx, name).await.map_err(failed)?;
    let Some(known) = store::registered(&mut tx, name).await.map_err(failed)? else {
        return Err(Failure::Unexpected("the import vanished while it began".to_owned()));
    };
    if !head.begins_with(&known) {
        return Err(Failure::Refused(format!(
            "the import {name} began with another file: give --name to start a new import"
        )));
    }
    if !store::take_over(&mut tx, name, run, &known, &head.fingerprint()).await.map_err(failed)? {
        return Err(Failure::Unavailable(format!(
            "another run of the import {name} began just now: try again"
        )));
    }
    let done = Done::new(store::ranges(&mut tx, name).await.map_err(failed)?);
    seqline::commit(tx).await?;
    Ok((input, done))
}

/// Under which name progress is kept. What comes through a pipe without a name cannot be asked for again.
fn name(args: &ImportArgs, input: Option<&Path>) -> Result<Option<String>, Failure> {
    let fits = |name: &str| (1..=IMPORT_NAME_CHARS_MAX).contains(&name.chars().count());
    let name = match (&args.name, input) {
        (Some(name), _) => Some(name.clone()),
        (None, Some(path)) => Some(path.display().to_string()),
        (None, None) => None,
    };
    match name {
        Some(text) if !fits(&text) => {
            let what = if args.name.is_some() { "--name" } else { "without --name the path of the file" };
            Err(Failure::Usage(format!("{what} must have 1 to {IMPORT_NAME_CHARS_MAX} characters")))
        }
        name => Ok(name),
    }
}

fn rejects_path(args: &ImportArgs, input: Option<&Path>) -> PathBuf {
    match (&args.rejects, input) {
        (Some(path), _) => path.clone(),
        (None, Some(path)) => {
            let mut name = path.as_os_str().to_owned();
            name.push(".rejected");
            PathBuf::from(name)
        }
        (None, None) => PathBuf::from("stdin.rejected"),
    }
}

/// On a terminal only.
fn progress_bar(total_bytes: Option<u64>) -> ProgressBar {
    let (bar, template) = match total_bytes {
        Some(total) => {
            (ProgressBar::new(total), "{bar:40} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left")
        }
        None => (ProgressBar::no_length(), "{bytes} read  {bytes_per_sec}"),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
