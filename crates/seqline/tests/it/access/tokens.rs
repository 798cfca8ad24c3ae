//! Tokens: what the owner of one may do, and who has none.

use std::time::Duration;

use seqline::access::{
    Grant, NewPrincipal, PrincipalKind, Rights, Token, create_principal, create_token, disable_principal,
    enable_principal, list_tokens, of_principal, of_token, revoke_token, set_rights,
};
use seqline_testkit::{Role, TestDb};

use super::{grant, users, version};

#[tokio::test]
async fn a_token_stands_for_its_principal() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    let rights = Rights { append: true, operate: false };
    let agent = NewPrincipal {
        id: "helper".to_owned(),
        kind: PrincipalKind::Agent,
        name: Some("Helper".to_owned()),
        rights,
    };
    create_principal(&mut app, &agent, None).await.unwrap();
    grant(&mut app, "helper", Grant::of("message.read").space("shop-1")).await;
    grant(&mut app, "helper", Grant::of("order.read").channel("web").thread("9")).await;
    let new = create_token(&mut app, "helper", Some("laptop"), None, None).await.unwrap();
    assert_eq!(new.expires_at, None);

    let access = of_token(&mut app, &new.token.hash()).await.unwrap().expect("the token is good");
    assert_eq!(
        (access.principal.as_str(), access.kind, access.rights),
        ("helper", PrincipalKind::Agent, rights)
    );
    assert_eq!((access.viewer.principal(), access.viewer.grants(), access.expires_at), ("helper", 2, None));
    assert_eq!(access.permission_version, version(&db).await);
    let by_id = of_principal(&mut app, "helper").await.unwrap().unwrap();
    assert_eq!((by_id.rights, by_id.viewer.grants()), (rights, 2));
    set_rights(&mut app, "helper", Rights { append: false, operate: true }, None).await.unwrap();
    let access = of_token(&mut app, &new.token.hash()).await.unwrap().unwrap();
    assert_eq!(access.rights.names(), ["operate"]);
}

#[tokio::test]
async fn nothing_of_a_token_is_stored_but_its_hash_and_its_beginning() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    users(&mut app, &["alex"]).await;
    let new = create_token(&mut app, "alex", Some("laptop"), None, Some("asked for it")).await.unwrap();
    let secret = &new.token.reveal()[10..];
    let rows: Vec<String> = sqlx::query_scalar(
        "SELECT t::text FROM seqline.api_tokens t UNION ALL SELECT a::text FROM seqline.audit_log a",
    )
    .fetch_all(&mut app)
    .await
    .unwrap();
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| !row.contains(secret)), "{rows:?}");
    let [row] = &list_tokens(&mut app, Some("alex"), None, 10).await.unwrap()[..] else { panic!() };
    assert_eq!((row.id, row.hint.as_str()), (new.id, &new.token.reveal()[..9]));
    assert_eq!((row.label.as_deref(), row.expired, row.revoked_at), (Some("laptop"), false, None));
    assert!(!format!("{new:?} {row:?}").contains(secret));
}

#[tokio::test]
async fn a_token_that_is_not_good_is_nobodys() {
    let db = TestDb::new().await;
    let mut app = db.connect(Role::App).await;
    users(&mut app, &["alex", "sam"]).await;
    assert!(of_token(&mut app, &Token::generate().hash()).await.unwrap().is_none(), "nobody knows it");

    let revoked = create_token(&mut app, "alex", None, None, None).await.unwrap();
    assert!(revoke_token(&mut app, revoked.id, None).await.unwrap());
    assert!(!revoke_token(&mut app, revoked.id, None).await.unwrap(), "it was already");
    assert!(of_token(&mut app, &revoked.token.hash()).await.unwrap().is_none());

    let hour = Some(Duration::from_secs(3_600));
    let expiring = create_token(&mut app, "alex", None, hour, None).await.unwrap();
    let access = of_token(&mut app, &expiring.token.hash()).await.unwrap().expect("it is good for an hour");
    assert_eq!(access.expires_at, expiring.expires_at);
    assert!(access.expires_at.is_some());
    sqlx::query("UPDATE seqline.api_tokens SET expires_at = now() WHERE id = $1")
        .bind(expiring.id)
        .execute(&mut app)
        .await
        .unwrap();
    assert!(of_token(&mut app, &expiring.token.hash()).await.unwrap().is_none(), "its time is over");
    let listed = list_tokens(&mut app, None, None, 10).await.unwrap();
    assert_eq!(listed.iter().map(|row| row.expired).collect::<Vec<_>>(), [false, true]);

    let good = create_token(&mut app, "sam", None, None, None).await.unwrap();
    disable_principal(&mut app, "sam", None).await.unwrap();
    assert!(of_token(&mut app, &good.token.hash()).await.unwrap().is_none(), "its principal is disabled");
    assert!(of_principal(&mut app, "sam").await.unwrap().is_none());
    enable_principal(&mut app, "sam", None).await.unwrap();
    assert!(of_token(&mut app, &good.token.hash()).await.unwrap().is_some());
    assert!(of_principal(&mut app, "robin").await.unwrap().is_none());
}

#[tokio::test]
async fn only_the_server_can_read_and_write_them() {
    let db = TestDb::new().await;
    for role in [Role::Producer, Role::Reader, Role::Consumer, Role::Nobody] {
        let mut connection = db.connect(role).await;
        for sql in [
            "SELECT FROM seqline.principals",
            "SELECT FROM seqline.api_tokens",
            "SELECT FROM seqline.grants",
            "INSERT INTO seqline.grants (principal_id, action) VALUES ('alex', 'read')",
            "SELECT seqline.add_grant('alex', 'read', NULL, NULL, NULL, NULL)",
            "SELECT seqline.visible_to('alex', NULL, 'any', NULL, NULL, NULL)",
        ] {
            let error = sqlx::raw_sql(sql).execute(&mut connection).await.expect_err(sql);
            assert_eq!(
                error.as_database_error().unwrap().code().as_deref(),
                Some("42501"),
                "{role:?}: {sql}"
            );
        }
    }
}
