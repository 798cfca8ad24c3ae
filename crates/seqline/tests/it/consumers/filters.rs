//! Filters: a consumer gets what it asked for, and its cursor passes only what was looked at.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use seqline::NewEvent;
use seqline::consumer::{Filter, InvalidFilter};

use super::*;

/// Appends one event for each of these in one transaction: type, space, channel and kind of its resource.
async fn append_as(db: &TestDb, events: &[(&str, &str, &str, &str)]) {
    let built: Vec<NewEvent> = events
        .iter()
        .map(|(event_type, space, channel, kind)| {
            let event = NewEvent::builder(*event_type, *kind, "any").space(*space).channel(*channel);
            event.build().expect("the event is valid")
        })
        .collect();
    let mut tx = seqline::begin(&db.producer()).await.unwrap();
    seqline::append(&mut tx, &built).await.unwrap();
    seqline::commit(tx).await.unwrap();
    db.settled().await;
}

fn filtered(filter: Filter) -> Consumer {
    probe(plain()).filter(filter).expect("the filter is valid")
}

#[tokio::test]
async fn it_gets_what_it_asked_for() {
    let events = [
        ("order.created", "", "", "order"),
        ("order.line.added", "shop-1", "web", "line"),
        ("orders.created", "shop-1", "", "order"),
        ("order_item.created", "shop-2", "web", "item"),
        ("invoice.paid", "shop-2", "till", "invoice"),
    ];
    let all = Filter::everything;
    let cases: &[(&str, Filter, &[i64])] = &[
        ("everything", all(), &[1, 2, 3, 4, 5]),
        ("a type", all().types(["order.created"]), &[1]),
        ("types", all().types(["order.created", "invoice.paid"]), &[1, 5]),
        ("a beginning", all().types(["order.*"]), &[1, 2]),
        ("a beginning of two words", all().types(["order.line.*"]), &[2]),
        ("a beginning with a character that LIKE knows", all().types(["order_item.*"]), &[4]),
        ("a beginning and a type", all().types(["order.*", "orders.created"]), &[1, 2, 3]),
        ("a space", all().spaces(["shop-1"]), &[2, 3]),
        ("spaces", all().spaces(["shop-1", "shop-2"]), &[2, 3, 4, 5]),
        ("a channel", all().channels(["web"]), &[2, 4]),
        ("a kind", all().resource_kinds(["order"]), &[1, 3]),
        (
            "all of it",
            all().types(["order.*"]).spaces(["shop-1"]).channels(["web"]).resource_kinds(["line"]),
            &[2],
        ),
        ("nothing that is there", all().types(["never.happened"]), &[]),
        ("one of each, and none has both", all().spaces(["shop-1"]).channels(["till"]), &[]),
    ];
    let db = database().await;
    append_as(&db, &events).await;
    let mut bench = Bench::on(db, config(), probe(plain())).await;
    for (what, filter, expected) in cases {
        bench = Bench::on(bench.db, config(), filtered(filter.clone())).await;
        bench.begin_again().await;
        let result = bench.processes(expected.len()).await;
        assert_eq!((result.scanned, result.last_seq, result.full), (5, Some(5), false), "{what}");
        assert_eq!(effects(&bench.db).await, twice(expected.iter().copied()), "{what}");
        assert_eq!(bench.round().await.unwrap().outcome, Outcome::Idle, "{what}");
    }
}

#[tokio::test]
async fn a_round_looks_at_so_many_and_takes_so_many() {
    let config = ConsumerConfig { batch_size: 2, scan_size: 10, ..config() };
    let bench =
        Bench::on(database().await, config, filtered(Filter::everything().types(["rare.event"]))).await;
    let events: Vec<_> = (1..=25)
        .map(|n| (if matches!(n, 3 | 4 | 5 | 25) { "rare.event" } else { "test.happened" }, "", "", "test"))
        .collect();
    append_as(&bench.db, &events).await;
    let mut rounds = Vec::new();
    loop {
        let round = bench.round().await.unwrap();
        if round.outcome == Outcome::Idle {
            break;
        }
        rounds.push((round.processed, round.scanned, round.last_seq.unwrap(), round.full));
    }
    // Up to the second that matches; then as far as it looks; then what is left.
    assert_eq!(rounds, [(2, 4, 4, true), (1, 10, 14, true), (0, 10, 24, true), (1, 1, 25, false)]);
    assert_eq!(effects(&bench.db).await, twice([3, 4, 5, 25]));
}

