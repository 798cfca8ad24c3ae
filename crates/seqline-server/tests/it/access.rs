//! `seqline principals`, `tokens` and `grants`

use insta::assert_snapshot;
use seqline::access::{Token, of_principal, of_token, permission_version};
use seqline_testkit::{Role, TestDb};
use serde_json::{Value, json};

use crate::consumers::{audit_row, audited};
use crate::support::{Outcome, as_admin, masked, on, run_sql};

async fn run(db: &TestDb, args: &str) -> String {
    on(db, Role::App, args.split(' ')).ok().await
}

async fn json_of(db: &TestDb, args: &str) -> Value {
    serde_json::from_str(&run(db, &format!("{args} --json")).await).expect("it is JSON")
}

async fn refused(db: &TestDb, args: &str) -> String {
    on(db, Role::App, args.split(' ')).refused(4).await
}

/// Makes a token, and returns what was printed and said.
async fn token(db: &TestDb, args: &str) -> (Token, Outcome) {
    let outcome = on(db, Role::App, ["tokens", "create"]).args(args.split(' ')).run().await;
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    let line = outcome.stdout.strip_suffix('\n').expect("the token ends its line");
    (Token::parse(line).expect("what was printed is a token"), outcome)
}

async fn version(db: &TestDb) -> i64 {
    permission_version(&mut db.connect(Role::App).await).await.expect("the version can be read")
}

#[tokio::test]
async fn somebody_is_let_in_and_put_out_by_command() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    assert_eq!(
        run(&db, "principals create alex --kind user --name Alex --rights append").await,
        "user alex is created\n"
    );
    let (token, outcome) = token(&db, "alex --label laptop --expires-in 90d --reason asked").await;
    assert_snapshot!(masked(&outcome.stderr), @"seqline: token [id] of alex, good until [time] or revoked; it is shown this once");
    assert_eq!(
        run(&db, "grants add alex message.read --space shop-1 --channel support").await,
        "alex receives events of message.read in space shop-1, channel support\n"
    );
    let again = run(&db, "grants add alex message.read --space shop-1 --channel support").await;
    assert_eq!(again, "alex receives events of message.read in space shop-1, channel support already\n");
    assert_eq!(run(&db, "grants add alex order.read").await, "alex receives all events of order.read\n");

    let access = of_token(&mut app, &token.hash()).await.unwrap().expect("the token opens");
    assert_eq!((access.principal.as_str(), access.viewer.grants()), ("alex", 2));
    assert_eq!(access.rights.names(), ["append"]);
    assert!(access.expires_at.is_some());

    let listed = json_of(&db, "tokens list alex").await;
    let [listed] = &listed.as_array().unwrap()[..] else { panic!() };
    let id = listed["id"].as_str().unwrap();
    let hint = listed["hint"].as_str().unwrap();
    assert!(token.reveal().starts_with(hint));
    assert_eq!(
        run(&db, &format!("tokens revoke {id}")).await,
        format!(
            "would revoke token {hint}... (laptop) of alex: it opens nothing then, for good. Add --yes to do it\n"
        )
    );
    assert!(of_token(&mut app, &token.hash()).await.unwrap().is_some(), "that was a plan");
    let revoked = run(&db, &format!("tokens revoke {id} --yes --reason lost")).await;
    assert_eq!(revoked, format!("token {hint}... (laptop) of alex is revoked\n"));
    assert!(of_token(&mut app, &token.hash()).await.unwrap().is_none());
    let again = run(&db, &format!("tokens revoke {id} --yes")).await;
    assert_eq!(again, format!("token {hint}... (laptop) of alex is revoked already\n"));

    let expected = [
        ("principal.create", json!({}), json!({"kind": "user", "name": "Alex", "rights": ["append"]}), None),
        (
            "grant.add",
            json!({}),
            json!({"action": "message.read", "space_id": "shop-1", "channel_id": "support"}),
            None,
        ),
        ("grant.add", json!({}), json!({"action": "order.read"}), None),
    ];
    let rows: Vec<_> = audited(&db).await.into_iter().filter(|row| !row.1.starts_with("token.")).collect();
    let expected =
        expected.map(|(action, before, after, why)| audit_row(action, "alex", (before, after), why));
    assert_eq!(rows, expected);
    let rows = audited(&db).await;
    let tokens: Vec<_> = rows.iter().filter(|row| row.1.starts_with("token.")).collect();
    assert_eq!(
        tokens.iter().map(|row| (row.1.as_str(), row.5.as_deref())).collect::<Vec<_>>(),
        [("token.create", Some("asked")), ("token.revoke", Some("lost"))]
    );
    assert!(!format!("{rows:?}").contains(&token.reveal()[9..]), "the audit log holds no token");
}

