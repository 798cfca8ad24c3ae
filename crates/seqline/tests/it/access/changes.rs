//! Changes: what they do, what they refuse, and what is written down about them.

use std::time::Duration;

use seqline::access::{
    ChangeError, Deletion, Grant, NewPrincipal, PrincipalKind, Rights, create_principal, create_token,
    delete_principal, disable_principal, enable_principal, list_grants, list_principals, principal,
    revoke_token, set_rights, ungrant,
};
use seqline::consumer::Mode;
use seqline_testkit::{Role, TestDb};
use uuid::Uuid;

use super::{grant, last_audit, users, version};

fn refused<T: std::fmt::Debug>(result: Result<T, ChangeError>) -> String {
    match result.unwrap_err() {
        ChangeError::Refused { rule, .. } => rule,
        error => panic!("{error:?}"),
    }
}

fn audit(
    action: &str,
    before: &str,
    after: &str,
    why: Option<&str>,
) -> (String, String, String, String, Option<String>) {
    (action.into(), "alex".into(), before.into(), after.into(), why.map(str::to_owned))
}

#[tokio::test]
async fn each_is_in_the_audit_log_once() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    let both = Rights { append: true, operate: true };
    let alex = NewPrincipal {
        id: "alex".to_owned(),
        kind: PrincipalKind::User,
        name: Some("Alex".to_owned()),
        rights: Rights { append: true, operate: false },
    };
    create_principal(&mut app, &alex, Some("new here")).await.unwrap();
    let created = r#"{"kind": "user", "name": "Alex", "rights": ["append"]}"#;
    assert_eq!(last_audit(&db).await, audit("principal.create", "{}", created, Some("new here")));

    assert_eq!(set_rights(&mut app, "alex", both, None).await.unwrap(), alex.rights);
    let rights = [r#"{"rights": ["append"]}"#, r#"{"rights": ["append", "operate"]}"#];
    assert_eq!(last_audit(&db).await, audit("principal.rights", rights[0], rights[1], None));
    let quiet = version(&db).await;
    assert_eq!(set_rights(&mut app, "alex", both, None).await.unwrap(), both);

    let support = Grant::of("message.read").space("shop-1").channel("support");
    assert!(seqline::access::grant(&mut app, "alex", &support, None).await.unwrap());
    let facts = r#"{"action": "message.read", "space_id": "shop-1", "channel_id": "support"}"#;
    assert_eq!(last_audit(&db).await, audit("grant.add", "{}", facts, None));
    assert!(!seqline::access::grant(&mut app, "alex", &support, None).await.unwrap(), "it is there");
    let narrower = support.clone().thread("17");
    assert!(!ungrant(&mut app, "alex", &narrower, None).await.unwrap(), "exactly that one or none");
    assert_eq!(version(&db).await, quiet + 1, "of these only one has changed anything");
    assert!(ungrant(&mut app, "alex", &support, Some("left")).await.unwrap());
    assert_eq!(last_audit(&db).await, audit("grant.remove", facts, "{}", Some("left")));

    let token = create_token(&mut app, "alex", Some("laptop"), None, None).await.unwrap();
    let facts = format!(r#"{{"label": "laptop", "token": "{}"}}"#, token.id);
    assert_eq!(last_audit(&db).await, audit("token.create", "{}", &facts, None));
    revoke_token(&mut app, token.id, Some("lost")).await.unwrap();
    let last = last_audit(&db).await;
    assert_eq!(
        (last.0.as_str(), last.2.as_str(), last.4.as_deref()),
        ("token.revoke", facts.as_str(), Some("lost"))
    );

    assert!(disable_principal(&mut app, "alex", None).await.unwrap());
    assert_eq!(last_audit(&db).await.0, "principal.disable");
    assert!(!disable_principal(&mut app, "alex", None).await.unwrap());
    assert!(enable_principal(&mut app, "alex", None).await.unwrap());
    assert_eq!(last_audit(&db).await.0, "principal.enable");
    assert!(!enable_principal(&mut app, "alex", None).await.unwrap());

    grant(&mut app, "alex", support).await;
    let gone = Deletion { tokens: 1, grants: 1 };
    assert_eq!(delete_principal(&mut app, "alex", Mode::Plan).await.unwrap(), gone);
    assert_eq!(last_audit(&db).await.0, "grant.add", "a plan changes nothing");
    assert_eq!(delete_principal(&mut app, "alex", Mode::Apply { why: Some("left") }).await.unwrap(), gone);
    let before =
        r#"{"kind": "user", "name": "Alex", "grants": 1, "rights": ["append", "operate"], "tokens": 1}"#;
    assert_eq!(last_audit(&db).await, audit("principal.delete", before, "{}", Some("left")));
    assert!(principal(&mut app, "alex").await.unwrap().is_none());

    let rows: i64 =
        sqlx::query_scalar("SELECT count(*) FROM seqline.audit_log").fetch_one(&mut app).await.unwrap();
    assert_eq!(rows, 10, "what changed nothing is not written down");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_name() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    users(&mut app, &["alex"]).await;
    let new = |id: &str| NewPrincipal {
        id: id.to_owned(),
        kind: PrincipalKind::App,
        name: None,
        rights: Rights::default(),
    };
    assert_eq!(refused(create_principal(&mut app, &new("alex"), None).await), "principal_exists");
    for id in ["", "a\nb", "x".repeat(129).as_str()] {
        assert_eq!(refused(create_principal(&mut app, &new(id), None).await), "access_text");
    }
    create_principal(&mut app, &new(&"x".repeat(128)), None).await.unwrap();
    let named = NewPrincipal { name: Some(String::new()), ..new("sam") };
    assert_eq!(refused(create_principal(&mut app, &named, None).await), "access_text");
    let why = "y".repeat(1_001);
    assert_eq!(refused(create_principal(&mut app, &new("sam"), Some(&why)).await), "audit_why");

    assert_eq!(refused(set_rights(&mut app, "sam", Rights::default(), None).await), "principal_unknown");
    assert_eq!(refused(disable_principal(&mut app, "sam", None).await), "principal_unknown");
    assert_eq!(refused(delete_principal(&mut app, "sam", Mode::Plan).await), "principal_unknown");
    assert_eq!(refused(create_token(&mut app, "sam", None, None, None).await), "principal_unknown");
    let nothing = Some(Duration::ZERO);
    assert_eq!(refused(create_token(&mut app, "alex", None, nothing, None).await), "token_expiry");
    assert_eq!(refused(create_token(&mut app, "alex", Some(""), None, None).await), "access_text");
    assert_eq!(refused(revoke_token(&mut app, Uuid::now_v7(), None).await), "token_unknown");

    let add = async |app: &mut _, who: &str, grant: Grant| {
        refused(seqline::access::grant(app, who, &grant, None).await)
    };
    assert_eq!(add(&mut app, "sam", Grant::of("read")).await, "principal_unknown");
    assert_eq!(add(&mut app, "alex", Grant::of("any")).await, "grant_action");
    assert_eq!(add(&mut app, "alex", Grant::of("")).await, "access_text");
    assert_eq!(add(&mut app, "alex", Grant::of("read").space("")).await, "access_text");
    assert_eq!(refused(ungrant(&mut app, "sam", &Grant::of("read"), None).await), "principal_unknown");
}

#[tokio::test]
async fn a_grant_is_there_once_whatever_of_its_scope_is_not_given() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    users(&mut app, &["alex"]).await;
    let insert =
        "INSERT INTO seqline.grants (principal_id, action, channel_id) VALUES ('alex', 'read', 'web')";
    sqlx::query(insert).execute(&mut app).await.unwrap();
    let error = sqlx::query(insert).execute(&mut app).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("23505"));
    for refused in ["action = ''", "space_id = ''", "thread_id = E'a\\nb'", "action = repeat('x', 129)"] {
        let sql = sqlx::AssertSqlSafe(format!("UPDATE seqline.grants SET {refused}"));
        let error = sqlx::query(sql).execute(&mut app).await.expect_err(refused);
        assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("23514"), "{refused}");
    }
}

