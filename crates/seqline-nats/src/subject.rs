//! What subjects look like. Nobody else puts one together: a filter with a mistake in it receives nothing, and says nothing.
//!
//! ```text
//! events.{domain}.{action}.{space}      events.order.created.shop-1
//! ```
//!
//! The domain is the first word of the type, abbreviated where that is customary ([`message`](crate::message) events begin with `msg`). The
//! remaining words follow, so types of three words have subjects of five tokens. The space comes last; `_` stands for none. What a subject
//! cannot hold is written as `%` and two hexadecimal digits for each byte, so that two spaces never share a subject and
//! [`space_of`] gets back what was written.

use std::fmt::Write;

/// What all subjects begin with.
pub const ROOT: &str = "events";

/// Every event.
pub const ALL: &str = "events.>";

/// The token of an event without a space.
const NO_SPACE: &str = "_";

/// Domains that are written shorter: what they are, and what they become.
const ABBREVIATED: [(&str, &str); 1] = [("message", "msg")];

/// How many words a type has when a space is selected without types: a subject has one token for each, and no wildcard stands for "some words
/// and then this".
pub const WORDS: core::ops::RangeInclusive<usize> = 2..=8;

/// A type or pattern that no subject can be made of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubjectError {
    /// There is no type.
    #[error("the type of the event is empty")]
    EmptyType,
    /// A type has at least two words, and none is empty.
    #[error("a type is two or more words joined by dots")]
    MalformedType,
    /// A space that is given has a name.
    #[error("the space is empty: leave it out for events that have none")]
    EmptySpace,
}

/// The subject of an event of a type in a space.
///
/// ```
/// use seqline_nats::subject::subject_of;
///
/// assert_eq!(subject_of("order.created", Some("shop-1"))?, "events.order.created.shop-1");
/// assert_eq!(subject_of("message.created", None)?, "events.msg.created._");
/// assert_eq!(subject_of("order.line.added", Some("shop 1.a"))?, "events.order.line.added.shop%201%2Ea");
/// # Ok::<(), seqline_nats::subject::SubjectError>(())
/// ```
///
/// # Errors
///
/// [`SubjectError`] when the type or the space is empty or malformed.
pub fn subject_of(event_type: &str, space: Option<&str>) -> Result<String, SubjectError> {
    let words: Vec<&str> = event_type.split('.').collect();
    match words.as_slice() {
        [""] => return Err(SubjectError::EmptyType),
        [_] => return Err(SubjectError::MalformedType),
        words if words.iter().any(|word| word.is_empty()) => return Err(SubjectError::MalformedType),
        _ => {}
    }
    Ok(format!("{ROOT}.{}.{}", words_of(&words), space_token(space)?))
}

/// The filter for a type (`order.created`) or for all types that begin so (`order.*`), in a space or in all.
///
/// ```
/// use seqline_nats::subject::filter_of;
///
/// assert_eq!(filter_of("order.created", None)?, "events.order.created.*");
/// assert_eq!(filter_of("message.*", None)?, "events.msg.>");
/// # Ok::<(), seqline_nats::subject::SubjectError>(())
/// ```
///
/// A filter for types that begin so holds all spaces, also where one was given: no subject filter can say that. Who reads the messages leaves
/// out the others.
///
/// # Errors
///
/// [`SubjectError`] as for [`subject_of`].
pub fn filter_of(pattern: &str, space: Option<&str>) -> Result<String, SubjectError> {
    if let Some(prefix) = pattern.strip_suffix(".*") {
        let words: Vec<&str> = prefix.split('.').collect();
        if words.iter().any(|word| word.is_empty()) {
            return Err(SubjectError::MalformedType);
        }
        return Ok(format!("{ROOT}.{}.>", words_of(&words)));
    }
    match space {
        Some(_) => subject_of(pattern, space),
        None => Ok(format!("{}*", subject_of(pattern, None)?.trim_end_matches(NO_SPACE))),
    }
}

/// The filters for all events of a space, one for each number of words in [`WORDS`].
///
/// ```
/// use seqline_nats::subject::filters_of_space;
///
/// assert_eq!(filters_of_space("shop-1")?[..2], ["events.*.*.shop-1", "events.*.*.*.shop-1"]);
/// # Ok::<(), seqline_nats::subject::SubjectError>(())
/// ```
///
/// # Errors
///
/// [`SubjectError::EmptySpace`].
pub fn filters_of_space(space: &str) -> Result<Vec<String>, SubjectError> {
    let token = space_token(Some(space))?;
    Ok(WORDS.map(|words| format!("{ROOT}{}.{token}", ".*".repeat(words))).collect())
}

