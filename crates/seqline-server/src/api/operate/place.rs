//! A place in the log, as operators name it: a number, or a time.

use std::fmt;

use seqline::consumer::Target;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::openapi::schema::{OneOfBuilder, Schema, SchemaFormat};
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Type};
use utoipa::{PartialSchema, ToSchema};

/// The number of an event, or a time for the first event that was appended then or later.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogPlace(pub(super) Target);

impl<'de> Deserialize<'de> for LogPlace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PlaceVisitor)
    }
}

struct PlaceVisitor;

impl Visitor<'_> for PlaceVisitor {
    type Value = LogPlace;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the number of an event, or a time such as \"2026-11-30T08:00:00Z\"")
    }

    fn visit_i64<E: Error>(self, seq: i64) -> Result<LogPlace, E> {
        Ok(LogPlace(Target::Seq(seq)))
    }

    fn visit_u64<E: Error>(self, seq: u64) -> Result<LogPlace, E> {
        // None is as high as that.
        Ok(LogPlace(Target::Seq(i64::try_from(seq).unwrap_or(i64::MAX))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<LogPlace, E> {
        let time = OffsetDateTime::parse(text, &Rfc3339);
        time.map(|time| LogPlace(Target::Time(time)))
            .map_err(|_| E::invalid_value(serde::de::Unexpected::Other("another text"), &self))
    }
}

impl PartialSchema for LogPlace {
    fn schema() -> RefOr<Schema> {
        let number = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
            .description(Some("The number of an event."));
        let time = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some("The first event that was appended then or later."));
        let either = OneOfBuilder::new()
            .item(number)
            .item(time)
            .description(Some("A place in the log: a number, or a time."));
        RefOr::T(Schema::OneOf(either.build()))
    }
}

impl ToSchema for LogPlace {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_number_or_a_time() {
        let place = |text: &str| serde_json::from_str::<LogPlace>(text).map(|place| place.0);
        assert_eq!(place("1017").unwrap(), Target::Seq(1017));
        assert_eq!(place("18446744073709551615").unwrap(), Target::Seq(i64::MAX));
        assert_eq!(place("\"1970-01-01T01:00:00+01:00\"").unwrap(), Target::Time(OffsetDateTime::UNIX_EPOCH));
        for text in ["\"yesterday\"", "\"1017\"", "1.5", "null", "[]"] {
            let error = place(text).unwrap_err().to_string();
            assert!(error.contains("expected the number of an event, or a time such as"), "{text}: {error}");
        }
        assert!(!place("\"planted secret\"").unwrap_err().to_string().contains("planted"));
    }
}
