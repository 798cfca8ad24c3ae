//! The page on which one learns this library is run as it stands there.

use std::path::Path;

use seqline_testkit::guide::{Step, Terminal, steps};
use seqline_testkit::{Role, TestDb};

use crate::poll::examples::programs::built;

const PAGE: &str = include_str!("../../../../docs/guide/learn/rust.md");
const EXAMPLE: &str = include_str!("../../examples/learn.rs");

#[tokio::test]
async fn in_rust_an_order_gets_its_invoice() {
    let db = TestDb::new().await;
    // Cargo would build what it has built already; the command is built by its own package.
    let example = built("learn");
    let script =
        format!("while [ \"$1\" != -- ]; do shift; done; shift; exec '{}' \"$@\"", example.display());
    let terminal = Terminal::new(Path::new("/nowhere")).program("cargo", &script);
    let mut terminal = terminal.set("SEQLINE_DATABASE_URL", db.url(Role::Admin));
    let mut commands = 0;
    for step in steps(PAGE) {
        match &step {
            Step::File { content, .. } => assert_eq!(content, EXAMPLE, "the page shows something else"),
            Step::Command { line, .. } if line.starts_with("seqline ") => {}
            Step::Command { .. } => {
                commands += 1;
                terminal.does(&step).await;
            }
        }
    }
    assert_eq!(commands, 4);
    let invoices: Vec<(String, i64)> =
        sqlx::query_as("SELECT order_id, amount FROM invoices ORDER BY order_id")
            .fetch_all(&db.admin())
            .await
            .unwrap();
    assert_eq!(invoices, [("17".to_owned(), 1250), ("18".to_owned(), 900)]);
}
