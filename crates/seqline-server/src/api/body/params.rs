//! What a path and a query say.

use std::fmt;

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use serde::de::value::MapDeserializer;
use serde::de::{self, DeserializeOwned, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use crate::api::{Code, Door, Problem};

/// The parameters of the query as they are, for whoever looks at them itself.
#[derive(Debug)]
pub(crate) struct Params<T>(pub(crate) T);

/// The parameters of the query, each once and with a name that is known.
#[derive(Debug)]
pub(crate) struct NamedParams<T>(pub(crate) T);

/// The parameters of the path. Something of another form is the path of nothing.
#[derive(Debug)]
pub(crate) struct PathParams<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Door> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Door) -> Result<Self, Problem> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Self(params)),
            Err(_) => Err(Problem::malformed("the query cannot be read")),
        }
    }
}

impl<T: DeserializeOwned> FromRequestParts<Door> for NamedParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Problem> {
        let Params(pairs) = Params::from_request_parts(parts, door).await?;
        from_pairs(pairs).map(Self)
    }
}

impl<T: DeserializeOwned + Send> FromRequestParts<Door> for PathParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Problem> {
        match Path::from_request_parts(parts, door).await {
            Ok(Path(params)) => Ok(Self(params)),
            Err(_) => Err(Problem::not_found("there is nothing at this path")),
        }
    }
}

/// A parameter that is not as expected.
pub(crate) fn wrong_param(name: &str, message: impl Into<String>) -> Problem {
    // The name can be anything, of any length.
    let name: String = name.chars().filter(|c| !c.is_control()).take(40).collect();
    Problem::new(Code::ValidationFailed, "a parameter of the query is not as expected")
        .at(format!("/{}", super::escaped(&name)), message)
}

fn from_pairs<T: DeserializeOwned>(pairs: Vec<(String, String)>) -> Result<T, Problem> {
    for (place, (name, _)) in pairs.iter().enumerate() {
        if pairs[..place].iter().any(|(before, _)| before == name) {
            return Err(wrong_param(name, "is given twice"));
        }
    }
    let names: Vec<String> = pairs.iter().map(|(name, _)| name.clone()).collect();
    let pairs = pairs.into_iter().map(|(name, value)| (name, Text(value)));
    let reader = MapDeserializer::<_, de::value::Error>::new(pairs);
    serde_path_to_error::deserialize(reader).map_err(|error| {
        let name = error.path().to_string();
        let name = names.into_iter().find(|known| *known == name).unwrap_or_default();
        wrong_param(&name, super::without_value(&error.into_inner().to_string()))
    })
}

/// A value, which is what is expected if it can be read as that.
struct Text(String);

impl Text {
    fn parsed<T: std::str::FromStr>(&self, expected: impl fmt::Display) -> Result<T, de::value::Error> {
        self.0.parse().map_err(|_| de::Error::custom(format!("expected {expected}")))
    }
}

impl IntoDeserializer<'_> for Text {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> de::Deserializer<'de> for Text {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_string(self.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(self)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_bool(self.parsed("true or false")?)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_u32(self.parsed("a number, such as 100")?)
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq, Eq, Default)]
    #[serde(deny_unknown_fields)]
    struct Asked {
        #[serde(default)]
        all: bool,
        after: Option<String>,
        limit: Option<u32>,
    }

    fn parsed(pairs: &[(&str, &str)]) -> Result<Asked, Problem> {
        from_pairs(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn a_query_is_read_and_what_is_wrong_in_it_is_named() {
        let asked = parsed(&[("limit", "5"), ("after", "17"), ("all", "true")]).unwrap();
        assert_eq!(asked, Asked { all: true, after: Some("17".to_owned()), limit: Some(5) });
        assert_eq!(parsed(&[]).unwrap(), Asked::default());
        for (pairs, pointer, message) in [
            (&[("limit", "secret")][..], "/limit", "expected a number, such as 100"),
            (&[("limit", "-1")], "/limit", "expected a number, such as 100"),
            (&[("all", "secret")], "/all", "expected true or false"),
            (&[("a/b", "secret")], "/a~1b", "unknown member"),
            (&[("limit", "1"), ("limit", "1")], "/limit", "is given twice"),
        ] {
            let problem = parsed(pairs).unwrap_err();
            let document = serde_json::to_value(problem.document()).unwrap();
            assert_eq!(problem.code(), Code::ValidationFailed);
            let fault = &document["errors"][0];
            assert_eq!((&fault["pointer"], &fault["message"]), (&pointer.into(), &message.into()));
        }
    }
}
