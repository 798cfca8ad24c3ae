//! On a PostgreSQL server of its own.

use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seqline_testkit::eventually;
use serde_json::json;

use super::{Place, assert_no_server, has_ended};
use crate::api::{Client, event};
use crate::support::{DEADLINE, let_measure, seqline};

#[tokio::test]
async fn it_is_used_through_the_ready_file_and_leaves_nothing_but_the_data() {
    let place = Place::new();
    let up = place.start(place.up()).await;
    assert_eq!(up.ready["pid"], up.running.pid());
    let mode = place.ready_file().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(up.append().await, 1);
    assert_eq!(up.append().await, 2);

    let (password, url) = (up.password(), up.url().to_owned());
    let outcome = up.stop().await;
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(0), ""), "{outcome:?}");
    assert!(!outcome.stderr.contains(&password), "the password is on the terminal: {outcome:?}");
    assert!(outcome.stderr.contains("Ready. In another terminal:"), "{outcome:?}");
    assert!(!place.ready_file().exists() && !place.data().join("url").exists());
    assert_no_server(&place.data());
    seqline(["status", "--database-url", &url]).refused(3).await;

    let up = place.start(place.up()).await;
    assert_eq!(up.append().await, 3);
    assert_ne!(up.password(), password);
    let outcome = up.stop().await;
    assert!(outcome.stderr.contains("The schema is current"), "{outcome:?}");
}

/// From another folder, and although the path of the data needs care in a shell.
#[tokio::test]
async fn the_commands_that_it_suggests_work_as_they_are() {
    let place = Place::new();
    let data = place.0.path().join("alex's data");
    let mut up = place.start(place.up_on(&data)).await;
    let text = up.running.talk_until("Press Ctrl-C to stop.").await;
    let commands: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    let [export, append, tail, serve, status, curl] = commands[..] else { panic!("{text}") };
    assert!(serve.ends_with(" serve --role worker"), "{serve}");
    let tail = tail.replace(" --follow", "");
    let script =
        format!("{export}\n{append}\n{serve} --help >/dev/null\n{status} >/dev/null\n{curl} -sS\n{tail}");
    let mut shell = tokio::process::Command::new("sh");
    shell
        .args(["-euc", &script])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/")
        .kill_on_drop(true);
    let_measure(&mut shell);
    let output = shell.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let event = "  order.created  order  {\"total\": 12.5}\n";
    assert!(said.ends_with(event) && said.matches(event).count() == 2, "{said}");
    assert!(said.contains("{\"events\":[{\"id\":\""), "{said}");
    up.stop().await;
}

#[tokio::test]
async fn it_answers_the_api_to_whoever_has_the_token_of_this_run() {
    let place = Place::new();
    let client = |up: &super::Up| {
        let text = |member: &str| up.ready[member].as_str().expect("it is in the ready file").to_owned();
        let address = text("api_url").strip_prefix("http://").expect("it is HTTP").to_owned();
        (Client::new(address).token(&text("api_token")), text("api_token"))
    };
    let up = place.start(place.up()).await;
    let (local, first) = client(&up);
    let me = local.get("/v1/me").await.ok(200);
    assert_eq!(me, json!({ "principal": "local", "kind": "app", "rights": ["append", "operate"] }));
    let id = local.post("/v1/events", &event(1)).await.ok(201)["events"][0]["id"].clone();
    // It is fed by a tail of its own.
    eventually(DEADLINE, "the event is there", async || {
        let page = local.get("/v1/events?after=oldest").await.ok(200);
        page["events"][0]["id"] == id
    })
    .await;
    let log = up.stop().await;
    assert!(log.stderr.contains(&first), "{log:?}");

    let up = place.start(place.up()).await;
    let (local, second) = client(&up);
    assert_ne!(first, second);
    local.get("/v1/me").await.ok(200);
    let old = Client::new(&local.address).token(&first);
    old.get("/v1/me").await.problem(401, "unauthenticated");
    up.stop().await;
}

#[tokio::test]
async fn killed_it_takes_its_server_with_it_and_the_next_one_finds_the_data() {
    let place = Place::new();
    let up = place.start(place.up()).await;
    assert_eq!(up.append().await, 1);
    let postgres = up.postgres_pid();
    up.running.signal(Signal::SIGKILL);
    up.running.end().await;
    eventually(DEADLINE, "PostgreSQL ends", async || has_ended(postgres)).await;

    let up = place.start(place.up()).await;
    assert_eq!(up.append().await, 2);
    up.stop().await;
}

#[tokio::test]
async fn stopped_while_it_starts_it_leaves_nothing_in_the_way_of_the_next_one() {
    let place = Place::new();
    let running = place.up().start();
    eventually(DEADLINE, "it has begun", async || place.data().exists()).await;
    running.signal(Signal::SIGTERM);
    running.end().await;
    assert!(!place.ready_file().exists());
    let up = place.start(place.up()).await;
    assert_eq!(up.append().await, 1);
    up.stop().await;
}

#[tokio::test]
async fn stopped_as_soon_as_it_is_ready_it_ends_well() {
    let place = Place::new();
    let up = place.start(place.up()).await;
    let outcome = up.stop().await;
    assert!(outcome.stderr.ends_with("Stopping.\n"), "{outcome:?}");
    assert!(!place.ready_file().exists() && !place.data().join("url").exists());
}

#[tokio::test]
async fn a_server_that_ends_on_its_own_is_not_passed_over_in_silence() {
    let place = Place::new();
    let up = place.start(place.up()).await;
    up.is_at_work().await;
    kill(Pid::from_raw(up.postgres_pid()), Signal::SIGQUIT).unwrap();
    let outcome = up.running.end().await;
    assert_eq!(outcome.code(), Some(3), "{outcome:?}");
    assert!(outcome.stderr.ends_with("seqline: the PostgreSQL server ended on its own\n"), "{outcome:?}");
    assert!(!place.ready_file().exists());
}

#[tokio::test]
async fn a_second_one_on_the_same_folder_is_refused_and_does_not_harm_the_first() {
    let place = Place::new();
    let up = place.start(place.up()).await;
    let sentence = place.up().refused(3).await;
    assert!(sentence.starts_with("a server is already running on "), "{sentence}");
    assert!(sentence.contains(&format!("(process {})", up.postgres_pid())), "{sentence}");
    assert!(place.ready_file().exists());
    assert_eq!(up.append().await, 1);
    up.stop().await;
}

#[tokio::test]
async fn it_listens_where_the_option_says() {
    let place = Place::new();
    let port = crate::support::closed_port();
    let up = place.start(place.up().args(["--port", &port.to_string()])).await;
    assert!(up.url().contains(&format!("@127.0.0.1:{port}/")), "{}", up.url());
    up.stop().await;
}

#[tokio::test]
async fn its_users_role_may_use_the_log_and_is_no_superuser() {
    let place = Place::new();
    let up = place.start(place.up()).await;
    up.append().await;
    let url = up.url().to_owned();
    for command in ["status", "partitions", "tail", "migrate"] {
        seqline([command, "--database-url", &url]).ok().await;
    }
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let superuser: bool = sqlx::query_scalar("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert!(!superuser);
    sqlx::raw_sql("CREATE TABLE orders (id bigint)").execute(&pool).await.unwrap();
    pool.close().await;
    let mut members: Vec<&String> = up.ready.as_object().unwrap().keys().collect();
    members.sort();
    assert_eq!(members, ["api_token", "api_url", "database_url", "ops_url", "pid", "postgres_pid"]);
    up.stop().await;
}
