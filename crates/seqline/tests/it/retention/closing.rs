//! Closing by age: few events must not mean that nothing ever expires.

use seqline_testkit::{TestServer, check, eventually};

use super::writers::{Ids, Writers};
use super::*;

const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

fn closing() -> MaintenanceConfig {
    MaintenanceConfig { partition_max_age: MAX_AGE, ..config() }
}

/// Five events in a partition of a million, and nothing to do for a run but to close it.
async fn five_events(db: &TestDb) {
    append(&db.app(), 1..=5).await;
    ensure(&db.app()).await;
}

/// Maintenance at a moment when all that has been appended so far is older than a partition may become.
fn after_max_age(pool: PgPool) -> Maintenance {
    let (maintenance, hand) = at_present(pool, closing());
    hand.advance(MAX_AGE);
    maintenance
}

#[tokio::test]
async fn a_partition_that_is_too_old_is_closed_behind_the_head() {
    let db = TestDb::new().await;
    five_events(&db).await;
    let report = after_max_age(db.app()).run().await.unwrap();
    assert_eq!(report, MaintenanceReport { closed: true, ..Default::default() });
    assert_eq!(ranges(&db).await, [(1, 6), (6, 1_000_001), (1_000_001, 2_000_001), (2_000_001, 3_000_001)]);
}

#[tokio::test]
async fn a_partition_that_is_young_stays_open() {
    let db = TestDb::new().await;
    let (maintenance, hand) = at_present(db.app(), closing());
    hand.advance(MAX_AGE);
    append(&db.app(), 1..=5).await;
    assert!(!maintenance.run().await.unwrap().closed);
}

#[tokio::test]
async fn a_partition_without_events_is_not_closed() {
    let db = TestDb::new().await;
    five_events(&db).await;
    let maintenance = after_max_age(db.app());
    assert!(maintenance.run().await.unwrap().closed);
    // The head is still the last of the closed one.
    assert!(!maintenance.run().await.unwrap().closed);
    assert_eq!(ranges(&db).await.len(), 4);
}

#[tokio::test]
async fn an_empty_log_is_not_closed() {
    let db = TestDb::new().await;
    assert!(!after_max_age(db.app()).run().await.unwrap().closed);
}

#[tokio::test]
async fn numbers_go_on_across_a_closed_partition() {
    let db = TestDb::new().await;
    append(&db.app(), 1..=5).await;
    after_max_age(db.app()).run().await.unwrap();
    assert_eq!(ends(&db).await, (1, 5));
    append(&db.app(), 6..=8).await;
    let mut reader = db.connect(Role::Reader).await;
    assert_eq!(ends(&db).await, (1, 8));
    assert_eq!(numbers(&mut reader).await, [1, 2, 3, 4, 5, 6, 7, 8]);
    let page = read::events_after(&mut reader, 3, 4).await.unwrap();
    assert_eq!(page.iter().map(|event| event.seq).collect::<Vec<_>>(), [4, 5, 6, 7]);
}

#[tokio::test]
async fn a_closed_partition_expires_once_there_are_newer_events() {
    let db = TestDb::new().await;
    append(&db.app(), 1..=5).await;
    after_max_age(db.app()).run().await.unwrap();
    assert_eq!(after_retention(&db).run().await.unwrap().dropped, 0, "it holds the head");
    append(&db.app(), 6..=8).await;
    assert_eq!(after_retention(&db).run().await.unwrap().dropped, 1);
    assert_eq!(ends(&db).await, (6, 8));
    let mut reader = db.connect(Role::Reader).await;
    let page = read::events_after(&mut reader, 5, 100).await.unwrap();
    assert_eq!(page.iter().map(|event| event.seq).collect::<Vec<_>>(), [6, 7, 8]);
    let behind = read::events_after(&mut reader, 4, 100).await.unwrap_err();
    let ReadError::Expired { next_seq: 5, min_retained: 6 } = behind else { panic!("{behind:?}") };
    let status = status::status(&mut db.connect(Role::App).await).await.unwrap();
    assert_eq!((status.retained(), status.partitions), (3, 3));
    assert_eq!(status.headroom, 3_000_000 - 8);
}

#[tokio::test]
async fn a_reader_in_the_way_postpones_closing_and_nothing_is_changed() {
    let db = TestDb::new().await;
    five_events(&db).await;
    let before = ranges(&db).await;
    let reader = reader_in_the_way(&db).await;
    let report = after_max_age(db.app()).run().await.unwrap();
    assert_eq!(report, MaintenanceReport { postponed: true, ..Default::default() });
    append(&db.producer(), [6]).await;
    assert_eq!(ranges(&db).await, before);
    leave(reader).await;
    assert!(after_max_age(db.app()).run().await.unwrap().closed);
    assert_eq!(ranges(&db).await[0], (1, 7));
}

