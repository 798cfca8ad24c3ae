//! The examples of the README run, as they stand there.

#[path = "readme_example.rs"]
mod example;

use seqline_testkit::{Role, TestDb};
use sqlx::{AssertSqlSafe, Row};

const README: &str = include_str!("../../../../README.md");
const EXAMPLE: &str = include_str!("readme_example.rs");

/// The first block of code in this language.
fn block(language: &str) -> &'static str {
    let (_, rest) = README.split_once(&format!("```{language}\n")).expect("the README has such a block");
    rest.split_once("```").expect("the block ends").0
}

/// A database with the table of the examples.
async fn shop() -> TestDb {
    let db = TestDb::new().await;
    sqlx::raw_sql(AssertSqlSafe(format!(
        "CREATE TABLE public.orders (id bigint PRIMARY KEY, paid boolean NOT NULL DEFAULT false);
         ALTER TABLE public.orders OWNER TO {};
         INSERT INTO public.orders (id) VALUES (17), (18)",
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
    sqlx::raw_sql(block("sql")).execute(&mut db.connect(Role::App).await).await.expect("the example runs");
    assert_paid(&db).await;
}

#[tokio::test]
async fn the_rust_of_the_readme_pays_an_order_and_says_so_in_the_log() {
    let db = shop().await;
    assert!(EXAMPLE.contains(&format!("\n\n{}", block("rust"))), "the README shows another function");
    example::run(&db.app(), 17).await.expect("the example runs");
    assert_paid(&db).await;
}
