//! Behind a pooler in transaction mode.

use seqline_testkit::{Pooler, Role, TestDb, TestServer};
use sqlx::postgres::PgPoolOptions;

use crate::support::event;

async fn go(lines: &str) {
    let server = TestServer::fast().await;
    let db = TestDb::on(&server).await;
    let pooler = Pooler::with(&server, 3, lines).await;
    let pool =
        PgPoolOptions::new().max_connections(8).connect_lazy_with(pooler.through(&db.options(Role::App)));
    let tasks: Vec<_> = (0..8)
        .map(|w| {
            let pool = pool.clone();
            tokio::spawn(async move {
                for n in 0..20 {
                    let mut tx = seqline::begin(&pool).await.map_err(|e| format!("begin {e}"))?;
                    seqline::append(&mut tx, &[event(w * 100 + n)])
                        .await
                        .map_err(|e| format!("append {e}"))?;
                    seqline::commit(tx).await.map_err(|e| format!("commit {e}"))?;
                }
                Ok::<_, String>(())
            })
        })
        .collect();
    for t in tasks {
        println!("{lines:?} {:?}", t.await.unwrap());
    }
}

#[tokio::test]
async fn probe_plain() {
    go("").await;
}
#[tokio::test]
async fn probe_reset() {
    go("server_reset_query = DEALLOCATE ALL\nserver_reset_query_always = 1").await;
}
