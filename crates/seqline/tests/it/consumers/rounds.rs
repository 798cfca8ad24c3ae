//! One round: what it does, in which order, and what others see of it.

use super::*;

#[tokio::test]
async fn a_round_handles_events_in_order_and_moves_the_cursor() {
    let bench = Bench::new(config(), plain()).await;
    append(&bench.db.producer(), 1..=5).await;
    let result = bench.round().await.unwrap();
    assert_eq!(result.outcome, Outcome::Processed);
    assert_eq!((result.processed, result.scanned, result.jobs), (5, 5, 0));
    assert_eq!((result.parked, result.behind, result.lost, result.wait), (0, 0, None, None));
    assert_eq!((result.full, result.last_seq), (false, Some(5)));
    let order: Vec<i64> =
        sqlx::query_scalar("SELECT seq FROM effects ORDER BY id").fetch_all(&bench.db.admin()).await.unwrap();
    assert_eq!(order, twice(1..=5));
    bench.assert_handled(5).await;
    bench.assert_pool_is_sound().await;
}

#[tokio::test]
async fn a_round_takes_at_most_a_batch_and_says_when_it_was_full() {
    let bench = Bench::new(ConsumerConfig { batch_size: 2, ..config() }, plain()).await;
    append(&bench.db.producer(), 1..=5).await;
    assert!(bench.processes(2).await.full);
    assert!(bench.processes(2).await.full);
    assert!(!bench.processes(1).await.full);
    assert_eq!(bench.round().await.unwrap().outcome, Outcome::Idle);
    bench.assert_handled(5).await;
    assert_eq!(rounds(&bench.db).await, [2, 2, 1]);
}

#[tokio::test]
async fn a_batch_size_out_of_bounds_is_brought_into_them() {
    let bench = Bench::new(ConsumerConfig { batch_size: 0, ..config() }, plain()).await;
    append(&bench.db.producer(), 1..=2).await;
    assert!(bench.processes(1).await.full);
    let bench =
        Bench::on(bench.db, ConsumerConfig { batch_size: u32::MAX, ..config() }, probe(plain())).await;
    assert!(!bench.processes(1).await.full);
}

#[tokio::test]
async fn an_event_is_handed_over_as_it_is_in_the_log() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let handler = acting(move |event, round| {
        log.lock().expect("no handler panicked").push((event.id, event.payload.as_json().to_owned()));
        assert_eq!(round.consumer().as_str(), PROBE);
        Box::pin(async { Ok(()) })
    });
    let bench = Bench::new(config(), handler).await;
    let ids = append(&bench.db.producer(), 7..=8).await;
    bench.processes(2).await;
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
    assert!(seen[0].1.contains('7') && seen[1].1.contains('8'), "{seen:?}");
}

#[tokio::test]
async fn a_round_that_finds_nothing_writes_nothing() {
    let db = database().await;
    let proxy = proxy_for(&db).await;
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(through(&proxy, &db, Role::App));
    let (clock, hand) = manual();
    let consumers = consumers(pool.clone(), db.options(Role::App), config(), clock, [probe(plain())]);
    consumers.ensure().await.unwrap();
    let bench = Bench { db, pool, consumers, hand };
    append(&bench.db.producer(), [1]).await;
    bench.processes(1).await;
    let row = async || -> (String, String, String) {
        sqlx::query_as("SELECT xmin::text, xmax::text, updated_at::text FROM seqline.event_consumer_cursors")
            .fetch_one(&bench.db.admin())
            .await
            .unwrap()
    };
    let before = row().await;
    let asked = proxy.requests();
    for _ in 0..5 {
        let result = bench.round().await.unwrap();
        assert_eq!((result.outcome, result.processed, result.full), (Outcome::Idle, 0, false));
    }
    assert_eq!(row().await, before);
    let asked = proxy.requests() - asked;
    assert!(
        asked <= 5 * 3,
        "{asked} requests: a look is one statement without a transaction, and the pool's pings"
    );
}

#[tokio::test]
async fn a_round_that_finds_the_consumer_locked_goes_away_at_once_and_does_nothing() {
    let bench = Bench::new(config(), plain()).await;
    append(&bench.db.producer(), 1..=3).await;
    let mut other = seqline::begin(&bench.db.admin()).await.unwrap();
    sqlx::query("SELECT FROM seqline.event_consumer_cursors WHERE name = 'probe' FOR UPDATE")
        .execute(&mut *other)
        .await
        .unwrap();
    let started = Clock::system().now();
    let result = bench.round().await.unwrap();
    assert!(Clock::system().now() - started < DEADLINE / 4, "the lock timeout is {DEADLINE:?}");
    assert_eq!(result.outcome, Outcome::Locked);
    assert_eq!((result.processed, result.scanned, result.full, result.last_seq), (0, 0, false, None));
    bench.assert_untouched().await;
    other.rollback().await.unwrap();
    bench.assert_pool_is_sound().await;
    bench.processes(3).await;
}

