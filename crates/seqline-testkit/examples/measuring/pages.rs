//! A log that is read page by page over one connection.

use anyhow::{Context, ensure};

use crate::client::Client;
use crate::serving::Serving;

const PAGE: usize = 1_000;

/// How many events all pages had, of 1,000 each.
pub(crate) async fn read_all(serving: &Serving) -> anyhow::Result<usize> {
    let mut client = Client::connect(serving.address, &serving.token).await?;
    let (mut after, mut read) = ("oldest".to_owned(), 0);
    loop {
        let (status, body) = client.get(&format!("/v1/events?after={after}&limit={PAGE}")).await?;
        ensure!(status == 200, "the server answers {status}");
        // A client that is in no hurry would parse it whole.
        let events = count(body, br#""schema_version":"#);
        if events == 0 {
            return Ok(read);
        }
        read += events;
        after = next(body)?;
    }
}

fn count(text: &[u8], pattern: &[u8]) -> usize {
    let mut count = 0;
    let mut rest = text;
    while let Some(at) = find(rest, pattern) {
        count += 1;
        rest = &rest[at + pattern.len()..];
    }
    count
}

fn find(text: &[u8], pattern: &[u8]) -> Option<usize> {
    let first = pattern[0];
    let mut from = 0;
    while let Some(at) = text[from..].iter().position(|byte| *byte == first) {
        if text[from + at..].starts_with(pattern) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

fn next(body: &[u8]) -> anyhow::Result<String> {
    // Behind the events.
    let end = &body[body.len().saturating_sub(400)..];
    let end = String::from_utf8_lossy(end);
    let (_, next) = end.split_once(r#""next":""#).context("a page without the next position")?;
    Ok(next.split('"').next().unwrap_or_default().to_owned())
}
