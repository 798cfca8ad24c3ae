//! `seqline consumers lanes`

use seqline::Clock;
use seqline::consumer::{OperateError, divide};
use serde::Serialize;
use sqlx::PgConnection;

use super::{ADD_YES, failed, find, say};
use crate::cli::LanesArgs;
use crate::failure::Failure;
use crate::output::{count, grouped};

#[derive(Serialize)]
struct Report<'a> {
    consumer: &'a str,
    lanes: u32,
    key: &'a str,
    lanes_before: u32,
    key_before: &'a str,
    last_seq: i64,
    behind: u32,
    done: bool,
    changed: bool,
}

pub(super) async fn run(connection: &mut PgConnection, args: &LanesArgs, json: bool) -> Result<(), Failure> {
    let (name, _) = find(connection, &args.name).await?;
    let wanted = (args.to, args.key);
    let division = divide(connection, &Clock::system(), &name, wanted, args.wait, args.confirm.mode())
        .await
        .map_err(|error| not_divided(error, args))?;
    let key = args.key.map_or(division.key_before.as_str(), |key| key.as_str());
    let changed = (division.lanes_before, division.key_before.as_str()) != (args.to, key);
    let sentence = match (changed, args.confirm.yes) {
        (false, _) => format!("consumer {name} has {} already", lanes(args.to, key)),
        (true, false) => format!(
            "would divide consumer {name} at seq {} into {} instead of {}{}{ADD_YES}",
            grouped(division.last_seq),
            lanes(args.to, key),
            lanes(division.lanes_before, &division.key_before),
            waiting(division.behind, args)
        ),
        (true, true) => format!("consumer {name} has {}", lanes(args.to, key)),
    };
    let report = Report {
        consumer: &args.name,
        lanes: args.to,
        key,
        lanes_before: division.lanes_before,
        key_before: &division.key_before,
        last_seq: division.last_seq,
        behind: division.behind,
        done: args.confirm.yes,
        changed,
    };
    say(json, &report, sentence)
}

fn lanes(number: u32, key: &str) -> String {
    format!("{} by {key}", count(i64::from(number), "lane"))
}

fn waiting(behind: u32, args: &LanesArgs) -> String {
    let wait = humantime::format_duration(args.wait);
    match behind {
        0 => String::new(),
        1 => format!(": 1 lane has to come there first, and the others wait up to {wait} for it"),
        behind => {
            format!(": {behind} lanes have to come there first, and the others wait up to {wait} for them")
        }
    }
}

fn not_divided(error: OperateError, args: &LanesArgs) -> Failure {
    let LanesArgs { name, .. } = args;
    match error {
        OperateError::LaneBehind { lane, last_seq, furthest } => Failure::Unavailable(format!(
            "lane {lane} of consumer {name} is at seq {} and did not come to seq {}, where another is, within {}: nothing was changed. seqline consumers show {name} says how it is",
            grouped(last_seq),
            grouped(furthest),
            humantime::format_duration(args.wait)
        )),
        error => failed(error, name),
    }
}
