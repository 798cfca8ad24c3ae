//! What has to hold between settings.

use super::*;

/// For each check values at its edge: those that just pass, and those that just do not.
#[test]
fn every_check_is_sharp_and_its_message_names_keys_and_no_values() {
    let of_texts =
        |check: &&Check| ["auth.", "nats."].iter().any(|section| check.keys[0].starts_with(section));
    for check in CHECKS.iter().filter(|check| !of_texts(check)) {
        let [low, high] = [check.keys[0], check.keys[1]].map(|name| Key::find(name).unwrap());
        let (times, allows_equal) = match check.rule {
            "must not be more than" => (1, true),
            "must not be more than a third of" => (3, true),
            "has to be less than" => (1, false),
            rule => panic!("{rule}"),
        };
        let is_number = low.default_text().parse::<u32>().is_ok();
        let text =
            |value: u32| if is_number { (50 + value / 10 - 500).to_string() } else { format!("{value}ms") };
        for (value, passes) in [(4990, true), (5000, allows_equal), (5010, false)] {
            let mut config = Config::default();
            assert_eq!(high.set_text(&mut config, &text(5000 * times)), Ok(()), "{}", high.name);
            assert_eq!(low.set_text(&mut config, &text(value)), Ok(()), "{}", low.name);
            assert_eq!((check.holds)(&config), passes, "{} at {value}", check.name);
        }
        let expected = format!("{} {} {} (check {})", low.name, check.rule, high.name, check.name);
        let problem = Problem::Check { name: check.name, keys: check.keys, rule: check.rule };
        assert_eq!(problem.to_string(), expected);
    }
}

#[test]
fn a_check_is_not_made_of_values_that_were_refused() {
    let retention = "SEQLINE_SYNC__EVENT_RETENTION";
    let alert = "SEQLINE_CONSUMER__PENDING_ALERT_AFTER";
    // Retention is known, so what else it does not fit is told.
    let found = problems("", &[(retention, "10min"), (alert, "soon")]);
    assert!(found.len() == 3 && found[1].ends_with("(check agent_alert_below_retention)"), "{found:?}");
    assert!(found[2].ends_with("(check maintenance_below_retention)"), "{found:?}");
    assert_eq!(problems("", &[(retention, "soon"), (alert, "40d")]).len(), 1);
}
