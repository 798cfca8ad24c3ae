//! What a consumer asks the broker for. Decided without one.

use crate::limits::FILTER_SUBJECTS_MAX;
use crate::subject::{ALL, filter_of, filters_of_space};

/// The filters for these types in these spaces, where `None` is all. They hold everything that is asked for, and may hold more. None of them
/// holds another one, which a broker would refuse.
pub(super) fn subjects_of(types: Option<&[String]>, spaces: Option<&[String]>) -> Vec<String> {
    let asked: Result<Vec<Vec<String>>, _> = match (types, spaces) {
        (None, None) => return vec![ALL.to_owned()],
        (Some(types), None) => types.iter().map(|pattern| Ok(vec![filter_of(pattern, None)?])).collect(),
        (None, Some(spaces)) => spaces.iter().map(|space| filters_of_space(space)).collect(),
        (Some(types), Some(spaces)) => types
            .iter()
            .map(|pattern| spaces.iter().map(|space| filter_of(pattern, Some(space))).collect())
            .collect(),
    };
    let mut subjects: Vec<String> = asked.map(|asked| asked.concat()).unwrap_or_default();
    subjects.sort();
    subjects.dedup();
    let all = subjects.clone();
    subjects.retain(|subject| !all.iter().any(|other| other != subject && holds(other, subject)));
    match subjects.len() {
        1..=FILTER_SUBJECTS_MAX => subjects,
        _ => vec![ALL.to_owned()],
    }
}

/// Whether all that a filter lets through another one lets through too.
fn holds(outer: &str, inner: &str) -> bool {
    let (mut outer, mut inner) = (outer.split('.'), inner.split('.'));
    loop {
        match (outer.next(), inner.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(one), Some(other)) if one == other => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subjects(types: Option<&[&str]>, spaces: Option<&[&str]>) -> Vec<String> {
        let owned =
            |list: Option<&[&str]>| list.map(|list| list.iter().map(|it| it.to_string()).collect::<Vec<_>>());
        subjects_of(owned(types).as_deref(), owned(spaces).as_deref())
    }

    #[test]
    fn everything_is_one_filter() {
        assert_eq!(subjects(None, None), ["events.>"]);
    }

    #[test]
    fn types_and_spaces_are_combined() {
        assert_eq!(subjects(Some(&["order.created"]), None), ["events.order.created.*"]);
        assert_eq!(
            subjects(Some(&["order.created", "order.paid"]), Some(&["a", "b"])),
            [
                "events.order.created.a",
                "events.order.created.b",
                "events.order.paid.a",
                "events.order.paid.b"
            ]
        );
        assert_eq!(subjects(None, Some(&["a"])).len(), 7);
    }

    #[test]
    fn a_filter_that_another_one_holds_is_left_out() {
        let found = subjects(Some(&["order.*", "order.created", "order.line.*", "invoice.paid"]), None);
        assert_eq!(found, ["events.invoice.paid.*", "events.order.>"]);
        assert_eq!(subjects(Some(&["order.*"]), Some(&["a", "b"])), ["events.order.>"]);
    }

    #[test]
    fn too_many_filters_are_everything() {
        let spaces: Vec<String> = (0..FILTER_SUBJECTS_MAX).map(|number| format!("space-{number}")).collect();
        assert_eq!(subjects_of(None, Some(&spaces)), ["events.>"]);
    }

    #[test]
    fn holding_is_told_token_by_token() {
        assert!(holds("events.>", "events.a.b._"));
        assert!(holds("events.a.*.x", "events.a.b.x"));
        assert!(!holds("events.a.*.x", "events.a.b.c.x"));
        assert!(!holds("events.a.*", "events.a.>"));
        assert!(!holds("events.a.b", "events.a.*"));
    }
}
