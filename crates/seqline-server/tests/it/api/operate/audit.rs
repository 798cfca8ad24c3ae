use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};

use super::Desk;
use crate::support::{as_admin, on, run_sql, server_db};

async fn command(db: &TestDb, args: &[&str]) -> Value {
    let text = on(db, Role::App, ["audit", "--json"]).args(args).ok().await;
    serde_json::from_str(&text).expect("it is JSON")
}

async fn filled() -> TestDb {
    let db = server_db().await;
    run_sql(&mut db.connect(Role::Consumer).await, "SELECT seqline.register_consumer('mine')").await;
    db
}

#[tokio::test]
async fn the_audit_log_is_read_in_pages_and_names_who_asked_and_which_login_did_it() {
    let db = filled().await;
    let desk = Desk::at(&db).await;
    as_admin(&db, "TRUNCATE seqline.audit_log RESTART IDENTITY").await;
    for (action, why) in [("pause", "one"), ("resume", "two"), ("pause", "three")] {
        desk.does(&format!("consumers/mine/{action}"), json!({"reason": why})).await;
    }
    on(&db, Role::App, ["consumers", "resume", "mine", "--yes"]).ok().await;
    let page = desk.gets("audit").await;
    assert_eq!(page, json!({"entries": command(&db, &[]).await}));
    let first = &page["entries"][0];
    let login = Role::App.login();
    assert_eq!(
        first,
        &json!({
            "id": 4, "at": first["at"], "who": login, "action": "consumer.resume", "subject": "mine",
            "before": first["before"], "after": {},
        })
    );
    let second = &page["entries"][1];
    assert_eq!(
        (&second["principal"], &second["who"], &second["why"]),
        (&json!("Sam"), &json!(login), &json!("three"))
    );
    let page = desk.gets("audit?limit=3").await;
    assert_eq!((page["entries"].as_array().unwrap().len(), &page["next"]), (3, &json!("2")));
    let rest = desk.gets("audit?limit=3&after=2").await;
    assert_eq!((&rest["entries"], rest.get("next")), (&command(&db, &["--before", "2"]).await, None));
    assert_eq!((rest["entries"].as_array().unwrap().len(), &rest["entries"][0]["id"]), (1, &json!(1)));
    desk.sam.get("/v1/audit?after=x").await.problem(422, "validation_failed");
    desk.server.stop().await;
}

#[tokio::test]
async fn the_command_shows_the_audit_log_as_a_table() {
    let db = filled().await;
    let none = on(&db, Role::App, ["audit", "--before", "0"]).run().await;
    assert_eq!((none.sentence(0).as_str(), none.stdout.as_str()), ("nothing found", ""));
    as_admin(
        &db,
        "TRUNCATE seqline.audit_log RESTART IDENTITY;
         INSERT INTO seqline.audit_log (recorded_at, who, principal, action, subject, before, after, why) VALUES
             ('2026-11-30 08:00Z', 'app', 'Sam', 'consumer.pause', 'mine', '{}', '{\"lag\": 3}', 'the mail server is away'),
             ('2026-11-30 09:00Z', 'app', NULL, 'consumer.resume', 'mine', '{}', '{}', NULL)",
    )
    .await;
    insta::assert_snapshot!("audit", on(&db, Role::App, ["audit"]).ok().await);
    let newest = on(&db, Role::App, ["audit", "--limit", "1"]).run().await;
    assert_eq!(newest.sentence(0), "there is more: --before 2 shows it");
    assert!(newest.stdout.contains("consumer.resume") && !newest.stdout.contains("consumer.pause"));
}
