//! `seqline tail`

use std::io::Write;

use futures_util::future::BoxFuture;
use seqline::envelope::{Delivery, Envelope};
use seqline::tail::{Sink, SinkError, Start, Tail, TailConfig};
use seqline::{Clock, DurableHead, StoredEvent, read};
use sqlx::PgConnection;
use time::format_description::well_known::Rfc3339;

use super::asked_to_stop;
use crate::cli::{DatabaseArgs, TailArgs};
use crate::connect;
use crate::failure::Failure;
use crate::limits::DURABLE_SILENCE_MAX;

pub(crate) async fn run(database: &DatabaseArgs, args: TailArgs) -> Result<(), Failure> {
    let options = connect::options(database)?;
    let listen = connect::listen_options(args.listen_url.as_deref(), &options)?;
    let pool = connect::pool_to_read(&options, 2).await?;
    let mut connection = pool.acquire().await.map_err(seqline::DatabaseError::from)?;
    let head = read::head(&mut connection).await?;
    let after = match args.after {
        Some(after) => after,
        None => (head - args.last).max(read::min_retained(&mut connection).await? - 1).min(head),
    };
    let mut printer = Printer { json: args.json };
    if !args.follow {
        let durable = DurableHead::default();
        let mut position = after;
        while position < head {
            let mut page = read::events_after(&mut connection, position, 500).await?;
            page.retain(|event| event.seq <= head);
            let Some(last) = page.last() else { break };
            position = last.seq;
            wait_until_durable(&durable, &mut connection, position).await?;
            printer.print(&page)?;
        }
        return match args.after {
            Some(after) if after > head => Err(Failure::Refused(format!(
                "position {after} is above the head {head} of the log: it belongs to another history"
            ))),
            _ => Ok(()),
        };
    }
    drop(connection);
    let config = TailConfig {
        start: Start::After(after),
        poll_interval: args.poll_interval,
        listen: !args.no_listen,
        ..TailConfig::default()
    };
    let tail = Tail::new(pool, listen, config, Clock::system()).await?;
    Ok(tail.run(vec![Box::new(printer)], asked_to_stop()).await?)
}

/// Nothing is printed that a crash of the server can take back. Says why when that takes long.
async fn wait_until_durable(
    durable: &DurableHead,
    connection: &mut PgConnection,
    seq: i64,
) -> Result<(), Failure> {
    let mut waiting = std::pin::pin!(durable.wait_for(connection, seq));
    if let Some(done) = Clock::system().timeout(DURABLE_SILENCE_MAX, &mut waiting).await {
        return Ok(done?);
    }
    eprintln!(
        "seqline: waiting until the events are durable: the server or a synchronous standby of it has not confirmed them"
    );
    Ok(waiting.await?)
}

struct Printer {
    json: bool,
}

impl Printer {
    fn print(&mut self, events: &[StoredEvent]) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        for event in events {
            if self.json {
                writeln!(out, "{}", Envelope::new(event, &Delivery::default()).to_json())?;
            } else {
                let at = event.occurred_at.format(&Rfc3339).unwrap_or_default();
                let resource = match &event.resource_id {
                    Some(id) => format!("{}/{id}", event.resource_kind),
                    None => event.resource_kind.clone(),
                };
                writeln!(
                    out,
                    "{}  {at}  {}  {resource}  {}",
                    event.seq,
                    event.event_type,
                    if event.redacted { "redacted" } else { event.payload.as_json() }
                )?;
            }
        }
        out.flush()
    }
}

impl Sink for Printer {
    fn accept<'a>(&'a mut self, batch: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move { Ok(self.print(batch)?) })
    }
}
