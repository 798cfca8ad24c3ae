//! The API does what its description says, whatever is sent: a program reads the description, sends what it allows and what it does
//! not, and looks at each answer. There is no server error, and no answer that is not described.

use std::process::Stdio;

use seqline::access::Rights;
use seqline_testkit::{Role, TestDb};
use tokio::process::Command;
use uuid::Uuid;

use super::{Client, token};
use crate::parked::has_parked;
use crate::support::{append, as_admin, run_sql};
use crate::worker::{Worker, server};

/// How long it sends requests, in seconds: for a few thousand of them.
const SECONDS: &str = "60";

/// The same for those who are refused: for some hundreds.
const SECONDS_REFUSED: &str = "10";

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

/// Sends what the description says, and what it does not, for so many seconds as somebody or as nobody.
async fn sent_to(server: &Worker, token: Option<&str>, seconds: &str) {
    let Some(program) = std::env::var_os("SEQLINE_SCHEMATHESIS") else {
        eprintln!("left out: SEQLINE_SCHEMATHESIS does not name the program `schemathesis`");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command
        .args(["run", &format!("http://{}/v1/openapi.json", server.api().await)])
        .args(token.map(|token| format!("--header=Authorization: Bearer {token}")))
        .args(["--checks", &CHECKS.join(",")])
        // It never ends by itself.
        .args(["--exclude-path", "/v1/events/stream"])
        // One worker: reading source in two threads at once fails in some versions of Python.
        .args(["--max-time", seconds, "--seed", SEED, "--workers", "1", "--continue-on-failure"])
        .args(["--suppress-health-check", "all", "--generation-database", "none", "--warnings", "off"])
        .args(["--request-timeout", "30", "--no-color"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = command.output().await.expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{talk}\n{:#?}", server.log());
}

#[tokio::test]
async fn whatever_is_sent_is_answered_as_described() {
    let db = filled().await;
    // Nobody is told to come again later, and nobody waits for long.
    let server = Worker::start(
        server(&db, "api")
            .env("SEQLINE_API__REQUESTS_PER_SECOND", "1000000")
            .env("SEQLINE_API__REQUESTS_BURST", "1000000")
            .env("SEQLINE_API__WAIT_MAX", "1s"),
    )
    .await;
    let token = token(&db, "Sam", Rights { append: true, operate: true }).await;
    sent_to(&server, Some(&token), SECONDS).await;
    server.stop().await;
}

/// As nobody, as somebody without any right, and more often than is allowed.
#[tokio::test]
async fn refusals_are_answered_as_described() {
    let db = filled().await;
    let server = Worker::start(
        server(&db, "api")
            .env("SEQLINE_API__REQUESTS_PER_SECOND", "50")
            .env("SEQLINE_API__REQUESTS_BURST", "200")
            .env("SEQLINE_API__WAIT_MAX", "1s"),
    )
    .await;
    let token = token(&db, "Robin", Rights { append: false, operate: false }).await;
    sent_to(&server, None, SECONDS_REFUSED).await;
    sent_to(&server, Some(&token), SECONDS_REFUSED).await;
    server.stop().await;
}

/// Says no more of a status than that it comes: what is described and does not come misleads whoever writes a client.
#[tokio::test]
async fn refusals_are_described_where_they_come_and_nowhere_else() {
    let db = filled().await;
    let server = Worker::start(server(&db, "api")).await;
    let address = server.api().await;
    let nobody = Client::new(&address);
    let robin = nobody.clone().token(&token(&db, "Robin", Rights { append: false, operate: false }).await);
    let document = nobody.get("/v1/openapi.json").await.ok(200);
    let mut forbidden = 0;
    for (template, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap();
            for (status, response) in responses {
                let headers = &response["headers"];
                assert!(headers["x-request-id"].is_object(), "{method} {template} {status}");
                assert_eq!(headers["WWW-Authenticate"].is_object(), status == "401", "{template} {status}");
                let is_told_when = ["409", "429", "503"].contains(&status.as_str());
                assert_eq!(headers["Retry-After"].is_object(), is_told_when, "{template} {status}");
            }
            // Something that is there.
            let path = template.replace("{name}", "mine").replace("{consumer}", "mine");
            let path = path
                .replace("{agent}", "Robin")
                .replace("{seq}", "1")
                .replace("{id}", "1")
                .replace("{kind}", "test");
            if path == "/v1/events/stream" {
                continue;
            }
            let method: hyper::Method = method.to_uppercase().parse().unwrap();
            let body = (method == hyper::Method::POST).then(|| "{}".to_owned());
            let told = robin.ask(method.clone(), &path, body.clone()).await;
            assert_eq!(responses.contains_key("403"), told.status == 403, "{method} {path}: {told:?}");
            forbidden += u32::from(told.status == 403);
            let told = nobody.ask(method.clone(), &path, body).await;
            assert_eq!(responses.contains_key("401"), told.status == 401, "{method} {path}: {told:?}");
        }
    }
    assert_eq!(forbidden, 27);
    server.stop().await;
}

/// A stream never ends by itself, so it is left out above; one that is refused does.
#[tokio::test]
async fn refused_streams_are_answered_as_described() {
    let db = filled().await;
    let server = Worker::start(server(&db, "api")).await;
    let token = token(&db, "Robin", Rights { append: false, operate: false }).await;
    let client = Client::new(server.api().await).token(&token);
    let document = client.get("/v1/openapi.json").await.ok(200);
    let problem = &document["components"]["schemas"]["Problem"];
    let other = format!("after={}:1", Uuid::now_v7());
    for (query, status, code) in [
        ("after=x", 422, "validation_failed"),
        (&other[..], 410, "resync_required"),
        ("", 422, "validation_failed"),
    ] {
        let told = client.get(&format!("/v1/events/stream?{query}")).await.problem(status, code);
        let described = &document["paths"]["/v1/events/stream"]["get"]["responses"][status.to_string()];
        let schema = &described["content"]["application/problem+json"]["schema"];
        assert_eq!(schema["$ref"], "#/components/schemas/Problem");
        for member in told.as_object().unwrap().keys() {
            assert!(problem["properties"][member].is_object(), "{member} is not described: {told}");
        }
        for member in problem["required"].as_array().unwrap() {
            assert!(!told[member.as_str().unwrap()].is_null(), "{member} is not there: {told}");
        }
    }
    server.stop().await;
}

/// It is no text, so nothing can be at such a path.
#[tokio::test]
async fn a_part_of_a_path_that_is_no_text_is_refused_like_all_else() {
    let db = filled().await;
    let server = Worker::start(server(&db, "api")).await;
    let token = token(&db, "Sam", Rights { append: true, operate: true }).await;
    let client = Client::new(server.api().await).token(&token);
    let document = client.get("/v1/openapi.json").await.ok(200);
    let mut asked = 0;
    for (template, item) in document["paths"].as_object().unwrap() {
        let parts: Vec<&str> =
            template.split('/').map(|part| if part.starts_with('{') { "%FF" } else { part }).collect();
        let path = parts.join("/");
        if path == *template {
            continue;
        }
        for method in item.as_object().unwrap().keys() {
            let method: hyper::Method = method.to_uppercase().parse().unwrap();
            let body = (method == hyper::Method::POST).then(|| "{}".to_owned());
            client.ask(method, &path, body).await.problem(404, "not_found");
            asked += 1;
        }
    }
    assert!(asked > 10, "{asked}");
    client.get("/v1/docs/%FF").await.problem(404, "not_found");
    server.stop().await;
}
