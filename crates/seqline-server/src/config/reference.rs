//! The keys for people and for editors: pages that are made from the table and never written by hand.

use serde_json::{Map, Value, json};

use super::checks::CHECKS;
use super::schema::{KEYS, Key, Kind};

/// All keys and checks as two tables of Markdown: a part of the guide.
#[must_use]
pub fn reference() -> String {
    let key =
        |key: &Key| format!("| `{}` | {} | {} | {} |\n", key.name, key.default_text(), key.bounds(), key.doc);
    let mut page = String::from("## Keys\n\n| key | default | bounds | what and why |\n|---|---|---|---|\n");
    page.extend(KEYS.iter().map(key));
    page.push_str("\n## Checks\n\nWhat has to hold between them.\n\n| check | what |\n|---|---|\n");
    page.extend(CHECKS.iter().map(|check| {
        let [low, high] = [check.keys[0], check.keys[1]];
        format!("| `{}` | `{low}` {} `{high}`: {} |\n", check.name, check.rule, check.why)
    }));
    page
}

/// A file that sets nothing and shows everything: each key with what it is for, its bounds and its default.
#[must_use]
pub fn commented_file() -> String {
    let mut file =
        String::from("# Every setting with its default. Take away the # in front of what you change.\n");
    let mut section = "";
    for key in KEYS {
        let (of, name) = key.name.split_once('.').unwrap_or(("", key.name));
        if of != section {
            section = of;
            file.push_str(&format!("\n[{section}]\n"));
        }
        file.push_str(&format!("# {} ({})\n", key.doc, key.bounds()));
        file.push_str(&format!("#{name} = {}\n", default_value(key)));
    }
    file
}

/// The JSON Schema (draft 2020-12) of the file, for editors.
#[must_use]
pub fn json_schema() -> Value {
    let mut sections = Map::new();
    for key in KEYS {
        let (section, name) = key.name.split_once('.').unwrap_or(("", key.name));
        let section = sections
            .entry(section)
            .or_insert_with(|| json!({ "type": "object", "additionalProperties": false, "properties": {} }));
        section["properties"][name] = key_schema(key);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of Seqline",
        "type": "object",
        "additionalProperties": false,
        "properties": sections,
    })
}

fn key_schema(key: &Key) -> Value {
    let mut schema = match &key.kind {
        Kind::Integer { range, .. } => {
            json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() })
        }
        Kind::Size { range, .. } => {
            json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() })
        }
        Kind::Switch { .. } => json!({ "type": "boolean" }),
        Kind::Choice { names, .. } => json!({ "enum": names }),
        Kind::Filter { .. } => json!({ "type": "array", "items": { "type": "string" } }),
        // A number and its unit, as often as one likes. What is out of bounds is told by the program.
        Kind::Duration { .. } => json!({ "type": "string", "pattern": "^ *([0-9]+ *[a-z]+ *)+$" }),
        Kind::Address { .. }
        | Kind::Endpoint { .. }
        | Kind::Text { .. }
        | Kind::SchemaName { .. }
        | Kind::Name { .. } => {
            json!({ "type": "string" })
        }
    };
    schema["description"] =
        format!("{} Bounds: {}. Variable: {}.", key.doc, key.bounds(), key.variable()).into();
    schema["default"] = match &key.kind {
        Kind::Integer { default, .. } => (*default).into(),
        Kind::Size { default, .. } => (*default).into(),
        Kind::Switch { default, .. } => (*default).into(),
        Kind::Filter { .. } => json!([]),
        _ => key.default_text().into(),
    };
    schema
}

/// The default as a file has it.
fn default_value(key: &Key) -> String {
    match &key.kind {
        Kind::Integer { .. } | Kind::Size { .. } | Kind::Switch { .. } => key.default_text(),
        Kind::Filter { .. } => "[]".to_owned(),
        _ => format!("\"{}\"", key.default_text()),
    }
}
