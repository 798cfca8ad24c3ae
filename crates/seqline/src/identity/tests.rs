use proptest::prelude::*;
use time::OffsetDateTime;
use uuid::Uuid;

use super::*;

const RECORDED: Identity = Identity { system_identifier: 70, timeline: Some(1), database_oid: 5 };
const PROMOTED: Identity = Identity { timeline: Some(2), ..RECORDED };
const COPIED: Identity = Identity { database_oid: 6, ..RECORDED };
const LOADED: Identity = Identity { system_identifier: 71, timeline: Some(1), database_oid: 9 };

fn check_of(server: Identity) -> IdentityCheck {
    IdentityCheck {
        log_id: Uuid::from_u128(1),
        epoch: Uuid::from_u128(2),
        head: 10,
        recorded: RECORDED,
        server,
        differences: RECORDED.compare(&server),
        broken: None,
        cursors_above: Vec::new(),
    }
}

fn above(mut check: IdentityCheck) -> IdentityCheck {
    check.cursors_above.push(CursorAbove { consumer: "totals".to_owned(), lane: 0, last_seq: 11 });
    check
}

fn broken(mut check: IdentityCheck) -> IdentityCheck {
    check.broken = Some((BrokenReason::HeadWentBack, OffsetDateTime::UNIX_EPOCH));
    check
}

#[test]
fn each_difference_is_named() {
    let names =
        |server: &Identity| -> Vec<&str> { RECORDED.compare(server).iter().map(Difference::name).collect() };
    assert_eq!(names(&RECORDED), [""; 0]);
    assert_eq!(names(&PROMOTED), ["timeline"]);
    assert_eq!(names(&COPIED), ["database"]);
    assert_eq!(names(&LOADED), ["system", "database"]);
    assert_eq!(names(&Identity { timeline: None, ..RECORDED }), [""; 0]);
    let all = Identity { timeline: Some(3), ..LOADED };
    let texts: Vec<String> = RECORDED.compare(&all).iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        ["system identifier 71 instead of 70", "timeline 3 instead of 1", "database oid 9 instead of 5"]
    );
}

#[test]
fn a_log_on_its_own_server_goes_on_whatever_the_rule() {
    for rule in OnChange::ALL {
        for seen in [None, Some(1), Some(10)] {
            assert_eq!(decide(&check_of(RECORDED), rule, seen), Decision::GoOn);
        }
    }
}

#[test]
fn another_server_is_refused_replaced_or_accepted_as_the_rule_says() {
    let wait = |server| Decision::Wait(WaitReason::Differs(RECORDED.compare(&server)));
    for (server, seen, accepted) in [
        (PROMOTED, None, true),
        (PROMOTED, Some(10), true),
        // Of a log in another cluster only somebody who has seen it can say that all of it is there.
        (LOADED, None, false),
        (LOADED, Some(10), true),
        (LOADED, Some(3), true),
        (COPIED, Some(10), false),
        (COPIED, None, false),
    ] {
        let decided = |rule| decide(&check_of(server), rule, seen);
        assert_eq!(decided(OnChange::Refuse), wait(server));
        assert_eq!(decided(OnChange::NewEpoch), Decision::Finalize);
        let expected = if accepted { Decision::AcceptIdentity } else { wait(server) };
        assert_eq!(decided(OnChange::Accept), expected, "{server:?}, {seen:?}");
    }
}

#[test]
fn a_history_that_is_broken_is_never_accepted() {
    let head_went_back = Decision::Wait(WaitReason::Broken(BrokenReason::HeadWentBack));
    let cursor_above = Decision::Wait(WaitReason::Broken(BrokenReason::CursorAboveHead));
    for server in [RECORDED, PROMOTED, COPIED, LOADED] {
        let check = check_of(server);
        for (check, seen, expected) in [
            (broken(check.clone()), Some(10), &head_went_back),
            (broken(check.clone()), None, &head_went_back),
            (above(check.clone()), Some(10), &cursor_above),
            (broken(above(check.clone())), Some(10), &head_went_back),
            // Nobody has recorded it yet.
            (check, Some(11), &head_went_back),
        ] {
            for rule in [OnChange::Refuse, OnChange::Accept] {
                assert_eq!(&decide(&check, rule, seen), expected, "{rule}, {check:?}");
            }
            assert_eq!(decide(&check, OnChange::NewEpoch, seen), Decision::Finalize);
        }
    }
}

#[test]
fn a_server_in_recovery_is_not_written_to() {
    let standby = Identity { timeline: None, ..LOADED };
    for rule in [OnChange::NewEpoch, OnChange::Accept] {
        let decided = decide(&check_of(standby), rule, Some(10));
        assert_eq!(decided, Decision::Wait(WaitReason::InRecovery(RECORDED.compare(&standby))));
    }
    let follows = Identity { timeline: None, ..RECORDED };
    assert_eq!(decide(&check_of(follows), OnChange::Refuse, None), Decision::GoOn);
    let decided = decide(&broken(check_of(follows)), OnChange::NewEpoch, None);
    assert_eq!(decided, Decision::Wait(WaitReason::InRecovery(Vec::new())));
}

#[test]
fn a_standby_that_is_behind_what_was_seen_is_no_other_history() {
    let behind = check_of(Identity { timeline: None, ..RECORDED });
    for rule in OnChange::ALL {
        assert_eq!(decide(&behind, rule, Some(behind.head + 1)), Decision::GoOn, "{rule}");
        let primary = check_of(RECORDED);
        assert_ne!(decide(&primary, rule, Some(primary.head + 1)), Decision::GoOn, "{rule}");
    }
}

#[test]
fn names_are_read_back() {
    for rule in OnChange::ALL {
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
    for choice in RestoredConsumers::ALL {
        assert_eq!(choice.to_string().parse(), Ok(choice));
    }
    assert_eq!("yes".parse::<OnChange>(), Err(UnknownRule));
    assert_eq!("all".parse::<RestoredConsumers>(), Err(UnknownChoice));
    assert_eq!(OnChange::default(), OnChange::Refuse);
}

fn identities() -> impl Strategy<Value = Identity> {
    (70_i64..72, proptest::option::of(1_i32..3), 5_i64..7).prop_map(
        |(system_identifier, timeline, database_oid)| Identity { system_identifier, timeline, database_oid },
    )
}

proptest! {
    /// Whatever is found: nothing is handed out on a broken history, and only the rule for it starts a new epoch.
    #[test]
    fn what_is_decided_never_hands_out_what_may_be_wrong(
        server in identities(), is_broken: bool, is_above: bool, seen in proptest::option::of(1_i64..20),
        rule in proptest::sample::select(OnChange::ALL.to_vec()),
    ) {
        let mut check = check_of(server);
        if is_broken { check = broken(check); }
        if is_above { check = above(check); }
        // A standby that is behind has lost nothing.
        let lost = !check.in_recovery() && seen.is_some_and(|seen| seen > check.head);
        let sound = !is_broken && !is_above && !lost;
        match decide(&check, rule, seen) {
            Decision::GoOn => prop_assert!(sound && check.differences.is_empty()),
            Decision::AcceptIdentity => {
                prop_assert!(sound && rule == OnChange::Accept && !check.differences.is_empty() && !check.in_recovery());
            }
            Decision::Finalize => prop_assert!(rule == OnChange::NewEpoch && !check.in_recovery()),
            Decision::Wait(_) => prop_assert!(!sound || !check.differences.is_empty()),
        }
    }
}
