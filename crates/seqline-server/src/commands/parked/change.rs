//! `seqline parked retry` and `discard`.

use seqline::consumer::{ConsumerState, Mode};
use sqlx::PgConnection;

use crate::commands::consumers::{ADD_YES, say};
use crate::failure::Failure;
use crate::operate::consumers::find;
use crate::operate::parked::{self, Change};
use crate::output::{count, grouped};

pub(super) async fn retry(
    connection: &mut PgConnection,
    consumer: &str,
    seq: Option<i64>,
    mode: Mode<'_>,
    json: bool,
) -> Result<(), Failure> {
    let (_, state) = find(connection, consumer).await?;
    let report = parked::retry(connection, consumer, seq, mode).await?;
    let Change { events, behind, done, .. } = report;
    let (what, then) = (what(seq, events, consumer), follow(behind));
    let sentence = match (events, done) {
        (0, _) => format!("consumer {consumer} has no parked events"),
        (_, false) => format!("would try {what} again{}{then}{ADD_YES}", when(&state)),
        (1, true) => format!("{what} is tried again{}{then}", when(&state)),
        (_, true) => format!("{what} are tried again{}{then}", when(&state)),
    };
    say(json, &report, sentence)
}

pub(super) async fn discard(
    connection: &mut PgConnection,
    consumer: &str,
    seq: Option<i64>,
    mode: Mode<'_>,
    json: bool,
) -> Result<(), Failure> {
    let report = parked::discard(connection, consumer, seq, mode).await?;
    let Change { events, behind, done, .. } = report;
    let (what, then) = (what(seq, events, consumer), follow(behind));
    let sentence = match (events, done) {
        (0, _) => format!("consumer {consumer} has no parked events"),
        (_, false) => format!("would give up {what}, which it never handles then{then}{ADD_YES}"),
        (1, true) => format!("{what} is given up{then}"),
        (_, true) => format!("{what} are given up{then}"),
    };
    say(json, &report, sentence)
}

fn what(seq: Option<i64>, events: i64, consumer: &str) -> String {
    match seq {
        Some(seq) => format!("parked event {} of consumer {consumer}", grouped(seq)),
        None => format!("{} of consumer {consumer}", count(events, "parked event")),
    }
}

fn follow(behind: i64) -> String {
    match behind {
        0 => String::new(),
        1 => "; 1 more waits behind, and follows".to_owned(),
        behind => format!("; {} more wait behind, and follow", grouped(behind)),
    }
}

/// No round of one that is paused begins.
fn when(state: &ConsumerState) -> &'static str {
    match (state.retired_at, state.paused_at) {
        (Some(_), _) => ", when the consumer goes on, which is retired",
        (None, Some(_)) => ", when the consumer goes on, which is paused",
        (None, None) => "",
    }
}
