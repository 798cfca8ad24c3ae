//! What is refused, and what the refusal says: programs read the rule, people the message and the hint.

use seqline_testkit::{Role, TestDb};

use super::*;
use crate::support::append;

fn refused<T>(rule: &str, message: &str, hint: &str) -> Result<T, Refusal> {
    Err(Refusal {
        sqlstate: "22023".to_owned(),
        constraint: Some(format!("seqline_{rule}")),
        message: message.to_owned(),
        hint: Some(hint.to_owned()),
    })
}

async fn consumers(db: &TestDb) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM seqline.event_consumer_cursors")
        .fetch_one(&db.admin())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_number_of_events_out_of_bounds_is_refused_with_the_bounds() {
    let (db, mut session) = with_events(5).await;
    let hint = "Ask for fewer events and call again in the same transaction.";
    for max_events in [None, Some(0), Some(-1), Some(i32::MIN), Some(10_001), Some(i32::MAX)] {
        assert_eq!(
            try_poll(&mut session, Some("totals"), max_events).await,
            refused("poll_max_events", "max_events is not between 1 and 10000", hint),
            "{max_events:?}"
        );
    }
    assert_eq!(cursor(&db, "totals").await, 0);
    assert_eq!(poll(&mut session, "totals", 10_000).await.len(), 5);
}

#[tokio::test]
async fn a_lowered_setting_is_the_bound_from_the_next_call_on() {
    let (db, mut session) = with_events(5).await;
    assert_eq!(poll(&mut session, "totals", 1).await, [1]);
    run(&mut db.connect(Role::Admin).await, "UPDATE seqline.settings SET poll_max_events = 3").await;
    let refusal = poll_refused(&mut session, "totals", 4).await;
    assert_eq!(refusal.message, "max_events is not between 1 and 3");
    assert_eq!(poll(&mut session, "totals", 3).await, [2, 3, 4]);
}

#[tokio::test]
async fn the_setting_has_bounds_of_its_own() {
    let db = TestDb::new().await;
    let mut admin = db.connect(Role::Admin).await;
    for value in ["0", "-1", "100001", "NULL"] {
        let sql = format!("UPDATE seqline.settings SET poll_max_events = {value}");
        let refusal = run_refused(&mut admin, &sql).await;
        assert!(["23514", "23502"].contains(&refusal.sqlstate.as_str()), "{refusal:?}");
    }
}

#[tokio::test]
async fn a_consumer_that_was_never_registered_is_refused_and_not_made() {
    let (db, mut session) = with_events(1).await;
    let hint = "Register it once: SELECT seqline.register_consumer(name, start_at).";
    for consumer in
        [None, Some(""), Some("total"), Some("Totals"), Some("totals "), Some("webhooks"), Some("'; --")]
    {
        assert_eq!(
            try_poll(&mut session, consumer, Some(1)).await,
            refused("consumer_unknown", "there is no consumer of this name", hint),
            "{consumer:?}"
        );
    }
    assert_eq!(consumers(&db).await, 1);
}

#[tokio::test]
async fn a_name_that_is_not_of_the_form_is_refused_and_not_registered() {
    let db = TestDb::new().await;
    let mut session = session(&db).await;
    let hint = "Use 1 to 63 lowercase letters, digits and underscores, beginning with a letter.";
    let long = "a".repeat(64);
    for name in [
        None,
        Some(""),
        Some("A"),
        Some("orderTotals"),
        Some("1a"),
        Some("_a"),
        Some("a-b"),
        Some("a b"),
        Some(" a"),
        Some("a\n"),
        Some("\u{e4}"),
        Some("stra\u{df}e"),
        Some("a\u{661}"),
        Some("a'; DROP TABLE x; --"),
        Some(long.as_str()),
    ] {
        assert_eq!(
            try_register(&mut session, name, Some("head")).await,
            refused("consumer_name", "the name of the consumer is not valid", hint),
            "{name:?}"
        );
    }
    assert_eq!(consumers(&db).await, 0);
}

