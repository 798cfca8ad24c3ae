//! Events that are lost for an agent: it is told until it says that it knows, and goes on at the head.

use seqline::settings::Sequencing;
use seqline_testkit::{Backup, Role, TestDb, TestServer};

use super::{Gateway, Place, Rest, SOON, Site, Transport, number, over_both};
use crate::support::{as_admin, on, small_partitions};

over_both! {
    events_that_have_expired_are_told_until_that_is_acknowledged,
    a_cursor_beyond_the_log_is_moved_to_its_head,
    a_restore_is_told_until_that_is_acknowledged,
    a_server_that_has_not_heard_of_a_new_epoch_saves_nothing,
}

async fn events_that_have_expired_are_told_until_that_is_acknowledged<T: Transport>() {
    let db = TestDb::new().await;
    small_partitions(&db, 10, 5).await;
    let site = Site::on(db, &[SOON]).await;
    T::begin(&site.place()).await;
    site.append(25).await;
    as_admin(
        &site.db,
        "DO $$ BEGIN EXECUTE format('DROP TABLE seqline.%I',
             (SELECT name FROM seqline.event_log_partitions() ORDER BY lower_bound LIMIT 1)); END $$",
    )
    .await;
    // Another server has none of the expired events in its memory either.
    let (other, there) = site.another_server(&[SOON]).await;
    there.knows(25).await;
    let place = site.place_of(&site.token, &there);
    finds_out_and_is_told_until_acknowledged::<T>(&site, &place, ("retention", 0, 25)).await;
    other.stop().await;
    site.stop().await;
}

async fn a_cursor_beyond_the_log_is_moved_to_its_head<T: Transport>() {
    let site = Site::new(&[SOON]).await;
    T::begin(&site.place()).await;
    site.append(5).await;
    site.consumer.knows(5).await;
    let mut app = site.db.connect(Role::App).await;
    sqlx::query("UPDATE seqline.agent_consumer_cursors SET acked_seq = 70").execute(&mut app).await.unwrap();
    finds_out_and_is_told_until_acknowledged::<T>(&site, &site.place(), ("cursor_ahead", 70, 5)).await;
    site.stop().await;
}

/// Its cursor is in the backup and looks as if nothing had happened.
async fn a_restore_is_told_until_that_is_acknowledged<T: Transport>() {
    let mut server = TestServer::durable().await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    let mut site = Site::on(db, &[SOON]).await;
    let (mut agent, _) = T::begin(&site.place()).await;
    site.append(5).await;
    assert_eq!(agent.seqs(5).await, [1, 2, 3, 4, 5]);
    agent.ack(3).await;
    site.stands_at(3).await;
    let backup = Backup::take(&server).await;
    site.append(4).await;
    assert_eq!(agent.seqs(4).await, [6, 7, 8, 9]);
    agent.ack(9).await;
    site.stands_at(9).await;
    for (consumers, position) in [("keep", 3), ("head", 5)] {
        site = site
            .without_server(&[SOON], async |db| {
                backup.restore_in_place(&mut server).await;
                finalize(db, consumers).await;
            })
            .await;
        let lost = ("epoch_changed", 3, position);
        let (mut agent, begun) = T::begin(&site.place()).await;
        is_told(begun.resync.as_ref(), lost);
        goes_on(&mut agent, &site, lost).await;
        told_until_acknowledged::<T>(&site.place(), lost).await;
    }
    site.stop().await;
}

/// It hears of it when it looks again.
async fn a_server_that_has_not_heard_of_a_new_epoch_saves_nothing<T: Transport>() {
    let rarely = [("ops.look_interval", "10m"), ("ops.ready_lag_max", "10m")];
    let site = Site::new(&[&[SOON][..], &rarely].concat()).await;
    let (mut agent, _) = T::begin(&site.place()).await;
    site.append(5).await;
    assert_eq!(agent.seqs(5).await, [1, 2, 3, 4, 5]);
    agent.ack(3).await;
    site.stands_at(3).await;
    finalize(&site.db, "keep").await;
    // Over a connection it is not refused before it is to be stored, and then the connection ends.
    let answer = agent.acknowledges(r#"{"seq":5}"#).await;
    if !answer.is_err_and(|refusal| refusal.ended) {
        agent.ended().await;
    }
    assert_eq!(T::refused(&site.place()).await.code, "unavailable");
    let site = site.without_server(&[SOON], async |_| {}).await;
    let (mut agent, begun) = T::begin(&site.place()).await;
    is_told(begun.resync.as_ref(), ("epoch_changed", 3, 3));
    assert_eq!(agent.events(2).await, [(4, false), (5, false)]);
    site.stop().await;
}

async fn finalize(db: &TestDb, consumers: &str) {
    let finalize =
        ["restore", "finalize", "--consumers", consumers, "--force", "--yes", "--reason", "restored"];
    on(db, Role::App, finalize).ok().await;
}

/// What was lost: why, the acknowledgement before, and where it goes on.
type Lost = (&'static str, i64, i64);

fn is_told(resync: Option<&serde_json::Value>, (reason, after, position): Lost) {
    let resync = resync.expect("it is told");
    assert_eq!(resync["reason"], reason);
    assert_eq!((number(&resync["after"]), number(&resync["position"])), (after, position));
}

async fn finds_out_and_is_told_until_acknowledged<T: Transport>(site: &Site, place: &Place, lost: Lost) {
    let (mut agent, _) = T::begin(place).await;
    is_told(Some(&agent.loses().await), lost);
    goes_on(&mut agent, site, lost).await;
    // What it is given comes behind what it lost, so there is no backlog that it could have.
    assert!(!agent.caught_up());
    told_until_acknowledged::<T>(place, lost).await;
}

async fn goes_on<T: Transport>(agent: &mut T, site: &Site, (_, _, position): Lost) {
    site.append(1).await;
    assert_eq!(agent.events(1).await, [(position + 1, false)]);
}

async fn told_until_acknowledged<T: Transport>(place: &Place, lost: Lost) {
    let (_, _, position) = lost;
    let (mut again, begun) = T::begin(place).await;
    assert_eq!(begun.acked, position);
    is_told(begun.resync.as_ref(), lost);
    again.ack(position - 1).await;
    let (mut again, begun) = T::begin(place).await;
    is_told(begun.resync.as_ref(), lost);
    again.ack(position).await;
    let (mut other, begun) = T::Other::begin(place).await;
    assert_eq!((begun.acked, &begun.resync), (position, &None));
    assert_eq!(other.events(1).await, [(position + 1, false)]);
}
