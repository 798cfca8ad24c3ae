//! The body of several events, which is read no further than to its bound.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::EventBody;

/// Reads at most so many events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchSeed {
    pub(crate) most: usize,
}

/// The members of the body.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Member {
    Events,
}

impl<'de> DeserializeSeed<'de> for BatchSeed {
    type Value = Vec<EventBody>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<EventBody>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for BatchSeed {
    type Value = Vec<EventBody>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the member events")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Vec<EventBody>, A::Error> {
        let mut events = None;
        while let Some(Member::Events) = members.next_key()? {
            if events.is_some() {
                return Err(Error::duplicate_field("events"));
            }
            events = Some(members.next_value_seed(Events { most: self.most })?);
        }
        events.ok_or_else(|| Error::missing_field("events"))
    }
}

/// The same for the list alone.
struct Events {
    most: usize,
}

impl<'de> DeserializeSeed<'de> for Events {
    type Value = Vec<EventBody>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<EventBody>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events {
    type Value = Vec<EventBody>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<EventBody>, A::Error> {
        let mut events = Vec::new();
        while let Some(event) = list.next_element()? {
            if events.len() == self.most {
                let most = self.most;
                return Err(Error::custom(format!(
                    "there are more than {most} events, which api.append_events_max allows"
                )));
            }
            events.push(event);
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::body::from_json_with;

    #[test]
    fn a_batch_is_read_up_to_its_bound_and_no_further() {
        let read = |body: &str| from_json_with(BatchSeed { most: 2 }, body.as_bytes());
        assert_eq!(read(r#"{"events":[{},{}]}"#).unwrap().len(), 2);
        assert_eq!(read(r#"{"events":[]}"#).unwrap().len(), 0);
        // What comes behind the bound is not even looked at.
        for (body, pointer, message) in [
            (
                r#"{"events":[{},{},{},no JSON"#,
                "/events",
                "there are more than 2 events, which api.append_events_max allows",
            ),
            (r#"{"events":[{},5]}"#, "/events/1", "expected struct EventBody"),
            (r#"{"events":5}"#, "/events", "expected a list of events"),
            (r#"{"events":[],"events":[]}"#, "", "member given twice: `events`"),
            (r#"{"other":[]}"#, "/other", "unknown member"),
            ("{}", "", "missing member `events`"),
            ("[]", "", "expected an object with the member events"),
        ] {
            let document = serde_json::to_value(read(body).unwrap_err().document()).unwrap();
            let fault = &document["errors"][0];
            assert_eq!((&fault["pointer"], &fault["message"]), (&pointer.into(), &message.into()), "{body}");
        }
    }
}
