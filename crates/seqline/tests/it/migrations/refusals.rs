//! Databases that are not ours to migrate.

use std::fs::File;

use seqline::embedded::Durability;

use super::*;

/// What a run says, having changed nothing.
async fn refusal(connection: &mut PgConnection) -> MigrateError {
    let before = catalog(connection).await;
    let error = migrate(connection).await.expect_err("it is refused");
    assert_eq!(catalog(connection).await, before);
    error
}

#[tokio::test]
async fn a_schema_that_is_newer_than_the_program_is_refused() {
    let db = TestDb::new().await;
    let mut admin = db.connect(Role::Admin).await;
    run(
        &mut admin,
        "INSERT INTO seqline.schema_version (version, name, checksum) VALUES (1000, 'later', 'x')",
    )
    .await;
    let error = refusal(&mut admin).await;
    assert!(
        matches!(error, MigrateError::SchemaNewer { found: 1000, known } if known == newest_version()),
        "{error:?}"
    );
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn a_migration_other_than_the_one_that_was_applied_is_refused() {
    let db = TestDb::new().await;
    let mut admin = db.connect(Role::Admin).await;
    run(&mut admin, "UPDATE seqline.schema_version SET checksum = repeat('0', 64) WHERE version = 3").await;
    let error = refusal(&mut admin).await;
    assert!(matches!(error, MigrateError::Edited { version: 3 }), "{error:?}");
}

#[tokio::test]
async fn a_version_that_is_missing_from_the_middle_is_refused() {
    let db = TestDb::new().await;
    let mut admin = db.connect(Role::Admin).await;
    run(&mut admin, "DELETE FROM seqline.schema_version WHERE version = 3").await;
    refusal(&mut admin).await;
}

#[tokio::test]
async fn a_schema_of_somebody_else_is_refused() {
    let db = TestDb::empty().await;
    let mut admin = db.connect(Role::Admin).await;
    run(&mut admin, "CREATE SCHEMA seqline; CREATE TABLE seqline.theirs (id int)").await;
    let error = refusal(&mut admin).await;
    assert!(matches!(error, MigrateError::ForeignSchema), "{error:?}");
}

#[tokio::test]
async fn a_database_that_cannot_hold_every_string_is_refused() {
    let server = TestServer::shared().await;
    let mut postgres = PgConnection::connect_with(&server.admin_options()).await.unwrap();
    let name = format!("ascii_{}", uuid::Uuid::new_v4().simple());
    run(&mut postgres, &format!("CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"))
        .await;
    let mut admin = PgConnection::connect_with(&server.admin_options().database(&name)).await.unwrap();
    let error = refusal(&mut admin).await;
    admin.close().await.unwrap();
    run(&mut postgres, &format!("DROP DATABASE {name}")).await;
    assert!(
        matches!(&error, MigrateError::Encoding { found, database } if found == "SQL_ASCII" && *database == name),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_standby_is_refused() {
    let mut server = TestServer::with(Durability::Durable, &[]).await;
    let db = TestDb::empty_on(&server).await;
    server.stop().await;
    File::create(server.postgres().data_dir().join("pgdata/standby.signal")).unwrap();
    server.start_again().await;
    let error = refusal(&mut db.connect(Role::Admin).await).await;
    assert!(matches!(error, MigrateError::Standby), "{error:?}");
}
