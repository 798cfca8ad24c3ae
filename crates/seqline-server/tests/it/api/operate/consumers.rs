use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};

use super::{Desk, done_for, for_sam, without_times};
use crate::support::{append, as_admin, on, run_sql, server_db};

/// A log of six events and two consumers: `mine` stands in the middle of it and has lost something once.
async fn filled() -> TestDb {
    let db = server_db().await;
    append(&db.producer(), 1..=6).await;
    let mut session = db.connect(Role::Consumer).await;
    run_sql(&mut session, "SELECT seqline.register_consumer('mine', 'oldest', types => '{test.*}')").await;
    run_sql(&mut session, "SELECT seqline.register_consumer('other')").await;
    run_sql(&mut session, "SELECT seqline.poll('mine', 3)").await;
    as_admin(&db, "INSERT INTO seqline.lost_ranges (consumer, lost_from, lost_to) VALUES ('mine', 1, 2)")
        .await;
    db
}

async fn command(db: &TestDb, args: &str) -> Value {
    let text = on(db, Role::App, ["consumers"]).args(args.split(' ')).arg("--json").ok().await;
    serde_json::from_str(&text).expect("it is JSON")
}

/// Each action, as it is typed and as it is asked for. `NOTE` is a reason.
fn actions() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("pause mine", "mine/pause", json!({})),
        ("resume mine", "mine/resume", json!({})),
        ("skip mine --seq 5 --reason NOTE", "mine/skip", json!({"seq": 5})),
        ("rewind mine --to 2 --reason NOTE", "mine/rewind", json!({"to": 2})),
        ("lanes mine --to 3 --key channel", "mine/lanes", json!({"lanes": 3, "key": "channel"})),
        (
            "replay mine --into again --from 1 --to 4",
            "mine/replay",
            json!({"into": "again", "from": 1, "to": 4}),
        ),
        ("acknowledge mine --reason NOTE", "mine/acknowledge", json!({})),
        ("retire mine", "mine/retire", json!({})),
    ]
}

#[tokio::test]
async fn each_action_plans_does_and_leaves_what_the_command_does() {
    let (typed, asked) = (filled().await, filled().await);
    let desk = Desk::at(&asked).await;
    let mut expected = Vec::new();
    for (args, path, body) in actions() {
        let path = format!("consumers/{path}");
        let why = args.contains("NOTE").then_some("NOTE");
        let mut body = body.clone();
        if let Some(why) = why {
            body["reason"] = why.into();
        }
        let mut dry = body.clone();
        dry["dry_run"] = true.into();
        // Planned twice: planning changes nothing.
        for _ in 0..2 {
            assert_eq!(desk.does(&path, dry.clone()).await, command(&typed, args).await, "{args}");
        }
        assert_eq!(done_for(&asked).await, expected, "{args}");
        let done = desk.does(&path, body).await;
        assert_eq!(done, command(&typed, &format!("{args} --yes")).await, "{args}");
        assert_eq!(done["done"], true);
        let action = format!("consumer.{}", args.split(' ').next().unwrap());
        let subject = if action == "consumer.replay" { "again" } else { "mine" };
        expected.push(for_sam(&action, subject, why));
        assert_eq!(done_for(&asked).await, expected, "{args}");
        assert_eq!(state(&asked).await, state(&typed).await, "{args}");
    }
    // The command acts for nobody but its login.
    let typed_for: Vec<_> = done_for(&typed).await.into_iter().map(|row| row.2).collect();
    assert_eq!(typed_for, vec![None; 8]);
    desk.server.stop().await;
}

