//! What benchmarks have to reach. It is written down in `docs/internals/performance.md` and nowhere else.
//!
//! The section `## Thresholds` has one table with four columns: the key of a measurement, how the measured value is compared, the
//! threshold, and what it means. A benchmark names its keys and fails before it measures anything when one has no row.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Serialize;

/// The title of the section.
const SECTION: &str = "Thresholds";
const COLUMNS: [&str; 4] = ["key", "comparison", "value", "what it means"];

/// The keys of all measurements that are judged.
pub mod keys {
    #![expect(missing_docs, reason = "the documented table says what each means")]

    pub const AT_COMMIT_32_TO_COUNTER: &str = "append.at_commit.32_writers.to_counter_row";
    pub const AT_COMMIT_32_TO_8: &str = "append.at_commit.32_writers.to_8_writers";
    pub const AT_COMMIT_64_TO_COUNTER: &str = "append.at_commit.64_writers.to_counter_row";
    pub const AT_COMMIT_64_TO_8: &str = "append.at_commit.64_writers.to_8_writers";
    pub const AFTER_COMMIT_TO_PGMQ: &str = "append.after_commit.32_writers.to_pgmq_send";
    pub const AFTER_COMMIT_TO_OUTBOX: &str = "append.after_commit.32_writers.to_plain_outbox";
    pub const AFTER_COMMIT_NUMBERED: &str = "append.after_commit.32_writers.numbered_to_committed";
    pub const BATCH_EVENTS: &str = "append.batch.8_writers.events_per_s";
    pub const BATCH_TO_INSERT: &str = "append.batch.8_writers.to_plain_insert";
    pub const NUMBERED_P99: &str = "append.commit_to_numbered.p99_ms";
    pub const HELD_RATIO: &str = "append.held_snapshot.p99_ratio";
    pub const TAIL_P99: &str = "tail.commit_to_sink.p99_ms";
    pub const KEPT_RATE: &str = "append.fixed_rate.kept";
    pub const DRAIN_EVENTS: &str = "consumers.drain.batches_of_200.events_per_s";
    pub const IDLE_ROUND_TRIPS: &str = "consumers.idle.round_trips_per_s";
    pub const JOBS_EVENTS: &str = "jobs.sink.events_per_s";
    pub const JOBS_TO_INSERT: &str = "jobs.sink.to_insert_for_each";
    pub const API_APPEND_TO_LIBRARY: &str = "api.append.32_connections.to_library";
    pub const API_CATCH_UP_EVENTS: &str = "api.catch_up.events_per_s";
    pub const API_LIVE_P99: &str = "api.commit_to_stream.p99_ms";
    pub const API_LIVE_KEPT: &str = "api.commit_to_stream.kept";
    pub const GATEWAY_IDLE_MEMORY: &str = "gateway.idle.kib_each";
    pub const GATEWAY_IDLE_PROCESSOR: &str = "gateway.idle.percent_of_a_core";
    pub const GATEWAY_FAN_OUT_KEPT: &str = "gateway.fan_out.kept";
    pub const GATEWAY_CONSUMER_EVENTS: &str = "gateway.consumer.events_per_s";
    pub const RELAY_R1_EVENTS: &str = "jetstream.relay.one_server.events_per_s";
    pub const RELAY_R3_EVENTS: &str = "jetstream.relay.three_servers.events_per_s";
    pub const STREAM_CONSUMER_EVENTS: &str = "jetstream.consumer.events_per_s";

    /// Each of them.
    pub const ALL: [&str; 28] = [
        AT_COMMIT_32_TO_COUNTER,
        AT_COMMIT_32_TO_8,
        AT_COMMIT_64_TO_COUNTER,
        AT_COMMIT_64_TO_8,
        AFTER_COMMIT_TO_PGMQ,
        AFTER_COMMIT_TO_OUTBOX,
        AFTER_COMMIT_NUMBERED,
        BATCH_EVENTS,
        BATCH_TO_INSERT,
        NUMBERED_P99,
        HELD_RATIO,
        TAIL_P99,
        KEPT_RATE,
        DRAIN_EVENTS,
        IDLE_ROUND_TRIPS,
        JOBS_EVENTS,
        JOBS_TO_INSERT,
        API_APPEND_TO_LIBRARY,
        API_CATCH_UP_EVENTS,
        API_LIVE_P99,
        API_LIVE_KEPT,
        GATEWAY_IDLE_MEMORY,
        GATEWAY_IDLE_PROCESSOR,
        GATEWAY_FAN_OUT_KEPT,
        GATEWAY_CONSUMER_EVENTS,
        RELAY_R1_EVENTS,
        RELAY_R3_EVENTS,
        STREAM_CONSUMER_EVENTS,
    ];
}

