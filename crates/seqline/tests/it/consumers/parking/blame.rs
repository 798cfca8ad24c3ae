//! Which failures count against an event, and which do not.

use seqline::consumer::{Filter, skip};

use super::*;

async fn append_types(db: &TestDb, types: &[&str]) {
    let events: Vec<NewEvent> = (0..)
        .zip(types)
        .map(|(n, of_type)| {
            NewEvent::builder(*of_type, "order", "any").resource_id(n.to_string()).build().unwrap()
        })
        .collect();
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &events).await.unwrap();
    seqline::commit(tx).await.unwrap();
    db.settled().await;
}

/// A consumer that raises this at its second event while the switch is on.
fn raising(switch: &Switch, sqlstate: &'static str) -> impl Handler {
    let acts = switch.clone();
    acting(move |event, round| {
        if event.seq != 2 || !acts.acts() {
            return Box::pin(async { Ok(()) });
        }
        Box::pin(async move {
            let raise = format!("DO $$ BEGIN RAISE SQLSTATE '{sqlstate}'; END $$");
            sqlx::raw_sql(AssertSqlSafe(raise)).execute(round.connection()).await?;
            Ok(())
        })
    })
}

/// After so many rounds that a consumer which counted would have parked long ago, nothing is, and all goes on when it is over.
async fn parks_nothing(bench: Bench, switch: &Switch, what: &str) {
    for _ in 0..8 {
        drop(bench.round().await);
    }
    assert_eq!(parked_seqs(&bench.db).await, [0; 0], "{what}");
    switch.off();
    assert_eq!(work(&bench).await, [""; 0], "{what}");
    assert_eq!(effects(&bench.db).await, twice(1..=3), "{what}");
}

#[tokio::test]
async fn what_others_would_have_met_too_is_not_the_events_fault() {
    for sqlstate in ["40001", "40P01", "55P03", "53100", "53200", "57P03", "08006"] {
        let switch = Switch::on();
        let bench = Bench::on(database().await, config(), parking(raising(&switch, sqlstate), 1)).await;
        append_about(&bench.db, &["a", "x", "b"]).await;
        parks_nothing(bench, &switch, sqlstate).await;
    }
    let switch = Switch::on();
    let acts = switch.clone();
    let handler = acting(move |event, _| {
        let fails = event.seq == 2 && acts.acts();
        Box::pin(async move { if fails { Err(sqlx::Error::PoolTimedOut.into()) } else { Ok(()) } })
    });
    let bench = Bench::on(database().await, config(), parking(handler, 1)).await;
    append_about(&bench.db, &["a", "x", "b"]).await;
    parks_nothing(bench, &switch, "a pool of the handler's own").await;
}

#[tokio::test]
async fn what_the_event_does_is() {
    for sqlstate in ["22012", "23505", "42P01", "57014", "P0001"] {
        let switch = Switch::on();
        let bench = Bench::on(database().await, config(), parking(raising(&switch, sqlstate), 1)).await;
        append_about(&bench.db, &["a", "x", "b"]).await;
        work(&bench).await;
        assert_eq!(parked_seqs(&bench.db).await, [2], "{sqlstate}");
    }
}

#[tokio::test]
async fn a_connection_that_is_lost_while_the_handler_appends_is_not_the_events_fault() {
    let switch = Switch::on();
    let acts = switch.clone();
    let handler = acting(move |event, round| {
        if event.seq != 2 || !acts.acts() {
            return Box::pin(async { Ok(()) });
        }
        Box::pin(async move {
            let kill = sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())");
            drop(kill.execute(round.connection()).await);
            seqline::append(round.transaction(), &[crate::support::event(0)]).await?;
            Ok(())
        })
    });
    let bench = Bench::on(database().await, config(), parking(handler, 1).may_append()).await;
    append_about(&bench.db, &["a", "x", "b"]).await;
    parks_nothing(bench, &switch, "append").await;
}

#[tokio::test]
async fn attempts_of_one_event_do_not_count_for_another_that_comes_after_the_same_cursor() {
    let switch = Switch::on();
    let asks_for = |types: &str, handler: Box<dyn FnOnce() -> Consumer>| {
        handler().filter(Filter::everything().types([types])).expect("the filter is valid")
    };
    let failing = switch.clone();
    let first = asks_for("bad.*", Box::new(move || parking(failing.failing_at(2), 1)));
    let bench = Bench::on(database().await, config(), first).await;
    append_types(&bench.db, &["good.x", "bad.x", "good.x"]).await;
    for _ in 0..2 {
        bench.round().await.unwrap_err();
    }
    // The next version of the program leaves that type alone.
    let second = asks_for("good.*", Box::new(|| parking(plain(), 1)));
    let bench = Bench::on(bench.db, config(), second).await;
    assert_eq!(work(&bench).await, [""; 0]);
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice([1, 3]), vec![]));
}

