//! The examples of the README run, as they stand there.

#[path = "readme_example.rs"]
mod example;

use std::time::Duration;

use seqline_testkit::{Role, TestDb, eventually};
use sqlx::{AssertSqlSafe, Row};
use tokio_util::sync::CancellationToken;

const README: &str = include_str!("../../../../README.md");
const EXAMPLE: &str = include_str!("readme_example.rs");

/// The blocks of code in this language, in their order.
fn blocks(language: &str) -> Vec<&'static str> {
    let begin = format!("```{language}\n");
    README.split(&begin).skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect()
}

/// A database with the table of the examples.
async fn shop() -> TestDb {
    let db = TestDb::new().await;
    sqlx::raw_sql(AssertSqlSafe(format!(
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, paid boolean NOT NULL DEFAULT false);
         ALTER TABLE public.orders OWNER TO {0};
         INSERT INTO public.orders (id) VALUES (17), (18);
         CREATE TABLE public.invoices (order_id bigint NOT NULL, amount bigint);
         ALTER TABLE public.invoices OWNER TO {0}",
        Role::App.login()
    )))
    .execute(&db.admin())
    .await
    .expect("a superuser makes the table");
    db
}

/// Order 17 is paid, and that is what the one event says.
async fn assert_paid(db: &TestDb) {
    let event = sqlx::query(
        "SELECT seq, type, payload::text, resource_kind, resource_id, receive_action FROM seqline.event_log",
    )
    .fetch_one(&db.reader())
    .await
    .expect("there is one event");
    let texts = [1, 2, 3, 4, 5].map(|column| event.get::<String, _>(column));
    assert_eq!(texts, ["order.paid", "{\"amount\": 1250}", "order", "17", "any"]);
    assert_eq!(event.get::<i64, _>(0), 1);
    let paid: Vec<i64> = sqlx::query_scalar("SELECT id FROM public.orders WHERE paid")
        .fetch_all(&db.app())
        .await
        .expect("the application reads its table");
    assert_eq!(paid, [17]);
}

#[tokio::test]
async fn the_sql_of_the_readme_pays_an_order_and_says_so_in_the_log() {
    let db = shop().await;
    sqlx::raw_sql(blocks("sql")[0])
        .execute(&mut db.connect(Role::App).await)
        .await
        .expect("the example runs");
    assert_paid(&db).await;
}

#[tokio::test]
async fn the_rust_of_the_readme_pays_an_order_and_says_so_in_the_log() {
    let db = shop().await;
    assert_shown(0);
    example::run(&db.app(), 17).await.expect("the example runs");
    assert_paid(&db).await;
}

/// The example that runs here is the one that is shown.
fn assert_shown(rust_block: usize) {
    let shown = format!("\n\n{}", blocks("rust")[rust_block]);
    assert!(EXAMPLE.contains(&shown), "the README shows something else");
}

/// The invoices, after one order was paid.
async fn invoices(db: &TestDb) -> Vec<(i64, Option<i64>)> {
    sqlx::query_as("SELECT order_id, amount FROM invoices ORDER BY order_id")
        .fetch_all(&db.app())
        .await
        .expect("the application reads its table")
}

#[tokio::test]
async fn the_sql_of_the_readme_makes_one_invoice_however_often_it_runs() {
    let db = shop().await;
    example::run(&db.app(), 17).await.expect("the order is paid");
    for _ in 0..2 {
        sqlx::raw_sql(blocks("sql")[1])
            .execute(&mut db.connect(Role::App).await)
            .await
            .expect("the example runs");
    }
    assert_eq!(invoices(&db).await, [(17, Some(1250))]);
}

#[tokio::test]
async fn the_worker_of_the_readme_makes_one_invoice() {
    let db = shop().await;
    assert_shown(1);
    example::run(&db.app(), 17).await.expect("the order is paid");
    for order in [17, 18] {
        let stop = CancellationToken::new();
        let worker = tokio::spawn(example::run_worker(db.app(), db.options(Role::App), stop.clone()));
        eventually(Duration::from_secs(30), "the invoice", async || {
            invoices(&db).await.iter().any(|(invoiced, _)| *invoiced == order)
        })
        .await;
        stop.cancel();
        worker.await.expect("the worker does not panic").expect("the worker ends well");
        if order == 17 {
            example::run(&db.app(), 18).await.expect("the next order is paid");
        }
    }
    assert_eq!(invoices(&db).await, [(17, None), (18, None)]);
}

#[tokio::test]
async fn the_jobs_of_the_readme_are_in_the_queue() {
    let db = shop().await;
    assert_shown(2);
    crate::jobs::bring_up(&db, "public", None).await;
    example::run(&db.app(), 17).await.expect("the order is paid");
    assert_eq!(example::run_invoicing(db.app(), db.options(Role::App)).await, Ok(1));
    let jobs: Vec<(String, String, String)> =
        sqlx::query_as("SELECT kind, queue, args::text FROM public.river_job")
            .fetch_all(&db.app())
            .await
            .expect("the jobs can be read");
    let job = ["invoice.send", "mail", r#"{"order_id": "17"}"#].map(str::to_owned);
    assert_eq!(jobs, [job.into()]);
}
