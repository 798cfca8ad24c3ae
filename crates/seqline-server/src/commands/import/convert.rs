//! From a line to an event: pure.

use std::borrow::Cow;
use std::collections::HashMap;

use seqline::event::NewEventBuilder;
use seqline::{NewEvent, Payload};
use serde_json::value::RawValue;

use crate::cli::ImportArgs;
use crate::commands::append::with_members;
use crate::failure::Failure;

/// How lines become events.
pub(super) struct Converter {
    event_type: Source,
    type_prefix: String,
    resource_kind: Source,
    resource_id_pointer: Option<String>,
    payload_pointer: Option<String>,
    receive_action: String,
    strip_nulls: bool,
    /// Everything that is the same for every line.
    template: NewEventBuilder,
}

enum Source {
    Fixed(String),
    Pointer(String),
}

impl Source {
    /// The command line makes sure that one of the two is given.
    fn new(fixed: Option<&String>, pointer: Option<&String>) -> Result<Self, Failure> {
        match pointer {
            Some(pointer) => Ok(Self::Pointer(checked(pointer)?)),
            None => Ok(Self::Fixed(fixed.cloned().unwrap_or_default())),
        }
    }

    fn fixed_or<'a>(&'a self, placeholder: &'a str) -> &'a str {
        match self {
            Self::Fixed(text) => text,
            Self::Pointer(_) => placeholder,
        }
    }

    fn get<'a>(&'a self, line: &'a RawValue, what: &str) -> Result<Cow<'a, str>, String> {
        match self {
            Self::Fixed(text) => Ok(Cow::Borrowed(text)),
            Self::Pointer(pointer) => {
                text_at(line, pointer)?.ok_or_else(|| format!("there is no {what} at {pointer}"))
            }
        }
    }
}

impl Converter {
    pub(super) fn new(args: &ImportArgs) -> Result<Self, Failure> {
        let pointer = |pointer: &Option<String>| pointer.as_ref().map(|pointer| checked(pointer)).transpose();
        let converter = Self {
            event_type: Source::new(args.event_type.as_ref(), args.type_pointer.as_ref())?,
            type_prefix: args.type_prefix.clone().unwrap_or_default(),
            resource_kind: Source::new(args.resource_kind.as_ref(), args.resource_kind_pointer.as_ref())?,
            resource_id_pointer: pointer(&args.resource_id_pointer)?,
            payload_pointer: pointer(&args.payload_pointer)?,
            receive_action: args.members.receive_action.clone(),
            strip_nulls: args.strip_nulls,
            template: with_members(NewEvent::builder("", "", ""), &args.members)?,
        };
        converter.probe()?;
        Ok(converter)
    }

    /// A mistake in what is the same for every line would reject them all, and count them as done.
    fn probe(&self) -> Result<(), Failure> {
        let event_type = format!("{}{}", self.type_prefix, self.event_type.fixed_or("a.b"));
        let resource_kind = self.resource_kind.fixed_or("any");
        self.template.clone().with_names(event_type, resource_kind, &self.receive_action).build()?;
        Ok(())
    }

    /// The event of a line, or why the line cannot be one. The reason names members and never quotes values.
    pub(super) fn convert(&self, line: &str) -> Result<NewEvent, String> {
        if line.trim().is_empty() {
            return Err("line is empty".to_owned());
        }
        let value: &RawValue = serde_json::from_str(line)
            .map_err(|error| format!("line is not valid JSON (column {})", error.column()))?;
        let event_type = format!("{}{}", self.type_prefix, self.event_type.get(value, "type")?);
        let resource_kind = self.resource_kind.get(value, "resource kind")?;
        let resource_id = match &self.resource_id_pointer {
            Some(pointer) => text_at(value, pointer)?.unwrap_or_default(),
            None => Cow::Borrowed(""),
        };
        let payload = match &self.payload_pointer {
            // From the text, so that numbers keep every digit.
            None => self.payload(line),
            Some(pointer) => {
                let found = at(value, pointer).ok_or_else(|| format!("there is no payload at {pointer}"))?;
                self.payload(found.get())
            }
        };
        self.template
            .clone()
            .with_names(event_type, resource_kind.into_owned(), self.receive_action.clone())
            .resource_id(resource_id)
            .payload(payload.map_err(|error| error.to_string())?)
            .build()
            .map_err(|error| error.to_string())
    }

