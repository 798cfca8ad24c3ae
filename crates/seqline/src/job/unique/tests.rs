use proptest::prelude::*;
use riverqueue::jiff::Timestamp;
use riverqueue::protocol::{UniqueKeyInput, unique_key};
use riverqueue::{JobState, UniqueOpts, encoding};

use super::*;
use crate::job::{JobArgs, UniqueUntil};

/// Years 1970 to 9998, in nanoseconds.
fn times() -> impl Strategy<Value = OffsetDateTime> {
    let offsets = -12_i8..=12;
    (0_i128..=253_339_228_800 * 1_000_000_000 - 1, offsets).prop_map(|(nanoseconds, hours)| {
        let at = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds).expect("the time is valid");
        at.to_offset(UtcOffset::from_hms(hours, 0, 0).expect("the offset is valid"))
    })
}

fn periods() -> impl Strategy<Value = Duration> {
    const WEEK: u64 = 7 * 24 * 3_600;
    prop_oneof![
        prop::sample::select(vec![1, 7, 3_600, 36 * 3_600, WEEK, 365 * 24 * 3_600, 400 * 365 * 24 * 3_600])
            .prop_map(Duration::from_secs),
        (1_u64..100 * WEEK).prop_map(Duration::from_secs),
        (1_000_000_000_u64..u64::MAX).prop_map(Duration::from_nanos),
        // Longer than all time since the year 1.
        (60_000_000_000_u64..u64::MAX).prop_map(Duration::from_secs),
    ]
}

/// What River's client computes for the same job.
fn of_river(job: &NewJob, unique: Unique, now: OffsetDateTime) -> Option<[u8; 32]> {
    let timestamp = |at: OffsetDateTime| {
        Timestamp::from_nanosecond(at.unix_timestamp_nanos()).expect("River has this time")
    };
    let mut opts = UniqueOpts::new().with_by_args(unique.by_args).with_by_queue(unique.by_queue);
    if let Some(period) = unique.by_period {
        opts = opts.with_by_period(period);
    }
    if !unique.by_args && !unique.by_queue && unique.by_period.is_none() {
        opts = opts.with_by_state(JobState::UNIQUE_DEFAULT.iter().copied());
    }
    let encoded_args = encoding::encode_args(&job.args).expect("the arguments can be encoded");
    unique_key(&UniqueKeyInput {
        encoded_args: &encoded_args,
        kind: &job.kind,
        now: timestamp(now),
        opts: &opts,
        queue: &job.queue,
        scheduled_at: job.run_at.map(timestamp),
        unique_fields: &[],
    })
    .expect("River computes a key")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn the_key_is_the_one_that_river_computes(
        (by_args, by_queue) in any::<(bool, bool)>(),
        by_period in prop::option::of(periods()),
        (kind, queue) in ("[a-z][a-z.]{1,8}", "[a-z]{1,8}"),
        ids in prop::collection::btree_map("[a-zA-Z_]{1,3}", "[^\0]{1,6}", 0..4),
        n in any::<i64>(),
        now in times(),
        run_at in prop::option::of(times()),
    ) {
        let args = ids.into_iter().fold(JobArgs::new().with("n", n), |args, (name, id)| args.with(name, id));
        let unique = Unique { by_args, by_queue, by_period, until: UniqueUntil::Deleted };
        let job = NewJob { queue, run_at, unique: Some(unique), ..NewJob::new(kind, args) };
        prop_assert_eq!(Some(key(&job, unique, now)), of_river(&job, unique, now));
    }
}

#[test]
fn a_job_that_is_not_unique_has_no_key() {
    let job = NewJob::new("invoice.send", JobArgs::new()).check().expect("the job is valid");
    assert_eq!(job.unique_key(OffsetDateTime::UNIX_EPOCH), None);
}

#[test]
fn jobs_are_the_same_job_by_what_was_asked_for_and_nothing_else() {
    let at = |seconds| OffsetDateTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let key = |unique: Unique, kind: &str, order: i64, queue: &str, now: u64| {
        let args = JobArgs::new().with("order", order);
        let job = NewJob { queue: queue.to_owned(), unique: Some(unique), ..NewJob::new(kind, args) };
        job.check().expect("the job is valid").unique_key(at(now)).expect("it is unique")
    };
    let minute = Some(Duration::from_secs(60));
    let all = Unique { by_args: true, by_queue: true, by_period: minute, ..Unique::default() };
    // Another kind, other arguments, another queue, a later period: which of them make it another job.
    for (unique, expected) in [
        (Unique::default(), [true, false, false, false]),
        (Unique { by_args: true, ..Unique::default() }, [true, true, false, false]),
        (Unique { by_queue: true, ..Unique::default() }, [true, false, true, false]),
        (Unique { by_period: minute, ..Unique::default() }, [true, false, false, true]),
        (all, [true, true, true, true]),
    ] {
        let first = key(unique, "invoice.send", 1, "mail", 61);
        assert_eq!(first, key(unique, "invoice.send", 1, "mail", 119), "{unique:?} in the same minute");
        let others = [
            key(unique, "invoice.print", 1, "mail", 61),
            key(unique, "invoice.send", 2, "mail", 61),
            key(unique, "invoice.send", 1, "print", 61),
            key(unique, "invoice.send", 1, "mail", 120),
        ];
        assert_eq!(others.map(|other| other != first), expected, "{unique:?}");
        let until = Unique { until: UniqueUntil::Completed, ..unique };
        assert_eq!(first, key(until, "invoice.send", 1, "mail", 61), "{unique:?} until it is done");
    }
}
