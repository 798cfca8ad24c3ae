//! What a reader asks for in its query, taken strictly: a parameter that is misspelt or given twice would be missed without a word otherwise.

use std::time::Duration;

use seqline::StoredEvent;
use seqline::consumer::Filter;
use seqline::limits::TEXT_CHARACTERS_MAX;

use super::{Code, Position, Problem};

/// Where a reader stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Before everything that is there.
    Oldest,
    /// Behind everything that is there now.
    Head,
    /// Behind what it has had.
    At(Position),
}

/// Which events a reader asks for, among those that it may see.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Selection {
    pub(crate) filter: Filter,
    /// Only those of one resource.
    pub(crate) resource: Option<Resource>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) kind: String,
    pub(crate) id: String,
}

/// What a query says. What it may not say in this place is not in it.
#[derive(Debug, PartialEq, Eq, Default)]
pub(crate) struct ReadQuery {
    pub(crate) after: Option<After>,
    /// At least 1.
    pub(crate) limit: Option<usize>,
    pub(crate) wait: Duration,
    /// That of an answer before.
    pub(crate) generation: Option<i64>,
    pub(crate) selection: Selection,
}

impl Selection {
    pub(crate) fn matches(&self, event: &StoredEvent) -> bool {
        let resource = self.resource.as_ref().is_none_or(|resource| {
            event.resource_kind == resource.kind && event.resource_id.as_ref() == Some(&resource.id)
        });
        resource && self.filter.matches(event)
    }
}

/// Parameters that say how a reader reads.
pub(crate) const READING: [&str; 3] = ["after", "limit", "wait"];

/// Parameters that say which events it wants.
pub(crate) const SELECTING: [&str; 5] = ["type", "space_id", "channel_id", "resource_kind", "resource_id"];

/// Reads a query of which these parameters are known. All that is wrong is told at once.
pub(crate) fn parse(pairs: &[(String, String)], known: &[&str]) -> Result<ReadQuery, Problem> {
    let mut query = Query { pairs, faults: Vec::new() };
    for (name, _) in pairs {
        if !known.contains(&name.as_str()) {
            query.fault(name, format!("there is no such parameter: expected one of {}", known.join(", ")));
        }
    }
    let after = query.one("after", |text| match text {
        "oldest" => Ok(After::Oldest),
        "head" => Ok(After::Head),
        text => match text.parse() {
            Ok(position) => Ok(After::At(position)),
            Err(error) => Err(format!("{error}, or oldest, or head")),
        },
    });
    let limit = query.one("limit", |text| {
        let limit = number(text).filter(|limit| *limit > 0);
        limit.ok_or_else(|| "expected a number of events, such as 100".to_owned())
    });
    let wait = query.one("wait", |text| {
        let seconds = number(text).and_then(|seconds| u64::try_from(seconds).ok());
        seconds.map(Duration::from_secs).ok_or_else(|| "expected a number of seconds, such as 30".to_owned())
    });
    let generation = query.one("generation", |text| {
        let generation = number(text).and_then(|generation| i64::try_from(generation).ok());
        generation.ok_or_else(|| "expected the generation of an answer before".to_owned())
    });
    let selection = query.selection();
    if query.faults.is_empty() {
        return Ok(ReadQuery { after, limit, wait: wait.unwrap_or_default(), generation, selection });
    }
    let problem = Problem::new(Code::ValidationFailed, "a parameter of the query is not as expected");
    Err(query.faults.into_iter().fold(problem, |problem, (name, what)| problem.at(format!("/{name}"), what)))
}

/// What it has to say in every case.
pub(crate) fn required(after: Option<After>) -> Result<After, Problem> {
    after.ok_or_else(|| {
        Problem::new(Code::ValidationFailed, "the query does not say from where on to read")
            .at("/after", "expected oldest, head, or the position up to which you have read")
    })
}

struct Query<'a> {
    pairs: &'a [(String, String)],
    faults: Vec<(String, String)>,
}

