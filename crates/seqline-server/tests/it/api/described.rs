//! The API does what its description says, whatever is sent: a program reads the description, sends what it allows and what it does
//! not, and looks at each answer. There is no server error, and no answer that is not described.

use std::process::Stdio;

use seqline::access::{NewPrincipal, PrincipalKind, Rights, create_principal, create_token};
use seqline_testkit::{Role, TestDb};
use tokio::process::Command;

use crate::parked::has_parked;
use crate::support::{append, as_admin, run_sql};
use crate::worker::{Worker, server};

/// How long it sends requests, in seconds: for a few thousand of them.
const SECONDS: &str = "60";

/// With whose random numbers it begins: another run sends the same.
const SEED: &str = "1";

const CHECKS: [&str; 5] = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
];

/// A log with something of everything that can be asked for.
async fn filled() -> TestDb {
    let db = has_parked().await;
    append(&db.producer(), 1..=20).await;
    let mut session = db.connect(Role::Consumer).await;
    run_sql(&mut session, "SELECT seqline.register_consumer('mine', 'oldest')").await;
    run_sql(&mut session, "SELECT seqline.poll('mine', 3)").await;
    as_admin(
        &db,
        "INSERT INTO seqline_jobs.river_job (id, state, kind, queue, attempt, max_attempts, args, finalized_at, attempted_by, errors)
         VALUES (1, 'discarded', 'a.job', 'default', 1, 1, '{\"id\": 17}', now(), '{one}',
                 ARRAY['{\"at\": \"2026-01-01T11:00:01Z\", \"attempt\": 1, \"error\": \"no answer\", \"trace\": \"\"}']::jsonb[])",
    )
    .await;
    db
}

#[tokio::test]
async fn whatever_is_sent_is_answered_as_described() {
    let Some(program) = std::env::var_os("SEQLINE_SCHEMATHESIS") else {
        eprintln!("left out: SEQLINE_SCHEMATHESIS does not name the program `schemathesis`");
        return;
    };
    let db = filled().await;
    // Nobody is told to come again later, and nobody waits for long.
    let server = Worker::start(
        server(&db, "api")
            .env("SEQLINE_API__REQUESTS_PER_SECOND", "1000000")
            .env("SEQLINE_API__REQUESTS_BURST", "1000000")
            .env("SEQLINE_API__WAIT_MAX", "1s"),
    )
    .await;
    let mut connection = db.connect(Role::App).await;
    let rights = Rights { append: true, operate: true };
    let sam = NewPrincipal { id: "Sam".to_owned(), kind: PrincipalKind::User, name: None, rights };
    create_principal(&mut connection, &sam, None).await.unwrap();
    let token = create_token(&mut connection, "Sam", None, None, None).await.unwrap().token;

    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command
        .args(["run", &format!("http://{}/v1/openapi.json", server.api().await)])
        .args(["--header", &format!("Authorization: Bearer {}", token.reveal())])
        .args(["--checks", &CHECKS.join(",")])
        // It never ends by itself.
        .args(["--exclude-path", "/v1/events/stream"])
        .args(["--max-time", SECONDS, "--seed", SEED, "--workers", "2", "--continue-on-failure"])
        .args(["--suppress-health-check", "all", "--generation-database", "none", "--warnings", "off"])
        .args(["--request-timeout", "30", "--no-color"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = command.output().await.expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{talk}\n{:#?}", server.log());
    server.stop().await;
}