/// PostgreSQL gives up the locks of a transaction when a statement fails, not when it is rolled back.
#[tokio::test]
async fn another_worker_does_not_take_a_conflict_for_the_last_attempt() {
    let gate = Gate::closed();
    let switch = Switch::on();
    let (at_gate, acts) = (gate.clone(), switch.clone());
    let handler = acting(move |event, round| {
        let (gate, fails) = (at_gate.clone(), event.seq == 1 && acts.acts());
        let times = acts.times();
        Box::pin(async move {
            if fails && times == 1 {
                return Err("refused, once".into());
            }
            if fails {
                let conflict = "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$";
                let refused = sqlx::raw_sql(conflict).execute(round.connection()).await;
                // It looks something up elsewhere before it gives up.
                gate.pass(1).await;
                refused?;
            }
            Ok(())
        })
    });
    let bench = Bench::on(database().await, config(), parking(handler, 1)).await;
    append_about(&bench.db, &["x"]).await;
    bench.round().await.unwrap_err();
    let (clock, _hand) = manual();
    let (pool, listen) = (bench.db.app_pool(1), bench.db.options(Role::App));
    let other = consumers(pool, listen, config(), clock, [parking(plain(), 1)]);
    let meanwhile = async {
        gate.is_reached(1).await;
        let round = other.round(&name(PROBE)).await.unwrap();
        switch.off();
        gate.open();
        round.outcome
    };
    let (_, outcome) = tokio::join!(bench.round(), meanwhile);
    assert_eq!(outcome, Outcome::Locked, "the cursor is held until the attempt was taken back");
    drop(work(&bench).await);
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice([1]), vec![]));
}

#[tokio::test]
async fn what_is_taken_back_is_so_before_another_worker_can_look() {
    let failing = Switch::on();
    let conflicting = Switch::on();
    let (fails, conflicts) = (failing.clone(), conflicting.clone());
    let handler = acting(move |_, round| {
        let (fails, conflicts) = (fails.acts(), conflicts.acts());
        Box::pin(async move {
            if fails {
                return Err("refused, once".into());
            }
            if conflicts {
                sqlx::raw_sql("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
                    .execute(round.connection())
                    .await?;
            }
            Ok(())
        })
    });
    let bench = Bench::on(database().await, config(), parking(handler, 1)).await;
    append_about(&bench.db, &["x"]).await;
    bench.round().await.unwrap_err();
    failing.off();
    let (clock, _hand) = manual();
    let (pool, listen) = (bench.db.app_pool(1), bench.db.options(Role::App));
    let other = consumers(pool, listen, config(), clock, [parking(plain(), 1)]);
    // It cannot take back at once what it has tried, for somebody has the row of the mark after it was written.
    as_admin(
        &bench.db,
        "CREATE FUNCTION public.hold_back() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN IF OLD.attempts > NEW.attempts THEN PERFORM pg_advisory_xact_lock(73002); END IF; RETURN NEW; END $$;
         GRANT EXECUTE ON FUNCTION public.hold_back() TO PUBLIC;
         CREATE TRIGGER hold_back BEFORE UPDATE ON seqline.round_marks FOR EACH ROW EXECUTE FUNCTION public.hold_back()",
    )
    .await;
    let mut slow = seqline::begin(&bench.db.admin()).await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(73002)").execute(&mut *slow).await.unwrap();
    let meanwhile = async {
        eventually(DEADLINE, "it takes back", async || {
            sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                     AND wait_event_type = 'Lock' AND query LIKE '%mark_round%')",
            )
            .fetch_one(&bench.db.admin())
            .await
            .unwrap()
        })
        .await;
        let round = other.round(&name(PROBE)).await.unwrap();
        conflicting.off();
        slow.rollback().await.unwrap();
        round.outcome
    };
    let (_, outcome) = tokio::join!(bench.round(), meanwhile);
    assert_eq!(outcome, Outcome::Locked);
    drop(work(&bench).await);
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice([1]), vec![]));
}