impl Query<'_> {
    fn fault(&mut self, name: &str, what: impl Into<String>) {
        // The name can be anything, of any length.
        let name: String = name.chars().filter(|c| !c.is_control()).take(40).collect();
        self.faults.push((name.replace('~', "~0").replace('/', "~1"), what.into()));
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.pairs.iter().filter(move |(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    fn one<T>(&mut self, name: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let mut values = self.values(name);
        let read = match (values.next(), values.next()) {
            (None, _) => return None,
            (Some(value), None) => read(value),
            (Some(_), Some(_)) => Err("given twice".to_owned()),
        };
        drop(values);
        read.map_err(|what| self.fault(name, what)).ok()
    }

    fn list(&self, name: &str) -> Option<Vec<String>> {
        let values: Vec<String> = self.values(name).map(str::to_owned).collect();
        (!values.is_empty()).then_some(values)
    }

    fn selection(&mut self) -> Selection {
        let mut filter = Filter::everything();
        type With = fn(Filter, Vec<String>) -> Filter;
        let lists: [(&str, With); 4] = [
            ("type", |filter, values| filter.types(values)),
            ("space_id", |filter, values| filter.spaces(values)),
            ("channel_id", |filter, values| filter.channels(values)),
            ("resource_kind", |filter, values| filter.resource_kinds(values)),
        ];
        for (name, with) in lists {
            let Some(values) = self.list(name) else { continue };
            // Alone, so that it is known which of them is wrong.
            if let Err(error) = with(Filter::everything(), values.clone()).check() {
                self.fault(name, error.to_string());
            } else {
                filter = with(filter, values);
            }
        }
        let resource = self.one("resource_id", |id| possible_id(id).map(str::to_owned));
        let kinds: Vec<String> = self.values("resource_kind").map(str::to_owned).collect();
        let resource = match (resource, kinds.as_slice()) {
            (None, _) => None,
            (Some(id), [kind]) => Some(Resource { kind: kind.clone(), id }),
            (Some(_), _) => {
                self.fault("resource_id", "an id is of a kind: give one resource_kind as well");
                None
            }
        };
        Selection { filter, resource }
    }
}

/// One that an event can have: others are refused here, because the database cannot even be asked about some of them.
pub(crate) fn possible_id(text: &str) -> Result<&str, String> {
    let length = text.chars().count();
    match (1..=TEXT_CHARACTERS_MAX).contains(&length) && !text.chars().any(char::is_control) {
        true => Ok(text),
        false => Err(format!("expected 1 to {TEXT_CHARACTERS_MAX} characters, no control characters")),
    }
}

/// Digits only, as a person writes a number.
fn number(text: &str) -> Option<usize> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;
    use uuid::Uuid;

    use super::super::hub::rendered::tests::stored;
    use super::*;

    fn all() -> Vec<&'static str> {
        READING.into_iter().chain(SELECTING).collect()
    }

    fn parsed(pairs: &[(&str, &str)]) -> Result<ReadQuery, Problem> {
        let pairs: Vec<_> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        parse(&pairs, &all())
    }

    /// The parameters that are wrong.
    fn wrong(pairs: &[(&str, &str)]) -> Vec<String> {
        let problem = parsed(pairs).expect_err("something is wrong");
        assert_eq!(problem.code(), Code::ValidationFailed);
        let document = serde_json::to_value(problem.document()).unwrap();
        let Value::Array(faults) = &document["errors"] else { panic!("{document}") };
        faults.iter().map(|fault| fault["pointer"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_query_says_from_where_how_much_how_long_and_which() {
        let position = Position { epoch: Uuid::from_u128(7), seq: 42 };
        let asked = parsed(&[
            ("after", &position.to_string()),
            ("limit", "10"),
            ("wait", "30"),
            ("type", "order.*"),
            ("type", "invoice.paid"),
            ("space_id", "shop-1"),
        ])
        .unwrap();
        assert_eq!(asked.after, Some(After::At(position)));
        assert_eq!((asked.limit, asked.wait), (Some(10), Duration::from_secs(30)));
        let filter = Filter::everything().types(["order.*", "invoice.paid"]).spaces(["shop-1"]);
        assert_eq!(asked.selection, Selection { filter, resource: None });
        assert_eq!(parsed(&[("after", "oldest")]).unwrap().after, Some(After::Oldest));
        assert_eq!(parsed(&[("after", "head")]).unwrap().after, Some(After::Head));
        assert_eq!(parsed(&[]).unwrap(), ReadQuery::default());
    }

    #[test]
    fn what_is_wrong_is_named_all_of_it() {
        for (pairs, expected) in [
            (&[("after", "17")][..], &["/after"][..]),
            (&[("after", "")], &["/after"]),
            (&[("after", "oldest"), ("after", "head")], &["/after"]),
            (&[("limit", "0")], &["/limit"]),
            (&[("limit", "-1")], &["/limit"]),
            (&[("limit", "+1")], &["/limit"]),
            (&[("limit", "99999999999999999999999")], &["/limit"]),
            (&[("wait", "1.5")], &["/wait"]),
            (&[("wait", "30s")], &["/wait"]),
            (&[("typ", "order.created")], &["/typ"]),
            (&[("a/b~c", "")], &["/a~1b~0c"]),
            (&[("type", "Order")], &["/type"]),
            (&[("type", "")], &["/type"]),
            (&[("space_id", ""), ("channel_id", "a\nb")], &["/space_id", "/channel_id"]),
            (&[("resource_id", "17")], &["/resource_id"]),
            (&[("resource_id", "a\0b"), ("resource_kind", "order")], &["/resource_id"]),
            (&[("resource_id", "17"), ("resource_kind", "a"), ("resource_kind", "b")], &["/resource_id"]),
            (&[("after", "x"), ("limit", "x"), ("y", "x")], &["/y", "/after", "/limit"]),
        ] {
            assert_eq!(wrong(pairs), expected, "{pairs:?}");
        }
    }

    #[test]
    fn a_parameter_of_another_place_is_not_known() {
        let pairs = [("wait".to_owned(), "1".to_owned())];
        parse(&pairs, &["after", "limit"]).expect_err("a stream has no end to wait for");
    }

    #[test]
    fn a_resource_is_one_kind_and_one_id() {
        let selection = parsed(&[("resource_kind", "order"), ("resource_id", "3")]).unwrap().selection;
        assert!(selection.matches(&stored(3, "order.created", "{}")));
        assert!(!selection.matches(&stored(4, "order.created", "{}")));
        let mut none = stored(3, "order.created", "{}");
        none.resource_id = None;
        assert!(!selection.matches(&none));
    }

    proptest! {
        #[test]
        fn no_query_breaks_it(pairs in proptest::collection::vec((".{0,12}", ".{0,40}"), 0..8)) {
            let _ = parse(&pairs, &all());
        }
    }
}
