//! The doctor behind a pooler in transaction mode: one that is just enough of one, with a single connection to the server.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use seqline_testkit::{Role, TestDb};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::{finding, findings};
use crate::support::{append, seqline, server_db};

/// A message of the protocol: its kind and all of its bytes.
async fn message(from: &mut OwnedReadHalf) -> std::io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    from.read_exact(&mut head).await?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let mut bytes = head.to_vec();
    bytes.resize(length + 1, 0);
    from.read_exact(&mut bytes[5..]).await?;
    Ok((head[0], bytes))
}

/// The first message of a session has no kind.
async fn startup(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.resize(length as usize, 0);
    from.read_exact(&mut bytes[4..]).await?;
    Ok(bytes)
}

/// The one connection to the server, and what it said at its start.
struct Shared {
    server: tokio::sync::Mutex<Option<(OwnedReadHalf, OwnedWriteHalf)>>,
    greeting: Mutex<Vec<u8>>,
}

impl Shared {
    async fn serve(self: Arc<Self>, client: TcpStream, server: u16) -> std::io::Result<()> {
        let (mut from, mut to) = client.into_split();
        let first = startup(&mut from).await?;
        let mut shared = self.server.lock().await;
        if shared.is_none() {
            // The first one logs in by itself.
            let (mut read, mut write) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await?.into_split();
            write.write_all(&first).await?;
            let mut is_in = false;
            loop {
                let (kind, bytes) = message(&mut read).await?;
                to.write_all(&bytes).await?;
                is_in |= kind == b'R' && bytes[5..9] == [0; 4];
                if is_in {
                    self.greeting.lock().unwrap().extend(&bytes);
                }
                match kind {
                    b'Z' => break,
                    // All but the last of them want an answer.
                    b'R' if !is_in && bytes[8] != 12 => write.write_all(&message(&mut from).await?.1).await?,
                    _ => {}
                }
            }
            *shared = Some((read, write));
        } else {
            let greeting = self.greeting.lock().unwrap().clone();
            to.write_all(&greeting).await?;
        }
        drop(shared);
        loop {
            let (mut kind, mut bytes) = message(&mut from).await?;
            let mut held = self.server.lock().await;
            let (read, write) = held.as_mut().expect("somebody has logged in");
            // Until the transaction ends.
            loop {
                if kind == b'X' {
                    return Ok(());
                }
                write.write_all(&bytes).await?;
                if matches!(kind, b'Q' | b'S') {
                    let status = loop {
                        let (kind, bytes) = message(read).await?;
                        to.write_all(&bytes).await?;
                        if kind == b'Z' {
                            break bytes[5];
                        }
                    };
                    if status == b'I' {
                        break;
                    }
                }
                (kind, bytes) = message(&mut from).await?;
            }
        }
    }
}

/// The URL of the database through it.
async fn pooled(db: &TestDb) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (port, server) = (listener.local_addr().unwrap().port(), db.options(Role::App).get_port());
    let shared = Arc::new(Shared { server: tokio::sync::Mutex::default(), greeting: Mutex::default() });
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(Arc::clone(&shared).serve(client, server));
        }
    });
    db.url(Role::App).replace(&format!(":{server}/"), &format!(":{port}/"))
}

#[tokio::test]
async fn a_pooler_in_transaction_mode_is_told_and_a_listen_url_past_it_hears() {
    let db = server_db().await;
    append(&db.producer(), 1..=3).await;
    let url = pooled(&db).await;
    let doctor = || seqline(["doctor", "--json"]).env("SEQLINE_DATABASE_URL", &url);
    let (code, found) = findings(doctor()).await;
    assert_eq!(code, Some(0), "{found:#?}");
    assert_eq!(
        finding(&found, "pooler"),
        ("warning", "sessions share processes of the server: a pooler in transaction mode is in between")
    );
    assert_eq!((finding(&found, "listen").0, finding(&found, "identity").0), ("warning", "ok"), "{found:#?}");
    let (_, found) = findings(doctor().args(["--listen-url", &db.url(Role::App)])).await;
    assert_eq!((finding(&found, "pooler").0, finding(&found, "listen").0), ("warning", "ok"));
}
