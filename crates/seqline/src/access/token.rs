//! The text of an API token.
//!
//! `sqln_`, 43 characters that are 256 random bits, and 6 that are a checksum. The beginning lets scanners find one that was published by
//! mistake, and the checksum lets a text that is no token be refused without asking the database. What is stored of it is a hash: with that much
//! chance in it there is nothing to guess.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

const PREFIX: &str = "sqln_";
const RANDOM_CHARACTERS: usize = 43;
const CHECKSUM_CHARACTERS: usize = 6;

/// How much of it people are shown to tell it from others: the prefix and 24 of its 256 bits.
const HINT_CHARACTERS: usize = PREFIX.len() + 4;

/// An API token. `Debug` shows nothing of it.
///
/// ```
/// use seqline::access::Token;
///
/// let token = Token::generate();
/// assert_eq!(Token::parse(token.reveal()).map(|parsed| parsed.hash()), Some(token.hash()));
/// assert!(Token::parse("sqln_something").is_none());
/// ```
pub struct Token(String);

impl Token {
    /// A new one.
    ///
    /// # Panics
    ///
    /// When the operating system has no random bytes.
    #[must_use]
    pub fn generate() -> Self {
        let mut random = [0; 32];
        getrandom::fill(&mut random).expect("the operating system gives random bytes");
        Self::from_random(random)
    }

    pub(crate) fn from_random(random: [u8; 32]) -> Self {
        let mut text = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
        let checksum = checksum(&text);
        text.push_str(&checksum);
        Self(text)
    }

    /// Takes a text for a token, if it can be one. Whether it is one the database knows.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let random = text.strip_prefix(PREFIX)?;
        // Of one byte each, which the lengths below rely on.
        let fits = random.len() == RANDOM_CHARACTERS + CHECKSUM_CHARACTERS
            && random.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        if !fits {
            return None;
        }
        let (body, sum) = text.split_at(PREFIX.len() + RANDOM_CHARACTERS);
        (checksum(body) == sum).then(|| Self(text.to_owned()))
    }

    /// Whether a text wants to be a token, well-formed or not.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// What the database keeps: SHA-256 of the text.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(&self.0).into()
    }

    /// The text. Whoever has it can do what the principal may do.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Its beginning, by which people tell it from others.
    #[must_use]
    pub fn hint(&self) -> &str {
        &self.0[..HINT_CHARACTERS]
    }
}

/// 36 bits of a hash. It finds slips, and need not withstand anybody.
fn checksum(text: &str) -> String {
    let mut sum = URL_SAFE_NO_PAD.encode(&Sha256::digest(text)[..5]);
    sum.truncate(CHECKSUM_CHARACTERS);
    sum
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn its_form_is_fixed() {
        // Tokens that were given out stay good: neither form nor hash may change.
        let token = Token::from_random([7; 32]);
        assert_eq!(token.reveal(), "sqln_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcx-KngZ");
        assert_eq!(token.hint(), "sqln_BwcH");
        assert_eq!(format!("{token:?}"), "Token");
        assert!(Token::is_meant(token.reveal()) && !Token::is_meant("eyJhbGciOi"));
    }

    #[test]
    fn no_two_are_alike() {
        assert_ne!(Token::generate().reveal(), Token::generate().reveal());
    }

    proptest! {
        #[test]
        fn it_is_read_back(random in any::<[u8; 32]>()) {
            let token = Token::from_random(random);
            let parsed = Token::parse(token.reveal()).unwrap();
            prop_assert_eq!(parsed.reveal(), token.reveal());
            prop_assert_eq!(parsed.hash(), token.hash());
        }

        #[test]
        fn a_slip_is_found(random in any::<[u8; 32]>(), at in 0_usize..54, with in "[A-Za-z0-9_-]") {
            let token = Token::from_random(random);
            let mut text = token.reveal().to_owned();
            text.replace_range(at..=at, &with);
            prop_assert_eq!(Token::parse(&text).is_some(), text == token.reveal());
            text.replace_range(at..=at, "");
            prop_assert!(Token::parse(&text).is_none());
        }

        #[test]
        fn no_text_makes_it_fail(text in ".*", beginning in "(sqln_)?") {
            prop_assert!(Token::parse(&(beginning + &text)).is_none());
        }
    }
}
