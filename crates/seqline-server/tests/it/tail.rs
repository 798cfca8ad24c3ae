//! `seqline tail`, without `--follow`: what is in the log now.

use seqline::envelope::Envelope;
use seqline_testkit::{Role, TestDb};

use crate::support::{append, event, masked, on, small_partitions};

/// The numbers at the beginning of the lines.
fn seqs(text: &str) -> Vec<i64> {
    text.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
}

async fn tail(db: &TestDb, args: &[&str]) -> Vec<i64> {
    seqs(&on(db, Role::Reader, ["tail"]).args(args).ok().await)
}

/// A log of which only the events from number 5 on are left.
async fn with_expired_events() -> TestDb {
    let db = TestDb::new().await;
    small_partitions(&db, 2, 3).await;
    append(&db.app(), 1..=6).await;
    on(&db, Role::App, ["partitions", "maintain", "--retention", "0s"]).ok().await;
    db
}

#[tokio::test]
async fn an_event_is_one_line_for_people() {
    let db = TestDb::new().await;
    let order = ["append", "order.created", "--resource-kind", "order"];
    on(&db, Role::App, order).ok().await;
    on(&db, Role::App, order).args(["--resource-id", "17", "--payload", r#"{"a": "b\nc"}"#]).ok().await;
    let expected =
        "1  [time]  order.created  order  {}\n2  [time]  order.created  order/17  {\"a\": \"b\\nc\"}";
    assert_eq!(masked(&on(&db, Role::Reader, ["tail"]).ok().await), expected);
}

#[tokio::test]
async fn an_empty_log_has_nothing_to_show() {
    let db = TestDb::new().await;
    assert!(tail(&db, &[]).await.is_empty());
    assert!(tail(&db, &["--after", "0"]).await.is_empty());
}

#[tokio::test]
async fn the_last_ten_or_as_many_as_asked_for_are_shown() {
    let db = TestDb::new().await;
    append(&db.app(), 1..=12).await;
    assert_eq!(tail(&db, &[]).await, (3..=12).collect::<Vec<_>>());
    assert_eq!(tail(&db, &["--last", "2"]).await, [11, 12]);
    assert_eq!(tail(&db, &["--last", "100"]).await, (1..=12).collect::<Vec<_>>());
    assert!(tail(&db, &["--last", "0"]).await.is_empty());
}

#[tokio::test]
async fn everything_after_a_number_is_shown_over_many_pages() {
    let db = TestDb::new().await;
    append(&db.app(), 1..=1201).await;
    assert_eq!(tail(&db, &["--after", "0"]).await, (1..=1201).collect::<Vec<_>>());
    assert_eq!(tail(&db, &["--after", "1199"]).await, [1200, 1201]);
    assert!(tail(&db, &["--after", "1201"]).await.is_empty());
}

#[tokio::test]
async fn json_is_one_envelope_on_each_line() {
    let db = TestDb::new().await;
    append(&db.app(), 1..=3).await;
    let text = on(&db, Role::Reader, ["tail", "--json"]).ok().await;
    for (seq, line) in (1..).zip(text.lines()) {
        let envelope: Envelope = serde_json::from_str(line).unwrap();
        assert_eq!(envelope.seq, Some(seq));
        assert_eq!(envelope.payload.get(), event(seq).payload().as_json());
        assert_eq!(envelope.to_json(), line);
    }
    assert_eq!(text.lines().count(), 3);
}

#[tokio::test]
async fn a_position_above_the_head_belongs_to_another_history() {
    let db = TestDb::new().await;
    append(&db.app(), 1..=3).await;
    assert_eq!(
        on(&db, Role::Reader, ["tail", "--after", "4"]).refused(4).await,
        "position 4 is above the head 3 of the log: it belongs to another history"
    );
    let sentence = on(&db, Role::Reader, ["tail", "--after", "4", "--follow"]).refused(4).await;
    assert!(sentence.contains("above the head 3 of the log"), "{sentence}");
}

#[tokio::test]
async fn a_position_behind_retention_is_told_where_the_log_begins() {
    let db = with_expired_events().await;
    let sentence = on(&db, Role::Reader, ["tail", "--after", "0"]).refused(4).await;
    assert_eq!(sentence, "seq 1 is no longer in the log, the lowest retained seq is 5");
    let sentence = on(&db, Role::Reader, ["tail", "--after", "3", "--follow"]).refused(4).await;
    assert_eq!(sentence, "the tail is behind retention: needs seq 4, the lowest retained seq is 5");
    assert_eq!(tail(&db, &["--after", "4"]).await, [5, 6]);
}

#[tokio::test]
async fn the_last_events_are_those_that_retention_has_left() {
    let db = with_expired_events().await;
    assert_eq!(tail(&db, &[]).await, [5, 6]);
}

#[tokio::test]
async fn a_reader_of_the_output_that_has_seen_enough_is_no_failure() {
    let db = TestDb::new().await;
    // More than a pipe holds.
    append(&db.app(), 1..=10_000).await;
    let mut running = on(&db, Role::Reader, ["tail", "--after", "0"]).start();
    assert!(running.line().await.starts_with("1 "));
    running.close_stdout();
    let outcome = running.end().await;
    assert_eq!((outcome.code(), outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
}
