//! Brokers: `SEQLINE_NATS_BIN` chooses which.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seqline_testkit::{FaultProxy, NatsCluster, NatsOptions, NatsServer, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

/// Set in the process that is going to be killed.
const VICTIM: &str = "SEQLINE_TEST_VICTIM";

/// How long something may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Makes a stream that keeps what is published on `orders`.
async fn make_stream(server: &NatsServer, replicas: usize) -> Value {
    let config = json!({
        "name": "orders", "subjects": ["orders"], "num_replicas": replicas, "storage": "file", "retention": "limits",
        "discard": "old", "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0
    });
    let made = server.ask("$JS.API.STREAM.CREATE.orders", &config).await.expect("the broker answers");
    assert_eq!(made["error"], Value::Null, "{made}");
    made
}

/// Publishes one message, and returns the number that the stream has given it.
async fn publish(server: &NatsServer) -> Option<u64> {
    server.ask("orders", &json!({})).await?["seq"].as_u64()
}

/// How many messages are kept.
async fn kept(server: &NatsServer) -> Option<u64> {
    server.ask("$JS.API.STREAM.INFO.orders", &json!({})).await?["state"]["messages"].as_u64()
}

#[tokio::test]
async fn a_broker_stores_what_is_published() {
    let server = NatsServer::start().await;
    assert_eq!(server.url(), format!("nats://{}", server.addr()));
    assert!(server.version().starts_with("2."), "{}", server.version());
    make_stream(&server, 1).await;
    assert_eq!(publish(&server).await, Some(1));
    assert_eq!(publish(&server).await, Some(2));
    assert_eq!(kept(&server).await, Some(2));
    assert!(server.store_dir().join("jetstream").is_dir());
}

#[tokio::test]
async fn a_broker_that_is_killed_or_stopped_comes_back_with_its_port_and_its_store() {
    let mut server = NatsServer::durable().await;
    let (url, name) = (server.url(), server.name().to_owned());
    make_stream(&server, 1).await;
    publish(&server).await.unwrap();
    let killed = server.process_id().unwrap();

    server.kill().await;
    assert!(!runs(killed), "a killed process is gone, and no zombie");
    assert!(TcpStream::connect(server.addr()).is_err());
    server.restart().await;
    assert_ne!(server.process_id(), Some(killed));
    assert_eq!((server.url(), server.name()), (url, name.as_str()));
    assert_eq!(kept(&server).await, Some(1));

    server.pause();
    server.stop().await;
    assert_eq!(server.process_id(), None);
    assert!(server.log().contains("Server Exiting"), "it was stopped in good order");
    server.restart().await;
    assert_eq!(kept(&server).await, Some(1));

    // One that runs is stopped before.
    server.restart().await;
    assert_eq!(publish(&server).await, Some(2));
}

#[tokio::test]
async fn a_paused_broker_keeps_its_connections_and_says_nothing() {
    let mut server = NatsServer::start().await;
    make_stream(&server, 1).await;
    server.pause();
    assert!(TcpStream::connect(server.addr()).is_ok());
    assert_eq!(publish(&server).await, None);
    server.resume();
    // What was sent while it was paused may have arrived.
    eventually(DEADLINE, "a broker that goes on", async || publish(&server).await.is_some()).await;
}

#[tokio::test]
async fn a_broker_is_reached_through_a_network_that_breaks() {
    let server = NatsServer::start().await;
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    let mut stream = tokio::net::TcpStream::connect(proxy.addr()).await.unwrap();
    stream.write_all(b"CONNECT {\"verbose\":false}\r\nPING\r\n").await.unwrap();
    let mut lines = tokio::io::BufReader::new(stream).lines();
    assert!(lines.next_line().await.unwrap().unwrap().contains(server.name()));
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("PONG"));
    proxy.cut();
    eventually(DEADLINE, "the end of the connection", async || {
        !matches!(lines.next_line().await, Ok(Some(_)))
    })
    .await;
}

#[tokio::test]
async fn a_broker_can_lose_what_it_stored_and_go_back_to_what_it_had_stored_before() {
    let mut server = NatsServer::start().await;
    make_stream(&server, 1).await;
    publish(&server).await.unwrap();
    server.stop().await;
    let copy = server.copy_store();
    server.restart().await;
    publish(&server).await.unwrap();
    assert_eq!(kept(&server).await, Some(2));

    server.stop().await;
    server.restore_store(&copy);
    server.restart().await;
    assert_eq!(kept(&server).await, Some(1));

    server.kill().await;
    server.wipe_store();
    server.restart().await;
    assert_eq!(kept(&server).await, None);
    make_stream(&server, 1).await;
    assert_eq!(publish(&server).await, Some(1));
}

#[tokio::test]
#[should_panic(expected = "stop or kill the broker")]
async fn the_store_of_a_broker_that_runs_is_left_alone() {
    NatsServer::start().await.wipe_store();
}

