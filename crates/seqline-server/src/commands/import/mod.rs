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
use tokio::sync::{Mutex, mpsc};
use uuid::Uuid;

use self::convert::Converter;
use self::input::{Chunk, Chunks, Done, Input};
use self::rejects::Rejects;
use super::{Stop, asked_to_stop};
use crate::cli::{DatabaseArgs, ImportArgs};
use crate::failure::Failure;
use crate::store::import as store;
use crate::{connect, output};

/// Chunks that wait for a writer: enough to keep it busy, few enough to bound memory.
const CHUNKS_WAITING_PER_WRITER: usize = 2;

/// What an import did.
#[derive(Debug, Default, Clone, Serialize)]
struct Outcome {
    imported: i64,
    rejected: i64,
    /// Lines that an earlier run had done.
    skipped: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rejects_file: Option<PathBuf>,
}

pub(crate) async fn run(database: &DatabaseArgs, args: ImportArgs) -> Result<(), Failure> {
    let stop = asked_to_stop();
    let options = connect::options(database)?;
    let converter = Arc::new(Converter::new(&args)?);
    let mut input = Input::open(&args.file)?;
    let name = match (&args.name, input.path()) {
        (Some(name), _) => Some(name.clone()),
        (None, Some(path)) => Some(path.display().to_string()),
        // What comes through a pipe cannot be asked for again.
        (None, None) => None,
    };
    let pool = connect::pool(&options, u32::from(args.writers) + 1).await?;
    let run = Uuid::now_v7();
    let done = match &name {
        Some(name) => begin_or_resume(&pool, name, run, &mut input).await?,
        None => Done::default(),
    };
    let rejects = Arc::new(Mutex::new(Rejects::new(rejects_path(&args, input.path()))));
    let progress = progress_bar(input.total_bytes());

    let (send, receive) = mpsc::channel(usize::from(args.writers) * CHUNKS_WAITING_PER_WRITER);
    let receive = Arc::new(Mutex::new(receive));
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..args.writers {
        writers.spawn(writer::run(writer::Writer {
            pool: pool.clone(),
            name: name.clone(),
            run,
            converter: Arc::clone(&converter),
            chunks: Arc::clone(&receive),
            rejects: Arc::clone(&rejects),
            progress: progress.clone(),
        }));
    }
    // The writers hold the receiving end: when all have failed, sending fails and reading ends.
    drop(receive);

    let skipped = Arc::new(AtomicI64::new(0));
    let chunks = Chunks::new(input, args.batch as usize, args.line_max_bytes, done);
    let fed = feed(read_in_background(chunks, Arc::clone(&skipped)), send, stop).await;
    let mut outcome = Outcome::default();
    let mut failure = None;
    while let Some(joined) = writers.join_next().await {
        match joined {
            Ok(Ok((imported, rejected))) => {
                outcome.imported += imported;
                outcome.rejected += rejected;
            }
            Ok(Err(error)) => failure = Some(error),
            Err(error) => failure = Some(Failure::Unexpected(format!("a writer failed: {error}"))),
        }
    }
    progress.finish_and_clear();
    if let Some(failure) = failure {
        return Err(failure);
    }
    let interrupted = fed?;
    outcome.skipped = skipped.load(Ordering::Relaxed);
    if outcome.rejected > 0 {
        outcome.rejects_file = Some(rejects.lock().await.path().to_owned());
    }
    report(&args, &outcome, interrupted)
}

/// Hands chunks to the writers until the input or the user's patience ends; true for the latter.
async fn feed(
    mut chunks: mpsc::Receiver<Result<Chunk, Failure>>,
    send: mpsc::Sender<Chunk>,
    mut stop: Stop,
) -> Result<bool, Failure> {
    loop {
        let chunk = tokio::select! {
            chunk = chunks.recv() => chunk,
            () = &mut stop => return Ok(true),
        };
        let Some(chunk) = chunk.transpose()? else { return Ok(false) };
        tokio::select! {
            // The writers are gone when all have failed; the reason is theirs to tell.
            sent = send.send(chunk) => if sent.is_err() { return Ok(false) },
            () = &mut stop => return Ok(true),
        }
    }
}

/// Reads the input on a thread of its own and not of the runtime, which would wait for it at the end: a read of standard
/// input cannot be ended. `skipped` counts the lines that an earlier run had done.
fn read_in_background(mut chunks: Chunks, skipped: Arc<AtomicI64>) -> mpsc::Receiver<Result<Chunk, Failure>> {
    let (send, receive) = mpsc::channel(1);
    std::thread::spawn(move || {
        loop {
            let chunk = chunks.next().transpose();
            skipped.store(chunks.skipped_lines(), Ordering::Relaxed);
            let Some(chunk) = chunk else { return };
            let failed = chunk.is_err();
            if send.blocking_send(chunk).is_err() || failed {
                return;
            }
        }
    });
    receive
}

fn report(args: &ImportArgs, outcome: &Outcome, interrupted: bool) -> Result<(), Failure> {
    if args.json {
        output::json(outcome)?;
    } else {
        let skipped = match outcome.skipped {
            0 => String::new(),
            skipped => format!(", {skipped} lines were done before"),
        };
        output::line(format!("{} imported, {} rejected{skipped}", outcome.imported, outcome.rejected))?;
    }
    if interrupted {
        return Err(Failure::Interrupted("interrupted: run the same command again to go on".to_owned()));
    }
    match &outcome.rejects_file {
        Some(file) => Err(Failure::Partly(format!("rejected lines and reasons are in {}", file.display()))),
        None => Ok(()),
    }
}

/// Notes that the import exists, or checks that it is about the same input, and tells which lines are done.
async fn begin_or_resume(
    pool: &sqlx::PgPool,
    name: &str,
    run: Uuid,
    input: &mut Input,
) -> Result<Done, Failure> {
    let failed = |error: sqlx::Error| Failure::from(seqline::DatabaseError::from(error));
    let mut connection = pool.acquire().await.map_err(failed)?;
    if store::registered(&mut connection, name).await.map_err(failed)?.is_none() {
        let head = input.head(input::HEAD_BYTES)?;
        store::register(&mut connection, name, &head, run).await.map_err(failed)?;
    }
    let Some(known) = store::registered(&mut connection, name).await.map_err(failed)? else {
        return Err(Failure::Unexpected("the import vanished while it began".to_owned()));
    };
    let length = usize::try_from(known.bytes).unwrap_or_default();
    if input.head(length)?.sha256 != known.sha256 {
        return Err(Failure::Refused(format!(
            "the import {name} began with another file: give --name to start a new import"
        )));
    }
    store::take_over(&mut connection, name, run).await.map_err(failed)?;
    Ok(Done::new(store::ranges(&mut connection, name).await.map_err(failed)?))
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
