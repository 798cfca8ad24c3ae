//! Statements of the application that jobs are handed to.

use serde::Serialize;
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, Executor, PgConnection, Postgres, SqlSafeStr, Type};

pub(crate) async fn hand_over<T: Serialize + Sync>(
    connection: &mut PgConnection,
    statement: &str,
    jobs: &[T],
) -> Result<(), sqlx::Error> {
    sqlx::query(AssertSqlSafe(statement)).bind(Json(jobs)).execute(connection).await.map(drop)
}

/// Whether the statement could be run.
pub(crate) async fn prepare(connection: &mut PgConnection, statement: &str) -> Result<(), sqlx::Error> {
    let parameters = [<Json<()> as Type<Postgres>>::type_info()];
    let statement = AssertSqlSafe(statement).into_sql_str();
    connection.prepare_with(statement, &parameters).await.map(drop)
}
