//! Sessions that poll the lanes of a consumer while others append and interfere: each event is handed out once, and those of a key in
//! order. See the worker consumers for how a case is made.

use std::sync::Arc;

use fastrand::Rng;
use seqline::Clock;
use seqline::consumer::FailurePolicy;
use seqline_testkit::Role;
use sqlx::Connection;
use tokio::task::JoinSet;

use super::*;
use crate::consumers::random::stage::{Stage, seeds};
use crate::consumers::random::{Plan, TIME, VICTIM, end_a_connection};

const CASES: u64 = 6;

/// Sessions that work at the same time.
const SESSIONS: u64 = 4;

/// The consumer and what it asks for.
async fn register_probe(stage: &Stage) {
    let Plan { asked, key, lanes, scan_size, .. } = &stage.plan;
    run(
        &mut stage.db.connect(Role::Admin).await,
        &format!("UPDATE seqline.settings SET poll_max_scanned = {scan_size}"),
    )
    .await;
    sqlx::query("SELECT seqline.register_consumer('probe', 'oldest', $1, $2, $3, $4, $5, $6)")
        .bind(&asked.types)
        .bind(&asked.spaces)
        .bind(&asked.channels)
        .bind(&asked.kinds)
        .bind(*lanes as i32)
        .bind(key.as_str())
        .execute(&mut stage.db.connect(Role::Consumer).await)
        .await
        .expect("the consumer is registered");
}

/// Polls, with and without the name of a lane, and now and then rolls back or goes away. Returns how many events it got.
async fn round(stage: &Stage, session: &mut PgConnection, random: &mut Rng) -> Result<usize, sqlx::Error> {
    let calm = stage.calm.is_cancelled();
    sqlx::raw_sql("BEGIN").execute(&mut *session).await?;
    let mut events = 0;
    for _ in 0..random.usize(1..=2) {
        let lanes: i32 = sqlx::query_scalar("SELECT count(*)::int FROM seqline.event_consumer_cursors")
            .fetch_one(&stage.db.admin())
            .await?;
        let lane = (random.bool() && !calm).then(|| random.i32(0..lanes.max(1)));
        let seqs: Vec<i64> = sqlx::query_scalar("SELECT seq FROM seqline.poll('probe', $1, $2)")
            .bind(random.i32(1..20))
            .bind(lane)
            .fetch_all(&mut *session)
            .await?;
        events += seqs.len();
        sqlx::query(
            "INSERT INTO journal (what, seq, lane)
             SELECT 'handled', s, $2 FROM unnest($1::bigint[]) WITH ORDINALITY AS u (s, n) ORDER BY n",
        )
        .bind(&seqs)
        .bind(lane)
        .execute(&mut *session)
        .await?;
    }
    let end = match random.u8(0..12) {
        0..2 if !calm => "ROLLBACK",
        // The session is dropped in the middle of the transaction.
        2 if !calm => return Err(sqlx::Error::WorkerCrashed),
        _ => "COMMIT",
    };
    sqlx::raw_sql(end).execute(session).await?;
    Ok(events)
}

async fn work(stage: Arc<Stage>, worker: u64) {
    let mut random = stage.plan.random(1 << 42 | worker);
    let mut stirred = stage.stirred.subscribe();
    let mut connection = None;
    while !stage.over.is_cancelled() {
        let session = match &mut connection {
            Some(session) => session,
            none => {
                let options = stage.db.options(Role::Consumer).application_name(VICTIM);
                // It may be ended before it can be used.
                let Ok(session) = PgConnection::connect_with(&options).await else { continue };
                none.insert(session)
            }
        };
        stirred.mark_unchanged();
        match round(&stage, session, &mut random).await {
            Ok(0) => Stage::is_stirred(&mut stirred, &stage.over).await,
            Ok(_) => stage.stir(),
            Err(error) => {
                if let Some(error) = error.as_database_error() {
                    // There may be no such lane any more, and the connection may be ended.
                    let is_gone = error.constraint() == Some("seqline_consumer_lane");
                    assert!(is_gone || error.code().as_deref() == Some("57P01"), "{error:?}");
                }
                connection = None;
                stage.stir();
            }
        }
    }
}

async fn end_connections(stage: Arc<Stage>) {
    let mut random = stage.plan.random(1 << 43);
    let mut stirred = stage.stirred.subscribe();
    while !stage.calm.is_cancelled() {
        // The pace: as often as something is done.
        for _ in 0..random.u8(5..30) {
            Stage::is_stirred(&mut stirred, &stage.calm).await;
        }
        end_a_connection(&stage.db, &mut random).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_is_handed_out_once_and_in_order_whatever_happens() {
    let clock = Clock::system();
    let begin = clock.now();
    for seed in seeds(CASES) {
        if clock.now() - begin > TIME {
            break;
        }
        // Whether what was polled is handled is the caller's affair.
        let mut plan = Plan::new(seed);
        plan.policy = FailurePolicy::Stall;
        println!("SEQLINE_TEST_SEED={seed} {plan:?}");
        let stage = Stage::new(plan).await;
        register_probe(&stage).await;
        let mut workers = JoinSet::new();
        for worker in 0..SESSIONS {
            workers.spawn(work(stage.clone(), worker));
        }
        workers.spawn(end_connections(stage.clone()));
        let tally = stage.play(workers).await;
        println!("{:?} {tally:?}", clock.now() - begin);
    }
}
