//! Handling a piece of the log again beside, and what was lost for good.

use seqline::consumer::{Filter, LaneKey, Mode, Target, acknowledge, replay};

use super::moves::{APPLY, at_five, audit, refused, session};
use super::parking::append_about;
use super::*;

#[tokio::test]
async fn a_piece_of_the_log_is_replayed_into_another_consumer_and_the_first_is_not_touched() {
    let filter = || Filter::everything().types(["test.*"]);
    let consumer = probe(plain()).filter(filter()).unwrap().lanes(LaneKey::Channel, 2);
    let bench = Bench::on(database().await, config(), consumer).await;
    append_about(&bench.db, &["a", "b", "c", "d", "e", "f"]).await;
    while bench.round().await.unwrap().outcome != Outcome::Idle {}
    let before = cursors(&bench.db).await;
    let mut app = session(&bench.db).await;
    let piece = (Target::Seq(2), Target::Seq(4));
    let again = name("probe_again");
    let plan = replay(&mut app, &name(PROBE), &again, piece, Mode::Plan).await.unwrap();
    assert_eq!((plan.from, plan.to, plan.events, plan.kind.as_str()), (2, 4, 3, "worker"));
    assert_eq!(cursors(&bench.db).await, before);
    replay(&mut app, &name(PROBE), &again, piece, APPLY).await.unwrap();
    let second = Consumer::new(again.clone(), plain()).filter(filter()).unwrap();
    let (pool, listen) = (bench.db.app_pool(2), bench.db.options(Role::App));
    let consumers = consumers(pool, listen, config(), Clock::system(), [second]);
    consumers.ensure().await.unwrap();
    while consumers.round(&again).await.unwrap().outcome != Outcome::Idle {}
    assert_eq!(effects_of(&bench.db, "probe_again").await, twice(2..=4));
    append_about(&bench.db, &["g"]).await;
    assert_eq!(consumers.round(&again).await.unwrap().outcome, Outcome::Idle, "it ends there");
    let all = states(&mut app).await.unwrap();
    let state = all.iter().find(|state| state.name == "probe_again").unwrap();
    assert_eq!((state.lag(), state.is_done(), state.lanes, state.until_seq), (0, true, 2, Some(4)));
    let of_first: Vec<_> = cursors(&bench.db).await.into_iter().filter(|row| row.0 == PROBE).collect();
    assert_eq!(of_first, before);
}

async fn cursors(db: &TestDb) -> Vec<(String, i32, i64, String)> {
    sqlx::query_as(
        "SELECT name, lane, last_seq, updated_at::text FROM seqline.event_consumer_cursors ORDER BY 1, 2",
    )
    .fetch_all(&db.admin())
    .await
    .unwrap()
}

#[tokio::test]
async fn a_replay_needs_a_new_name_and_a_piece_of_the_log() {
    let bench = at_five().await;
    let mut app = session(&bench.db).await;
    let mut refusal = async |into: &str, from, to| {
        let piece = (Target::Seq(from), Target::Seq(to));
        refused(replay(&mut app, &name(PROBE), &name(into), piece, Mode::Plan).await)
    };
    assert_eq!(refusal(PROBE, 1, 2).await, "there is a consumer probe already");
    assert_eq!(refusal("again", 3, 2).await, "seq 3 to 2 is not a piece of the log: it holds 1 to 5");
    assert_eq!(refusal("again", 0, 2).await, "seq 0 to 2 is not a piece of the log: it holds 1 to 5");
    assert_eq!(refusal("again", 4, 6).await, "seq 4 to 6 is not a piece of the log: it holds 1 to 5");
    let hour = |n| Target::Time(time::OffsetDateTime::UNIX_EPOCH + n * time::Duration::HOUR);
    let piece = (hour(1), hour(2));
    let error = replay(&mut app, &name(PROBE), &name("again"), piece, Mode::Plan).await.unwrap_err();
    assert_eq!(error.to_string(), "no event was appended between these times");
}