#[tokio::test]
async fn the_shortest_and_the_longest_name_are_accepted() {
    let (_db, mut session) = with_events(1).await;
    for name in ["a", "a_1", &"z".repeat(63)] {
        assert_eq!(register(&mut session, name, "oldest").await, 0);
        assert_eq!(poll(&mut session, name, 1).await, [1]);
    }
}

#[tokio::test]
async fn the_names_of_built_in_consumers_are_refused() {
    let db = TestDb::new().await;
    let mut session = session(&db).await;
    for name in ["webhooks", "push"] {
        assert_eq!(
            try_register(&mut session, Some(name), Some("head")).await,
            refused("consumer_name", &format!("the name {name} is reserved"), "Use another name.")
        );
    }
    assert_eq!(consumers(&db).await, 0);
}

#[tokio::test]
async fn a_consumer_of_a_worker_is_neither_polled_nor_registered_again() {
    let (db, mut session) = with_events(2).await;
    run(&mut db.connect(Role::App).await, "SELECT seqline.ensure_consumer('invoices', 'worker', 'oldest')")
        .await;
    assert_eq!(
        try_poll(&mut session, Some("invoices"), Some(1)).await,
        refused(
            "consumer_kind",
            "consumer invoices is of kind worker, not poll",
            "Register one of your own: SELECT seqline.register_consumer(name, start_at)."
        )
    );
    assert_eq!(
        try_register(&mut session, Some("invoices"), Some("oldest")).await,
        refused(
            "consumer_kind",
            "consumer invoices is of kind worker, not poll",
            "Use another name: one cursor cannot serve two programs."
        )
    );
    assert_eq!(cursor(&db, "invoices").await, 0);
}

#[tokio::test]
async fn a_consumer_that_is_polled_is_not_taken_by_a_worker() {
    let (db, _session) = with_events(1).await;
    let mut app = db.connect(Role::App).await;
    let refusal = run_refused(&mut app, "SELECT seqline.ensure_consumer('totals', 'worker', 'head')").await;
    assert_eq!(refusal.rule(), ("22023", "seqline_consumer_kind"));
    assert_eq!(refusal.message, "consumer totals is of kind poll, not worker");
}

#[tokio::test]
async fn a_start_that_is_none_is_refused_with_the_three_that_are() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=2).await;
    let mut session = session(&db).await;
    let hint = "Write start_at => 'head', 'oldest' or the number of the first event to get.";
    for start_at in [
        None,
        Some(""),
        Some("HEAD"),
        Some("newest"),
        Some("-1"),
        Some("+1"),
        Some(" 1"),
        Some("1 "),
        Some("1.0"),
        Some("1e0"),
        Some("0x1"),
        Some("1_0"),
        Some("1\n"),
        Some("\u{661}"),
        Some("2026-01-01"),
    ] {
        assert_eq!(
            try_register(&mut session, Some("totals"), start_at).await,
            refused("consumer_start", "start_at is not head, oldest or a seq", hint),
            "{start_at:?}"
        );
    }
    assert_eq!(consumers(&db).await, 0);
}

#[tokio::test]
async fn a_start_outside_the_log_is_refused_with_what_the_log_holds() {
    let db = TestDb::new().await;
    append(&db.producer(), 1..=2).await;
    let mut session = session(&db).await;
    for start_at in ["0", "4", "9223372036854775807", "9223372036854775808", "99999999999999999999999999"] {
        assert_eq!(
            try_register(&mut session, Some("totals"), Some(start_at)).await,
            refused(
                "consumer_start",
                &format!("seq {start_at} is not in the log: it holds 1 to 2"),
                "Start at head, at oldest or at a seq in between."
            ),
            "{start_at}"
        );
    }
    assert_eq!(consumers(&db).await, 0);
}

#[tokio::test]
async fn a_start_in_an_empty_log_is_refused_with_a_message_that_says_so() {
    let db = TestDb::new().await;
    let mut session = session(&db).await;
    let refused = try_register(&mut session, Some("totals"), Some("2")).await.unwrap_err();
    assert_eq!(refused.rule(), ("22023", "seqline_consumer_start"));
    assert_eq!(refused.message, "seq 2 is not in the log: it is empty, and the next event gets 1");
}