#[tokio::test]
async fn a_filter_that_no_event_can_match_is_refused() {
    let all = Filter::everything;
    let cases = [
        (all().types(["Order.created"]), InvalidFilter::Type),
        (all().types(["order"]), InvalidFilter::Type),
        (all().types(["*"]), InvalidFilter::Type),
        (all().types(["order*"]), InvalidFilter::Type),
        (all().types([".*"]), InvalidFilter::Type),
        (all().types(["order.*.created"]), InvalidFilter::Type),
        (all().types([""; 0]), InvalidFilter::Empty("type")),
        (all().spaces([""]), InvalidFilter::Value("space")),
        (all().channels(["a\nb"]), InvalidFilter::Value("channel")),
        (all().resource_kinds(["x".repeat(129)]), InvalidFilter::Value("resource kind")),
        (all().spaces((0..101).map(|n| n.to_string())), InvalidFilter::TooMany("space")),
    ];
    for (filter, expected) in cases {
        let error = probe(plain()).filter(filter).expect_err("it is refused");
        assert_eq!(error, expected);
    }
}

#[tokio::test]
async fn a_hole_is_found_also_where_nothing_matches() {
    let filter = Filter::everything().types(["rare.event"]);
    let bench = Bench::on(database().await, config(), filtered(filter)).await;
    append(&bench.db.producer(), 1..=20).await;
    as_admin(&bench.db, "DELETE FROM seqline.event_log WHERE seq IN (7, 8)").await;
    let error = bench.round().await.unwrap_err();
    let RoundError::Gap(gap) = &error else { panic!("{error:?}") };
    assert_eq!((gap.expected, gap.found), (7, 9));
    bench.assert_untouched().await;
    bench.assert_pool_is_sound().await;
}

/// Each statement is held to a second by the server, and the whole to what is printed.
#[tokio::test]
async fn three_among_a_million_are_found_in_bounded_steps() {
    let db = database().await;
    as_admin(
        &db,
        "INSERT INTO seqline.event_log (seq, id, type, schema_version, permission_version, resource_kind, receive_action, payload)
         SELECT n, gen_random_uuid(), CASE WHEN n IN (5, 500000, 999999) THEN 'rare.event' ELSE 'test.happened' END,
                1, 0, 'test', 'any', '{}'
         FROM generate_series(1, 1000000) n",
    )
    .await;
    let second = Duration::from_secs(1);
    let config = ConsumerConfig { batch_size: 500, scan_size: 10_000, statement_timeout: second, ..config() };
    let bench = Bench::on(db, config, filtered(Filter::everything().types(["rare.event"]))).await;
    let clock = Clock::system();
    let begin = clock.now();
    let (mut position, mut rounds) = (0, 0);
    while let Some(last_seq) = bench.round().await.expect("each statement is short").last_seq {
        assert!(last_seq - position <= 10_000, "from {position} to {last_seq} in one round");
        assert_eq!(cursor(&bench.db, PROBE).await, last_seq);
        (position, rounds) = (last_seq, rounds + 1);
    }
    println!("{rounds} rounds over 1,000,000 events took {}", clock.now() - begin);
    assert_eq!((position, effects(&bench.db).await), (1_000_000, twice([5, 500_000, 999_999])));
}

