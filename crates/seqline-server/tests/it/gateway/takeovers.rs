//! Takeovers in every direction: whoever comes has the consumer, and whoever had it changes nothing any more.

use nix::sys::signal::Signal;
use seqline::agent::AgentConsumer;
use seqline_testkit::{Role, eventually};
use serde_json::json;

use super::socket::Next;
use super::{SOON, Site, Socket};
use crate::agents::number;
use crate::support::{DEADLINE, on};

#[tokio::test]
async fn in_one_process_the_older_connection_saves_and_ends() {
    let site = Site::new(&[("agent.ack_persist_interval", "30s")]).await;
    let (mut older, first) = site.ready().await;
    older.expect("catchup.complete").await;
    site.append(3).await;
    assert_eq!(older.seqs(3).await, [1, 2, 3]);
    older.ack(2).await;
    older.is_quiet().await;
    let (mut newer, ready) = site.ready().await;
    let (_, closed) = older.closed().await;
    assert_eq!((closed.code, &closed.reason["reason"]), (4015, &json!("consumer_replaced")));
    assert_eq!(
        (number(&ready["acked"]), &ready["generation"]),
        (2, &json!(2)),
        "what it had acknowledged counts"
    );
    assert_eq!(newer.events(1).await, [(3, false)]);
    let line = site.server.says("consumer of an agent taken over").await;
    assert_eq!((&line["replaced"], &line["session"]), (&first["session_id"], &ready["session_id"]));
    site.stop().await;
}

#[tokio::test]
async fn one_who_is_polite_leaves_it_to_who_has_it() {
    let site = Site::new(&[]).await;
    let (mut mine, _) = site.ready().await;
    mine.expect("catchup.complete").await;
    let polite = json!({ "token": site.token, "take_over": false });
    let (frames, closed) = Socket::refused(&site.address, "identify", &polite).await;
    assert_eq!((closed.code, &frames[0]["d"]["code"]), (4016, &json!("consumer_replaced")));
    let holder = &frames[0]["d"]["holder"];
    assert_eq!(holder["over"], "gateway", "{frames:?}");
    assert!(holder["since"].as_str().unwrap().starts_with('2'), "{frames:?}");
    mine.is_quiet().await;
    mine.leave(1000).await;
    let (_, ready) = Socket::identified(&site.address, &polite).await;
    assert_eq!(ready["generation"], 2);
    site.stop().await;
}

/// One that was not told: its connection broke, and its session is not known where it comes again.
#[tokio::test]
async fn one_who_was_replaced_and_does_not_know_does_not_take_it_back() {
    let site = Site::new(&[SOON]).await;
    let (older, ready) = site.ready().await;
    let again = json!({ "token": site.token, "generation": ready["generation"] });
    drop(older);
    // Nobody has come since: its own session of before is in nobody's way, at another server too.
    let (other, address) = site.another_server(&[SOON]).await;
    let (older, ready) = Socket::identified(&address, &again).await;
    let again = json!({ "token": site.token, "generation": ready["generation"] });
    drop(older);
    let (mut newer, _) = site.ready().await;
    newer.expect("catchup.complete").await;
    for address in [&site.address, &address] {
        let (frames, closed) = Socket::refused(address, "identify", &again).await;
        assert_eq!((closed.code, &frames[0]["d"]["holder"]["over"]), (4016, &json!("gateway")), "{frames:?}");
    }
    newer.is_quiet().await;
    newer.leave(1000).await;
    // It gave the consumer up.
    Socket::identified(&address, &again).await;
    other.stop().await;
    site.stop().await;
}

/// It was let in, and its connection broke before it heard that.
#[tokio::test]
async fn one_who_never_heard_that_it_was_let_in_is_not_in_its_own_way() {
    let site = Site::new(&[]).await;
    let (older, ready) = site.ready().await;
    let again = json!({ "token": site.token, "take_over": false, "generation": ready["generation"] });
    older.leave(1000).await;
    let mut unheard = Socket::connect(&site.address).await;
    unheard.send("identify", &again).await;
    eventually(DEADLINE, "it is let in", async || site.rest().state().await["generation"] == 2).await;
    drop(unheard);
    eventually(DEADLINE, "it comes again", async || {
        let mut socket = Socket::connect(&site.address).await;
        socket.send("identify", &again).await;
        // Until the server has found out that nobody is there any more.
        matches!(socket.next().await, Next::Frame(frame) if frame["op"] == "ready")
    })
    .await;
    site.stop().await;
}

