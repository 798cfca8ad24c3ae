//! Setting up the embedded server for its user.

use sqlx::{AssertSqlSafe, PgConnection};

/// The ordinary role that applications use on an embedded server, and its database.
pub(crate) const USER: &str = "app";

pub(crate) async fn database_exists(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = 'app')")
        .fetch_one(connection)
        .await
}

/// Creates the role or gives it this password. Only letters and digits may be in it.
pub(crate) async fn set_user(connection: &mut PgConnection, password: &str) -> Result<(), sqlx::Error> {
    assert!(
        password.chars().all(|c| c.is_ascii_alphanumeric()),
        "the password is made of letters and digits"
    );
    // A role's password cannot be a bind parameter.
    let statement = format!(
        "DO $$ BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'app') THEN CREATE ROLE app LOGIN; END IF;
            ALTER ROLE app PASSWORD '{password}';
         END $$"
    );
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await.map(drop)
}

pub(crate) async fn create_database(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("CREATE DATABASE app OWNER app").execute(connection).await.map(drop)
}

/// After the migration, which makes the roles.
pub(crate) async fn grant_roles(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("GRANT seqline_app, seqline_producer, seqline_reader, seqline_consumer TO app")
        .execute(connection)
        .await
        .map(drop)
}
