//! Roles that may not do everything themselves.

use sqlx::postgres::PgConnectOptions;

use super::*;

const PASSWORD: &str = "test";

/// A login of its own on a fresh server, which has none of the roles yet.
async fn login(db: &TestDb, name: &str, attributes: &str) -> PgConnectOptions {
    let sql = format!("CREATE ROLE \"{name}\" LOGIN PASSWORD '{PASSWORD}' {attributes}");
    run(&mut db.connect(Role::Admin).await, &sql).await;
    db.options(Role::Admin).username(name).password(PASSWORD)
}

async fn connect(options: &PgConnectOptions) -> PgConnection {
    PgConnection::connect_with(options).await.unwrap()
}

/// The SQL that a role without rights is given.
async fn requested_sql(options: &PgConnectOptions) -> String {
    let mut connection = connect(options).await;
    let before = catalog(&mut connection).await;
    let error = migrate(&mut connection).await.unwrap_err();
    let MigrateError::Privileges { sql, .. } = error else { panic!("{error:?}") };
    assert_eq!(catalog(&mut connection).await, before);
    sql
}

async fn works_for(db: &TestDb, options: &PgConnectOptions) {
    let mut connection = connect(options).await;
    let migrated = migrate(&mut connection).await.unwrap();
    assert_eq!(migrated, Migrated { from: 0, to: newest_version(), partitions_created: 2 });
    assert_eq!(migrate(&mut connection).await.unwrap(), current());
    let owner: String = sqlx::query_scalar(
        "SELECT relowner::regrole::text FROM pg_class WHERE oid = 'seqline.event_log'::regclass",
    )
    .fetch_one(&db.admin())
    .await
    .unwrap();
    assert_eq!(owner, "seqline_owner");
}

#[tokio::test]
async fn a_role_without_rights_is_given_the_sql_that_makes_the_migration_possible() {
    let server = TestServer::fast().await;
    let db = TestDb::empty_on(&server).await;
    let options = login(&db, "An odd \"\"name", "").await.username("An odd \"name");
    let sql = requested_sql(&options).await;
    run(&mut db.connect(Role::Admin).await, &sql).await;
    works_for(&db, &options).await;
}

#[tokio::test]
async fn a_role_that_does_not_inherit_is_given_the_sql_that_makes_the_migration_possible() {
    let server = TestServer::fast().await;
    let db = TestDb::empty_on(&server).await;
    let options = login(&db, "migrator", "NOINHERIT").await;
    let sql = requested_sql(&options).await;
    run(&mut db.connect(Role::Admin).await, &sql).await;
    works_for(&db, &options).await;
}

#[tokio::test]
async fn a_role_without_rights_is_told_so_also_where_the_roles_exist() {
    let db = TestDb::empty().await;
    migrate(&mut TestDb::empty().await.connect(Role::Admin).await).await.unwrap();
    let error = migrate(&mut db.connect(Role::Nobody).await).await.unwrap_err();
    assert!(
        matches!(&error, MigrateError::Privileges { user, .. } if user == Role::Nobody.login()),
        "{error:?}"
    );
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn a_role_that_may_create_roles_and_schemas_needs_nobody_else() {
    let server = TestServer::fast().await;
    let db = TestDb::empty_on(&server).await;
    let options = login(&db, "migrator", "CREATEROLE").await;
    run(&mut db.connect(Role::Admin).await, &format!("GRANT CREATE ON DATABASE {} TO migrator", db.name()))
        .await;
    works_for(&db, &options).await;
}

#[tokio::test]
async fn a_role_that_may_create_roles_migrates_a_second_database() {
    let server = TestServer::fast().await;
    let db = TestDb::empty_on(&server).await;
    let options = login(&db, "migrator", "CREATEROLE").await;
    for db in [db, TestDb::empty_on(&server).await] {
        run(
            &mut db.connect(Role::Admin).await,
            &format!("GRANT CREATE ON DATABASE {} TO migrator", db.name()),
        )
        .await;
        works_for(&db, &options.clone().database(db.name())).await;
    }
}

#[tokio::test]
async fn a_role_that_owns_the_database_is_not_enough_and_is_told_so() {
    let server = TestServer::fast().await;
    let db = TestDb::empty_on(&server).await;
    let options = login(&db, "migrator", "").await;
    run(&mut db.connect(Role::Admin).await, &format!("ALTER DATABASE {} OWNER TO migrator", db.name())).await;
    let sql = requested_sql(&options).await;
    assert!(sql.contains("CREATE ROLE"), "{sql}");
}
