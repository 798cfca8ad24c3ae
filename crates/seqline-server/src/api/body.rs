//! What a request says, read within its bounds and taken strictly: an unknown member is refused with its place, because it is a mistake
//! that would go unnoticed otherwise.

use std::marker::PhantomData;
use std::ops::Deref;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use serde::de::{DeserializeOwned, DeserializeSeed};
use serde_path_to_error::Track;

use super::{Code, Door, Problem};
use crate::limits::{API_DRAIN_BYTES_MAX, API_DRAIN_TIMEOUT};

mod params;
mod room;

pub(crate) use self::params::{NamedParams, Params, PathParams, wrong_param};
pub(crate) use self::room::{Bodies, Room};

/// For whom room is taken where nobody but operators may send anything. It is the name of no principal.
const OPERATORS: &str = "";

/// A body of JSON that an operator sends.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Door> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, door: &Door) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        refuse_other_types(&parts.headers)?;
        from_json(&read(body, door, OPERATORS).await?).map(Self)
    }
}

/// Only JSON is taken; a form that a browser sends on behalf of somebody else is not.
pub(crate) fn refuse_other_types(headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Problem::new(Code::UnsupportedMediaType, "send JSON, with Content-Type: application/json"))
}

/// What somebody said, and the room that it takes until this is dropped.
#[derive(Debug)]
pub(crate) struct Said {
    bytes: Vec<u8>,
    room: Option<Room>,
}

impl Deref for Said {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The whole body, within `api.request_bytes_max` and `api.request_timeout`, for this principal.
pub(crate) async fn read(mut body: Body, door: &Door, principal: &str) -> Result<Said, Problem> {
    let timeout = door.config.api.request_timeout;
    let read = door.clock.timeout(timeout, read_to_end(&mut body, door, principal)).await;
    let late = || Problem::new(Code::RequestTimeout, "the body did not come within api.request_timeout");
    let read = read.unwrap_or_else(|| Err(late()));
    if read.as_ref().is_err_and(|problem| problem.code() == Code::RequestTooLarge) {
        door.clock.timeout(API_DRAIN_TIMEOUT, drain(&mut body)).await;
    }
    read
}

async fn read_to_end(body: &mut Body, door: &Door, principal: &str) -> Result<Said, Problem> {
    let bytes_max = door.config.api.request_bytes_max;
    let most = usize::try_from(bytes_max).unwrap_or(usize::MAX);
    let too_large = || {
        Problem::new(
            Code::RequestTooLarge,
            format!("the body has more than {bytes_max} bytes, which api.request_bytes_max allows"),
        )
    };
    if body.size_hint().lower() > u64::from(bytes_max) {
        return Err(too_large());
    }
    let mut said = Said { bytes: Vec::new(), room: None };
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::malformed("the body broke off"))?;
        let Ok(data) = frame.into_data() else { continue };
        if data.len() > most.saturating_sub(said.bytes.len()) {
            return Err(too_large());
        }
        said.bytes.extend_from_slice(&data);
        said.take_room(door, principal)?;
    }
    Ok(said)
}

impl Said {
    /// Takes the room for what has come, as far as it has none.
    fn take_room(&mut self, door: &Door, principal: &str) -> Result<(), Problem> {
        let taken = self.room.as_ref().map_or(0, Room::kib);
        let needed = u32::try_from(self.bytes.len().div_ceil(1024)).unwrap_or(u32::MAX);
        let more = needed.saturating_sub(taken);
        if more == 0 {
            return Ok(());
        }
        let more = door.bodies.take(principal, more)?;
        match &mut self.room {
            Some(room) => room.merge(more),
            room => *room = Some(more),
        }
        Ok(())
    }

    /// The room, for what was made of this.
    pub(crate) fn into_room(self) -> Option<Room> {
        self.room
    }
}

/// Takes what still comes, up to a bound.
async fn drain(body: &mut Body) {
    let mut taken = 0;
    while taken < API_DRAIN_BYTES_MAX
        && let Some(Ok(frame)) = body.frame().await
    {
        taken += frame.data_ref().map_or(0, Bytes::len);
    }
}

/// What is not as expected is named by its place in the body.
pub(crate) fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    from_json_with(PhantomData::<T>, bytes)
}