#[tokio::test]
async fn options_count_and_can_be_others_after_a_restart() {
    let few = NatsOptions::default().lines("max_payload: 1024").jetstream("max_file_store: 1MB");
    let mut server = NatsServer::with(few).await;
    let large = json!({ "name": "large", "subjects": ["large"], "max_bytes": 2 * 1024 * 1024 });
    let refused = server.ask("$JS.API.STREAM.CREATE.large", &large).await.unwrap();
    assert_eq!(refused["error"]["description"], "insufficient storage resources available", "{refused}");
    make_stream(&server, 1).await;
    assert_eq!(publish(&server).await, Some(1));
    assert_eq!(server.ask("orders", &json!("x".repeat(1024))).await, None, "it is longer than is allowed");
    server.set_options(NatsOptions::default().without_jetstream());
    server.restart().await;
    assert_eq!(server.ask("$JS.API.INFO", &json!({})).await, None, "nobody stores anything");
    let login = "authorization { user: \"Alex\", password: \"not-a-secret\" }";
    server.set_options(NatsOptions::default().lines(login));
    server.restart().await;
    assert_eq!(server.ask("$JS.API.INFO", &json!({})).await, None, "nobody may come in without a login");
    server.set_options(NatsOptions::default());
    server.restart().await;
    assert!(server.ask("$JS.API.INFO", &json!({})).await.is_some());
}

#[tokio::test]
#[should_panic(expected = "unknown field \"no_such_option\"")]
async fn a_broker_that_does_not_start_says_why() {
    NatsServer::with(NatsOptions::default().lines("no_such_option: 1")).await;
}

#[tokio::test]
async fn an_older_broker_runs_if_there_is_one() {
    let Some(server) = NatsServer::old().await else {
        eprintln!("left out: SEQLINE_NATS_OLD_BIN names no nats-server before 2.10");
        return;
    };
    assert!(server.version().starts_with("2.9."), "{}", server.version());
    make_stream(&server, 1).await;
    assert_eq!(publish(&server).await, Some(1));
}

#[tokio::test]
async fn a_cluster_stores_on_three_nodes_and_goes_on_without_the_one_that_led() {
    let mut cluster = NatsCluster::start(3).await;
    assert_eq!(cluster.urls().len(), 3);
    let made = make_stream(cluster.node(0), 3).await;
    assert_eq!(made["cluster"]["replicas"].as_array().map(Vec::len), Some(2), "{made}");
    assert_eq!(publish(cluster.node(1)).await, Some(1));

    let leader = made["cluster"]["leader"].as_str().unwrap().to_owned();
    cluster.named(&leader).expect("it is one of the nodes").kill().await;
    let other = cluster.nodes().iter().position(|node| node.name() != leader).unwrap();
    eventually(DEADLINE, "another leader", async || publish(cluster.node(other)).await.is_some()).await;

    cluster.named(&leader).unwrap().restart().await;
    cluster.until_ready().await;
    // Who leads the stream may change once more when a node comes back.
    eventually(DEADLINE, "two nodes that follow", async || {
        let info = cluster.node(other).ask("$JS.API.STREAM.INFO.orders", &json!({})).await;
        let replicas = info.as_ref().and_then(|info| info["cluster"]["replicas"].as_array());
        replicas.is_some_and(|all| all.len() == 2 && all.iter().all(|it| it["current"] == true))
    })
    .await;
}

/// Not a test by itself: what the killed process does. Without the variable it does nothing.
#[tokio::test]
async fn victim() {
    if std::env::var_os(VICTIM).is_none() {
        return;
    }
    let server = NatsServer::start().await;
    println!("\nready {} {}", server.process_id().unwrap(), server.store_dir().display());
    std::future::pending().await
}

#[tokio::test]
async fn a_killed_process_leaves_neither_a_broker_nor_what_it_stored() {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "nats::victim", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(victim.stdout.take().unwrap());
    let ready =
        said.lines().map_while(Result::ok).find_map(|line| Some(line.strip_prefix("ready ")?.to_owned()));
    let ready = ready.expect("the victim starts its broker");
    let (broker, store) = ready.split_once(' ').unwrap();
    let (broker, folder) =
        (broker.parse().unwrap(), PathBuf::from(store).parent().map(Path::to_owned).unwrap());
    assert!(runs(broker));
    assert!(folder.exists());

    kill(Pid::from_raw(victim.id().try_into().unwrap()), Signal::SIGKILL).unwrap();
    victim.wait().unwrap();
    eventually(DEADLINE, "the end of the broker", async || !runs(broker)).await;
    eventually(DEADLINE, "the end of what it stored", async || !folder.exists()).await;
}

#[tokio::test]
async fn a_dropped_broker_goes_with_what_it_stored() {
    let mut server = NatsServer::start().await;
    let (broker, store) = (server.process_id().unwrap(), server.store_dir());
    server.pause();
    drop(server);
    assert!(!runs(broker));
    assert!(!store.exists());
}

fn runs(process: u32) -> bool {
    kill(Pid::from_raw(process.try_into().unwrap()), None).is_ok()
}
