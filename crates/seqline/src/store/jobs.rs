//! Statements of the application that jobs are handed to.

use serde::Serialize;
use sqlx::postgres::PgStatement;
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

/// Whether the statement could be run, and how many parameters it takes then. Not in a transaction: it can fail on the way.
pub(crate) async fn prepare(connection: &mut PgConnection, statement: &str) -> Result<usize, sqlx::Error> {
    // The driver does not ask again about one that it knows, and a function can go.
    connection.clear_cached_statements().await?;
    let sql = || AssertSqlSafe(statement).into_sql_str();
    let prepared = connection.prepare_with(sql(), &[<Json<()> as Type<Postgres>>::type_info()]).await?;
    let given = parameters(&prepared);
    connection.clear_cached_statements().await?;
    // A parameter whose type is given is counted also when it is not used. Without its type it can be that none is found.
    Ok(connection.prepare_with(sql(), &[]).await.map_or(given, |prepared| parameters(&prepared)))
}

fn parameters(prepared: &PgStatement) -> usize {
    match prepared.parameters() {
        Some(Either::Left(types)) => types.len(),
        Some(Either::Right(count)) => count,
        None => 0,
    }
}
