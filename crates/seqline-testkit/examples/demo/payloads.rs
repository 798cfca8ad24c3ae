//! The real input: webhook payloads as a large service sends them, with nulls and deep nesting.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use seqline::Payload;
use serde_json::Value;

/// One webhook.
pub(crate) struct Webhook {
    pub(crate) event_type: String,
    /// As it was received.
    pub(crate) original: Value,
    /// Without nulls, as the log takes it.
    pub(crate) payload: Payload,
}

pub(crate) fn load() -> anyhow::Result<Vec<Webhook>> {
    let path = std::env::var_os("SEQLINE_WEBHOOKS_EXAMPLES").map(PathBuf::from).context(
        "SEQLINE_WEBHOOKS_EXAMPLES does not name the file of payloads: run this through `cargo xtask demo`",
    )?;
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let kinds: Vec<Value> = serde_json::from_str(&text).context("parse the payloads")?;
    let mut webhooks = Vec::new();
    for kind in &kinds {
        let name = kind["name"].as_str().context("a kind of webhook has a name")?;
        for example in kind["examples"].as_array().context("a kind of webhook has examples")? {
            webhooks.push(Webhook {
                event_type: event_type(name, example["action"].as_str()),
                payload: Payload::without_nulls(&example.to_string())?,
                original: example.clone(),
            });
        }
    }
    ensure!(!webhooks.is_empty(), "there are payloads in {}", path.display());
    Ok(webhooks)
}

/// `pull_request` and `opened` become `github.pull_request.opened`. Types have neither digits nor hyphens.
fn event_type(name: &str, action: Option<&str>) -> String {
    let word = |text: &str| -> String {
        text.chars().filter(|c| !c.is_ascii_digit()).map(|c| if c == '-' { '_' } else { c }).collect()
    };
    match action {
        Some(action) => format!("github.{}.{}", word(name), word(action)),
        None => format!("github.{}", word(name)),
    }
}