/// Everything about all consumers that is kept, but times and who did it.
async fn state(db: &TestDb) -> Value {
    let row: Value = sqlx::query_scalar(
        "SELECT jsonb_build_object(
             'consumers', (SELECT jsonb_agg(to_jsonb(e) ORDER BY e.name) FROM seqline.event_consumers e),
             'cursors', (SELECT jsonb_agg(to_jsonb(c) ORDER BY c.name, c.lane) FROM seqline.event_consumer_cursors c),
             'skipped', (SELECT jsonb_agg(to_jsonb(s)) FROM seqline.skipped_events s),
             'lost', (SELECT jsonb_agg(to_jsonb(l) || jsonb_build_object('known', l.acknowledged_at IS NOT NULL))
                      FROM seqline.lost_ranges l),
             'paused', (SELECT jsonb_agg(e.paused_at IS NOT NULL ORDER BY e.name) FROM seqline.event_consumers e),
             'retired', (SELECT jsonb_agg(e.retired_at IS NOT NULL ORDER BY e.name) FROM seqline.event_consumers e))",
    )
    .fetch_one(&db.admin())
    .await
    .expect("the consumers can be read");
    without_times(row)
}

#[tokio::test]
async fn consumers_are_listed_and_shown_as_by_the_command() {
    let db = filled().await;
    let desk = Desk::at(&db).await;
    desk.does("consumers/mine/pause", json!({"reason": "NOTE"})).await;
    desk.does("consumers/other/retire", json!({})).await;
    let list = desk.gets("consumers").await;
    assert_eq!(without_times(list["consumers"].clone()), without_times(command(&db, "list").await));
    assert_eq!((list["consumers"].as_array().unwrap().len(), list.get("next")), (1, None));
    let all = desk.gets("consumers?all=true").await;
    assert_eq!(without_times(all["consumers"].clone()), without_times(command(&db, "list --all").await));
    let shown = desk.gets("consumers/mine").await;
    assert_eq!(without_times(shown.clone()), without_times(command(&db, "show mine").await));
    assert_eq!(shown["audit"][0]["principal"], "Sam");
    let text = on(&db, Role::App, ["consumers", "show", "mine"]).ok().await;
    assert!(text.contains(&format!("  {} for Sam  consumer.pause", Role::App.login())), "{text}");
    desk.server.stop().await;
}

