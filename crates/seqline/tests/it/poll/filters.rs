//! Consumers that ask for some events only.

use super::*;

/// Ten events, of which 3 and 7 are of type `rare.event`, in space `shop-1`.
async fn shop() -> (TestDb, PgConnection) {
    let db = TestDb::new().await;
    run(
        &mut db.connect(Role::Producer).await,
        "SELECT seqline.append_batch(jsonb_agg(jsonb_build_object(
             'type', CASE WHEN n IN (3, 7) THEN 'rare.event' ELSE 'test.happened' END, 'payload', '{}'::jsonb,
             'space_id', CASE WHEN n IN (3, 7) THEN 'shop-1' ELSE 'shop-2' END,
             'channel_id', 'web', 'resource_kind', 'test', 'receive_action', 'any') ORDER BY n))
         FROM generate_series(1, 10) n",
    )
    .await;
    db.settled().await;
    let session = session(&db).await;
    (db, session)
}

#[tokio::test]
async fn it_returns_what_was_asked_for_and_steps_over_what_was_looked_at() {
    let (db, mut session) = shop().await;
    for (filter, expected) in [
        ("types => ARRAY['rare.event']", vec![3, 7]),
        ("types => ARRAY['rare.*']", vec![3, 7]),
        ("types => ARRAY['rare.*', 'test.happened']", (1..=10).collect()),
        ("spaces => ARRAY['shop-1']", vec![3, 7]),
        ("channels => ARRAY['till']", vec![]),
        ("resource_kinds => ARRAY['test'], spaces => ARRAY['shop-1']", vec![3, 7]),
        ("types => NULL", (1..=10).collect()),
    ] {
        let name = format!("c_{}", filter.len());
        run(&mut session, &format!("SELECT seqline.register_consumer('{name}', 'oldest', {filter})")).await;
        assert_eq!(poll(&mut session, &name, 100).await, expected, "{filter}");
        assert_eq!(cursor(&db, &name).await, 10, "{filter}");
        assert_eq!(poll(&mut session, &name, 100).await, [] as [i64; 0], "{filter}");
    }
}

#[tokio::test]
async fn it_goes_no_further_than_to_the_last_event_that_it_returns() {
    let (db, mut session) = shop().await;
    run(&mut session, "SELECT seqline.register_consumer('rare', 'oldest', types => ARRAY['rare.event'])")
        .await;
    assert_eq!(poll(&mut session, "rare", 1).await, [3]);
    assert_eq!(cursor(&db, "rare").await, 3);
    run(&mut session, "BEGIN").await;
    assert_eq!(poll(&mut session, "rare", 1).await, [7]);
    assert_eq!(poll(&mut session, "rare", 1).await, [] as [i64; 0]);
    run(&mut session, "ROLLBACK").await;
    assert_eq!(cursor(&db, "rare").await, 3);
    assert_eq!(poll(&mut session, "rare", 100).await, [7]);
    assert_eq!(cursor(&db, "rare").await, 10);
}

#[tokio::test]
async fn a_call_looks_at_so_many_events_only() {
    let (db, mut session) = shop().await;
    run(&mut db.connect(Role::Admin).await, "UPDATE seqline.settings SET poll_max_scanned = 4").await;
    run(&mut session, "SELECT seqline.register_consumer('rare', 'oldest', types => ARRAY['rare.event'])")
        .await;
    let mut seen = Vec::new();
    for expected in [4, 8, 10, 10] {
        seen.extend(poll(&mut session, "rare", 100).await);
        assert_eq!(cursor(&db, "rare").await, expected);
    }
    assert_eq!(seen, [3, 7]);
}

#[tokio::test]
async fn registering_again_changes_what_comes_from_then_on() {
    let (_db, mut session) = shop().await;
    run(&mut session, "SELECT seqline.register_consumer('rare', 'oldest', types => ARRAY['rare.event'])")
        .await;
    assert_eq!(poll(&mut session, "rare", 1).await, [3]);
    run(&mut session, "SELECT seqline.register_consumer('rare')").await;
    assert_eq!(poll(&mut session, "rare", 2).await, [4, 5]);
    run(&mut session, "SELECT seqline.register_consumer('rare', types => ARRAY['rare.event'])").await;
    assert_eq!(poll(&mut session, "rare", 100).await, [7]);
}

#[tokio::test]
async fn a_filter_that_no_event_can_match_is_refused_in_the_words_of_the_library() {
    let (db, mut session) = shop().await;
    let type_rule =
        "a filter by type takes types such as order.created, or beginnings of types such as order.*";
    let value = |what: &str| {
        format!("a filter by {what} has a value that is empty, too long or has a control character")
    };
    for (filter, message) in [
        ("types => ARRAY['Order.created']", type_rule.to_owned()),
        ("types => ARRAY['order']", type_rule.to_owned()),
        ("types => ARRAY['*']", type_rule.to_owned()),
        ("types => ARRAY['order*']", type_rule.to_owned()),
        ("types => ARRAY['order.*.created']", type_rule.to_owned()),
        ("types => '{}'", "a filter by type has no values: leave it out to get everything".to_owned()),
        ("spaces => ARRAY['']", value("space")),
        ("spaces => ARRAY[NULL]", value("space")),
        ("channels => ARRAY[E'a\\nb']", value("channel")),
        ("resource_kinds => ARRAY[repeat('x', 129)]", value("resource kind")),
        (
            "spaces => array_fill('x'::text, ARRAY[101])",
            "a filter by space has more than 100 values".to_owned(),
        ),
    ] {
        let refused =
            run_refused(&mut session, &format!("SELECT seqline.register_consumer('rare', 'head', {filter})"))
                .await;
        assert_eq!(refused.rule(), ("22023", "seqline_consumer_filter"), "{filter}");
        assert_eq!(refused.message, message, "{filter}");
    }
    let made: i64 = sqlx::query_scalar("SELECT count(*) FROM seqline.event_consumers")
        .fetch_one(&db.admin())
        .await
        .expect("a superuser reads everything");
    assert_eq!(made, 0);
}

#[tokio::test]
async fn a_hole_is_found_also_where_nothing_matches() {
    let (db, mut session) = shop().await;
    run(&mut session, "SELECT seqline.register_consumer('rare', 'oldest', types => ARRAY['rare.event'])")
        .await;
    run(&mut db.connect(Role::Admin).await, "DELETE FROM seqline.event_log WHERE seq IN (5, 6)").await;
    let refused = poll_refused(&mut session, "rare", 100).await;
    assert_eq!(refused.rule(), ("XX001", "seqline_gap"));
    assert_eq!(refused.message, "consumer rare found a gap in the log: expected seq 5, found 7");
    assert_eq!(cursor(&db, "rare").await, 0);
}

#[tokio::test]
async fn a_change_of_what_is_asked_for_is_recorded_and_a_beginning_is_not() {
    let (db, mut session) = shop().await;
    for types in ["ARRAY['rare.event']", "ARRAY['rare.event']", "ARRAY['rare.*']"] {
        run(&mut session, &format!("SELECT seqline.register_consumer('rare', 'oldest', types => {types})"))
            .await;
    }
    let audit: Vec<(String, String, serde_json::Value, serde_json::Value)> =
        sqlx::query_as("SELECT action, subject, before -> 'types', after -> 'types' FROM seqline.audit_log")
            .fetch_all(&db.admin())
            .await
            .expect("the audit can be read");
    let types = |types: &str| serde_json::json!([types]);
    assert_eq!(audit, [("consumer.filter".into(), "rare".into(), types("rare.event"), types("rare."))]);
}
