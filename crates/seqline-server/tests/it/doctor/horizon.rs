//! What keeps vacuum from removing rows: the doctor and the figure go by one rule, which is PostgreSQL's.

use seqline_testkit::{Durability, Role, Standby, TestDb, TestServer, eventually};

use super::{examine, finding};
use crate::support::{DEADLINE, append, as_admin, on, run_sql, server_db, with_jobs};

/// A snapshot that stays.
const OLD: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT now()";

const NONE: &str = "no transaction is open";

/// What the doctor finds, at a threshold that everything is beyond that has lasted for a second.
async fn horizon(db: &TestDb) -> Vec<(String, String)> {
    let doctor = on(db, Role::Admin, ["doctor", "--json", "--set", "alert.oldest_transaction_age=1s"]);
    let (_, found) = super::findings(doctor).await;
    found.into_iter().filter(|found| found.0 == "vacuum_horizon").map(|found| (found.1, found.2)).collect()
}

/// The figure's answer to the same question.
async fn has_age(db: &TestDb) -> bool {
    let facts = seqline_server::store_metrics_oldest_age(&mut db.connect(Role::Admin).await).await;
    facts.is_some()
}
