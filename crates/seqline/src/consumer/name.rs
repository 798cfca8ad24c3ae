//! What a consumer is called.

use std::fmt;

/// Longest name in characters: what PostgreSQL allows for names of its own.
const NAME_CHARACTERS_MAX: usize = 63;

/// The name of a consumer: 1 to 63 lowercase letters, digits and underscores, beginning with a letter. It names the
/// cursor in the database, so changing it makes a new consumer.
///
/// ```
/// use seqline::consumer::ConsumerName;
///
/// assert_eq!(ConsumerName::new("invoices")?.as_str(), "invoices");
/// assert!(ConsumerName::new("Invoices").is_err());
/// # Ok::<(), seqline::consumer::InvalidConsumerName>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerName(String);

/// Why a text is no name for a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConsumerName {
    /// It is not of the form.
    #[error(
        "a consumer's name has 1 to 63 lowercase letters, digits and underscores and begins with a letter"
    )]
    Form,
    /// A consumer of the product itself is called so.
    #[error("the name is reserved for a built-in consumer")]
    Reserved,
}

impl ConsumerName {
    /// The names of the product's own consumers.
    pub const RESERVED: [&'static str; 2] = ["push", "webhooks"];

    /// A name of one's own.
    ///
    /// # Errors
    ///
    /// [`InvalidConsumerName`] when it is not of the form or reserved.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidConsumerName> {
        let name = name.into();
        let of_the_form = name.len() <= NAME_CHARACTERS_MAX
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !of_the_form {
            return Err(InvalidConsumerName::Form);
        }
        if Self::RESERVED.contains(&name.as_str()) {
            return Err(InvalidConsumerName::Reserved);
        }
        Ok(Self(name))
    }

    /// The product's consumer that delivers webhooks.
    #[must_use]
    pub fn webhooks() -> Self {
        Self("webhooks".to_owned())
    }

    /// The product's consumer that delivers push messages.
    #[must_use]
    pub fn push() -> Self {
        Self("push".to_owned())
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConsumerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests;