/// How a measured value is held against a threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Comparison {
    /// It passes when it is as large or larger.
    #[serde(rename = "at least")]
    AtLeast,
    /// It passes when it is as small or smaller.
    #[serde(rename = "at most")]
    AtMost,
    /// It passes when it is smaller.
    #[serde(rename = "below")]
    Below,
}

impl Comparison {
    fn parse(text: &str) -> Option<Self> {
        [Self::AtLeast, Self::AtMost, Self::Below]
            .into_iter()
            .find(|comparison| comparison.to_string() == text)
    }

    /// Nothing that is not a number passes.
    fn passes(self, value: f64, threshold: f64) -> bool {
        match self {
            Self::AtLeast => value >= threshold,
            Self::AtMost => value <= threshold,
            Self::Below => value < threshold,
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtLeast => "at least",
            Self::AtMost => "at most",
            Self::Below => "below",
        })
    }
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Threshold {
    /// How it is compared.
    pub comparison: Comparison,
    /// With what.
    pub threshold: f64,
    /// In words.
    pub meaning: String,
}

/// A measured value and what is thought of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judgement {
    /// What was measured.
    pub key: String,
    /// The measured value.
    pub value: f64,
    /// What it had to be.
    #[serde(flatten)]
    pub due: Threshold,
    /// Whether it is.
    pub passed: bool,
}

/// The table.
#[derive(Debug, Clone, PartialEq)]
pub struct Thresholds(BTreeMap<String, Threshold>);

impl Thresholds {
    /// Reads the documented table of this checkout.
    ///
    /// # Errors
    ///
    /// When it is not there, or something in it is not understood.
    pub fn load() -> anyhow::Result<Self> {
        let path = documented();
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Finds the section by its title and reads its table.
    ///
    /// # Errors
    ///
    /// When there is no such section or table, or something in it is not understood.
    pub fn parse(document: &str) -> anyhow::Result<Self> {
        let heading = format!("## {SECTION}");
        let mut lines = document.lines().skip_while(|line| line.trim_end() != heading);
        lines.next().with_context(|| format!("found no section \"{SECTION}\""))?;
        let section = lines.take_while(|line| !line.starts_with("## "));
        let mut table =
            section.skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
        let head = table.next().with_context(|| format!("found no table in section \"{SECTION}\""))?;
        ensure!(cells(head) == COLUMNS, "the columns of the thresholds are not {}", COLUMNS.join(", "));
        let ruler = table.next().unwrap_or_default();
        ensure!(
            cells(ruler).iter().all(|cell| cell.trim_matches([':', '-']).is_empty()),
            "the thresholds have no line below their head"
        );
        let mut rows = BTreeMap::new();
        for line in table {
            let (key, threshold) = row(line).with_context(|| format!("threshold {line}"))?;
            if rows.insert(key.clone(), threshold).is_some() {
                bail!("there are two thresholds {key}");
            }
        }
        Ok(Self(rows))
    }

    /// Fails unless each of the keys has a row.
    ///
    /// # Errors
    ///
    /// Names the first that has none.
    pub fn require(&self, keys: &[&str]) -> anyhow::Result<()> {
        keys.iter().try_for_each(|key| self.get(key).map(drop))
    }

    /// Holds a measured value against the threshold of this key.
    ///
    /// # Errors
    ///
    /// When the key has no row.
    pub fn judge(&self, key: &str, value: f64) -> anyhow::Result<Judgement> {
        let due = self.get(key)?.clone();
        let passed = due.comparison.passes(value, due.threshold);
        Ok(Judgement { key: key.to_owned(), value, due, passed })
    }

    /// The keys that have a row.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    fn get(&self, key: &str) -> anyhow::Result<&Threshold> {
        self.0.get(key).with_context(|| format!("there is no threshold {key}"))
    }
}

