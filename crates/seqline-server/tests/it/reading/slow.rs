//! A client that never reads.

use std::time::Duration;

use seqline::{NewEvent, Payload};
use seqline_testkit::eventually;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::client::Client;
use super::{Site, append_all};
use crate::support::DEADLINE;

/// What a process has in memory, in bytes.
fn memory(pid: i32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    let kilobytes: usize = line.trim().trim_end_matches(" kB").parse().expect("it is a number");
    kilobytes * 1024
}

/// A connection with the smallest window, on which a stream was asked for, and nothing of it is read.
async fn never_reads(client: &Client, path: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(client.address().parse().unwrap()).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
        client.address(),
        client.token()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn it_holds_up_nobody_takes_no_memory_and_loses_its_connection() {
    const CLIENTS: usize = 20;
    let site = Site::new(&[("api.write_timeout", "3s"), ("api.hub_bytes_max", "1048576")]).await;
    let alex = site.user("alex", &[]).await;
    let mut reading = alex.stream("after=head").await;
    let event = || {
        let payload = Payload::from_json(&format!("{{\"text\": \"{}\"}}", "x".repeat(60_000))).unwrap();
        NewEvent::builder("file.stored", "file", "any").payload(payload).build().unwrap()
    };
    let mut silent = Vec::new();
    for _ in 0..CLIENTS {
        silent.push(never_reads(&alex, "/v1/events/stream?after=head").await);
    }
    site.server.shows("seqline_api_waiting{seqline_api_waiting_kind=\"stream\"}", 21.0).await;
    // Each of them is to get 24 MB, and a socket takes a few.
    let before = memory(site.server.running.pid());
    for batch in 0..40 {
        append_all(&site.db.app(), &(0..10).map(|_| event()).collect::<Vec<_>>()).await;
        for seq in 1..=10 {
            assert_eq!(reading.event().await["seq"], batch * 10 + seq);
        }
    }
    let grown = memory(site.server.running.pid()).saturating_sub(before);
    assert!(grown < 100 * 1024 * 1024, "{grown} bytes for {CLIENTS} clients that were to get 24 MB each");
    site.server.shows("seqline_api_waiting{seqline_api_waiting_kind=\"stream\"}", 1.0).await;
    for mut stream in silent {
        // What the socket had taken comes, and then the end of the connection, in the middle of an answer.
        let mut rest = Vec::new();
        let read = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("it is closed");
        assert!(read.is_err() || !rest.ends_with(b"0\r\n\r\n"));
        assert!(rest.len() < 24 * 1024 * 1024, "{}", rest.len());
    }
    append_all(&site.db.app(), &[event()]).await;
    assert_eq!(reading.event().await["seq"], 401);
    site.stop().await;
}

#[tokio::test]
async fn one_that_reads_slowly_keeps_its_stream_and_gets_everything() {
    let site = Site::new(&[("api.write_timeout", "2s"), ("api.hub_bytes_max", "1048576")]).await;
    let alex = site.user("alex", &[]).await;
    let mut stream = alex.stream("after=oldest").await;
    let payload = Payload::from_json(&format!("{{\"text\": \"{}\"}}", "x".repeat(60_000))).unwrap();
    let event = NewEvent::builder("file.stored", "file", "any").payload(payload).build().unwrap();
    // Beside the reading: who reads nothing meanwhile is no slow reader.
    let pool = site.db.app();
    let appending = tokio::spawn(async move {
        for _ in 0..20 {
            append_all(&pool, &vec![event.clone(); 10]).await;
        }
    });
    for seq in 1..=200 {
        if seq % 20 == 0 {
            let mut passed = 0;
            // Longer than a moment, shorter than the timeout.
            eventually(DEADLINE, "a while has passed", async || {
                passed += 1;
                passed > 10
            })
            .await;
        }
        assert_eq!(stream.event().await["seq"], seq);
    }
    appending.await.unwrap();
    drop(stream);
    tokio::time::timeout(Duration::from_secs(60), site.stop()).await.expect("nobody is waited for");
}
