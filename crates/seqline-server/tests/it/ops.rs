//! What operators load and read: alert rules, the dashboard and the runbook fit each other, the metrics and the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use seqline_server::config::schema::{KEYS, Key};
use seqline_server::metrics::catalogue::{Kind, METRICS, Metric, label};
use serde_json::Value;

use crate::support::seqline;

const RULES: &str = "ops/prometheus/seqline.rules.yaml";
const TESTS_OF_RULES: &str = "ops/prometheus/seqline.rules.test.yaml";
const DASHBOARD: &str = "ops/grafana/seqline.json";
const RUNBOOK: &str = "docs/guide/operate/runbook.md";

/// Sections of the runbook that are about no single alert.
const GENERAL: [&str; 2] = ["Before anything else", "Thresholds"];

/// What the server exports, by the names of Prometheus. Of a histogram a rule reads its buckets.
fn metrics() -> BTreeSet<String> {
    let name = |metric: &Metric| match metric.kind {
        Kind::Histogram => format!("{}_bucket", metric.prometheus_name()),
        Kind::Gauge | Kind::Counter => metric.prometheus_name(),
    };
    METRICS.iter().map(name).collect()
}

/// Its labels.
fn labels() -> BTreeSet<String> {
    METRICS.iter().flat_map(|metric| metric.attributes).map(|attribute| label(attribute)).collect()
}

/// The default of a key that rules go by, as the configuration says it.
fn default_of(key: &str) -> String {
    Key::find(key).unwrap_or_else(|| panic!("there is no key {key}")).default_text()
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

struct Alert {
    name: String,
    expr: String,
    /// Everything with one value: `for`, the label and the annotations.
    fields: BTreeMap<String, String>,
}

impl Alert {
    /// Reads one by lines, as the file is written: promtool checks that it is what Prometheus understands.
    fn parse(text: &str) -> Self {
        let (name, rest) = text.split_once('\n').expect("an alert has fields");
        let (head, rest) = rest.split_once("labels:\n").expect("an alert has labels");
        let (_, expr) = head.split_once("expr: ").expect("an alert has an expression");
        let is_for = |line: &&str| line.trim_start().starts_with("for: ");
        let expr: Vec<&str> = expr.lines().filter(|line| !is_for(line)).map(str::trim).collect();
        let fields =
            head.lines().filter(is_for).chain(rest.lines().take_while(|line| !line.contains("- name:")));
        let fields = fields
            .filter_map(|line| line.trim().split_once(": "))
            .map(|(name, value)| (name.to_owned(), value.trim_matches('\'').to_owned()));
        Self {
            name: name.trim().to_owned(),
            expr: expr.join(" ").trim_start_matches("|- ").trim().to_owned(),
            fields: fields.collect(),
        }
    }

    fn field(&self, name: &str) -> &str {
        self.fields.get(name).unwrap_or_else(|| panic!("{} has no {name}", self.name))
    }

    /// What the expression compares with at its end.
    fn threshold(&self) -> Option<f64> {
        let (_, number) = self.expr.rsplit_once(['>', '<'])?;
        number.trim_start_matches('=').trim().parse().ok()
    }
}

fn alerts() -> Vec<Alert> {
    let alerts: Vec<_> = read(RULES).split("- alert: ").skip(1).map(Alert::parse).collect();
    assert_eq!(alerts.len(), 30, "all of them are found");
    alerts
}

fn dashboard() -> Value {
    serde_json::from_str(&read(DASHBOARD)).expect("the dashboard is JSON")
}

fn panels(dashboard: &Value) -> Vec<&Value> {
    dashboard["panels"].as_array().expect("a dashboard has panels").iter().collect()
}

/// All texts under these names, at any depth.
fn texts<'a>(value: &'a Value, names: &[&str], found: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if names.contains(&name.as_str()) {
                    found.extend(member.as_str());
                }
                texts(member, names, found);
            }
        }
        Value::Array(elements) => elements.iter().for_each(|element| texts(element, names, found)),
        _ => {}
    }
}

/// The words of an expression that begin with `seqline_`: metrics, which are those before a selector, and labels.
fn words(expr: &str) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = (BTreeSet::new(), BTreeSet::new());
    for (at, _) in expr.match_indices("seqline_") {
        if expr[..at].chars().next_back().is_some_and(is_word) {
            continue;
        }
        let rest = &expr[at..];
        let (word, behind) = rest.split_at(rest.find(|c| !is_word(c)).unwrap_or(rest.len()));
        let kind = if behind.starts_with('{') { &mut found.0 } else { &mut found.1 };
        kind.insert(word);
    }
    found
}

