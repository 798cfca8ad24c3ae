//! Unique jobs: one is enough, and nobody who asks for a second has an error.

use std::time::Duration;

use seqline::clock::Clock;
use seqline::consumer::{Consumer, StartAt};
use seqline::job::{DuplicateJob, Unique, UniqueUntil};
use seqline_testkit::eventually;
use time::macros::datetime;

use super::*;
use crate::consumers::{DEADLINE, config, consumers, name};
use crate::numbering::{backend_pid, until_blocked};
use crate::support::append;

fn unique(until: UniqueUntil) -> Unique {
    Unique { by_args: true, until, ..Unique::default() }
}

/// A job of which one is enough.
fn one(seq: i64) -> NewJob {
    NewJob { unique: Some(unique(UniqueUntil::Deleted)), ..new_job(seq) }
}

fn duplicate(index: usize, existing: i64) -> DuplicateJob {
    DuplicateJob { index, existing }
}

/// The id and the number of each job.
async fn ids(db: &TestDb) -> Vec<(i64, i64)> {
    sqlx::query_as("SELECT id, (args ->> 'seq')::bigint FROM queue.river_job ORDER BY id")
        .fetch_all(&db.admin())
        .await
        .unwrap()
}

#[tokio::test]
async fn of_equal_jobs_in_one_call_the_first_is_inserted() {
    let db = database().await;
    let wanted = [one(1), NewJob { priority: 3, ..one(1) }, new_job(1), one(2), new_job(1), one(1)];
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    let inserted = river().insert(&mut tx, &checked(wanted)).await.expect("duplicates are no error");
    assert_eq!((inserted.inserted, &inserted.duplicates[..]), (4, &[duplicate(1, 1), duplicate(5, 1)][..]));
    river().insert(&mut tx, &checked([new_job(9)])).await.expect("the transaction is usable");
    seqline::commit(tx).await.unwrap();
    assert_eq!(jobs(&db).await, [1, 1, 2, 1, 9]);
    let priority: i16 = sqlx::query_scalar("SELECT priority FROM queue.river_job WHERE id = 1")
        .fetch_one(&db.admin())
        .await
        .unwrap();
    assert_eq!(priority, 1);
}

#[tokio::test]
async fn jobs_that_exist_are_left_out_among_others_that_do_not() {
    let db = database().await;
    let sink = river();
    insert(&db.app(), &sink, &checked([one(10), one(20), one(30)])).await.expect("they are new");
    let wanted = [new_job(1), one(20), one(2), one(10), one(2), one(20), new_job(3), one(4)];
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    let inserted = sink.insert(&mut tx, &checked(wanted)).await.expect("duplicates are no error");
    assert_eq!(inserted.inserted, 4);
    let indexes: Vec<usize> = inserted.duplicates.iter().map(|duplicate| duplicate.index).collect();
    assert_eq!(indexes, [1, 3, 4, 5]);
    // In the same transaction, and by another call.
    let again = sink.insert(&mut tx, &checked([one(4), one(5)])).await.expect("duplicates are no error");
    assert_eq!((again.inserted, again.duplicates.len()), (1, 1));
    seqline::commit(tx).await.unwrap();
    assert_eq!(jobs(&db).await, [10, 20, 30, 1, 2, 3, 4, 5], "in this order");
    let seq_of = ids(&db).await;
    let named = |duplicate: &DuplicateJob| seq_of.iter().find(|(id, _)| *id == duplicate.existing).unwrap().1;
    assert_eq!(inserted.duplicates.iter().map(named).collect::<Vec<_>>(), [20, 10, 2, 20]);
    assert_eq!(again.duplicates.iter().map(named).collect::<Vec<_>>(), [4]);
}

#[tokio::test]
async fn a_job_stands_in_the_way_for_as_long_as_it_says() {
    let db = database().await;
    let always = ["available", "pending", "retryable", "running", "scheduled"];
    let never = ["cancelled", "discarded"];
    for (until, when_completed) in [(UniqueUntil::Deleted, true), (UniqueUntil::Completed, false)] {
        let states = always.map(|state| (state, true)).into_iter().chain(never.map(|state| (state, false)));
        for (state, expected) in states.chain([("completed", when_completed)]) {
            as_admin(&db, "TRUNCATE queue.river_job").await;
            let wanted = checked([NewJob { unique: Some(unique(until)), ..new_job(1) }]);
            insert(&db.app(), &river(), &wanted).await.expect("it is new");
            let set = format!(
                "UPDATE queue.river_job SET state = '{state}', finalized_at =
                     CASE WHEN '{state}' IN ('completed', 'cancelled', 'discarded') THEN now() END"
            );
            as_admin(&db, &set).await;
            let inserted = insert(&db.app(), &river(), &wanted).await.expect("it is no error");
            assert_eq!(inserted.duplicates.len() == 1, expected, "{state}, until {until:?}");
            assert_eq!(inserted.inserted == 0, expected, "{state}, until {until:?}");
        }
    }
}

