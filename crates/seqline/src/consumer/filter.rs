//! Which events a consumer asks for.

use crate::event::StoredEvent;
use crate::limits::{FILTER_VALUES_MAX, TEXT_CHARACTERS_MAX};

/// Which events a consumer asks for. The others are looked at and passed.
///
/// An event has to be one of each list that is given. Whoever adds a value gets the events with it that come from then on, and those
/// that were passed before do not come back.
///
/// ```
/// use seqline::consumer::Filter;
///
/// let filter = Filter::everything().types(["order.*", "invoice.paid"]).spaces(["shop-1"]);
/// assert!(filter.check().is_ok());
/// assert!(Filter::everything().types(["Order"]).check().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    pub(crate) types: Option<Vec<String>>,
    pub(crate) spaces: Option<Vec<String>>,
    pub(crate) channels: Option<Vec<String>>,
    pub(crate) resource_kinds: Option<Vec<String>>,
}

/// What is wrong with a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidFilter {
    /// A type that no event can have.
    #[error("a filter by type takes types such as order.created, or beginnings of types such as order.*")]
    Type,
    /// Nothing would ever match.
    #[error("a filter by {0} has no values: leave it out to get everything")]
    Empty(&'static str),
    /// A value that no event can have.
    #[error("a filter by {0} has a value that is empty, too long or has a control character")]
    Value(&'static str),
    /// More than can be looked through for each event.
    #[error("a filter by {0} has more than {FILTER_VALUES_MAX} values")]
    TooMany(&'static str),
}

impl Filter {
    /// All events.
    #[must_use]
    pub fn everything() -> Self {
        Self::default()
    }

    /// Those of these types. One that ends in `.*` stands for all that begin with what is before the star: `order.*` for
    /// `order.created` and `order.line.added`, and not for `orders.created`.
    #[must_use]
    pub fn types<T: Into<String>>(self, types: impl IntoIterator<Item = T>) -> Self {
        Self { types: Some(texts(types)), ..self }
    }

    /// Those of these spaces.
    #[must_use]
    pub fn spaces<T: Into<String>>(self, spaces: impl IntoIterator<Item = T>) -> Self {
        Self { spaces: Some(texts(spaces)), ..self }
    }

    /// Those of these channels.
    #[must_use]
    pub fn channels<T: Into<String>>(self, channels: impl IntoIterator<Item = T>) -> Self {
        Self { channels: Some(texts(channels)), ..self }
    }

    /// Those about resources of these kinds.
    #[must_use]
    pub fn resource_kinds<T: Into<String>>(self, kinds: impl IntoIterator<Item = T>) -> Self {
        Self { resource_kinds: Some(texts(kinds)), ..self }
    }

    /// Whether it asks for all events.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Whether an event is one that is asked for: the same answer as `seqline.matches_filter` gives in SQL.
    #[must_use]
    pub fn matches(&self, event: &StoredEvent) -> bool {
        let in_list = |list: &Option<Vec<String>>, value: Option<&str>| match list {
            None => true,
            Some(list) => value.is_some_and(|value| list.iter().any(|listed| listed == value)),
        };
        let of_type = |pattern: &String| match pattern.strip_suffix('*') {
            Some(beginning) => event.event_type.starts_with(beginning),
            None => *pattern == event.event_type,
        };
        self.types.as_ref().is_none_or(|types| types.iter().any(of_type))
            && in_list(&self.spaces, event.space_id.as_deref())
            && in_list(&self.channels, event.channel_id.as_deref())
            && in_list(&self.resource_kinds, Some(&event.resource_kind))
    }

    /// The lists that are given, each with what it is about: `type`, `space`, `channel` or `resource kind`.
    pub fn lists(&self) -> impl Iterator<Item = (&'static str, &[String])> {
        let lists = [
            ("type", &self.types),
            ("space", &self.spaces),
            ("channel", &self.channels),
            ("resource kind", &self.resource_kinds),
        ];
        lists.into_iter().filter_map(|(name, list)| Some((name, list.as_deref()?)))
    }

    /// Checks the filter. The database does it again, in the same words.
    ///
    /// # Errors
    ///
    /// [`InvalidFilter`], the first rule that is broken.
    pub fn check(&self) -> Result<(), InvalidFilter> {
        for (name, values) in self.lists() {
            if values.is_empty() {
                return Err(InvalidFilter::Empty(name));
            }
            if values.len() > FILTER_VALUES_MAX {
                return Err(InvalidFilter::TooMany(name));
            }
            let fits = |value: &String| {
                !value.is_empty()
                    && value.chars().count() <= TEXT_CHARACTERS_MAX
                    && !value.chars().any(char::is_control)
            };
            if !values.iter().all(fits) {
                return Err(InvalidFilter::Value(name));
            }
        }
        match self.types.iter().flatten().all(|pattern| is_type_pattern(pattern)) {
            true => Ok(()),
            false => Err(InvalidFilter::Type),
        }
    }
}

fn texts<T: Into<String>>(values: impl IntoIterator<Item = T>) -> Vec<String> {
    values.into_iter().map(Into::into).collect()
}

/// `^[a-z][a-z_]*(\.[a-z][a-z_]*)*(\.[a-z][a-z_]*|\.\*)$`
fn is_type_pattern(pattern: &str) -> bool {
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    };
    match pattern.strip_suffix(".*") {
        Some(beginning) => beginning.split('.').all(is_word),
        None => pattern.contains('.') && pattern.split('.').all(is_word),
    }
}