#[tokio::test]
async fn a_closed_partition_keeps_checks_and_indexes_like_a_new_one() {
    let db = TestDb::new().await;
    five_events(&db).await;
    after_max_age(db.app()).run().await.unwrap();
    let parts: Vec<(String, String)> = sqlx::query_as(
        "SELECT string_agg(DISTINCT x.what, ' ' ORDER BY x.what), count(DISTINCT x.what)::text
         FROM pg_inherits i CROSS JOIN LATERAL (
             SELECT regexp_replace(pg_get_indexdef(indexrelid), '^.* USING', 'USING') AS what
             FROM pg_index WHERE indrelid = i.inhrelid
             UNION ALL
             SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint
             WHERE conrelid = i.inhrelid AND contype = 'c'
         ) x
         WHERE i.inhparent = 'seqline.event_log'::regclass GROUP BY i.inhrelid",
    )
    .fetch_all(&db.admin())
    .await
    .unwrap();
    assert_eq!(parts.len(), 4);
    assert!(parts.iter().all(|part| *part == parts[0]), "{parts:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_while_writers_run_leaves_no_hole_and_fails_no_append() {
    const CLOSINGS: usize = 10;
    let db = TestDb::new().await;
    let writers = Writers::start(&db, Ids::Generated);
    eventually(DEADLINE, "the first event", async || ends(&db).await.1 > 0).await;
    for _ in 0..CLOSINGS {
        eventually(DEADLINE, "a closing", async || after_max_age(db.app()).run().await.unwrap().closed).await;
    }
    let history = writers.stop().await;
    let observed = log(&mut db.connect(Role::Reader).await).await;
    check(&history.snapshot(), &observed, 1).unwrap();
    let bounds = ranges(&db).await;
    // One more was created ahead of the head.
    assert_eq!(bounds.len(), 3 + CLOSINGS);
    assert!(bounds.windows(2).all(|pair| pair[0].1 == pair[1].0), "{bounds:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_that_bring_their_own_ids_do_not_keep_a_partition_from_being_closed() {
    const ATTEMPTS: usize = 20;
    let db = TestDb::new().await;
    let writers = Writers::start(&db, Ids::Brought);
    eventually(DEADLINE, "the first event", async || ends(&db).await.1 > 0).await;
    let mut closings = 0;
    // Much longer than the database needs to find a circle, and to end a transaction in it.
    let patient = Duration::from_secs(20);
    let config =
        MaintenanceConfig { detach_lock_timeout: patient, detach_lock_timeout_max: patient, ..closing() };
    for _ in 0..ATTEMPTS {
        let (maintenance, hand) = at_present(db.app(), config.clone());
        hand.advance(MAX_AGE);
        closings += usize::from(maintenance.run().await.unwrap().closed);
    }
    writers.stop().await;
    // Where nothing was appended since the last time there is nothing to close.
    assert!(closings >= ATTEMPTS / 4, "only {closings} of {ATTEMPTS} attempts closed a partition");
}

#[tokio::test]
async fn a_long_queue_of_committing_writers_does_not_keep_a_partition_from_being_closed() {
    // Commits that wait for the disk, so that the queue in front of the lock is long.
    let server = TestServer::durable().await;
    let db = TestDb::on(&server).await;
    let writers = Writers::many(&db, Ids::Generated, 32);
    let mut reader = db.connect(Role::Reader).await;
    eventually(Duration::from_secs(30), "the first events", async || {
        seqline::read::head(&mut reader).await.unwrap() > 100
    })
    .await;
    let config = MaintenanceConfig {
        partition_max_age: Duration::ZERO,
        detach_attempts: MaintenanceConfig::default().detach_attempts,
        detach_retry_pause: Duration::from_millis(10),
        ..config()
    };
    let report = Maintenance::new(db.app(), config, Clock::system()).run().await.unwrap();
    writers.stop().await;
    assert!(report.closed && !report.postponed, "{report:?}");
}

#[tokio::test]
async fn a_partition_that_fills_soon_enough_is_left_to_fill() {
    let db = TestDb::new().await;
    sqlx::query(
        "DO $$ BEGIN FOR n IN 1..11 LOOP PERFORM seqline.append_batch((
             SELECT jsonb_agg(jsonb_build_object('type', 'test.happened', 'resource_kind', 'test',
                 'receive_action', 'any', 'payload', '{}'::jsonb)) FROM generate_series(1, 10000)));
         END LOOP; END $$",
    )
    .execute(&db.producer())
    .await
    .unwrap();
    db.settled().await;
    assert!(!after_max_age(db.app()).run().await.unwrap().closed);
}
