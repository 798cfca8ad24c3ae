//! What consumers keep, in `seqline partitions` and `seqline status`.

use seqline_testkit::{Role, TestDb};
use serde_json::json;

use super::json_of;
use crate::support::{append, as_admin, on, server_db, small_partitions};

const FIRST: &str = "event_log_from_0000000000000000001";
const SECOND: &str = "event_log_from_0000000000000000003";

/// Partitions of two events, five events that are 40 days old, and consumers that have passed none, one and all of them.
async fn held() -> TestDb {
    let db = server_db().await;
    small_partitions(&db, 2, 3).await;
    append(&db.app(), 1..=5).await;
    for (name, kind, last_seq) in [("slow", "worker", 0), ("totals", "poll", 2), ("done", "poll", 5)] {
        as_admin(
            &db,
            &format!(
                "SELECT seqline.ensure_consumer('{name}', '{kind}', 'head');
                 UPDATE seqline.event_consumer_cursors SET last_seq = {last_seq} WHERE name = '{name}'"
            ),
        )
        .await;
    }
    // The second partition a little later than the first.
    as_admin(
        &db,
        "UPDATE seqline.event_log SET occurred_at =
             timestamptz '2026-01-01 00:00:00+00' + CASE WHEN seq > 2 THEN interval '1 day' ELSE interval '0' END",
    )
    .await;
    db
}

#[tokio::test]
async fn partitions_are_listed_with_those_who_keep_them() {
    let db = held().await;
    let rows = json_of(&db, &["partitions"]).await;
    let seen: Vec<_> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| json!([row["lower_bound"], row["held_by"], row["holders"]]))
        .collect();
    assert_eq!(
        seen,
        [
            json!([1, ["slow"], 1]),
            json!([3, ["slow", "totals"], 2]),
            // Nobody is asked about the one that holds the head.
            json!([5, [], 0])
        ]
    );
    let text = on(&db, Role::App, ["partitions"]).ok().await;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with("bytes  held by"), "{text}");
    assert!(lines[1].ends_with("  slow") && lines[2].ends_with("  slow, totals"), "{text}");
}

#[tokio::test]
async fn the_status_shows_who_keeps_expired_partitions_how_many_and_since_when() {
    let db = held().await;
    let text = on(&db, Role::App, ["status"]).ok().await;
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("held")).collect();
    assert_eq!(
        lines,
        [
            "held          2 expired partitions by slow, since 2026-01-31T00:00:00Z",
            "held          1 expired partition by totals, since 2026-02-01T00:00:00Z",
        ]
    );
    assert_eq!(
        json_of(&db, &["status"]).await["held"],
        json!([
            { "consumer": "slow", "partitions": 2, "since": "2026-01-31T00:00:00Z" },
            { "consumer": "totals", "partitions": 1, "since": "2026-02-01T00:00:00Z" },
        ])
    );
    // What has not expired is kept by nobody.
    let retained = on(&db, Role::App, ["status"]).env("SEQLINE_SYNC__EVENT_RETENTION", "36500d").ok().await;
    assert!(!retained.contains("held"), "{retained}");
}

#[tokio::test]
async fn a_role_that_may_not_see_consumers_and_an_older_schema_show_nothing_of_it() {
    let db = held().await;
    as_admin(&db, "REVOKE EXECUTE ON FUNCTION seqline.event_log_holders() FROM seqline_app").await;
    let status = json_of(&db, &["status"]).await;
    assert_eq!((status.get("held"), &status["head"]), (None, &json!(5)));
    as_admin(&db, "DROP FUNCTION seqline.event_log_holders()").await;
    assert_eq!(json_of(&db, &["status"]).await.get("held"), None);
    assert_eq!(json_of(&db, &["partitions"]).await[0]["held_by"], json!([]));
}

#[tokio::test]
async fn maintenance_says_who_keeps_what_and_from_whom_it_was_taken() {
    let db = held().await;
    let maintain = ["partitions", "maintain", "--retention", "30d", "--retention-hold"];
    let run = |hold: &'static str| on(&db, Role::App, maintain).arg(hold);
    let outcome = run("36500d").run().await;
    assert!(outcome.stdout.ends_with(" 0 dropped\n"), "{outcome:?}");
    let sentence = outcome.sentence(0);
    assert!(sentence.starts_with(&format!("{FIRST} stays, ")), "{sentence}");
    assert!(sentence.ends_with(" beyond retention, and has not been passed by slow"), "{sentence}");
    let as_json: serde_json::Value = serde_json::from_str(&run("36500d").arg("--json").ok().await).unwrap();
    assert_eq!(
        (
            &as_json["dropped"],
            &as_json["held"]["name"],
            &as_json["held"]["held_by"],
            &as_json["held"]["holders"]
        ),
        (&json!(0), &json!(FIRST), &json!(["slow"]), &json!(1))
    );
    assert!(as_json["held"]["beyond_retention_seconds"].as_u64().unwrap() > 0, "{as_json}");
    let outcome = run("0s").run().await;
    assert!(outcome.stdout.ends_with(" 2 dropped\n"), "{outcome:?}");
    assert_eq!(
        outcome.stderr,
        format!(
            "seqline: {FIRST} was dropped, its events are lost to slow\n\
             seqline: {SECOND} was dropped, its events are lost to slow, totals\n"
        )
    );
}