fn row(line: &str) -> anyhow::Result<(String, Threshold)> {
    let [key, comparison, value, meaning] = cells(line)[..] else {
        bail!("a row has the columns {}", COLUMNS.join(", "));
    };
    let key = key.strip_prefix('`').and_then(|key| key.strip_suffix('`')).context("a key is in backticks")?;
    ensure!(!key.is_empty() && !meaning.is_empty(), "the key or its meaning is missing");
    let comparison = Comparison::parse(comparison)
        .with_context(|| format!("\"{comparison}\" is not a comparison: at least, at most or below"))?;
    let threshold: f64 =
        value.replace(',', "").parse().with_context(|| format!("\"{value}\" is not a number"))?;
    ensure!(threshold.is_finite(), "\"{value}\" is not a number that can be reached");
    Ok((key.to_owned(), Threshold { comparison, threshold, meaning: meaning.to_owned() }))
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// Cargo's environment comes first: two checkouts may share one target folder and so one compiled benchmark.
fn documented() -> PathBuf {
    let testkit = std::env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .filter(|folder| folder.ends_with("crates/seqline-testkit"))
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    let root = testkit.parent().and_then(Path::parent).map(Path::to_owned).unwrap_or_default();
    root.join("docs/internals/performance.md")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "| key | comparison | value | what it means |\n|---|---|---|---|\n";

    fn table(rows: &str) -> anyhow::Result<Thresholds> {
        Thresholds::parse(&format!("# Performance\n\n## Thresholds\n\nWords.\n\n{HEAD}{rows}\n\n## Other\n"))
    }

    fn refusal(rows: &str) -> String {
        format!("{:#}", table(rows).unwrap_err())
    }

    #[test]
    fn below_the_threshold_fails_and_at_or_above_it_passes() {
        let thresholds = table("| `rate` | at least | 15,000 | events/s |").unwrap();
        let passed = |value| thresholds.judge("rate", value).unwrap().passed;
        assert!(!passed(14_999.9));
        assert!(passed(15_000.0));
        assert!(passed(15_000.1));
        assert!(!passed(f64::NAN));
    }

    #[test]
    fn what_has_to_be_small_is_compared_the_other_way_round() {
        let thresholds = table("| `p99` | below | 10 | ms |\n| `trips` | at most | 1 | a second |").unwrap();
        let passed = |key, value| thresholds.judge(key, value).unwrap().passed;
        assert!(passed("p99", 9.99));
        assert!(!passed("p99", 10.0));
        assert!(!passed("p99", f64::INFINITY));
        assert!(!passed("p99", f64::NAN));
        assert!(passed("trips", 1.0));
        assert!(!passed("trips", 1.01));
    }

    #[test]
    fn the_documented_table_has_a_row_for_each_measurement_and_no_other() {
        let thresholds = Thresholds::load().unwrap();
        let mut keys = keys::ALL;
        keys.sort_unstable();
        assert_eq!(thresholds.keys().collect::<Vec<_>>(), keys);
        thresholds.require(&keys::ALL).unwrap();
    }

    #[test]
    fn a_missing_row_is_named() {
        let thresholds = table("| `rate` | at least | 1 | events/s |").unwrap();
        assert_eq!(
            thresholds.require(&["rate", "other"]).unwrap_err().to_string(),
            "there is no threshold other"
        );
        assert!(thresholds.judge("other", 1.0).is_err());
    }

    #[test]
    fn a_value_that_is_not_a_number_is_refused() {
        for value in ["much", "", "inf", "NaN"] {
            let refusal = refusal(&format!("| `rate` | at least | {value} | events/s |"));
            assert!(refusal.contains(&format!("\"{value}\" is not a number")), "{refusal}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        assert!(refusal("| `rate` | over | 1 | events/s |").contains("\"over\" is not a comparison"));
        assert!(refusal("| rate | at least | 1 | events/s |").contains("a key is in backticks"));
        assert!(refusal("| `rate` | at least | 1 |").contains("a row has the columns"));
        assert!(refusal("| `rate` | at least | 1 | |").contains("its meaning is missing"));
        let twice = "| `rate` | at least | 1 | events/s |\n| `rate` | at least | 2 | events/s |";
        assert!(refusal(twice).contains("there are two thresholds rate"));
    }

    #[test]
    fn the_section_is_found_by_its_title_and_ends_with_it() {
        let elsewhere = format!("## Figures\n\n{HEAD}| `rate` | at least | 1 | events/s |\n");
        let refusal = |text: &str| format!("{:#}", Thresholds::parse(text).unwrap_err());
        assert!(refusal(&elsewhere).contains("found no section"));
        assert!(refusal(&format!("## Thresholds\n\nWords.\n\n{elsewhere}")).contains("found no table"));
        assert!(refusal("## Thresholds\n\n| a | b |\n|---|---|\n").contains("the columns of the thresholds"));
    }
}