#[test]
fn every_metric_and_label_is_one_that_the_server_exports() {
    let alerts = alerts();
    let dashboard = dashboard();
    let mut expressions: Vec<&str> = alerts.iter().map(|alert| alert.expr.as_str()).collect();
    texts(&dashboard, &["expr", "definition", "query", "legendFormat"], &mut expressions);
    assert!(expressions.len() > 60, "those of the dashboard are found");
    let (known, known_labels) = (metrics(), labels());
    let unknown: BTreeSet<_> = expressions
        .into_iter()
        .map(words)
        .flat_map(|(metrics, labels)| {
            let unknown = metrics.into_iter().filter(|name| !known.contains(*name));
            unknown.chain(labels.into_iter().filter(|name| !known_labels.contains(*name))).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(unknown, BTreeSet::new());
}

#[test]
fn the_dashboard_shows_every_metric() {
    let dashboard = dashboard();
    let mut expressions = Vec::new();
    texts(&dashboard, &["expr"], &mut expressions);
    let shown: BTreeSet<_> = expressions.into_iter().flat_map(|expr| words(expr).0).collect();
    let missing: Vec<_> = metrics().into_iter().filter(|name| !shown.contains(name.as_str())).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn the_number_of_a_rule_is_the_default_of_the_key_that_it_names() {
    let mut with_a_key = 0;
    for alert in alerts() {
        let found = alert.threshold();
        let expected = match alert.fields.get("key") {
            None => {
                // Is it so or not, or is there any: nothing to choose.
                assert!(found.is_none_or(|number| number == 0.0 || number == 1.0), "{}", alert.name);
                continue;
            }
            Some(key) => default_of(key),
        };
        with_a_key += 1;
        let number =
            expected.parse().or_else(|_| humantime::parse_duration(&expected).map(|it| it.as_secs_f64()));
        assert_eq!(found, number.ok(), "{}: the default of {} is {expected}", alert.name, alert.field("key"));
    }
    assert_eq!(with_a_key, 14);
}

#[tokio::test]
async fn a_changed_key_is_told_to_whoever_has_to_change_a_rule_and_no_other_is() {
    let of_rules: BTreeSet<String> =
        alerts().iter().filter_map(|alert| alert.fields.get("key").cloned()).collect();
    for key in KEYS {
        let changed = match key.name {
            "consumer.pending_alert_after" | "agent.pending_alert_after" => "9min".to_owned(),
            name if name.starts_with("alert.") && key.default_text().parse::<u32>().is_ok() => {
                "77".to_owned()
            }
            name if name.starts_with("alert.") => "7s".to_owned(),
            _ => continue,
        };
        let set = format!("{}={changed}", key.name);
        let outcome =
            seqline(["config", "check", "--set", "sync.partition_maintenance_interval=1s", "--set", &set])
                .run()
                .await;
        assert_eq!(outcome.code(), Some(0), "{outcome:?}");
        let told = outcome
            .stderr
            .contains(&format!("{} is not its default, which stands in an alert rule", key.name));
        assert_eq!(told, of_rules.contains(key.name), "{}: {outcome:?}", key.name);
    }
}

#[test]
fn what_a_rule_says_names_its_key_and_its_consumer_and_holds_no_number() {
    for alert in alerts() {
        let summary = alert.field("summary");
        for text in [summary, alert.field("description")] {
            assert!(!text.contains(|c: char| c.is_ascii_digit()), "{}: {text}", alert.name);
        }
        if let Some(key) = alert.fields.get("key") {
            assert!(summary.contains(key), "{}: {summary}", alert.name);
        }
        for labels in [
            &["seqline_consumer_name"] as &[&str],
            &["seqline_agent_id", "seqline_agent_consumer_name"],
            &["seqline_relay_name"],
            &["seqline_stream_name"],
            &["seqline_stream_consumer_name"],
        ] {
            let is_of_a_consumer = alert.expr.contains(&format!("by (job, {})", labels.join(", ")));
            for label in labels {
                let names_it = summary.contains(&format!("{{{{ $labels.{label} }}}}"));
                assert_eq!(names_it, is_of_a_consumer, "{}: {summary}", alert.name);
            }
        }
    }
}

#[test]
fn every_rule_takes_one_value_of_those_that_the_processes_of_a_job_export() {
    for alert in alerts() {
        for metric in words(&alert.expr).0 {
            let all = alert.expr.matches(&format!("{metric}{{")).count();
            let of_jobs = alert.expr.matches(&format!("{metric}{{job=~\"seqline.*\"")).count();
            assert_eq!(of_jobs, all, "{}: {metric}", alert.name);
        }
        let is_one =
            ["max by (job", "min by (job", "sum by (job", "absent("].iter().any(|it| alert.expr.contains(it));
        assert!(is_one, "{}: {}", alert.name, alert.expr);
    }
}

#[test]
fn every_alert_has_a_section_of_the_runbook_and_every_section_an_alert() {
    let runbook = read(RUNBOOK);
    let sections: BTreeSet<&str> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let alerts = alerts();
    let expected: BTreeSet<&str> = alerts.iter().map(|alert| alert.name.as_str()).chain(GENERAL).collect();
    assert_eq!(sections, expected);
    for alert in &alerts {
        let anchor = alert.name.to_lowercase();
        assert_eq!(alert.field("runbook_url"), format!("{RUNBOOK}#{anchor}"));
        let key = alert.fields.get("key").map(|key| format!("`{key}` ")).unwrap_or_default();
        let row = format!("| [{}](#{anchor}) | {} | {key}|", alert.name, alert.field("severity"));
        assert!(runbook.lines().any(|line| line == row), "{RUNBOOK} has no row {row}");
        let section = runbook.split(&format!("\n## {}\n", alert.name)).nth(1).expect("it has a section");
        let section = section.split("\n## ").next().expect("a section ends");
        assert!(section.contains("\nNever: "), "{}: what must not be done", alert.name);
    }
}

#[test]
fn every_alert_has_a_test_that_sees_it_fire_and_one_that_sees_it_silent() {
    let tests = read(TESTS_OF_RULES);
    for alert in alerts() {
        let name = &alert.name;
        let checks: Vec<_> =
            tests.split(&format!("alertname: {name}\n")).skip(1).map(str::trim_start).collect();
        let is_silent = |check: &&str| check.starts_with("exp_alerts: []");
        assert!(checks.iter().any(is_silent), "{name} is never seen silent");
        let fires = checks.iter().any(|check| !is_silent(check) && check.contains("exp_labels"));
        assert!(fires, "{name} is never seen to fire");
    }
}

#[test]
fn the_dashboard_names_no_host_and_takes_its_data_source_from_a_variable() {
    let text = read(DASHBOARD);
    assert!(!text.contains("://"));
    let dashboard = dashboard();
    let mut sources = Vec::new();
    texts(&dashboard, &["uid"], &mut sources);
    let sources: BTreeSet<_> = sources.into_iter().collect();
    assert_eq!(sources, BTreeSet::from(["${datasource}", "seqline"]), "`seqline` is the dashboard itself");
}

#[test]
fn panels_name_alerts_that_exist_and_all_of_them_with_data_have_one() {
    let dashboard = dashboard();
    let named: BTreeSet<String> = panels(&dashboard)
        .into_iter()
        .filter_map(|panel| panel["description"].as_str()?.split_once("Runbook: "))
        .flat_map(|(_, names)| names.split(", ").map(str::to_owned))
        .collect();
    let alerts = alerts().into_iter().map(|alert| alert.name).filter(|name| name != "ServerAbsent");
    assert_eq!(named, alerts.collect());
}

#[test]
fn one_panel_shows_lag_and_age_of_each_consumer() {
    let dashboard = dashboard();
    for (title, metrics, labels) in [
        (
            "Worker consumers",
            ["seqline_event_consumer_lag", "seqline_event_consumer_pending_age_seconds"],
            "max by (seqline_consumer_name)",
        ),
        (
            "Agent consumers",
            ["seqline_agent_consumer_lag", "seqline_agent_consumer_pending_age_seconds"],
            "max by (seqline_agent_id, seqline_agent_consumer_name)",
        ),
    ] {
        let panel = panels(&dashboard).into_iter().find(|panel| panel["title"] == title);
        let panel = panel.expect("there is such a panel");
        let mut expressions = Vec::new();
        texts(panel, &["expr"], &mut expressions);
        let shown: BTreeSet<_> = expressions.iter().flat_map(|expr| words(expr).0).collect();
        assert_eq!(shown, BTreeSet::from(metrics));
        assert!(expressions.iter().all(|expr| expr.contains(labels)));
    }
}