#[tokio::test]
async fn a_list_comes_in_pages() {
    let db = filled().await;
    let mut session = db.connect(Role::Consumer).await;
    for name in ["a1", "a2", "z"] {
        run_sql(&mut session, &format!("SELECT seqline.register_consumer('{name}')")).await;
    }
    let desk = Desk::at(&db).await;
    let mut names = Vec::new();
    let mut after = String::new();
    loop {
        let page = desk.gets(&format!("consumers?limit=2{after}")).await;
        let rows = page["consumers"].as_array().unwrap();
        assert!(rows.len() <= 2);
        names.extend(rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(names, ["a1", "a2", "mine", "other", "z"]);
    desk.server.stop().await;
}

#[tokio::test]
async fn what_is_refused_says_why_and_changes_nothing() {
    let db = filled().await;
    let desk = Desk::at(&db).await;
    let refused = async |path: &str, body: Value, status: u16, code: &str| {
        desk.sam.post(&format!("/v1/consumers/{path}"), &body).await.problem(status, code)
    };
    for path in ["nobody/pause", "Not%20a%20name/pause", "%00/pause", "nobody/retire"] {
        refused(path, json!({}), 404, "not_found").await;
    }
    // Whoever asks over HTTP has no command.
    let problem = refused("nobody/pause", json!({}), 404, "not_found").await;
    assert_eq!(problem["detail"], "there is no consumer nobody");
    let problem = refused("mine/rewind", json!({"to": 9}), 409, "conflict").await;
    assert_eq!(problem["detail"], "seq 9 is not in the log: it holds 1 to 6. Go back to one that it holds");
    refused("mine/rewind", json!({"to": "2999-01-01T00:00:00Z"}), 409, "conflict").await;
    refused("mine/skip", json!({"seq": 1, "reason": "NOTE"}), 409, "conflict").await;
    refused("mine/replay", json!({"into": "other", "from": 1, "to": 2}), 409, "conflict").await;
    for (path, body, pointer) in [
        ("mine/pause", json!({"reason": "x".repeat(1001)}), "/reason"),
        ("mine/pause", json!({"reason": "\0"}), "/reason"),
        ("mine/pause", json!({"dry_run": "yes"}), "/dry_run"),
        ("mine/pause", json!({"yes": true}), "/yes"),
        // Nothing is taken away from a consumer without a reason.
        ("mine/skip", json!({"seq": 5}), "/reason"),
        ("mine/skip", json!({"seq": "5", "reason": "NOTE"}), "/seq"),
        ("mine/rewind", json!({"to": "yesterday"}), "/to"),
        ("mine/replay", json!({"into": "No Name", "from": 1, "to": 2}), "/into"),
        ("mine/lanes", json!({"lanes": 65}), "/lanes"),
        ("mine/lanes", json!({"lanes": 0}), "/lanes"),
        ("mine/lanes", json!({"lanes": 2, "key": "colour"}), "/key"),
        ("mine/lanes", json!({"lanes": 2, "wait_seconds": 61}), "/wait_seconds"),
    ] {
        let problem = refused(path, body.clone(), 422, "validation_failed").await;
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{path} {body}");
    }
    for (query, pointer) in [
        ("consumers?limit=0", "/limit"),
        ("consumers?limit=1001", "/limit"),
        ("consumers?limit=x", "/limit"),
        ("consumers?limit=1&limit=2", "/limit"),
        ("consumers?all=maybe", "/all"),
        ("consumers?other=1", "/other"),
        ("audit?limit=x", "/limit"),
        ("audit?after=x", "/after"),
        ("partitions?after=x", "/after"),
        ("parked?after=x", "/after"),
        ("jobs?state=x", "/state"),
        ("jobs?kind=%00", "/kind"),
    ] {
        let problem = desk.sam.get(&format!("/v1/{query}")).await.problem(422, "validation_failed");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{query}: {problem}");
    }
    assert_eq!(done_for(&db).await, []);
    desk.server.stop().await;
}

#[tokio::test]
async fn a_place_can_be_a_time() {
    let db = filled().await;
    let desk = Desk::at(&db).await;
    let first: String = sqlx::query_scalar(
        "SELECT to_char(min(occurred_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM seqline.event_log",
    )
    .fetch_one(&db.admin())
    .await
    .unwrap();
    let body = json!({"into": "again", "from": first, "to": "2999-01-01T00:00:00Z", "dry_run": true});
    let planned = desk.does("consumers/mine/replay", body).await;
    assert_eq!((&planned["from"], &planned["to"], &planned["done"]), (&json!(1), &json!(6), &json!(false)));
    desk.server.stop().await;
}

/// Whoever changes a consumer waits for a round of it, and not for ever.
#[tokio::test]
async fn a_round_that_does_not_end_is_a_conflict_and_holds_up_nobody_else() {
    let db = filled().await;
    let desk = Desk::at(&db).await;
    let mut round = db.connect(Role::Consumer).await;
    run_sql(&mut round, "BEGIN; SELECT seqline.poll('mine', 1)").await;
    // Not the one that is asked for in the end: three wait, and more of them wait for a place.
    let waiting = desk.sam.clone();
    let waiting = tokio::spawn(async move {
        let body = json!({});
        let all = (0..3).map(|_| waiting.post("/v1/consumers/mine/pause", &body));
        futures_util::future::join_all(all).await
    });
    crate::support::Sessions::of(&db, Role::App)
        .reach(3, "wait_event_type = 'Lock' AND query LIKE '%set_consumer_paused%'")
        .await;
    assert_eq!(desk.sam.get("/v1/me").await.ok(200)["principal"], "Sam");
    for answer in waiting.await.unwrap() {
        let problem = answer.problem(409, "conflict");
        assert_eq!(
            problem["detail"],
            "a round of consumer mine has not ended for 10s: nothing was changed, try again"
        );
        assert_eq!(answer.header("retry-after"), "2");
    }
    assert_eq!(done_for(&db).await, []);
    run_sql(&mut round, "ROLLBACK").await;
    desk.does("consumers/mine/pause", json!({})).await;
    desk.server.stop().await;
}
