//! What is refused is what River's client refuses.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use riverqueue::{Error, InsertOpts};
use serde::{Deserialize, Serialize};

use super::*;

#[derive(riverqueue::JobArgs, Serialize, Deserialize)]
#[river(kind = "invoice.send")]
struct NoArgs {}

/// A client that checks a job, and can do no more because its pool is closed.
async fn checking_client() -> Client {
    let pool = TestDb::empty().await.app_pool(1);
    pool.close().await;
    client_in(SCHEMA, pool).build().expect("the client is built")
}

/// Whether the client would insert it.
async fn accepts<A: riverqueue::JobArgs>(client: &Client, args: A, opts: InsertOpts) -> bool {
    match client.insert(args).opts(opts).await {
        Err(Error::Database(sqlx::Error::PoolClosed)) => true,
        Err(Error::InvalidJob(_)) => false,
        other => panic!("{:?}", other.map(|result| result.job.id())),
    }
}

#[tokio::test]
async fn queues_tags_priorities_and_attempts_are_checked_as_the_client_does() {
    let client = checking_client().await;
    let near_valid = (
        prop_oneof![Just("default".to_owned()), "[a-z0_|. A-]{0,4}|[a0][a|]{60,64}"],
        prop::collection::vec(prop_oneof![Just("tag".to_owned()), "[a-z_9, é-]{0,4}|[a]{250,258}"], 0..2),
        prop_oneof![Just(1_i16), -1_i16..6],
        prop_oneof![Just(25_i16), -1_i16..3],
    );
    let mut runner = TestRunner::deterministic();
    let mut accepted = 0;
    for _ in 0..3_000 {
        let tree = near_valid.new_tree(&mut runner).expect("there are such options");
        let (queue, tags, priority, max_attempts) = tree.current();
        let opts = InsertOpts::default()
            .with_queue(&queue)
            .with_tags(&tags)
            .with_priority(priority)
            .with_max_attempts(max_attempts.into());
        let expected = accepts(&client, NoArgs {}, opts).await;
        let job = NewJob { queue, tags, priority, max_attempts, ..NewJob::new(KIND, JobArgs::new()) };
        assert_eq!(job.clone().check().is_ok(), expected, "{job:?}");
        accepted += usize::from(expected);
    }
    assert!((300..2_700).contains(&accepted), "{accepted} accepted");
}

/// For each kind, a type whose jobs have it.
macro_rules! kinds {
    ($client:expr, $($kind:literal)*) => {$({
        #[derive(Serialize, Deserialize)]
        struct Args {}
        impl riverqueue::JobArgs for Args {
            const KIND: &'static str = $kind;
        }
        let expected = accepts($client, Args {}, InsertOpts::default()).await;
        assert_eq!(NewJob::new($kind, JobArgs::new()).check().is_ok(), expected, "{:?}", $kind);
    })*};
}

#[tokio::test]
async fn kinds_are_checked_as_the_client_does() {
    let client = checking_client().await;
    kinds!(&client,
        "" "a" "ab" "a " " a" "a b" "A1" "1a" "_a" "-a" "a-" ".a" "a." "a.b" "a:b" "a/b" "a+b" "a<b>" "[a]" "a[b]"
        "a·" "·a" "aé" "éa" "a\n" "a\0" "a,b" "a|b" "a\\b" "a\u{2028}" "a_B-[]<>/.·:+"
        "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"
        "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"
    );
}