#[tokio::test]
async fn a_round_releases_the_consumer_however_it_ends() {
    let switch = Switch::on();
    let bench = Bench::new(config(), switch.failing_at(2)).await;
    append(&bench.db.producer(), 1..=2).await;
    let lockable = async || -> bool {
        let free: Option<i64> = sqlx::query_scalar(
            "SELECT last_seq FROM seqline.event_consumer_cursors WHERE name = 'probe' FOR UPDATE SKIP LOCKED",
        )
        .fetch_optional(&bench.db.admin())
        .await
        .unwrap();
        free.is_some()
    };
    assert!(bench.round().await.is_err());
    assert!(lockable().await, "after a failure");
    switch.off();
    bench.processes(2).await;
    assert!(lockable().await, "after a success");
    bench.round().await.unwrap();
    assert!(lockable().await, "after a look");
}

#[tokio::test]
async fn effects_and_cursor_become_visible_together() {
    let gate = Gate::closed();
    let bench = Bench::new(config(), gate.handler()).await;
    append(&bench.db.producer(), [1]).await;
    let round = bench.round();
    let look = async {
        gate.is_reached(1).await;
        bench.assert_untouched().await;
        assert_eq!(state_of(&bench.db, PROBE).await.lag(), 1);
        gate.open();
    };
    let (result, ()) = tokio::join!(round, look);
    assert_eq!(result.unwrap().processed, 1);
    bench.assert_handled(1).await;
}

#[tokio::test]
async fn somebody_who_looks_all_the_time_never_sees_one_without_the_other() {
    let bench = Bench::new(ConsumerConfig { batch_size: 3, ..config() }, plain()).await;
    append(&bench.db.producer(), 1..=60).await;
    let working = async { while bench.round().await.unwrap().outcome == Outcome::Processed {} };
    let looking = async {
        loop {
            let (last_seq, effects): (i64, i64) = sqlx::query_as(
                "SELECT (SELECT last_seq FROM seqline.event_consumer_cursors), (SELECT count(*) FROM effects)",
            )
            .fetch_one(&bench.db.admin())
            .await
            .unwrap();
            assert_eq!(effects, 2 * last_seq);
        }
    };
    tokio::select! {
        () = working => {}
        () = looking => unreachable!("it looks until the work is done"),
    }
    bench.assert_handled(60).await;
}

#[tokio::test]
async fn rounds_are_read_committed_whatever_the_default_is() {
    for isolation in ["repeatable read", "serializable"] {
        let handler = acting(|_, round| {
            Box::pin(async {
                let level: String = sqlx::query_scalar("SELECT current_setting('transaction_isolation')")
                    .fetch_one(round.connection())
                    .await?;
                if level == "read committed" { Ok(()) } else { Err(level.into()) }
            })
        });
        let db = database().await;
        let sql = format!(
            "ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}';
             ALTER ROLE {role} IN DATABASE {name} SET default_transaction_isolation = '{isolation}'",
            name = db.name(),
            role = Role::App.login(),
        );
        as_admin(&db, &sql).await;
        // The producer keeps the default that appends need.
        let producer =
            db.options(Role::Producer).options([("default_transaction_isolation", "read committed")]);
        let producer = PgPoolOptions::new().max_connections(1).connect_lazy_with(producer);
        let bench = Bench::on(db, ConsumerConfig { batch_size: 2, ..config() }, probe(handler)).await;
        for n in 0..3 {
            append(&producer, [2 * n, 2 * n + 1]).await;
            bench.processes(2).await;
        }
        bench.assert_handled(6).await;
    }
}

#[tokio::test]
async fn rounds_of_two_workers_that_take_turns_share_the_events() {
    let first = Bench::new(ConsumerConfig { batch_size: 3, ..config() }, plain()).await;
    let pool = first.db.app_pool(1);
    let second = consumers(pool, first.db.options(Role::App), config(), manual().0, [probe(plain())]);
    for n in 0..10 {
        append(&first.db.producer(), n..n + 2).await;
        let probe = name(PROBE);
        let (one, other) = tokio::join!(first.round(), second.round(&probe));
        let outcomes = [one.unwrap(), other.unwrap()];
        assert_eq!(outcomes.iter().map(|result| result.processed).sum::<usize>(), 2, "{outcomes:?}");
        first.assert_handled(2 * (n + 1)).await;
    }
}

#[tokio::test]
async fn a_worker_continues_from_where_another_one_is_by_then() {
    let gate = Gate::closed();
    let first = Bench::new(config(), gate.handler()).await;
    append(&first.db.producer(), 1..=2).await;
    let pool = first.db.app_pool(1);
    let second = consumers(pool, first.db.options(Role::App), config(), manual().0, [probe(plain())]);
    let others = async {
        gate.is_reached(1).await;
        assert_eq!(second.round(&name(PROBE)).await.unwrap().outcome, Outcome::Locked);
        gate.open();
    };
    let (result, ()) = tokio::join!(first.round(), others);
    assert_eq!(result.unwrap().processed, 2);
    append(&first.db.producer(), [3]).await;
    assert_eq!(second.round(&name(PROBE)).await.unwrap().processed, 1);
    first.assert_handled(3).await;
}
