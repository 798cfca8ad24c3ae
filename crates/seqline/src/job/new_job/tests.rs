use proptest::prelude::*;
use time::Duration as Span;
use time::macros::datetime;

use super::*;

fn job() -> NewJob {
    NewJob::new("invoice.send", JobArgs::new().with("order_id", "swordfish"))
}

/// What somebody is told who asks for this job, or nothing.
fn said(job: NewJob) -> String {
    job.check().map_or_else(|error| error.to_string(), |_| String::new())
}

#[test]
fn each_rule_is_told_in_a_sentence() {
    let kind = "the kind of a job must have 2 to 127 bytes, letters, digits and _-[]<>/.:+ only, the first a letter, a digit or _";
    let queue = "the queue of a job must have 1 to 64 lowercase letters and digits, with single _, - or | between them";
    let tag = "a tag of a job must have 3 to 255 letters, digits, _ or -, and neither begin nor end with -";
    let priority = "the priority of a job must be from 1 to 4";
    let attempts = "the attempts of a job must be at least 1";
    let run_at = "the time at which a job may run must be in the years 1970 to 9998";
    let period = "the period of a unique job must be at least a second";
    let of_kind = |kind: &str| NewJob { kind: kind.to_owned(), ..job() };
    let in_queue = |queue: &str| NewJob { queue: queue.to_owned(), ..job() };
    let tagged = |tag: &str| NewJob { tags: vec!["fine".to_owned(), tag.to_owned()], ..job() };
    let at = |at: OffsetDateTime| NewJob { run_at: Some(at), ..job() };
    let every = |period: Duration| NewJob {
        unique: Some(Unique { by_period: Some(period), ..Unique::default() }),
        ..job()
    };
    let with_tags = |count: usize| NewJob { tags: vec!["tag".to_owned(); count], ..job() };
    let cases = [
        (job(), ""),
        (of_kind("a"), kind),
        (of_kind(""), kind),
        (of_kind("send invoice"), kind),
        (of_kind(".send"), kind),
        (of_kind("s\u{e4}nd"), kind),
        (of_kind("send\n"), kind),
        (of_kind(&"k".repeat(127)), ""),
        (of_kind(&"k".repeat(128)), kind),
        (of_kind(&"k\u{b7}".repeat(43)), kind),
        (in_queue(""), queue),
        (in_queue("Mail"), queue),
        (in_queue("mail queue"), queue),
        (in_queue("mail__low"), queue),
        (in_queue("mail-"), queue),
        (in_queue(&"q".repeat(64)), ""),
        (in_queue(&"q".repeat(65)), queue),
        (NewJob { priority: 0, ..job() }, priority),
        (NewJob { priority: 4, ..job() }, ""),
        (NewJob { priority: 5, ..job() }, priority),
        (NewJob { priority: i16::MIN, ..job() }, priority),
        (NewJob { max_attempts: 0, ..job() }, attempts),
        (NewJob { max_attempts: -1, ..job() }, attempts),
        (NewJob { max_attempts: i16::MAX, ..job() }, ""),
        (at(datetime!(1970-01-01 0:00 UTC)), ""),
        (at(datetime!(1970-01-01 0:00 UTC) - Span::nanoseconds(1)), run_at),
        (at(datetime!(9998-12-31 23:59:59 UTC)), ""),
        (at(datetime!(9999-01-01 0:00 UTC)), run_at),
        (tagged("ab"), tag),
        (tagged(""), tag),
        (tagged("-abc"), tag),
        (tagged("abc-"), tag),
        (tagged("a,b"), tag),
        (tagged("a b"), tag),
        (tagged(&"t".repeat(255)), ""),
        (tagged(&"t".repeat(256)), tag),
        (with_tags(32), ""),
        (with_tags(33), "a job has at most 32 tags"),
        (every(Duration::from_secs(1)), ""),
        (every(Duration::from_millis(999)), period),
        (every(Duration::ZERO), period),
        (
            NewJob { args: JobArgs::new().with("order_id", ""), ..job() },
            "argument order_id of a job is empty",
        ),
    ];
    for (job, expected) in cases {
        let shown = format!("{job:?}");
        let said = said(job);
        assert_eq!(said, expected, "{shown}");
        assert!(!said.contains("swordfish"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_kind_is_what_river_says(kind in "[ab9_.·:+<>/\\[\\]é -]{0,5}|[a·]{60,70}") {
        // A second reading: \A[\w][\w\-\[\]<>\/.·:+]+\z of 2 to 127 bytes.
        let word = |c: char| matches!(c, 'a' | 'b' | '9' | '_');
        let mut letters = kind.chars();
        let ok = letters.next().is_some_and(word)
            && letters.all(|c| word(c) || "-[]<>/.\u{b7}:+".contains(c))
            && (2..=127).contains(&kind.len());
        prop_assert_eq!(NewJob::new(kind, JobArgs::new()).check().is_ok(), ok);
    }
}

#[test]
fn a_job_says_what_was_asked_for_and_which_event_it_is_made_for() {
    let origin = JobOrigin { seq: 17, event_id: Uuid::from_u128(1), correlation_id: None };
    let checked = job().check().expect("the job is valid");
    assert_eq!((checked.new_job(), checked.origin()), (&job(), None));
    assert_eq!(checked.with_origin(origin, None).origin(), Some(origin));
}
