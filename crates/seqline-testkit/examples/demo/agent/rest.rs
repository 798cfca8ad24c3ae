//! An agent that asks for its events over REST.

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{AGENT, Agent, CONSUMER, Event, PAUSE, Parent, seq_of};
use crate::journal::{How, What};

/// As the server answers when nobody has configured something else.
const WINDOW: usize = 100;
/// What it is told when somebody else has the consumer.
const REPLACED: u16 = 409;

/// A part of the answer.
#[derive(Deserialize)]
struct Delivery {
    events: Vec<Event>,
    next: Value,
    acked: Value,
    generation: i64,
}

/// Takes the consumer with one event, and once it is told to go on acknowledges that and asks for the others.
pub(super) async fn run(mut agent: Agent, parent: &Parent) -> anyhow::Result<()> {
    let mut generation = None;
    loop {
        let asked = match generation {
            None => "limit=1&wait=5".to_owned(),
            Some(generation) => format!("wait=1&generation={generation}"),
        };
        let path = format!("/events?{asked}");
        let Some(answer) = until_answered(&agent, "GET", &path, "").await? else {
            return agent.journal.write(What::Ends { code: REPLACED });
        };
        let delivery: Delivery = serde_json::from_slice(&answer).context("the answer")?;
        if generation.is_none() {
            let acked = seq_of(&delivery.acked)?;
            agent.journal.write(What::Begins { how: How::Asked, acked, window: WINDOW })?;
        }
        for event in &delivery.events {
            agent.handle(event).await?;
        }
        if generation.is_none() {
            parent.word.notified().await;
        }
        generation = Some(delivery.generation);
        let seq = seq_of(&delivery.next)?;
        if seq > seq_of(&delivery.acked)? {
            agent.journal.write(What::Acknowledges { seq })?;
            let ack = json!({"position": delivery.next, "generation": delivery.generation}).to_string();
            if until_answered(&agent, "POST", "/ack", &ack).await?.is_none() {
                return agent.journal.write(What::Ends { code: REPLACED });
            }
            agent.journal.write(What::Taken { seq })?;
        }
    }
}

/// Asks until there is an answer; `None` when somebody else has the consumer.
async fn until_answered(
    agent: &Agent,
    method: &str,
    path: &str,
    body: &str,
) -> anyhow::Result<Option<Vec<u8>>> {
    loop {
        match ask(agent, method, path, body).await {
            Ok((200, answer)) => return Ok(Some(answer)),
            Ok((REPLACED, _)) => return Ok(None),
            Ok((429 | 500.., _)) | Err(_) => agent.clock.sleep(PAUSE).await,
            Ok((status, _)) => bail!("the server answers {method} {path} with {status}"),
        }
    }
}

/// One request over a connection of its own.
async fn ask(agent: &Agent, method: &str, path: &str, body: &str) -> anyhow::Result<(u16, Vec<u8>)> {
    let Agent { address, token, .. } = agent;
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "{method} /v1/agents/{AGENT}/consumers/{CONSUMER}{path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").context("the answer has no head")?;
    let status = std::str::from_utf8(&answer[..head])?.split(' ').nth(1).context("there is no status")?;
    Ok((status.parse()?, answer.split_off(head + 4)))
}