#[tokio::test]
async fn a_commit_for_which_there_is_no_room_is_not_the_events_fault_and_one_that_a_rule_refuses_is() {
    for (sqlstate, expected) in [("53100", &[] as &[i64]), ("23503", &[2])] {
        let bench = Bench::on(database().await, config(), parking(plain(), 1)).await;
        as_admin(
            &bench.db,
            &format!(
                "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN RAISE SQLSTATE '{sqlstate}'; END $$;
                 CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
                     FOR EACH ROW WHEN (NEW.seq = 2) EXECUTE FUNCTION public.refuse()"
            ),
        )
        .await;
        append_about(&bench.db, &["a", "x", "b"]).await;
        for _ in 0..8 {
            drop(bench.round().await);
        }
        assert_eq!(parked_seqs(&bench.db).await, expected, "{sqlstate}");
    }
}

#[tokio::test]
async fn a_parked_event_that_only_meets_conflicts_is_tried_now_and_then_and_the_log_goes_on() {
    let failing = Switch::on();
    let conflicting = Switch::on();
    let (fails, conflicts) = (failing.clone(), conflicting.clone());
    let handler = acting(move |event, round| {
        let (fails, conflicts) = (event.seq == 1 && fails.acts(), event.seq == 1 && conflicts.acts());
        Box::pin(async move {
            if fails {
                return Err("refused".into());
            }
            if conflicts {
                sqlx::raw_sql("DO $$ BEGIN RAISE SQLSTATE '55P03'; END $$")
                    .execute(round.connection())
                    .await?;
            }
            Ok(())
        })
    });
    let config = ConsumerConfig { poll_interval: 3600 * POLL, ..config() };
    let bench = Bench::on(database().await, config, parking(handler, 1)).await;
    append_about(&bench.db, &["x", "a"]).await;
    work(&bench).await;
    failing.off();
    apply_retry(&bench.db, None).await;
    append_about(&bench.db, &["b", "c"]).await;
    // It is put off by the first conflict, and the round goes on with the log.
    assert_eq!(work(&bench).await, [""; 0]);
    assert_eq!((cursor(&bench.db, PROBE).await, effects(&bench.db).await), (4, twice([2, 3, 4])));
    // It has not counted.
    conflicting.off();
    let due = "UPDATE seqline.parked_events SET next_attempt_at = now() WHERE next_attempt_at IS NOT NULL";
    as_admin(&bench.db, due).await;
    assert_eq!(work(&bench).await, [""; 0]);
    assert_eq!(effects(&bench.db).await, twice(1..=4));
}

#[tokio::test]
async fn a_parked_event_that_fails_again_waits_for_its_time() {
    let switch = Switch::on();
    let policy = FailurePolicy::Park { after_attempts: 2, backoff: 3600 * POLL };
    let config = ConsumerConfig { failure_backoff_cap: 3600 * POLL, ..config() };
    let bench = Bench::on(database().await, config, probe(switch.failing_at(1)).on_failure(policy)).await;
    append_about(&bench.db, &["x"]).await;
    as_admin(&bench.db, "UPDATE seqline.event_consumer_cursors SET last_seq = 1").await;
    let parked = "INSERT INTO seqline.parked_events (consumer, seq, key, next_attempt_at) VALUES ('probe', 1, 'order/x', now())";
    as_admin(&bench.db, parked).await;
    bench.round().await.unwrap_err();
    assert_eq!(bench.round().await.unwrap().outcome, Outcome::Idle);
    assert_eq!(switch.times(), 1);
}

#[tokio::test]
async fn a_parked_event_is_tried_in_the_lane_of_its_key() {
    let handler = acting(|_, round| {
        let lane = i64::from(round.lane());
        Box::pin(async move {
            sqlx::query("INSERT INTO effects (consumer, seq) VALUES ('lane', $1)")
                .bind(lane)
                .execute(round.connection())
                .await?;
            Ok(())
        })
    });
    let bench = Bench::on(database().await, config(), parking(handler, 1).lanes(LaneKey::Resource, 4)).await;
    // It is in lane 1 of 4.
    append_about(&bench.db, &["17"]).await;
    as_admin(
        &bench.db,
        "UPDATE seqline.event_consumer_cursors SET last_seq = 1;
         INSERT INTO seqline.parked_events (consumer, seq, key, next_attempt_at) VALUES ('probe', 1, 'order/17', now())",
    )
    .await;
    assert_eq!(work(&bench).await, [""; 0]);
    assert_eq!(effects_of(&bench.db, "lane").await, [1]);
}

