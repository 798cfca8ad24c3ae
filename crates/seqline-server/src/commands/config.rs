//! `seqline config`: what can be set, and whether what is set is right.

use serde::Serialize;

use super::loaded;
use crate::cli::{ConfigAction, ConfigCommandArgs};
use crate::config::schema::{KEYS, Key};
use crate::config::{self, Loaded, Source};
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct Setting {
    key: &'static str,
    value: String,
    default: String,
    from: String,
}

#[derive(Serialize)]
struct Report {
    valid: bool,
    /// Those that were set, also to their defaults.
    settings: Vec<Setting>,
    /// Those of them whose default stands in an alert rule.
    change_rules_of: Vec<&'static str>,
}

pub(crate) fn run(args: &ConfigCommandArgs) -> Result<(), Failure> {
    match args.action {
        ConfigAction::Check { json } => check(&loaded(&args.config)?, json),
        ConfigAction::Reference { toml: false } => output::line(config::reference().trim_end()),
        ConfigAction::Reference { toml: true } => output::line(config::commented_file().trim_end()),
        ConfigAction::Schema => output::json(&config::json_schema()),
    }
}

fn check(loaded: &Loaded, json: bool) -> Result<(), Failure> {
    let report = report(loaded);
    if json {
        return output::json(&report);
    }
    eprintln!("The configuration is valid.");
    if report.settings.is_empty() {
        eprintln!("Nothing is set, so all defaults hold.");
        return Ok(());
    }
    let row = |it: &Setting| vec![it.key.to_owned(), it.value.clone(), it.default.clone(), it.from.clone()];
    let rows = report.settings.iter().map(row).collect();
    output::table(&["key", "value", "default", "from"], &[], rows)?;
    for key in &report.change_rules_of {
        eprintln!("{key} is not its default, which stands in an alert rule: change it there too");
    }
    Ok(())
}

fn report(loaded: &Loaded) -> Report {
    let set = |key: &&Key| loaded.sources.contains_key(key.name);
    let setting = |key: &Key| Setting {
        key: key.name,
        value: key.value_text(&loaded.config),
        default: key.default_text(),
        from: from(key, &loaded.sources[key.name]),
    };
    let settings: Vec<Setting> = KEYS.iter().filter(set).map(setting).collect();
    let changed = settings.iter().filter(|setting| setting.value != setting.default);
    let change_rules_of = changed.map(|setting| setting.key).filter(|key| in_a_rule(key)).collect();
    Report { valid: true, settings, change_rules_of }
}

/// Whether an alert rule holds the default of the key. Rules cannot read the configuration of a process.
pub(crate) fn in_a_rule(key: &str) -> bool {
    matches!(key, "consumer.pending_alert_after" | "agent.pending_alert_after")
        || (key.starts_with("alert.") && key != "alert.clock_skew")
}

fn from(key: &Key, source: &Source) -> String {
    match source {
        Source::Line(line) => format!("line {line} of the file"),
        Source::Variable => key.variable(),
        Source::Option => "--set".to_owned(),
    }
}