#[tokio::test]
async fn what_takes_away_or_gives_rights_is_only_planned_without_yes() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    run(&db, "principals create alex --kind user").await;
    run(&db, "grants add alex message.read --thread 17").await;
    let before = (version(&db).await, audited(&db).await.len());
    for (args, plan, done, again) in [
        (
            "principals rights alex --to append,operate",
            "would set the rights of alex to append, operate; they are none. Add --yes to do it",
            "the rights of alex are append, operate; they were none",
            "the rights of alex are append, operate already",
        ),
        (
            "principals disable alex",
            "would disable principal alex: its tokens open nothing then, and it sees nothing. Add --yes to do it",
            "principal alex is disabled",
            "principal alex is disabled already",
        ),
        (
            "principals enable alex",
            "would enable principal alex, with 0 tokens and 1 grant. Add --yes to do it",
            "principal alex is enabled",
            "principal alex is not disabled",
        ),
        (
            "grants remove alex message.read --thread 17",
            "would take from alex: events of message.read in thread 17. Add --yes to do it",
            "taken from alex: events of message.read in thread 17",
            "alex has no such grant: seqline grants list alex shows them",
        ),
    ] {
        let (held, rows) = (version(&db).await, audited(&db).await.len());
        assert_eq!(run(&db, args).await, format!("{plan}\n"));
        let planned = json_of(&db, args).await;
        assert_eq!((&planned["done"], &planned["changed"]), (&json!(false), &json!(true)), "{args}");
        assert_eq!((version(&db).await, audited(&db).await.len()), (held, rows), "{args} was a plan");
        assert_eq!(run(&db, &format!("{args} --yes")).await, format!("{done}\n"));
        assert_eq!((version(&db).await, audited(&db).await.len()), (held + 1, rows + 1), "{args}");
        assert_eq!(run(&db, &format!("{args} --yes")).await, format!("{again}\n"));
        assert_eq!(run(&db, args).await, format!("{again}\n"));
    }
    assert_eq!((version(&db).await, audited(&db).await.len()), (before.0 + 4, before.1 + 4));

    run(&db, "grants add alex message.read").await;
    token(&db, "alex").await;
    assert_eq!(
        run(&db, "principals delete alex").await,
        "would delete principal alex with 1 token and 1 grant; events go on to name it. Add --yes to do it\n"
    );
    assert!(of_principal(&mut app, "alex").await.unwrap().is_some());
    assert_eq!(
        json_of(&db, "principals delete alex --yes --reason left").await,
        json!({"principal": "alex", "tokens": 1, "grants": 1, "done": true})
    );
    assert!(of_principal(&mut app, "alex").await.unwrap().is_none());
}

#[tokio::test]
async fn lists_and_details_are_for_people_and_for_programs() {
    let db = TestDb::new().await;
    for line in [
        "principals create alex --kind user --name Alex --rights append,operate",
        "principals create helper --kind agent",
        "principals create till-4 --kind app --rights none",
        "grants add alex message.read --space shop-1",
        "grants add alex order.read",
        "grants add helper message.read --channel support --thread 17",
        "principals disable helper --yes",
    ] {
        run(&db, line).await;
    }
    for line in ["alex --label laptop --expires-in 1h", "alex", "helper --label ci"] {
        token(&db, line).await;
    }
    as_admin(
        &db,
        "UPDATE seqline.api_tokens SET expires_at = now() WHERE label = 'laptop'; UPDATE seqline.api_tokens SET hint = 'sqln_Ab1-';
         UPDATE seqline.api_tokens SET revoked_at = now() WHERE label = 'ci'",
    )
    .await;
    let shown = [
        "principals list",
        "principals list --after alex --limit 1",
        "principals show alex",
        "principals show till-4",
        "tokens list",
        "tokens list helper",
        "grants list",
        "grants list alex --limit 1",
    ];
    let mut text = String::new();
    for line in shown {
        let outcome = on(&db, Role::App, line.split(' ')).run().await;
        assert_eq!(outcome.code(), Some(0), "{outcome:?}");
        text.push_str(&format!("$ seqline {line}\n{}{}\n", outcome.stdout, outcome.stderr));
    }
    assert_snapshot!("lists", columns(&masked(&text)));

    let principals = json_of(&db, "principals list").await;
    let members: Vec<&str> = principals[1].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(members, ["created_at", "disabled_at", "grants", "id", "kind", "rights", "tokens"]);
    let mut alex = json_of(&db, "principals show alex").await;
    assert_eq!(alex["principal"]["tokens"], 1, "those that are good");
    assert_eq!(alex["tokens"].as_array_mut().unwrap().len(), 2);
    assert_eq!(
        alex["grants"][0],
        json!({"id": alex["grants"][0]["id"], "principal": "alex", "action": "message.read", "space_id": "shop-1"})
    );
    let states: Vec<Value> = json_of(&db, "tokens list")
        .await
        .as_array()
        .unwrap()
        .iter()
        .map(|token| token["state"].clone())
        .collect();
    assert_eq!(states, ["expired", "good", "revoked"]);
    assert_eq!(json_of(&db, "grants list helper").await[0]["thread_id"], "17");
    let made = json_of(&db, "tokens create alex --label x").await;
    assert!(Token::parse(made["token"].as_str().unwrap()).is_some());
    assert_eq!(
        (&made["principal"], &made["label"], made.get("expires_at")),
        (&json!("alex"), &json!("x"), None)
    );
}