#[tokio::test]
async fn a_job_that_waits_for_its_time_stands_in_the_way() {
    let db = database().await;
    let later = NewJob { run_at: Some(datetime!(2999-01-01 0:00 UTC)), ..one(1) };
    insert(&db.app(), &river(), &checked([later.clone()])).await.expect("it is new");
    let inserted = insert(&db.app(), &river(), &checked([one(1), later])).await.expect("it is no error");
    assert_eq!((inserted.inserted, inserted.duplicates), (0, vec![duplicate(0, 1), duplicate(1, 1)]));
}

#[tokio::test]
async fn the_clock_of_the_sink_says_in_which_period_a_job_is_inserted() {
    let db = database().await;
    let (clock, hand) = Clock::manual(datetime!(2026-03-01 10:59:59 UTC));
    let sink = river().with_clock(clock);
    let hourly = Unique { by_period: Some(Duration::from_secs(3_600)), ..Unique::default() };
    let wanted = checked([NewJob { unique: Some(hourly), ..new_job(1) }]);
    for (expected, after) in [(1, 0), (0, 0), (1, 1), (0, 3_599), (1, 1)] {
        hand.advance(Duration::from_secs(after));
        assert_eq!(insert(&db.app(), &sink, &wanted).await.unwrap().inserted, expected, "{after} s later");
    }
}

#[tokio::test]
async fn a_job_that_another_transaction_holds_is_waited_for() {
    for commits in [true, false] {
        let db = database().await;
        let mut first = seqline::begin(&db.app()).await.unwrap();
        river().insert(&mut first, &checked([one(1)])).await.expect("it is new");
        let mut second = seqline::begin(&db.app()).await.unwrap();
        let pid = backend_pid(&mut second).await;
        let (sink, wanted) = (river(), checked([new_job(7), one(1)]));
        let other = async {
            until_blocked(&db.admin(), pid).await;
            if commits { first.commit().await.unwrap() } else { first.rollback().await.unwrap() }
        };
        let (inserted, ()) = tokio::join!(sink.insert(&mut second, &wanted), other);
        let inserted = inserted.expect("it is no error");
        seqline::commit(second).await.unwrap();
        let expected = if commits { vec![duplicate(1, 1)] } else { vec![] };
        assert_eq!(inserted.duplicates, expected);
        let mut jobs = jobs(&db).await;
        jobs.sort_unstable();
        assert_eq!(jobs, [1, 7], "one of the two");
    }
}

#[tokio::test]
async fn rounds_that_insert_the_same_jobs_in_opposite_order_lose_none() {
    const BARRIER: i64 = 73_003;
    let db = database().await;
    // Each waits with its first job inserted and its second not, until both do.
    as_admin(
        &db,
        &format!(
            "CREATE FUNCTION meets() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN PERFORM pg_advisory_xact_lock_shared({BARRIER}); RETURN NEW; END $$;
             CREATE TRIGGER meets BEFORE INSERT ON queue.river_job FOR EACH ROW WHEN (NEW.priority = 2)
                 EXECUTE FUNCTION meets()"
        ),
    )
    .await;
    let consumer = |called: &str, seqs: [i64; 2]| {
        let handler = acting(move |_, round| {
            let second = NewJob { priority: 2, ..one(seqs[1]) };
            let asked = [one(seqs[0]), second].into_iter().try_for_each(|job| round.jobs().insert(job));
            Box::pin(async move { Ok(asked?) })
        });
        Consumer::new(name(called), handler).start_at(StartAt::Oldest).jobs(river())
    };
    let list = [consumer("forth", [1, 2]), consumer("back", [2, 1])];
    let consumers = consumers(db.app(), db.options(Role::App), config(), Clock::system(), list);
    consumers.ensure().await.unwrap();
    append(&db.producer(), [1]).await;
    let mut barrier = seqline::begin(&db.admin()).await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(BARRIER).execute(&mut *barrier).await.unwrap();
    let (forth, back) = (name("forth"), name("back"));
    let meeting = async {
        eventually(DEADLINE, "both with one job each", async || {
            let waiting: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                 WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database()",
            )
            .fetch_one(&db.admin())
            .await
            .unwrap();
            waiting == 2
        })
        .await;
        barrier.rollback().await.unwrap();
    };
    let (forth, back, ()) = tokio::join!(consumers.round(&forth), consumers.round(&back), meeting);
    let results = [forth.expect("it is tried again"), back.expect("it is tried again")];
    assert_eq!(results.map(|result| result.processed), [1, 1]);
    assert_eq!(results.iter().map(|result| result.jobs).sum::<usize>(), 2, "{results:?}");
    let mut jobs = jobs(&db).await;
    jobs.sort_unstable();
    assert_eq!(jobs, [1, 2]);
    let deadlocks = async || -> i64 {
        sqlx::query_scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
            .fetch_one(&db.admin())
            .await
            .unwrap()
    };
    eventually(DEADLINE, "the deadlock is counted", async || deadlocks().await == 1).await;
}
