//! What a consumer is: its name, its handler and what it asks for.

use std::fmt;
use std::sync::Arc;

use seqline::consumer::{Filter, InvalidFilter};

use super::filters::subjects_of;
use super::handler::{AnyHandler, Handler};

/// Longest name in characters: what PostgreSQL allows for names of its own.
const NAME_CHARACTERS_MAX: usize = 63;

/// Where a consumer begins that the broker does not know yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartAt {
    /// With everything that the stream still holds.
    #[default]
    Everything,
    /// With what comes from now on. What was in the stream before it never gets, also not when it is sent again.
    New,
}

/// Why a consumer cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConsumer {
    /// Its name is not of the form.
    #[error(
        "a stream consumer's name has 1 to 63 lowercase letters, digits, - and _ and begins with a letter"
    )]
    Name,
    /// What it asks for no event can be.
    #[error(transparent)]
    Filter(#[from] InvalidFilter),
}

/// A consumer of the stream: a name, which is also its durable name at the broker and its place in the stream, a [`Handler`], and what it asks
/// for. Processes that run the same name divide the work; other names get every event again.
#[derive(Clone)]
pub struct StreamConsumer {
    pub(super) name: String,
    pub(super) handler: Arc<dyn AnyHandler>,
    pub(super) types: Option<Vec<String>>,
    pub(super) spaces: Option<Vec<String>>,
    pub(super) start_at: StartAt,
}

impl StreamConsumer {
    /// One that asks for everything, from the oldest event that the stream holds.
    ///
    /// # Errors
    ///
    /// [`InvalidConsumer::Name`].
    pub fn new(name: impl Into<String>, handler: impl Handler) -> Result<Self, InvalidConsumer> {
        let name = name.into();
        let of_the_form = name.len() <= NAME_CHARACTERS_MAX
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-'));
        if !of_the_form {
            return Err(InvalidConsumer::Name);
        }
        let handler = Arc::new(handler);
        Ok(Self { name, handler, types: None, spaces: None, start_at: StartAt::Everything })
    }

    /// Only events of these types. One that ends in `.*` stands for all that begin with what is before the star.
    ///
    /// # Errors
    ///
    /// [`InvalidConsumer::Filter`].
    pub fn types<T: Into<String>>(self, types: impl IntoIterator<Item = T>) -> Result<Self, InvalidConsumer> {
        let types: Vec<String> = types.into_iter().map(Into::into).collect();
        Filter::everything().types(types.clone()).check()?;
        Ok(Self { types: Some(types), ..self })
    }

    /// Only events of these spaces.
    ///
    /// # Errors
    ///
    /// [`InvalidConsumer::Filter`].
    pub fn spaces<T: Into<String>>(
        self,
        spaces: impl IntoIterator<Item = T>,
    ) -> Result<Self, InvalidConsumer> {
        let spaces: Vec<String> = spaces.into_iter().map(Into::into).collect();
        Filter::everything().spaces(spaces.clone()).check()?;
        Ok(Self { spaces: Some(spaces), ..self })
    }

    /// Where it begins when it is new.
    #[must_use]
    pub fn start_at(self, start_at: StartAt) -> Self {
        Self { start_at, ..self }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it asks for an event: the broker may send more, because not all that can be asked for can be said in subjects.
    pub(super) fn asks_for(&self, event_type: &str, space: Option<&str>) -> bool {
        let of_type = |pattern: &String| match pattern.strip_suffix('*') {
            Some(beginning) => event_type.starts_with(beginning),
            None => pattern == event_type,
        };
        self.types.as_ref().is_none_or(|types| types.iter().any(of_type))
            && self
                .spaces
                .as_ref()
                .is_none_or(|spaces| space.is_some_and(|space| spaces.iter().any(|listed| listed == space)))
    }

    /// What the broker is asked for: never less.
    pub(super) fn subjects(&self) -> Vec<String> {
        subjects_of(self.types.as_deref(), self.spaces.as_deref())
    }
}

impl fmt::Debug for StreamConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamConsumer")
            .field("name", &self.name)
            .field("types", &self.types)
            .field("spaces", &self.spaces)
            .field("start_at", &self.start_at)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Recorder;
    use super::*;

    fn consumer() -> StreamConsumer {
        StreamConsumer::new("invoices", Recorder).unwrap()
    }

    #[test]
    fn a_name_is_one_that_database_and_broker_can_have() {
        for name in ["a", "a-b_c9", &"x".repeat(63)] {
            assert!(StreamConsumer::new(name, Recorder).is_ok(), "{name}");
        }
        for name in ["", "A", "9a", "a.b", "a b", "a*", "a>", "\u{e4}", &"x".repeat(64)] {
            assert_eq!(StreamConsumer::new(name, Recorder).unwrap_err(), InvalidConsumer::Name, "{name}");
        }
    }

    #[test]
    fn what_no_event_can_be_is_refused() {
        assert!(consumer().types(["Order"]).is_err());
        assert!(consumer().types([""; 0]).is_err());
        assert!(consumer().spaces([""]).is_err());
    }

    #[test]
    fn it_asks_for_its_types_in_its_spaces() {
        assert!(consumer().asks_for("order.created", None));
        let some = consumer().types(["order.*", "invoice.paid"]).unwrap().spaces(["shop-1"]).unwrap();
        assert!(some.asks_for("order.line.added", Some("shop-1")));
        assert!(some.asks_for("invoice.paid", Some("shop-1")));
        assert!(!some.asks_for("orders.created", Some("shop-1")));
        assert!(!some.asks_for("invoice.sent", Some("shop-1")));
        assert!(!some.asks_for("order.created", Some("shop-2")));
        assert!(!some.asks_for("order.created", None));
    }
}