/// Columns are as wide as what is in them, which was replaced.
fn columns(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        cells.join("  ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn nothing_there_is_said_and_is_no_error() {
    let db = TestDb::new().await;
    for what in ["principals", "tokens", "grants"] {
        let outcome = on(&db, Role::App, [what, "list"]).run().await;
        assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(0), ""));
        assert_eq!(outcome.stderr, format!("seqline: no {what} found\n"));
        assert_eq!(json_of(&db, &format!("{what} list")).await, json!([]));
    }
}

#[tokio::test]
async fn what_cannot_be_is_refused_in_a_sentence() {
    let db = TestDb::new().await;
    run(&db, "principals create alex --kind user").await;
    let nobody = "there is no principal sam: seqline principals list shows those that there are";
    for line in [
        "principals show sam",
        "tokens list sam",
        "grants list sam",
        "principals rights sam --to none",
        "principals disable sam",
        "principals enable sam",
        "grants remove sam read",
    ] {
        assert_eq!(refused(&db, line).await, nobody, "{line}");
    }
    let unknown = "there is no principal of this id. seqline principals list shows those that there are";
    for line in [
        "principals delete sam",
        "tokens create sam",
        "grants add sam read",
        "principals rights sam --to none --yes",
        "principals delete sam --yes",
        "principals disable sam --yes",
    ] {
        assert_eq!(refused(&db, line).await, unknown, "{line}");
    }
    assert_eq!(
        refused(&db, "principals create alex --kind app").await,
        "there is a principal of this id already. seqline principals show tells what it may do"
    );
    assert_eq!(
        refused(&db, "grants add alex any").await,
        "receive action any needs no grant. Every principal receives events of any, and those of self are for the one that they name"
    );
    assert_eq!(
        refused(&db, "tokens create alex --expires-in 0s").await,
        "the token would have expired already. Give a time that is still to come"
    );
    let id = uuid::Uuid::nil();
    assert_eq!(
        refused(&db, &format!("tokens revoke {id}")).await,
        format!("there is no token {id}: seqline tokens list shows those that there are")
    );
    assert_eq!(
        refused(&db, &format!("tokens revoke {id} --yes")).await,
        "there is no token of this id. seqline tokens list shows those that there are"
    );
    let reader = on(&db, Role::Reader, ["principals", "list"]).refused(4).await;
    assert!(reader.ends_with("grant this role seqline_app"), "{reader}");
}

#[tokio::test]
async fn a_change_waits_for_another_one_and_not_for_ever() {
    let db = TestDb::new().await;
    run(&db, "principals create alex --kind user").await;
    let mut other = db.connect(Role::App).await;
    run_sql(&mut other, "BEGIN; INSERT INTO seqline.grants (principal_id, action) VALUES ('alex', 'read')")
        .await;
    let sentence = on(&db, Role::App, "grants add alex order.read".split(' ')).refused(3).await;
    assert_eq!(
        sentence,
        "another transaction has changed permissions and has not ended for 10s: nothing was changed, try again"
    );
    run_sql(&mut other, "COMMIT").await;
    run(&db, "grants add alex order.read").await;
}
