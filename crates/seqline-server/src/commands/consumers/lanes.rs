//! `seqline consumers lanes`

use sqlx::PgConnection;

use super::{ADD_YES, say};
use crate::cli::LanesArgs;
use crate::failure::Failure;
use crate::operate::consumers::{self, Lanes, LanesWanted};
use crate::output::{count, grouped};

pub(super) async fn run(connection: &mut PgConnection, args: &LanesArgs, json: bool) -> Result<(), Failure> {
    let wanted = LanesWanted { lanes: args.to, key: args.key, wait: args.wait };
    let report = consumers::lanes(connection, &args.name, wanted, args.confirm.mode()).await?;
    let Lanes { consumer, key, lanes_before, key_before, last_seq, behind, done, changed, .. } = &report;
    let sentence = match (changed, done) {
        (false, _) => format!("consumer {consumer} has {} already", lanes(args.to, key)),
        (true, false) => format!(
            "would divide consumer {consumer} at seq {} into {} instead of {}{}{ADD_YES}",
            grouped(*last_seq),
            lanes(args.to, key),
            lanes(*lanes_before, key_before),
            waiting(*behind, args)
        ),
        (true, true) => format!("consumer {consumer} has {}", lanes(args.to, key)),
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