/// The same with something that knows more than the type.
pub(crate) fn from_json_with<'de, S: DeserializeSeed<'de>>(
    seed: S,
    bytes: &'de [u8],
) -> Result<S::Value, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let mut track = Track::new();
    let read = seed.deserialize(serde_path_to_error::Deserializer::new(&mut reader, &mut track));
    let value = read.map_err(|error| refusal(pointer(&track.path()), &error))?;
    reader.end().map_err(|error| refusal(String::new(), &error))?;
    Ok(value)
}

fn refusal(pointer: String, error: &serde_json::Error) -> Problem {
    let (line, column) = (error.line(), error.column());
    if error.is_data() {
        let message = without_value(&error.to_string());
        return Problem::new(Code::ValidationFailed, "a member of the body is not as expected")
            .at(pointer, message);
    }
    let message = if error.is_eof() { "ends too early" } else { "is not valid JSON" };
    Problem::malformed("the body is not JSON")
        .at(pointer, format!("{message} (line {line}, column {column})"))
}

/// What was expected, and not what was there instead.
fn without_value(message: &str) -> String {
    // The place is said better.
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    if message.starts_with("unknown field") {
        return "unknown member".to_owned();
    }
    let was_typed = ["invalid type: ", "invalid value: ", "invalid length ", "unknown variant "];
    match message.rsplit_once(", expected ") {
        Some((_, expected)) if was_typed.iter().any(|start| message.starts_with(start)) => {
            format!("expected {expected}")
        }
        _ => message
            .replace("missing field", "missing member")
            .replace("duplicate field", "member given twice:"),
    }
}

/// A path as a JSON pointer.
pub(crate) fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;

    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } => pointer.push_str(&format!("/{}", escaped(key))),
            Segment::Enum { variant } => pointer.push_str(&format!("/{}", escaped(variant))),
            // Where it is not known any more, the place before it says enough.
            Segment::Unknown => break,
        }
    }
    pointer
}

fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[expect(dead_code, reason = "only whether it can be read matters")]
        list: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[expect(dead_code, reason = "only whether it can be read matters")]
        #[serde(rename = "a/b")]
        number: u8,
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        for (body, code, pointer) in [
            (r#"{"list":[{"a/b":1},{"a/b":"x"}]}"#, Code::ValidationFailed, "/list/1/a~1b"),
            (r#"{"list":[{"a/b":1,"c":2}]}"#, Code::ValidationFailed, "/list/0/c"),
            (r#"{"list":[{}]}"#, Code::ValidationFailed, "/list/0"),
            (r#"{"list":[{"a/b":1,"a/b":2}]}"#, Code::ValidationFailed, "/list/0"),
            (r#"{"list":[{"a/b":1]}"#, Code::MalformedRequest, "/list/0"),
            (r#"{"list":[]} x"#, Code::MalformedRequest, ""),
            ("", Code::MalformedRequest, ""),
            ("[]", Code::ValidationFailed, ""),
        ] {
            let problem = from_json::<Outer>(body.as_bytes()).unwrap_err();
            let document = serde_json::to_value(problem.document()).unwrap();
            assert_eq!(
                (problem.code(), &document["errors"][0]["pointer"]),
                (code, &pointer.into()),
                "{body}"
            );
        }
        assert!(from_json::<Outer>(br#"{"list":[{"a/b":1}]} "#).is_ok());
    }

    #[test]
    fn a_refusal_says_what_was_expected_and_not_what_was_sent() {
        for (message, said) in [
            ("invalid type: string \"secret, expected\", expected u8 at line 1 column 5", "expected u8"),
            ("invalid value: integer `300`, expected u8 at line 1 column 5", "expected u8"),
            ("unknown variant `secret`, expected `a` or `b`", "expected `a` or `b`"),
            ("unknown field `secret`, expected `a`", "unknown member"),
            ("missing field `a`", "missing member `a`"),
            ("duplicate field `a`", "member given twice: `a`"),
            ("expected a UUID", "expected a UUID"),
        ] {
            assert_eq!(without_value(message), said);
        }
    }

    #[test]
    fn only_json_is_taken() {
        for (given, taken) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/json5", false),
            ("application/x-www-form-urlencoded", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, given.parse().unwrap());
            assert_eq!(refuse_other_types(&headers).is_ok(), taken, "{given}");
        }
        assert!(refuse_other_types(&HeaderMap::new()).is_err());
    }
}
