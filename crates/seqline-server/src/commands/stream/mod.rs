//! `seqline stream`: what the broker has, consumers that are out of use, and a walk through it.

mod forget;
mod info;
mod walk;

use crate::broker;
use crate::cli::{DatabaseArgs, StreamAction, StreamArgs};
use crate::commands::configuration;
use crate::failure::Failure;

pub(crate) async fn run(database: &DatabaseArgs, args: StreamArgs) -> Result<(), Failure> {
    let config = configuration(&args.config)?;
    let broker = broker::at(args.broker.nats_url.as_deref(), &config);
    let done = match args.action {
        StreamAction::Info { json } => info::run(&broker, &config, json).await,
        StreamAction::Forget { consumer, json, confirm } => {
            forget::run(database, &broker, &consumer, &confirm, json).await
        }
        StreamAction::Walk(args) => walk::run(database, &broker, &config, &args).await,
    };
    broker.close().await;
    done
}
