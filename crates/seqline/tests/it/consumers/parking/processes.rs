//! What counts when the process that tries is gone.

use super::*;

/// Handles nothing at one event: it waits there for ever, once it has said that it is there.
fn hanging_at(gate: &Gate, seq: i64) -> impl Handler {
    let gate = gate.clone();
    acting(move |event, _| {
        let (gate, hangs) = (gate.clone(), event.seq == seq);
        Box::pin(async move {
            if hangs {
                gate.pass(seq).await;
            }
            Ok(())
        })
    })
}

/// A round that is dropped when it is at its place, as with the process it runs in.
async fn dies_at(bench: &Bench, gate: &Gate, seq: i64) {
    gate.reached.send_replace(0);
    tokio::select! {
        result = bench.round() => panic!("{result:?}"),
        () = gate.is_reached(seq) => {}
    }
    eventually(DEADLINE, "the round is rolled back", async || open_transactions(&bench.db).await == 0).await;
}

#[tokio::test]
async fn healthy_events_are_not_parked_however_often_their_worker_is_killed() {
    let gate = Gate::closed();
    let bench = Bench::on(database().await, config(), parking(hanging_at(&gate, 5), 2)).await;
    let resources: Vec<String> = (1..=9).map(|n| n.to_string()).collect();
    append_about(&bench.db, &resources.iter().map(String::as_str).collect::<Vec<_>>()).await;
    dies_at(&bench, &gate, 5).await;
    // From here one event at a time. Up to the one at which it died none has a mark against it.
    for seq in 1..=4 {
        assert_eq!(bench.processes(1).await.last_seq, Some(seq));
    }
    // Once alone: it could still be a coincidence.
    dies_at(&bench, &gate, 5).await;
    gate.open();
    for seq in 5..=9 {
        assert_eq!(bench.processes(1).await.last_seq, Some(seq));
    }
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice(1..=9), vec![]));
    // Behind what the round had taken it takes many again, and another kill counts anew.
    append_about(&bench.db, &["a", "b", "c"]).await;
    bench.processes(3).await;
}

#[tokio::test]
async fn killing_rounds_of_many_counts_for_none_of_them() {
    let gate = Gate::closed();
    let bench = Bench::on(database().await, config(), parking(hanging_at(&gate, 1), 1)).await;
    append_about(&bench.db, &["a", "b", "c"]).await;
    for _ in 0..5 {
        dies_at(&bench, &gate, 1).await;
        // As if other rounds had been in between that succeeded: the mark is behind the cursor.
        as_admin(&bench.db, "UPDATE seqline.round_marks SET until_seq = last_seq").await;
    }
    gate.open();
    bench.processes(3).await;
    assert_eq!(parked_seqs(&bench.db).await, [0; 0]);
}

#[tokio::test]
async fn an_event_that_kills_its_worker_is_parked_after_its_attempts() {
    let gate = Gate::closed();
    let bench = Bench::on(database().await, config(), parking(hanging_at(&gate, 2), 3)).await;
    append_about(&bench.db, &["a", "x", "b"]).await;
    dies_at(&bench, &gate, 2).await;
    bench.processes(1).await;
    for _ in 0..3 {
        dies_at(&bench, &gate, 2).await;
    }
    assert_eq!(bench.round().await.unwrap().parked, 1);
    assert_eq!(work(&bench).await, [""; 0]);
    let key = Some("order/x".to_owned());
    assert_eq!(parked(&bench.db).await, [(2, key, 3, false, Some("aborted".to_owned()))]);
    assert_eq!(effects(&bench.db).await, twice([1, 3]));
}

#[tokio::test]
async fn a_parked_event_that_kills_its_worker_when_it_is_tried_again_waits_again() {
    let gate = Gate::closed();
    let bench = Bench::on(database().await, config(), parking(hanging_at(&gate, 1), 1)).await;
    append_about(&bench.db, &["x", "a"]).await;
    dies_at(&bench, &gate, 1).await;
    dies_at(&bench, &gate, 1).await;
    work(&bench).await;
    apply_retry(&bench.db, None).await;
    dies_at(&bench, &gate, 1).await;
    assert_eq!(work(&bench).await, [""; 0], "it was tried as often as it may be");
    assert_eq!((effects(&bench.db).await, parked_seqs(&bench.db).await), (twice([2]), vec![1]));
}

/// Set in the process that is going to die: the database.
const VICTIM: &str = "SEQLINE_TEST_PARKING_VICTIM";

/// Not a test by itself: what the process does. Without the variable it does nothing.
#[tokio::test]
async fn victim() {
    let Ok(url) = std::env::var(VICTIM) else { return };
    let options: PgConnectOptions = url.parse().unwrap();
    let handler = acting(|event, _| {
        if event.seq == 3 {
            std::process::abort();
        }
        Box::pin(async { Ok(()) })
    });
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(options.clone());
    let consumers = consumers(pool, options, quick(), Clock::system(), [parking(handler, 3)]);
    consumers.run(CancellationToken::new()).await.unwrap();
}

#[tokio::test]
async fn an_event_that_aborts_the_process_is_parked_and_a_supervisor_that_starts_it_again_gets_past_it() {
    let db = database().await;
    append_about(&db, &["a", "b", "x", "c", "x", "d"]).await;
    let mut deaths = 0;
    loop {
        let mut victim = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "consumers::parking::processes::victim"])
            .env(VICTIM, db.url(Role::App))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut died = false;
        eventually(DEADLINE, "it dies or gets past the event", async || {
            died = victim.try_wait().unwrap().is_some();
            died || cursor(&db, PROBE).await == 6
        })
        .await;
        if !died {
            victim.kill().unwrap();
            victim.wait().unwrap();
            break;
        }
        deaths += 1;
        assert!(deaths < 10, "it is parked at some time");
    }
    // Once among the others, and three times alone.
    assert_eq!(deaths, 4);
    assert_eq!((effects(&db).await, parked_seqs(&db).await), (twice([1, 2, 4, 6]), vec![3, 5]));
}