    fn payload(&self, json: &str) -> Result<Payload, seqline::InvalidEvent> {
        if self.strip_nulls { Payload::without_nulls(json) } else { Payload::from_json(json) }
    }
}

fn checked(pointer: &str) -> Result<String, Failure> {
    if pointer.is_empty() || pointer.starts_with('/') {
        return Ok(pointer.to_owned());
    }
    Err(Failure::Usage(format!(
        "{pointer} is not a JSON pointer: it starts with a slash, such as /event/type"
    )))
}

/// A text or a number at a pointer; integer keys are common.
fn text_at<'a>(value: &'a RawValue, pointer: &str) -> Result<Option<Cow<'a, str>>, String> {
    let Some(found) = at(value, pointer) else { return Ok(None) };
    let text = found.get();
    match text.as_bytes().first() {
        Some(b'n') => Ok(None),
        Some(b'"') => Ok(Some(Cow::Owned(
            serde_json::from_str(text).map_err(|_| format!("the string at {pointer} is not valid"))?,
        ))),
        Some(b'-' | b'0'..=b'9') => Ok(Some(Cow::Borrowed(text))),
        _ => Err(format!("the value at {pointer} is neither a string nor a number")),
    }
}

/// The text at a pointer as it is, so that numbers keep every digit.
fn at<'a>(line: &'a RawValue, pointer: &str) -> Option<&'a RawValue> {
    let mut found = line;
    for token in pointer.split('/').skip(1) {
        let token = token.replace("~1", "/").replace("~0", "~");
        let text = found.get();
        found = match text.as_bytes().first()? {
            b'{' => serde_json::from_str::<HashMap<String, &'a RawValue>>(text).ok()?.remove(&token)?,
            b'[' => {
                serde_json::from_str::<Vec<&'a RawValue>>(text).ok()?.into_iter().nth(token.parse().ok()?)?
            }
            _ => return None,
        };
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn converter(args: &[&str]) -> Converter {
        let line = ["seqline", "import", "-"].iter().chain(args);
        let Command::Import(args) = Cli::parse_from(line).command else { unreachable!("it is an import") };
        Converter::new(&args).unwrap()
    }

    #[test]
    fn members_come_from_arguments_and_pointers() {
        let converter = converter(&[
            "--type-pointer",
            "/event",
            "--type-prefix",
            "github.",
            "--resource-kind",
            "hook",
            "--resource-id-pointer",
            "/payload/id",
            "--payload-pointer",
            "/payload",
            "--strip-nulls",
        ]);
        let event = converter.convert(r#"{"event":"push.made","payload":{"id":7,"x":null}}"#).unwrap();
        assert_eq!(event.event_type(), "github.push.made");
        assert_eq!(event.payload().as_json(), r#"{"id":7}"#);
    }

    #[test]
    fn the_whole_line_is_the_payload_and_keeps_its_digits() {
        let event = converter(&["--type", "a.b", "--resource-kind", "x"])
            .convert(r#"{"n":1.000000000000000000001}"#)
            .unwrap();
        assert_eq!(event.payload().as_json(), r#"{"n":1.000000000000000000001}"#);
    }

    #[test]
    fn a_reason_names_the_place_and_not_the_value() {
        let converter =
            converter(&["--type-pointer", "/t", "--resource-kind", "x", "--resource-id-pointer", "/i"]);
        for (line, reason) in [
            ("", "line is empty"),
            ("{secret", "line is not valid JSON (column 2)"),
            (r#"{"i":1}"#, "there is no type at /t"),
            (r#"{"t":["secret"]}"#, "the value at /t is neither a string nor a number"),
            (r#"{"t":"a.b","i":{}}"#, "the value at /i is neither a string nor a number"),
            (r#"{"t":"a.b","n":null}"#, "payload member /n is null"),
            (
                r#"{"t":"secret"}"#,
                "member type must be two or more lowercase words joined by dots, such as order.created",
            ),
        ] {
            assert_eq!(converter.convert(line).unwrap_err(), reason, "{line}");
        }
    }
}
