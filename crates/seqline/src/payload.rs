//! JSON that the log accepts: one object, without null, that PostgreSQL can store.
//!
//! A [`Payload`] keeps the text it was made from, so numbers keep every digit. It is judged as PostgreSQL will
//! see it: of duplicate keys the last one counts. Its size is not judged here, because the bound is a setting of the
//! database and is measured on the stored form.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::Serialize;
use serde_json::value::RawValue;

use crate::event::{InvalidEvent, Rule};
use crate::limits::{MESSAGE_PATH_CHARACTERS_MAX, PAYLOAD_BYTES_MAX, PAYLOAD_DEPTH_MAX};

/// A valid event payload.
///
/// ```
/// use seqline::Payload;
///
/// let payload = Payload::from_json(r#"{"total": 12.50, "customer": {"name": "Alex"}}"#)?;
/// assert_eq!(payload.as_json(), r#"{"total": 12.50, "customer": {"name": "Alex"}}"#);
///
/// let refused = Payload::from_json(r#"{"customer": {"name": null}}"#).unwrap_err();
/// assert_eq!(refused.to_string(), "payload member /customer/name is null");
/// # Ok::<(), seqline::InvalidEvent>(())
/// ```
#[derive(Clone)]
pub struct Payload(Box<RawValue>);

impl Payload {
    /// The empty object.
    #[must_use]
    pub fn empty() -> Self {
        Self(RawValue::from_string("{}".to_owned()).unwrap_or_else(|_| unreachable!("{{}} is JSON")))
    }

    pub(crate) fn into_raw(self) -> Box<RawValue> {
        self.0
    }

    /// Takes JSON text.
    ///
    /// # Errors
    ///
    /// [`InvalidEvent`] when it is not JSON, not an object, has a null at any depth (the message has its path), is nested
    /// deeper than [`PAYLOAD_DEPTH_MAX`], or holds a string that PostgreSQL cannot store (`\u0000`, a lone surrogate).
    pub fn from_json(text: &str) -> Result<Self, InvalidEvent> {
        let raw = parse(text)?;
        let mut scan = Scan { keep_nulls: true, first_null: None, out: None };
        scan.value(&raw, &mut String::new(), 0)?;
        object_only(&raw)?;
        match scan.first_null {
            Some(path) => Err(null_at(&path)),
            None => Ok(Self(raw)),
        }
    }

    /// Takes anything that serializes to a JSON object.
    ///
    /// # Errors
    ///
    /// As [`Payload::from_json`]. An `Option` field that is `None` is a null: mark it
    /// `#[serde(skip_serializing_if = "Option::is_none")]`, or use [`Payload::serialize_without_nulls`].
    pub fn serialize<T: Serialize + ?Sized>(value: &T) -> Result<Self, InvalidEvent> {
        Self::from_json(&serde_json::to_string(value).map_err(|error| syntax(&error))?)
    }

    /// Takes JSON text and leaves out null members and null elements, at any depth. What
    /// `seqline.without_nulls(jsonb)` is in SQL.
    ///
    /// # Errors
    ///
    /// As [`Payload::from_json`], except for nulls.
    ///
    /// ```
    /// # use seqline::Payload;
    /// let payload = Payload::without_nulls(r#"{"a": null, "b": [1, null, {"c": null}]}"#)?;
    /// assert_eq!(payload.as_json(), r#"{"b":[1,{}]}"#);
    /// # Ok::<(), seqline::InvalidEvent>(())
    /// ```
    pub fn without_nulls(text: &str) -> Result<Self, InvalidEvent> {
        let raw = parse(text)?;
        let mut scan =
            Scan { keep_nulls: false, first_null: None, out: Some(String::with_capacity(text.len())) };
        scan.value(&raw, &mut String::new(), 0)?;
        object_only(&raw)?;
        let stripped = scan.out.unwrap_or_default();
        Ok(Self(RawValue::from_string(stripped).map_err(|error| syntax(&error))?))
    }

    /// Takes anything that serializes to a JSON object and leaves out nulls.
    ///
    /// # Errors
    ///
    /// As [`Payload::without_nulls`].
    pub fn serialize_without_nulls<T: Serialize + ?Sized>(value: &T) -> Result<Self, InvalidEvent> {
        Self::without_nulls(&serde_json::to_string(value).map_err(|error| syntax(&error))?)
    }

    /// The JSON text.
    #[must_use]
    pub fn as_json(&self) -> &str {
        self.0.get()
    }

    pub(crate) fn raw(&self) -> &RawValue {
        &self.0
    }
}

/// The size only: payloads do not belong into logs.
impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.0.get().len())
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.as_json() == other.as_json()
    }
}

/// One walk over a document that finds what the log refuses and, when asked, writes the document without nulls.
struct Scan {
    keep_nulls: bool,
    /// The first path in byte order at which a null was found. Only this one is kept: there can be very many.
    first_null: Option<String>,
    out: Option<String>,
}