/// The space in a subject; `None` for an event without one, and for a subject that is none of ours.
///
/// ```
/// use seqline_nats::subject::space_of;
///
/// assert_eq!(space_of("events.order.created.shop%201%2Ea").as_deref(), Some("shop 1.a"));
/// assert_eq!(space_of("events.order.created._"), None);
/// ```
#[must_use]
pub fn space_of(subject: &str) -> Option<String> {
    let mut tokens = subject.split('.');
    if tokens.next() != Some(ROOT) || tokens.clone().count() < 3 {
        return None;
    }
    let token = tokens.next_back()?;
    if token == NO_SPACE { None } else { percent_decoded(token) }
}

fn words_of(words: &[&str]) -> String {
    let mut written = String::new();
    for (place, word) in words.iter().enumerate() {
        if place > 0 {
            written.push('.');
        }
        match ABBREVIATED.iter().find(|(whole, short)| place == 0 && (whole == word || short == word)) {
            Some((whole, short)) if whole == word => written.push_str(short),
            // A domain that is really called like an abbreviation keeps apart from what that stands for.
            Some((_, short)) => {
                let mut letters = short.chars();
                letters.by_ref().take(1).for_each(|letter| escape_into(&mut written, letter));
                written.push_str(letters.as_str());
            }
            None => escaped_into(&mut written, word),
        }
    }
    written
}

fn space_token(space: Option<&str>) -> Result<String, SubjectError> {
    let mut token = String::new();
    match space {
        None => token.push_str(NO_SPACE),
        Some("") => return Err(SubjectError::EmptySpace),
        Some(NO_SPACE) => escape_into(&mut token, '_'),
        Some(space) => escaped_into(&mut token, space),
    }
    Ok(token)
}

fn escaped_into(written: &mut String, text: &str) {
    for letter in text.chars() {
        match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => written.push(letter),
            letter => escape_into(written, letter),
        }
    }
}

fn escape_into(written: &mut String, letter: char) {
    for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
        // Writing to a string does not fail.
        let _ = write!(written, "%{byte:02X}");
    }
}

/// What percent-encoded text stands for; `None` if it is none.
pub(crate) fn percent_decoded(token: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(byte);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_type_or_space_is_an_error() {
        assert_eq!(subject_of("", None), Err(SubjectError::EmptyType));
        assert_eq!(subject_of("order", None), Err(SubjectError::MalformedType));
        assert_eq!(subject_of("order.", None), Err(SubjectError::MalformedType));
        assert_eq!(subject_of("order.created", Some("")), Err(SubjectError::EmptySpace));
        assert_eq!(filter_of(".*", None), Err(SubjectError::MalformedType));
    }

    #[test]
    fn a_space_that_is_called_like_none_is_told_from_none() {
        assert_eq!(subject_of("a.b", None).unwrap(), "events.a.b._");
        assert_eq!(subject_of("a.b", Some("_")).unwrap(), "events.a.b.%5F");
        assert_eq!(space_of("events.a.b.%5F").as_deref(), Some("_"));
    }

    #[test]
    fn a_domain_that_is_called_like_an_abbreviation_is_told_from_what_that_stands_for() {
        assert_eq!(subject_of("message.sent", None).unwrap(), "events.msg.sent._");
        assert_eq!(subject_of("msg.sent", None).unwrap(), "events.%6Dsg.sent._");
        assert_eq!(subject_of("order.message", None).unwrap(), "events.order.message._");
        assert_eq!(filter_of("message.*", Some("s")).unwrap(), "events.msg.>");
    }

    #[test]
    fn a_filter_of_one_type_in_one_space_is_its_subject() {
        assert_eq!(filter_of("order.created", Some("a.b")).unwrap(), "events.order.created.a%2Eb");
        assert_eq!(filter_of("order_line.added", None).unwrap(), "events.order_line.added.*");
    }

    proptest! {
        #[test]
        fn a_space_comes_back_and_its_token_is_one_token(space in "\\PC{1,128}") {
            let subject = subject_of("order.created", Some(&space)).unwrap();
            prop_assert_eq!(subject.split('.').count(), 4);
            prop_assert!(!subject.contains(['*', '>', ' ', '\t', '\r', '\n']));
            prop_assert_eq!(space_of(&subject), Some(space));
        }

        #[test]
        fn different_types_and_spaces_have_different_subjects(
            a in ("[a-z_]{1,3}([.][a-z_]{1,3}){1,2}", proptest::option::of("\\PC{1,3}")),
            b in ("[a-z_]{1,3}([.][a-z_]{1,3}){1,2}", proptest::option::of("\\PC{1,3}")),
        ) {
            let [x, y] = [&a, &b].map(|(kind, space)| subject_of(kind, space.as_deref()).unwrap());
            prop_assert_eq!(a == b, x == y);
        }
    }
}
