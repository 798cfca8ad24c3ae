//! Which consumer of which agent.

use std::fmt;

/// Longest name in characters.
const NAME_CHARACTERS_MAX: usize = 64;

/// The name of a consumer whose agent gives none.
const DEFAULT_NAME: &str = "default";

/// A consumer of an agent: 1 to 64 lowercase letters, digits, hyphens and underscores, beginning with a letter or a digit.
///
/// ```
/// use seqline::agent::AgentConsumer;
///
/// let invoices = AgentConsumer::new("billing", "invoices-v2")?;
/// assert_eq!((invoices.agent(), invoices.name()), ("billing", "invoices-v2"));
/// assert_eq!(invoices.to_string(), "billing/invoices-v2");
/// assert_eq!(AgentConsumer::default_of("billing").name(), "default");
/// assert!(AgentConsumer::new("billing", "Invoices").is_err());
/// # Ok::<(), seqline::agent::InvalidName>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentConsumer {
    agent: String,
    name: String,
}

/// A text that is no name for a consumer of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a consumer's name has 1 to 64 lowercase letters, digits, hyphens and underscores and begins with a letter or a digit"
)]
pub struct InvalidName;

impl AgentConsumer {
    /// The pattern of names, as it is told to those who check it themselves.
    pub const NAME_PATTERN: &'static str = "^[a-z0-9][a-z0-9_-]*$";

    /// The consumer of this name of the agent with this principal's id.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] when it is not of the form.
    pub fn new(agent: impl Into<String>, name: impl Into<String>) -> Result<Self, InvalidName> {
        let (agent, name) = (agent.into(), name.into());
        let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let of_the_form = name.len() <= NAME_CHARACTERS_MAX
            && name.starts_with(alphanumeric)
            && name.chars().all(|c| alphanumeric(c) || matches!(c, '-' | '_'));
        if of_the_form { Ok(Self { agent, name }) } else { Err(InvalidName) }
    }

    /// The one of an agent that names none.
    pub fn default_of(agent: impl Into<String>) -> Self {
        Self { agent: agent.into(), name: DEFAULT_NAME.to_owned() }
    }

    pub(crate) fn stored(agent: String, name: String) -> Self {
        Self { agent, name }
    }

    /// The principal's id of the agent.
    #[must_use]
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// The name, which tells it from other consumers of the agent.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// `agent/name`, for people: an id can have a slash itself.
impl fmt::Display for AgentConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.agent, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_one_form() {
        let longest = "a".repeat(64);
        for name in ["a", "0", "default", "a_b-c", "0-", longest.as_str()] {
            assert!(AgentConsumer::new("agent", name).is_ok(), "{name}");
        }
        let too_long = "a".repeat(65);
        for name in ["", "A", "-a", "_a", "a.b", "a b", "\u{e4}", "a\n", too_long.as_str()] {
            assert_eq!(AgentConsumer::new("agent", name), Err(InvalidName), "{name}");
        }
    }
}
