//! Lanes of a consumer that is polled.

use std::collections::BTreeMap;

use super::*;

/// The numbers of these many events by the lane of their resource, as the database says.
async fn with_lanes(count: i64, lanes: i32) -> (TestDb, PgConnection, BTreeMap<i32, Vec<i64>>) {
    let db = TestDb::new().await;
    run(
        &mut db.connect(Role::Producer).await,
        &format!(
            "SELECT seqline.append_batch(jsonb_agg(jsonb_build_object(
                 'type', 'test.happened', 'payload', '{{}}'::jsonb, 'resource_kind', 'order',
                 'resource_id', (n % 11)::text, 'receive_action', 'any') ORDER BY n))
             FROM generate_series(1, {count}) n"
        ),
    )
    .await;
    db.settled().await;
    let mut session = session(&db).await;
    run(&mut session, &format!("SELECT seqline.register_consumer('totals', 'oldest', lanes => {lanes})"))
        .await;
    let rows: Vec<(i32, i64)> = sqlx::query_as(
        "SELECT seqline.lane_of('order/' || resource_id, $1), seq FROM seqline.event_log ORDER BY seq",
    )
    .bind(lanes)
    .fetch_all(&db.admin())
    .await
    .unwrap();
    let mut by_lane: BTreeMap<i32, Vec<i64>> = (0..lanes).map(|lane| (lane, Vec::new())).collect();
    rows.into_iter().for_each(|(lane, seq)| by_lane.entry(lane).or_default().push(seq));
    assert!(by_lane.values().all(|seqs| !seqs.is_empty()), "each lane has some");
    (db, session, by_lane)
}

async fn poll_lane(session: &mut PgConnection, max_events: i32, lane: i32) -> Vec<i64> {
    sqlx::query_scalar("SELECT seq FROM seqline.poll('totals', $1, $2)")
        .bind(max_events)
        .bind(lane)
        .fetch_all(session)
        .await
        .unwrap()
}

