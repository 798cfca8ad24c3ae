//! What a private server promises: it keeps what it must, and refuses what it cannot do by name.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use seqline::embedded::{Durability, EmbeddedError, PostgresBinaries, PostgresServer, ServerConfig};
use seqline_testkit::{Role, TestDb, TestServer};
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("seqline-test-").tempdir().unwrap()
}

fn config(data_dir: &Path) -> ServerConfig {
    let binaries = PostgresBinaries::find(None).unwrap();
    ServerConfig { durability: Durability::Fast, ..ServerConfig::new(binaries, data_dir) }
}

async fn setting(server: &PostgresServer, name: &str) -> String {
    let mut connection = PgConnection::connect_with(&server.admin_options()).await.unwrap();
    sqlx::query_scalar("SELECT current_setting($1)").bind(name).fetch_one(&mut connection).await.unwrap()
}

#[tokio::test]
async fn data_and_password_are_kept_over_stop_and_start() {
    let folder = folder();
    let mut server = PostgresServer::start(config(folder.path())).await.unwrap();
    let url = server.admin_url();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    sqlx::query("CREATE TABLE kept AS SELECT 42 AS answer").execute(&mut connection).await.unwrap();
    assert!(server.is_running());
    server.stop().await.unwrap();
    assert!(!server.is_running());
    assert!(PgConnection::connect(&url).await.is_err());
    drop(server);

    let mut server = PostgresServer::start(config(folder.path())).await.unwrap();
    let mut connection = PgConnection::connect_with(&server.admin_options()).await.unwrap();
    let answer: i32 = sqlx::query_scalar("SELECT answer FROM kept").fetch_one(&mut connection).await.unwrap();
    assert_eq!(answer, 42);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn only_the_password_opens_the_server_and_only_its_user_can_read_it() {
    let folder = folder();
    let mut server = PostgresServer::start(config(folder.path())).await.unwrap();
    assert_eq!(setting(&server, "listen_addresses").await, "127.0.0.1");
    let wrong = server.admin_options().password("wrong");
    assert!(PgConnection::connect_with(&wrong).await.is_err());
    let socket = server.admin_options().socket(server.data_dir().join("socket"));
    assert!(PgConnection::connect_with(&socket.clone().password("wrong")).await.is_err());
    PgConnection::connect_with(&socket).await.unwrap();
    for (name, mode) in
        [("seqline.password", 0o600), ("postgres.log", 0o600), ("socket", 0o700), ("pgdata", 0o700)]
    {
        let found = server.data_dir().join(name).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{name}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn strings_sort_the_same_everywhere() {
    let folder = folder();
    let mut server = PostgresServer::start(config(folder.path())).await.unwrap();
    let mut connection = PgConnection::connect_with(&server.admin_options()).await.unwrap();
    let (encoding, ordered): (String, bool) =
        sqlx::query_as("SELECT current_setting('server_encoding'), 'Z' < 'a' AND 'z' < U&'\\00E4'")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!((encoding.as_str(), ordered), ("UTF8", true));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_durable_server_keeps_what_it_acknowledged_when_it_is_killed() {
    let mut server = TestServer::durable().await;
    assert_eq!(setting(server.postgres(), "fsync").await, "on");
    let db = TestDb::empty_on(&server).await;
    let mut connection = db.connect(Role::App).await;
    sqlx::query("CREATE TABLE kept (id int)").execute(&mut connection).await.unwrap();
    for id in 0..20 {
        sqlx::query("INSERT INTO kept VALUES ($1)").bind(id).execute(&mut connection).await.unwrap();
    }
    let killed = server.postgres().postmaster_pid();
    server.kill().await;
    assert!(connection.ping().await.is_err());
    assert_eq!(server.postgres().postmaster_pid(), None);

    server.start_again().await;
    assert_ne!(server.postgres().postmaster_pid(), killed);
    let mut connection = db.connect(Role::App).await;
    let kept: i64 = sqlx::query_scalar("SELECT count(*) FROM kept").fetch_one(&mut connection).await.unwrap();
    assert_eq!(kept, 20);
    server.stop().await;
    server.start_again().await;
}

#[tokio::test]
async fn data_of_another_major_version_is_refused() {
    let folder = folder();
    fs::create_dir(folder.path().join("pgdata")).unwrap();
    fs::write(folder.path().join("pgdata/PG_VERSION"), "9\n").unwrap();
    let error = PostgresServer::start(config(folder.path())).await.unwrap_err();
    assert!(error.to_string().contains("name the binaries of PostgreSQL 9 with --pg-bin"), "{error}");
    assert!(matches!(error, EmbeddedError::OtherMajor { .. }));
}

#[tokio::test]
async fn a_folder_with_something_else_in_it_is_refused_and_left_alone() {
    let folder = folder();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    let error = PostgresServer::start(config(folder.path())).await.unwrap_err();
    assert!(error.to_string().contains("notes.txt"), "{error}");
    assert!(matches!(error, EmbeddedError::NotOurs { .. }));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_second_server_on_the_same_folder_is_refused() {
    let folder = folder();
    let mut server = PostgresServer::start(config(folder.path())).await.unwrap();
    let error = PostgresServer::start(config(folder.path())).await.unwrap_err();
    assert!(matches!(error, EmbeddedError::AlreadyRunning { pid, .. } if pid == server.postmaster_pid()));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_port_in_use_is_refused_before_anything_is_made() {
    let folder = folder();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    let data_dir = folder.path().join("data");
    let asked = ServerConfig { port: Some(port), ..config(&data_dir) };
    let error = PostgresServer::start(asked).await.unwrap_err();
    assert!(matches!(error, EmbeddedError::PortInUse { port: refused } if refused == port));
    assert!(!data_dir.exists());
}

#[tokio::test]
async fn what_a_killed_first_start_left_does_not_matter() {
    let folder = folder();
    fs::create_dir_all(folder.path().join("pgdata.new-dead/base")).unwrap();
    fs::write(folder.path().join("seqline.password.new"), "hal").unwrap();
    let mut server = PostgresServer::start(config(folder.path())).await.unwrap();
    assert!(!folder.path().join("pgdata.new-dead").exists());
    assert_eq!(setting(&server, "port").await, server.port().to_string());
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let folder = folder();
    let mut wrong = config(folder.path());
    wrong.settings.push(("shared_buffers".into(), "no size".into()));
    let error = PostgresServer::start(wrong).await.unwrap_err();
    assert!(matches!(error, EmbeddedError::EndedEarly { .. }), "{error}");
    assert!(error.to_string().contains("shared_buffers"), "{error}");
}

#[tokio::test]
async fn a_password_that_does_not_fit_the_data_is_refused() {
    let folder = folder();
    let mut server = PostgresServer::start(config(folder.path())).await.unwrap();
    server.stop().await.unwrap();
    drop(server);
    let file = folder.path().join("seqline.password");
    fs::write(&file, "wrong").unwrap();
    let error = PostgresServer::start(config(folder.path())).await.unwrap_err();
    assert!(matches!(error, EmbeddedError::PasswordRejected { .. }), "{error}");
    fs::remove_file(&file).unwrap();
    let error = PostgresServer::start(config(folder.path())).await.unwrap_err();
    assert!(matches!(error, EmbeddedError::PasswordMissing { .. }), "{error}");
}

#[tokio::test]
async fn a_long_path_and_odd_characters_in_it_do_no_harm() {
    let folder = folder();
    let deep = folder.path().join("x".repeat(100)).join("a, \"b\" c");
    let mut server = PostgresServer::start(config(&deep)).await.unwrap();
    let socket = setting(&server, "unix_socket_directories").await;
    assert!(socket.contains("/tmp/seqline-socket-"), "{socket}");
    server.stop().await.unwrap();
    assert!(!Path::new(socket.trim_matches('"')).exists());

    let odd = folder.path().join("a, \"b\" c");
    let mut server = PostgresServer::start(config(&odd)).await.unwrap();
    let socket = server.admin_options().socket(server.data_dir().join("socket"));
    PgConnection::connect_with(&socket).await.unwrap();
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_folder_that_the_server_may_not_use_is_refused() {
    let folder = folder();
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
    let error = PostgresServer::start(config(&closed.join("data"))).await.unwrap_err();
    if nix::unistd::geteuid().is_root() {
        // Root may write there, but the server runs as somebody else.
        assert!(
            matches!(&error, EmbeddedError::Unreachable { blocked_by, .. } if *blocked_by == closed),
            "{error}"
        );
        assert!(error.to_string().contains("for example /"), "{error}");
    } else {
        assert!(matches!(error, EmbeddedError::Unwritable { .. }), "{error}");
    }
}