#[tokio::test]
async fn a_principal_has_so_many_grants_at_most() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    users(&mut app, &["alex", "sam"]).await;
    let most = "INSERT INTO seqline.grants (principal_id, action, channel_id)
        SELECT p.id, 'read', n::text FROM seqline.principals p, generate_series(1, 10000) n";
    sqlx::query(most).execute(&mut app).await.unwrap();
    let one = "INSERT INTO seqline.grants (principal_id, action) VALUES ('sam', 'read')";
    let error = sqlx::query(one).execute(&mut app).await.unwrap_err();
    let message = error.as_database_error().unwrap().message();
    assert_eq!(message, "a principal would have more than 10000 grants");
    let moved = "UPDATE seqline.grants SET principal_id = 'sam', channel_id = 'x' WHERE principal_id = 'alex' AND channel_id = '7'";
    sqlx::query(moved).execute(&mut app).await.expect_err("nor by moving one");
    sqlx::query("DELETE FROM seqline.grants WHERE channel_id = '7'").execute(&mut app).await.unwrap();
    sqlx::query(one).execute(&mut app).await.unwrap();
}

#[tokio::test]
async fn lists_go_on_where_a_page_ends() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    users(&mut app, &["sam", "alex", "robin"]).await;
    for principal in ["sam", "alex"] {
        for channel in ["a", "b"] {
            grant(&mut app, principal, Grant::of("read").channel(channel)).await;
        }
    }
    let ids = |page: Vec<seqline::access::Principal>| page.into_iter().map(|p| p.id).collect::<Vec<_>>();
    assert_eq!(ids(list_principals(&mut app, None, 2).await.unwrap()), ["alex", "robin"]);
    assert_eq!(ids(list_principals(&mut app, Some("robin"), 2).await.unwrap()), ["sam"]);
    let sam = principal(&mut app, "sam").await.unwrap().unwrap();
    assert_eq!((sam.grants, sam.tokens, sam.disabled_at), (2, 0, None));

    let page = list_grants(&mut app, None, 0, 3).await.unwrap();
    let rest = list_grants(&mut app, None, page[2].id, 3).await.unwrap();
    assert_eq!((page.len(), rest.len()), (3, 1));
    assert_eq!((rest[0].principal.as_str(), &rest[0].grant), ("alex", &Grant::of("read").channel("b")));
    assert_eq!(list_grants(&mut app, Some("sam"), 0, 9).await.unwrap().len(), 2);
}
