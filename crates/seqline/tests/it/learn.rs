//! The page on which one learns this library is run as it stands there.

use std::path::Path;

use seqline_testkit::guide::{Step, Terminal, steps};
use seqline_testkit::{Role, TestDb};

const PAGE: &str = include_str!("../../../../docs/guide/learn/rust.md");
const EXAMPLE: &str = include_str!("../../examples/learn.rs");

#[tokio::test]
async fn in_rust_a_booking_gets_its_receipt() {
    let db = TestDb::new().await;
    // The command is built by its own package, which does what is left out here.
    let terminal = Terminal::new(Path::new("/nowhere")).cargo_runs("learn");
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
    let receipts: Vec<(String, i64)> =
        sqlx::query_as("SELECT booking_id, amount FROM receipts ORDER BY booking_id")
            .fetch_all(&db.admin())
            .await
            .unwrap();
    assert_eq!(receipts, [("27".to_owned(), 1250), ("28".to_owned(), 900)]);
}