async fn positions(db: &TestDb) -> Vec<i64> {
    sqlx::query_scalar("SELECT last_seq FROM seqline.event_consumer_cursors ORDER BY lane")
        .fetch_all(&db.admin())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_lane_that_is_named_returns_its_events_and_no_others() {
    let (db, mut session, by_lane) = with_lanes(40, 3).await;
    for (lane, expected) in &by_lane {
        let first = poll_lane(&mut session, 2, *lane).await;
        assert_eq!(first, expected[..2]);
        assert_eq!(positions(&db).await[*lane as usize], expected[1], "no further than what was looked at");
        assert_eq!(poll_lane(&mut session, 100, *lane).await, expected[2..]);
        assert_eq!(poll_lane(&mut session, 100, *lane).await, [] as [i64; 0]);
    }
    assert_eq!(positions(&db).await, [40; 3]);
}

#[tokio::test]
async fn without_a_name_it_is_a_lane_that_is_free_and_has_something_to_do() {
    let (db, mut first, by_lane) = with_lanes(40, 3).await;
    let mut second = session(&db).await;
    let mut third = session(&db).await;
    let mut fourth = session(&db).await;
    poll_lane(&mut first, 100, 0).await;
    run(&mut first, "BEGIN").await;
    let of_first = poll(&mut first, "totals", 100).await;
    // The one that another transaction has is left to it.
    run(&mut second, "BEGIN").await;
    let of_second = poll(&mut second, "totals", 100).await;
    let mut both = [of_first.clone(), of_second];
    both.sort_unstable();
    let mut expected = [by_lane[&1].clone(), by_lane[&2].clone()];
    expected.sort_unstable();
    assert_eq!(both, expected);
    run(&mut third, "BEGIN").await;
    assert_eq!(poll(&mut third, "totals", 100).await, [] as [i64; 0], "lane 0 is done");
    run(&mut fourth, "BEGIN").await;
    assert_eq!(poll(&mut fourth, "totals", 100).await, [] as [i64; 0], "nothing is free");
    run(&mut first, "ROLLBACK").await;
    assert_eq!(poll(&mut fourth, "totals", 100).await, of_first);
    run(&mut fourth, "COMMIT").await;
    run(&mut second, "COMMIT").await;
    assert_eq!(positions(&db).await, [40; 3]);
}

#[tokio::test]
async fn a_lane_that_cannot_be_handled_does_not_keep_a_caller_from_the_others() {
    let (db, mut session, by_lane) = with_lanes(40, 3).await;
    let mut lanes_done = 0;
    for _ in 0..1_000 {
        run(&mut session, "BEGIN").await;
        let seqs = poll(&mut session, "totals", 100).await;
        // The first of lane 0 is one that fails.
        let fails = seqs.contains(&by_lane[&0][0]);
        run(&mut session, if fails { "ROLLBACK" } else { "COMMIT" }).await;
        lanes_done = positions(&db).await.into_iter().filter(|seq| *seq == 40).count();
        if lanes_done == 2 {
            break;
        }
    }
    assert_eq!(lanes_done, 2);
}

#[tokio::test]
async fn a_call_steps_over_lanes_in_which_it_finds_nothing() {
    let db = TestDb::new().await;
    let append = "SELECT seqline.append('test.happened', '{}', 'order', 'any', resource_id => '17')";
    run(&mut db.connect(Role::Producer).await, append).await;
    db.settled().await;
    let mut session = session(&db).await;
    run(&mut session, "SELECT seqline.register_consumer('totals', 'oldest', lanes => 64)").await;
    assert_eq!(poll(&mut session, "totals", 100).await, [1]);
    // What they have looked at is behind them, and a call looks at so many only.
    run(&mut session, "SELECT seqline.register_consumer('more', 'oldest', lanes => 64)").await;
    run(&mut db.connect(Role::Admin).await, "UPDATE seqline.settings SET poll_max_scanned = 1").await;
    let mut calls = 0;
    while poll(&mut session, "more", 100).await.is_empty() {
        calls += 1;
        assert!(calls < 64, "one lane is passed by each call");
    }
}

#[tokio::test]
async fn a_lane_that_there_is_not_is_refused() {
    let (_db, mut session, _) = with_lanes(40, 3).await;
    for lane in [-1, 3] {
        let refused = run_refused(&mut session, &format!("SELECT seqline.poll('totals', 1, {lane})")).await;
        assert_eq!(refused.rule(), ("22023", "seqline_consumer_lane"));
        assert_eq!(refused.message, "consumer totals has lanes 0 to 2");
    }
    for lanes in ["0", "65", "NULL"] {
        let sql = format!("SELECT seqline.register_consumer('more', lanes => {lanes})");
        let refused = run_refused(&mut session, &sql).await;
        assert_eq!(refused.rule(), ("22023", "seqline_consumer_lanes"));
    }
    let sql = "SELECT seqline.register_consumer('more', lanes => 2, lane_key => 'type')";
    let refused = run_refused(&mut session, sql).await;
    assert_eq!(refused.message, "the key of the lanes is not resource, channel, thread or space");
}

#[tokio::test]
async fn registering_again_with_another_number_changes_nothing() {
    let (db, mut session, _) = with_lanes(40, 3).await;
    run(&mut session, "SELECT seqline.register_consumer('totals', lanes => 5, lane_key => 'space')").await;
    let found: (i32, String) = sqlx::query_as("SELECT lanes, lane_key FROM seqline.event_consumers")
        .fetch_one(&db.admin())
        .await
        .unwrap();
    assert_eq!((found, positions(&db).await), ((3, "resource".to_owned()), vec![0; 3]));
}

#[tokio::test]
async fn a_snapshot_of_before_the_lanes_were_divided_anew_is_refused() {
    let (db, mut session, _) = with_lanes(40, 3).await;
    run(&mut session, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await;
    let divide = "SELECT seqline.set_consumer_lanes('totals', 2, NULL, true, NULL)";
    run(&mut db.connect(Role::App).await, divide).await;
    let refused = run_refused(&mut session, "SELECT seqline.poll('totals', 100, 1)").await;
    assert_eq!(refused.sqlstate, "40001");
    run(&mut session, "ROLLBACK").await;
    assert!(!poll(&mut session, "totals", 100).await.is_empty());
}

#[tokio::test]
async fn what_people_decide_holds_for_polling_too() {
    let (db, mut session) = with_events(6).await;
    let mut app = db.connect(Role::App).await;
    run(&mut app, "SELECT seqline.skip_event('totals', 2, true, 'a test')").await;
    assert_eq!(poll(&mut session, "totals", 100).await, [1]);
    assert_eq!(poll(&mut session, "totals", 100).await, [3, 4, 5, 6]);
    run(&mut app, "SELECT seqline.rewind_consumer('totals', 5, true, NULL)").await;
    assert_eq!(poll(&mut session, "totals", 100).await, [5, 6]);
    run(&mut app, "SELECT seqline.replay_consumer('totals', 'again', 2, 4, true, NULL)").await;
    assert_eq!(poll(&mut session, "again", 100).await, [2, 3, 4]);
    assert_eq!(poll(&mut session, "again", 100).await, [] as [i64; 0]);
    assert_eq!(cursor(&db, "again").await, 4);
    run(&mut app, "SELECT seqline.retire_consumer('totals', true, NULL)").await;
    let refused = run_refused(&mut session, "SELECT seqline.poll('totals', 1)").await;
    assert_eq!(
        (refused.rule().1, refused.message.as_str()),
        ("seqline_consumer_retired", "consumer totals was retired")
    );
}

#[tokio::test]
async fn a_replay_whose_piece_retention_has_taken_ends_and_says_what_it_lost() {
    let (db, mut session) = with_events(6).await;
    let mut app = db.connect(Role::App).await;
    run(&mut app, "SELECT seqline.replay_consumer('totals', 'again', 2, 4, true, NULL)").await;
    run(
        &mut db.connect(Role::Admin).await,
        "DELETE FROM seqline.event_log WHERE seq <= 5; UPDATE seqline.log_bounds SET retained_floor = 1",
    )
    .await;
    assert_eq!(poll(&mut session, "again", 100).await, [] as [i64; 0]);
    assert_eq!(cursor(&db, "again").await, 4);
    assert_eq!(lost_ranges(&db).await, [("again".to_owned(), 2, 4)]);
    assert_eq!(poll(&mut session, "again", 100).await, [] as [i64; 0]);
}
