//! A server never outlives the process that started it, however that process ends.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seqline_testkit::{TestServer, eventually};

/// Set in the process that is going to be killed.
const VICTIM: &str = "SEQLINE_TEST_VICTIM";

/// How long the supervisor may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Not a test by itself: what the killed process does. Without the variable it does nothing.
#[tokio::test]
async fn victim() {
    if std::env::var_os(VICTIM).is_none() {
        return;
    }
    let server = TestServer::shared().await.postgres();
    println!("\nready {} {}", server.postmaster_pid().unwrap(), server.data_dir().display());
    std::future::pending().await
}

#[tokio::test]
async fn a_killed_process_leaves_neither_server_nor_data() {
    end_of_victim_ends_everything(Signal::SIGKILL).await;
}

#[tokio::test]
async fn an_interrupted_process_leaves_neither_server_nor_data() {
    end_of_victim_ends_everything(Signal::SIGINT).await;
}

async fn end_of_victim_ends_everything(signal: Signal) {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "supervisor::victim", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(victim.stdout.take().unwrap());
    let ready =
        said.lines().map_while(Result::ok).find_map(|line| Some(line.strip_prefix("ready ")?.to_owned()));
    let ready = ready.expect("the victim starts its server");
    let (postmaster, data_dir) = ready.split_once(' ').unwrap();
    let (postmaster, data_dir) = (Pid::from_raw(postmaster.parse().unwrap()), PathBuf::from(data_dir));
    assert!(runs(postmaster));
    assert!(data_dir.exists());

    kill(Pid::from_raw(victim.id().try_into().unwrap()), signal).unwrap();
    victim.wait().unwrap();
    eventually(DEADLINE, "the end of the server", async || !runs(postmaster)).await;
    eventually(DEADLINE, "the end of its data", async || !data_dir.exists()).await;
}

fn runs(process: Pid) -> bool {
    kill(process, None).is_ok()
}

#[tokio::test]
async fn a_dropped_server_goes_with_its_data() {
    let server = TestServer::fast().await;
    let postmaster = Pid::from_raw(server.postgres().postmaster_pid().unwrap());
    let data_dir = server.postgres().data_dir().to_owned();
    drop(server);
    eventually(DEADLINE, "the end of the server", async || !runs(postmaster)).await;
    eventually(DEADLINE, "the end of its data", async || !data_dir.exists()).await;
}