#[tokio::test]
async fn another_process_takes_it_and_the_holder_finds_out_when_it_saves() {
    let site = Site::new(&[SOON]).await;
    let (mut here, _) = site.ready().await;
    here.expect("catchup.complete").await;
    site.append(3).await;
    assert_eq!(here.seqs(3).await, [1, 2, 3]);
    let (other, address) = site.another_server(&[SOON]).await;
    let (mut there, _) = Socket::ready(&address, &site.token).await;
    assert_eq!(there.seqs(3).await, [1, 2, 3]);
    there.expect("catchup.complete").await;
    there.ack(1).await;
    here.ack(3).await;
    assert_eq!(here.code().await, 4015);
    there.is_quiet().await;
    there.leave(1000).await;
    assert_eq!(
        number(&site.rest().state().await["acked"]),
        1,
        "what the older one acknowledged is not saved"
    );
    other.stop().await;
    site.stop().await;
}

#[tokio::test]
async fn a_process_that_stood_still_and_goes_on_acknowledges_nothing() {
    let site = Site::new(&[SOON]).await;
    let (mut here, _) = site.ready().await;
    here.expect("catchup.complete").await;
    site.append(3).await;
    assert_eq!(here.seqs(3).await, [1, 2, 3]);
    let (other, address) = site.another_server(&[SOON]).await;
    site.server.running.signal(Signal::SIGSTOP);
    here.ack(3).await;
    let (mut there, _) = Socket::ready(&address, &site.token).await;
    assert_eq!(there.seqs(3).await, [1, 2, 3]);
    there.expect("catchup.complete").await;
    site.server.running.signal(Signal::SIGCONT);
    assert_eq!(here.code().await, 4015);
    there.ack(2).await;
    there.is_quiet().await;
    there.leave(1000).await;
    assert_eq!(number(&site.rest().state().await["acked"]), 2);
    other.stop().await;
    site.stop().await;
}

#[tokio::test]
async fn an_acknowledgement_over_rest_counts_for_the_connection() {
    let site = Site::new(&[("agent.max_inflight_events", "2"), SOON]).await;
    let (mut socket, _) = site.ready().await;
    socket.expect("catchup.complete").await;
    site.append(4).await;
    assert_eq!(socket.seqs(2).await, [1, 2]);
    socket.is_quiet().await;
    site.rest().acked(2).await;
    assert_eq!(socket.seqs(2).await, [3, 4]);
    socket.is_quiet().await;
    site.stop().await;
}

#[tokio::test]
async fn one_from_whom_an_operator_takes_it_comes_again_to_what_is_there_then() {
    let site = Site::new(&[SOON]).await;
    let (mut socket, _) = site.ready().await;
    socket.expect("catchup.complete").await;
    site.append(3).await;
    assert_eq!(socket.seqs(3).await, [1, 2, 3]);
    socket.ack(2).await;
    eventually(DEADLINE, "it is saved", async || number(&site.rest().state().await["acked"]) == 2).await;
    on(&site.db, Role::App, "agents consumers reset billing default --to 1 --yes".split(' ')).ok().await;
    socket.ack(3).await;
    let (_, closed) = socket.closed().await;
    let expected = json!({ "reason": "consumer_released", "reconnect": true, "resume": false });
    assert_eq!((closed.code, &closed.reason), (4018, &expected));
    let (mut socket, ready) = site.ready().await;
    assert_eq!(number(&ready["acked"]), 1, "what it acknowledged since is not saved");
    assert_eq!(socket.events(2).await, [(2, false), (3, false)]);
    site.stop().await;
}

#[tokio::test]
async fn a_row_that_somebody_has_locked_makes_nobody_else_wait() {
    let site = Site::new(&[SOON]).await;
    let named = |name: &str| json!({ "token": site.token, "consumer": name });
    let (mut locked, _) = site.ready().await;
    let (mut free, _) = Socket::identified(&site.address, &named("free")).await;
    locked.expect("catchup.complete").await;
    free.expect("catchup.complete").await;
    site.append(2).await;
    assert_eq!((locked.seqs(2).await, free.seqs(2).await), (vec![1, 2], vec![1, 2]));
    let pool = site.db.pool(Role::App, 1);
    let mut tx = seqline::begin(&pool).await.unwrap();
    let consumer = AgentConsumer::new("billing", "default").unwrap();
    let epoch = crate::agents::epoch(&site.db).await;
    seqline::agent::lock(&mut tx, &consumer, epoch).await.unwrap().expect("it is there");
    locked.ack(2).await;
    locked.is_quiet().await;
    free.ack(2).await;
    let state = site.rest_of("free");
    eventually(DEADLINE, "the other one is saved", async || number(&state.state().await["acked"]) == 2).await;
    // Somebody who wants it waits, and nobody else does.
    let mut waiting = Socket::connect(&site.address).await;
    waiting.send("identify", &named("default")).await;
    for name in ["another", "free"] {
        let (mut socket, _) = Socket::identified(&site.address, &named(name)).await;
        socket.expect("catchup.complete").await;
    }
    seqline::commit(tx).await.unwrap();
    assert_eq!(
        number(&waiting.expect("ready").await["acked"]),
        2,
        "what the one before had acknowledged counts"
    );
    assert_eq!(locked.code().await, 4015);
    site.stop().await;
}