impl Scan {
    fn value(&mut self, raw: &RawValue, path: &mut String, depth: usize) -> Result<(), InvalidEvent> {
        let text = raw.get();
        match text.as_bytes().first() {
            Some(b'{') => self.object(text, path, depth + 1),
            Some(b'[') => self.array(text, path, depth + 1),
            Some(b'"') => {
                storable(&serde_json::from_str::<Cow<'_, str>>(text).map_err(|error| syntax(&error))?)?;
                self.write(text);
                Ok(())
            }
            Some(b'n') => {
                if self.keep_nulls && self.first_null.as_ref().is_none_or(|first| *path < *first) {
                    self.first_null = Some(path.clone());
                }
                self.write(text);
                Ok(())
            }
            _ => {
                self.write(text);
                Ok(())
            }
        }
    }

    fn object(&mut self, text: &str, path: &mut String, depth: usize) -> Result<(), InvalidEvent> {
        let Members(members) = parse_nested(text, depth)?;
        self.write("{");
        let last: HashMap<&str, usize> =
            members.iter().enumerate().map(|(position, (key, _))| (key.as_str(), position)).collect();
        let mut first = true;
        for (position, (key, value)) in members.iter().enumerate() {
            storable(key)?;
            if last.get(key.as_str()) != Some(&position) {
                // PostgreSQL keeps the last one. This one must still be storable text, since the parser reads it.
                Scan { keep_nulls: false, first_null: None, out: None }.value(
                    value,
                    &mut String::new(),
                    depth,
                )?;
                continue;
            }
            if !self.keep_nulls && is_null(value) {
                continue;
            }
            if !std::mem::take(&mut first) {
                self.write(",");
            }
            if self.out.is_some() {
                self.write(&serde_json::to_string(key).map_err(|error| syntax(&error))?);
                self.write(":");
            }
            let length = path.len();
            path.push('/');
            path.push_str(&key.replace('~', "~0").replace('/', "~1"));
            self.value(value, path, depth)?;
            path.truncate(length);
        }
        self.write("}");
        Ok(())
    }

    fn array(&mut self, text: &str, path: &mut String, depth: usize) -> Result<(), InvalidEvent> {
        let elements: Vec<&RawValue> = parse_nested(text, depth)?;
        self.write("[");
        let mut first = true;
        for (position, value) in elements.iter().enumerate() {
            if !self.keep_nulls && is_null(value) {
                continue;
            }
            if !std::mem::take(&mut first) {
                self.write(",");
            }
            let length = path.len();
            path.push('/');
            path.push_str(&position.to_string());
            self.value(value, path, depth)?;
            path.truncate(length);
        }
        self.write("]");
        Ok(())
    }

    fn write(&mut self, text: &str) {
        if let Some(out) = &mut self.out {
            out.push_str(text);
        }
    }
}

fn parse(text: &str) -> Result<Box<RawValue>, InvalidEvent> {
    if text.len() > PAYLOAD_BYTES_MAX {
        return Err(InvalidEvent::new(
            Rule::PayloadSize,
            "payload",
            format!("member payload has {} bytes, more than any database allows", text.len()),
        ));
    }
    serde_json::from_str(text).map_err(|error| syntax(&error))
}

fn parse_nested<'a, T: Deserialize<'a>>(text: &'a str, depth: usize) -> Result<T, InvalidEvent> {
    if depth > PAYLOAD_DEPTH_MAX {
        return Err(InvalidEvent::new(
            Rule::PayloadSyntax,
            "payload",
            format!("member payload is nested deeper than {PAYLOAD_DEPTH_MAX} levels"),
        ));
    }
    serde_json::from_str(text).map_err(|error| syntax(&error))
}

/// The members of an object in their order, duplicates included.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(key) = map.next_key()? {
                    members.push((key, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

fn object_only(raw: &RawValue) -> Result<(), InvalidEvent> {
    if raw.get().starts_with('{') {
        return Ok(());
    }
    Err(InvalidEvent::new(Rule::PayloadObject, "payload", "member payload must be a JSON object".to_owned()))
}

fn storable(text: &str) -> Result<(), InvalidEvent> {
    if text.contains('\0') {
        return Err(InvalidEvent::new(
            Rule::PayloadSyntax,
            "payload",
            "member payload has a \\u0000 in a string, which PostgreSQL cannot store".to_owned(),
        ));
    }
    Ok(())
}

fn null_at(path: &str) -> InvalidEvent {
    let path: String = path.chars().take(MESSAGE_PATH_CHARACTERS_MAX).collect();
    InvalidEvent::new(Rule::PayloadNull, "payload", format!("payload member {path} is null"))
}

/// Position and category of a syntax error; its text can quote the document.
fn syntax(error: &serde_json::Error) -> InvalidEvent {
    let what = match error.classify() {
        serde_json::error::Category::Eof => "ends too early",
        serde_json::error::Category::Data => "cannot be written as JSON",
        _ => "is not valid JSON",
    };
    let place = match (error.line(), error.column()) {
        (0, _) => String::new(),
        (line, column) => format!(" (line {line}, column {column})"),
    };
    InvalidEvent::new(Rule::PayloadSyntax, "payload", format!("member payload {what}{place}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn refusal(text: &str) -> (Rule, String) {
        let error = Payload::from_json(text).unwrap_err();
        (error.rule(), error.to_string())
    }

    #[test]
    fn a_payload_keeps_its_text() {
        let text = r#"{ "price": 0.10000000000000000555, "big": 1e400, "s": "null" }"#;
        assert_eq!(Payload::from_json(text).unwrap().as_json(), text);
    }

    #[test]
    fn what_the_log_cannot_hold_is_refused_with_its_place() {
        for (text, rule, message) in [
            ("[]", Rule::PayloadObject, "member payload must be a JSON object"),
            ("null", Rule::PayloadObject, "member payload must be a JSON object"),
            ("\"x\"", Rule::PayloadObject, "member payload must be a JSON object"),
            ("", Rule::PayloadSyntax, "member payload ends too early (line 1, column 0)"),
            ("{", Rule::PayloadSyntax, "member payload ends too early (line 1, column 1)"),
            ("{a}", Rule::PayloadSyntax, "member payload is not valid JSON (line 1, column 2)"),
            (r#"{"a":null}"#, Rule::PayloadNull, "payload member /a is null"),
            (r#"{"z":null,"a":[{"b/c~":null}]}"#, Rule::PayloadNull, "payload member /a/0/b~1c~0 is null"),
            (
                r#"{"a":"x\u0000"}"#,
                Rule::PayloadSyntax,
                "member payload has a \\u0000 in a string, which PostgreSQL cannot store",
            ),
            (
                r#"{"\u0000":1}"#,
                Rule::PayloadSyntax,
                "member payload has a \\u0000 in a string, which PostgreSQL cannot store",
            ),
        ] {
            assert_eq!(refusal(text), (rule, message.to_owned()), "{text}");
        }
        for lone_surrogate in [r#"{"a":"\ud800"}"#, r#"{"a":"\udc00x"}"#, r#"{"\ud800":1}"#] {
            assert_eq!(refusal(lone_surrogate).0, Rule::PayloadSyntax, "{lone_surrogate}");
        }
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(PAYLOAD_DEPTH_MAX), "]".repeat(PAYLOAD_DEPTH_MAX));
        assert_eq!(refusal(&deep).0, Rule::PayloadSyntax);
    }

    #[test]
    fn of_duplicate_keys_the_last_one_counts() {
        assert!(Payload::from_json(r#"{"a":null,"a":1}"#).is_ok());
        assert_eq!(refusal(r#"{"a":1,"a":null}"#).0, Rule::PayloadNull);
        assert_eq!(refusal(r#"{"a":"\u0000","a":1}"#).0, Rule::PayloadSyntax);
        assert_eq!(Payload::without_nulls(r#"{"a":1,"a":null}"#).unwrap().as_json(), "{}");
    }

    #[test]
    fn an_error_never_quotes_the_payload() {
        #[derive(serde::Serialize)]
        struct Order {
            secret: Option<&'static str>,
        }
        let error = Payload::serialize(&Order { secret: None }).unwrap_err();
        assert_eq!(error.to_string(), "payload member /secret is null");
        let error = Payload::from_json(r#"{"card": "4111 1111", x}"#).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("4111"));
        assert_eq!(format!("{:?}", Payload::from_json(r#"{"card": "4111"}"#).unwrap()), "Payload(16 bytes)");
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[^\0]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map("[^\0]{0,5}", inner, 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    fn has_null(value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Array(elements) => elements.iter().any(has_null),
            Value::Object(members) => members.values().any(has_null),
            _ => false,
        }
    }

    fn strip(value: &Value) -> Value {
        match value {
            Value::Array(elements) => elements.iter().filter(|v| !v.is_null()).map(strip).collect(),
            Value::Object(members) => {
                members.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), strip(v))).collect()
            }
            other => other.clone(),
        }
    }

    proptest! {
        #[test]
        fn exactly_objects_without_null_are_payloads(value in any_json()) {
            let accepted = Payload::from_json(&value.to_string()).is_ok();
            prop_assert_eq!(accepted, value.is_object() && !has_null(&value));
        }

        #[test]
        fn without_nulls_keeps_everything_else(value in any_json()) {
            match Payload::without_nulls(&value.to_string()) {
                Ok(payload) => {
                    let kept: Value = serde_json::from_str(payload.as_json()).unwrap();
                    prop_assert_eq!(kept, strip(&value));
                    prop_assert!(Payload::from_json(payload.as_json()).is_ok());
                }
                Err(error) => {
                    prop_assert_eq!(error.rule(), Rule::PayloadObject);
                    prop_assert!(!value.is_object());
                }
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,64}") {
            let _ = Payload::from_json(&text);
            let _ = Payload::without_nulls(&text);
        }
    }
}
