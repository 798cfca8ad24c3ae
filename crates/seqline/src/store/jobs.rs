//! Statements of the application that jobs are handed to.

use serde::Serialize;
use sqlx::types::Json;
use sqlx::{
    AssertSqlSafe, Connection, Either, Executor, PgConnection, Postgres, SqlSafeStr, Statement, Type,
};

pub(crate) async fn hand_over<T: Serialize + Sync>(
    connection: &mut PgConnection,
    statement: &str,
    jobs: &[T],
) -> Result<(), sqlx::Error> {
    sqlx::query(AssertSqlSafe(statement)).bind(Json(jobs)).execute(connection).await.map(drop)
}

/// Whether the statement could be run, and how many parameters it takes then.
pub(crate) async fn prepare(connection: &mut PgConnection, statement: &str) -> Result<usize, sqlx::Error> {
    // The driver does not ask again about one that it knows, and a function can go.
    connection.clear_cached_statements().await?;
    let parameters = [<Json<()> as Type<Postgres>>::type_info()];
    let prepared = connection.prepare_with(AssertSqlSafe(statement).into_sql_str(), &parameters).await?;
    Ok(match prepared.parameters() {
        Some(Either::Left(types)) => types.len(),
        Some(Either::Right(count)) => count,
        None => 0,
    })
}
