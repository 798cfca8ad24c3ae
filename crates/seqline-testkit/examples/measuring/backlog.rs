//! A log that is written before it is measured.

use seqline_testkit::{Role, TestDb};

use crate::event::event;

/// Appends so many events, 1,000 in a transaction.
pub(crate) async fn fill(db: &TestDb, events: usize) -> anyhow::Result<()> {
    let pool = db.app_pool(1);
    let batch = vec![event()?; 1_000];
    for _ in 0..events / batch.len() {
        let mut tx = seqline::begin(&pool).await?;
        seqline::append(&mut tx, &batch).await?;
        seqline::commit(tx).await?;
    }
    let mut admin = db.connect(Role::Admin).await;
    sqlx::raw_sql("VACUUM ANALYZE").execute(&mut admin).await?;
    sqlx::raw_sql("CHECKPOINT").execute(&mut admin).await?;
    Ok(())
}
