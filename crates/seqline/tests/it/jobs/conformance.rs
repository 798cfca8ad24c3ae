//! The rows are those that River's own client writes, and it works them.

use riverqueue::InsertOpts;
use seqline::job::{JobArgs, JobSink, NewJob, River};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

use super::{SCHEMA, client, database};

#[derive(riverqueue::JobArgs, Serialize, Deserialize)]
#[river(kind = "invoice.send")]
struct SendInvoice {
    order_id: String,
    seq: i64,
}

/// Everything of a row but when and as what it was inserted.
async fn rows(pool: &PgPool) -> Vec<serde_json::Value> {
    sqlx::query_scalar(
        "SELECT to_jsonb(j) - 'id' - 'created_at' - 'scheduled_at'
             || jsonb_build_object('waits', scheduled_at - created_at, 'args_text', args::text)
         FROM queue.river_job j ORDER BY id",
    )
    .fetch_all(pool)
    .await
    .expect("the jobs can be read")
}

#[tokio::test]
async fn a_row_is_the_one_that_the_client_writes() {
    let db = database().await;
    let pool = db.app();
    let client = client(pool.clone()).build().expect("the client is built");
    let args = SendInvoice { order_id: "a<4711>".to_owned(), seq: 17 };
    client.insert(args).opts(InsertOpts::default().with_queue("mail")).await.expect("the client inserts");

    let args = JobArgs::new().with("order_id", "a<4711>").with("seq", 17);
    let job = NewJob { queue: "mail".to_owned(), ..NewJob::new("invoice.send", args) };
    let mut tx = seqline::begin(&pool).await.expect("a transaction begins");
    let job = job.check().expect("the job is valid");
    let inserted = River::in_schema(SCHEMA).insert(&mut tx, &[job]).await.expect("the sink inserts");
    tx.commit().await.expect("the transaction commits");
    assert_eq!(inserted.inserted, 1);

    let rows = rows(&pool).await;
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0], rows[1]);
}