#[tokio::test]
async fn a_handler_that_breaks_the_round_of_a_parked_event_does_not_get_it_off_the_list() {
    for what in ["COMMIT; BEGIN", "COMMIT", "append"] {
        let switch = Switch::on();
        let acts = switch.clone();
        let handler = acting(move |event, round| {
            if event.seq != 1 || !acts.acts() {
                return Box::pin(async { Ok(()) });
            }
            let first = acts.times() <= 2;
            Box::pin(async move {
                if first {
                    return Err("refused".into());
                }
                if what == "append" {
                    seqline::append(round.transaction(), &[crate::support::event(0)]).await?;
                } else {
                    sqlx::raw_sql(what).execute(round.connection()).await?;
                }
                Ok(())
            })
        });
        let bench = Bench::on(database().await, config(), parking(handler, 1)).await;
        append_about(&bench.db, &["x", "x"]).await;
        work(&bench).await;
        apply_retry(&bench.db, None).await;
        let expected = if what == "append" { "appended" } else { "transaction_ended" };
        assert_eq!(work(&bench).await, [expected]);
        assert_eq!(parked_seqs(&bench.db).await, [1, 2], "{what}");
    }
}

#[tokio::test]
async fn a_worker_that_waits_for_the_next_attempt_sees_what_people_decide() {
    let switch = Switch::on();
    let db = database().await;
    append_about(&db, &["x", "a"]).await;
    let long = Duration::from_secs(3600);
    let policy = FailurePolicy::Park { after_attempts: 3, backoff: long };
    let config = ConsumerConfig { failure_backoff_cap: long, ..quick() };
    let consumer = probe(switch.failing_at(1)).on_failure(policy);
    let running = Running::on(&db, config, Clock::system(), [consumer]);
    eventually(DEADLINE, "it has failed alone", async || switch.times() >= 2).await;
    let mode = Mode::Apply { why: Some("poison") };
    skip(&mut db.connect(Role::App).await, &name(PROBE), 1, mode).await.unwrap();
    reaches(&db, PROBE, 2).await;
    assert_eq!(effects(&db).await, twice([2]));
    running.stops().await;
}

async fn ends_sessions_of_workers(db: &TestDb) {
    let login = Role::App.login();
    let sessions =
        format!("FROM pg_stat_activity WHERE usename = '{login}' AND datname = current_database()");
    as_admin(db, &format!("SELECT pg_terminate_backend(pid) {sessions}")).await;
    eventually(DEADLINE, "they are gone", async || {
        let left: i64 = sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) {sessions}")))
            .fetch_one(&db.admin())
            .await
            .unwrap();
        left == 0
    })
    .await;
}

#[tokio::test]
async fn a_connection_for_marks_that_was_closed_while_idle_disturbs_no_round() {
    let bench = Bench::on(database().await, config(), parking(plain(), 1)).await;
    append_about(&bench.db, &["a"]).await;
    bench.processes(1).await;
    ends_sessions_of_workers(&bench.db).await;
    append_about(&bench.db, &["b"]).await;
    bench.processes(1).await;
}

#[tokio::test]
async fn a_retry_that_somebody_is_about_to_commit_is_not_undone_by_a_mark_that_waited_for_it() {
    let switch = Switch::on();
    let bench = Bench::on(database().await, config(), parking(switch.failing_at(1), 1)).await;
    append_about(&bench.db, &["x"]).await;
    work(&bench).await;
    as_admin(&bench.db, "UPDATE seqline.parked_events SET next_attempt_at = now()").await;
    let before = switch.times();
    switch.off();
    let mut operator = seqline::begin(&bench.db.admin()).await.unwrap();
    let retry = "SELECT seqline.retry_parked('probe', 1, true, NULL)";
    sqlx::query(retry).execute(&mut *operator).await.unwrap();
    // The mark is given up by the database itself, so that nothing of it is done later.
    let error = bench.round().await.unwrap_err();
    assert_eq!(error.error_type(), "database", "{error}");
    operator.commit().await.unwrap();
    assert_eq!(work(&bench).await, [""; 0]);
    assert_eq!(switch.times(), before, "it was off");
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice([1]), vec![]));
}

#[tokio::test]
async fn a_consumer_that_is_made_anew_has_nothing_parked() {
    let switch = Switch::on();
    let bench = Bench::on(database().await, config(), parking(switch.failing_at(1), 1)).await;
    append_about(&bench.db, &["x", "x", "a"]).await;
    work(&bench).await;
    as_admin(&bench.db, "INSERT INTO seqline.skipped_events (consumer, seq, why) VALUES ('probe', 3, 'old')")
        .await;
    as_admin(&bench.db, "DELETE FROM seqline.event_consumer_cursors; TRUNCATE effects").await;
    switch.off();
    bench.consumers.ensure().await.unwrap();
    assert_eq!(work(&bench).await, [""; 0]);
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice(1..=3), vec![]));
}