#[tokio::test]
async fn a_replay_does_not_take_a_consumer_that_somebody_is_about_to_make() {
    let bench = at_five().await;
    let mut program = seqline::begin(&bench.db.admin()).await.unwrap();
    sqlx::query("SELECT seqline.ensure_consumer('again', 'worker', 'oldest')")
        .execute(&mut *program)
        .await
        .unwrap();
    let mut app = session(&bench.db).await;
    let (probe, again) = (name(PROBE), name("again"));
    let replaying = replay(&mut app, &probe, &again, (Target::Seq(2), Target::Seq(3)), APPLY);
    let making = async {
        eventually(DEADLINE, "the replay waits", async || {
            sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                     AND wait_event_type = 'Lock' AND query LIKE '%replay_consumer%')",
            )
            .fetch_one(&bench.db.admin())
            .await
            .unwrap()
        })
        .await;
        program.commit().await.unwrap();
    };
    let (replayed, ()) = tokio::join!(replaying, making);
    assert_eq!(refused(replayed), "there is a consumer again already");
    assert_eq!(state_of(&bench.db, "again").await.until_seq, None);
}

#[tokio::test]
async fn losses_are_shown_until_somebody_acknowledges_them() {
    let bench = at_five().await;
    as_admin(
        &bench.db,
        "INSERT INTO seqline.lost_ranges (consumer, lost_from, lost_to) VALUES ('probe', 1, 3), ('probe', 7, 7), ('probe', 2, 3), ('other', 1, 9)",
    )
    .await;
    assert_eq!(state_of(&bench.db, PROBE).await.lost, 4);
    let mut app = session(&bench.db).await;
    let plan = acknowledge(&mut app, &name(PROBE), Mode::Plan).await.unwrap();
    assert_eq!((plan.ranges, plan.events), (2, 4));
    assert_eq!(state_of(&bench.db, PROBE).await.lost, 4);
    acknowledge(&mut app, &name(PROBE), APPLY).await.unwrap();
    assert_eq!(state_of(&bench.db, PROBE).await.lost, 0);
    let (action, _, before, _, _) = audit(&bench.db).await.remove(0);
    let lost = serde_json::json!({"lost": [[1, 3], [2, 3], [7, 7]]});
    assert_eq!((action.as_str(), before), ("consumer.acknowledge", lost));
    let again = acknowledge(&mut app, &name(PROBE), APPLY).await.unwrap();
    assert_eq!((again.ranges, audit(&bench.db).await.len()), (0, 1), "there is nothing left to say");
}

#[tokio::test]
async fn what_somebody_knows_of_one_lane_is_not_shown_again_for_another_and_what_is_gone_is_shown_before() {
    let bench = Bench::on(database().await, config(), probe(plain()).lanes(LaneKey::Resource, 3)).await;
    append_about(&bench.db, &["a", "b", "c", "d", "e", "f"]).await;
    as_admin(
        &bench.db,
        "DELETE FROM seqline.event_log WHERE seq <= 4;
         UPDATE seqline.event_consumer_cursors SET last_seq = 1 WHERE lane = 2",
    )
    .await;
    let mut app = session(&bench.db).await;
    let known = async |app: &mut PgConnection| {
        let state = states(app).await.unwrap().remove(0);
        (state.lost, state.gone)
    };
    assert_eq!(known(&mut app).await, (0, 4), "nobody has come there");
    for lost in [(4, 4), (0, 1)] {
        bench.round().await.unwrap();
        assert_eq!(known(&mut app).await.0, lost.0);
        acknowledge(&mut app, &name(PROBE), APPLY).await.unwrap();
    }
    bench.round().await.unwrap();
    assert_eq!(known(&mut app).await, (0, 0));
    // Of which lane it is does not matter: of the same consumer alone.
    let rows: (i64, i64) = sqlx::query_as("SELECT count(*), count(acknowledged_at) FROM seqline.lost_ranges")
        .fetch_one(&bench.db.admin())
        .await
        .unwrap();
    assert_eq!(rows, (3, 3));
}