#[tokio::test]
async fn what_a_filter_says_of_an_event_is_what_the_database_says() {
    let bench = Bench::on(database().await, config(), probe(plain())).await;
    let words = ["order.created", "order.line.added", "orders.created", "a.b", "a.b.c"];
    let patterns = ["order.*", "order.created", "order.line.*", "a.*", "a.b.*", "orders.created", "order_.*"];
    let places = ["", "s1", "s2"];
    let one_of = |values: &'static [&'static str]| prop::sample::select(values.to_vec());
    let list = |values: &'static [&'static str]| {
        prop::option::of(prop::collection::vec(prop::sample::select(values.to_vec()), 1..3))
    };
    let words: &'static [&'static str] = Vec::leak(words.to_vec());
    let patterns: &'static [&'static str] = Vec::leak(patterns.to_vec());
    let places: &'static [&'static str] = Vec::leak(places.to_vec());
    let strategy = (
        prop::collection::vec(
            (one_of(words), one_of(places), one_of(places), one_of(&["order", "line"])),
            1..40,
        ),
        (list(patterns), list(&["s1", "s2"]), list(&["s1", "s3"]), list(&["order"])),
        1..12_u32,
        1..20_u32,
    );
    // Each case has its own events and reads them all.
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let mut first = 0_i64;
    let mut db = Some(bench.db);
    for _ in 0..40 {
        let (events, (types, spaces, channels, kinds), batch_size, scan_size) =
            strategy.new_tree(&mut runner).expect("there is a case").current();
        let mut filter = Filter::everything();
        if let Some(types) = &types {
            filter = filter.types(types.clone());
        }
        if let Some(spaces) = &spaces {
            filter = filter.spaces(spaces.clone());
        }
        if let Some(channels) = &channels {
            filter = filter.channels(channels.clone());
        }
        if let Some(kinds) = &kinds {
            filter = filter.resource_kinds(kinds.clone());
        }
        let is_type = |event_type: &str, pattern: &str| match pattern.strip_suffix('*') {
            Some(beginning) => event_type.starts_with(beginning),
            None => event_type == pattern,
        };
        let expected: Vec<i64> = events
            .iter()
            .zip(first + 1..)
            .filter(|((event_type, space, channel, kind), _)| {
                types.as_ref().is_none_or(|types| types.iter().any(|pattern| is_type(event_type, pattern)))
                    && spaces.as_ref().is_none_or(|spaces| spaces.contains(space))
                    && channels.as_ref().is_none_or(|channels| channels.contains(channel))
                    && kinds.as_ref().is_none_or(|kinds| kinds.contains(kind))
            })
            .map(|(_, seq)| seq)
            .collect();
        let config = ConsumerConfig { batch_size, scan_size, ..config() };
        let taken = db.take().expect("it comes back");
        append_as(&taken, &events).await;
        as_admin(&taken, "TRUNCATE effects").await;
        let bench = Bench::on(taken, config, filtered(filter.clone())).await;
        let mut position = first;
        loop {
            let round = bench.round().await.unwrap();
            let Some(last_seq) = round.last_seq else { break };
            assert_eq!(last_seq, position + round.scanned, "{filter:?}");
            let reach = if filter.is_everything() { batch_size } else { scan_size };
            assert!(round.scanned <= i64::from(reach) && round.processed <= batch_size as usize, "{round:?}");
            position = last_seq;
        }
        first += events.len() as i64;
        assert_eq!(position, first);
        assert_eq!(effects(&bench.db).await, twice(expected), "{filter:?} {events:?}");
        db = Some(bench.db);
    }
}

#[tokio::test]
async fn what_retention_took_is_lost_whether_it_would_have_matched_or_not() {
    let config = ConsumerConfig { scan_size: 10, ..config() };
    let bench =
        Bench::on(database().await, config, filtered(Filter::everything().types(["rare.event"]))).await;
    append(&bench.db.producer(), 1..=5).await;
    bench.processes(0).await;
    as_admin(&bench.db, "DELETE FROM seqline.event_log").await;
    // More is gone than a round looks at.
    insert_as_owner(&bench.db, &(40..=45).collect::<Vec<_>>()).await;
    as_admin(&bench.db, "UPDATE seqline.log_bounds SET retained_floor = 1, head_floor = 1").await;
    let result = bench.processes(0).await;
    assert_eq!((result.lost, result.scanned), (Some(LostRange { from: 6, to: 39 }), 6));
    assert_eq!(cursor(&bench.db, PROBE).await, 45);
}
