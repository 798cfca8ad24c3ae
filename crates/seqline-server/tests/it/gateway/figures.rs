//! What the metrics of a server show of its connections and of the consumers of agents.

use seqline::access::{PrincipalKind, disable_principal, enable_principal};
use seqline_testkit::{Role, TestDb, eventually};
use serde_json::json;

use super::{Site, Socket};
use crate::agents::{Consumer, agent};
use crate::api::Client;
use crate::support::{DEADLINE, as_admin, run_sql, small_partitions};
use crate::worker::Worker;

const QUICK: (&str, &str) = ("telemetry.refresh_interval", "100ms");
const SOON: (&str, &str) = ("agent.ack_persist_interval", "50ms");

const IN_FLIGHT: &str = "seqline_agent_in_flight";
const LAG: &str = "seqline_agent_consumer_lag";
const AGE: &str = "seqline_agent_consumer_pending_age_seconds";

/// The line of a metric for one value of its attribute.
fn of(metric: &str, value: &str) -> String {
    let attribute = match metric {
        "seqline_gateway_connections" => "seqline_principal_kind",
        "seqline_gateway_closes_total" => "seqline_gateway_close_reason",
        "seqline_agent_consumer_count" => "seqline_agent_consumer_state",
        _ => "seqline_agent_holder_kind",
    };
    format!("{metric}{{{attribute}=\"{value}\"}}")
}

/// The line of a metric for a consumer of the agent.
fn of_consumer(metric: &str, name: &str) -> String {
    format!("{metric}{{seqline_agent_consumer_name=\"{name}\",seqline_agent_id=\"billing\"}}")
}

impl Site {
    async fn shows(&self, lines: &[(&str, f64)]) {
        for (line, value) in lines {
            self.server.shows(line, *value).await;
        }
    }

    async fn shows_of(&self, metric: &str, values: &[(&str, f64)]) {
        for (of_what, value) in values {
            self.server.shows(&of(metric, of_what), *value).await;
        }
    }
}

#[tokio::test]
async fn an_agent_that_has_not_acknowledged_is_seen_until_it_has_and_a_connection_until_it_ends() {
    const CONNECTIONS: &str = "seqline_gateway_connections";
    const CLOSES: &str = "seqline_gateway_closes_total";
    const CONSUMERS: &str = "seqline_agent_consumer_count";

    let site = Site::new(&[SOON, QUICK]).await;
    let (lag, age) = (of_consumer(LAG, "default"), of_consumer(AGE, "default"));
    site.shows_of(CONNECTIONS, &[("none", 0.0), ("agent", 0.0), ("user", 0.0)]).await;
    site.shows_of(CONSUMERS, &[("held", 0.0), ("free", 0.0)]).await;
    let nobody = Socket::connect(&site.address).await;
    let alex = agent(&site.db, "alex", PrincipalKind::User).await;
    let (person, _) = Socket::ready(&site.address, &alex).await;
    let (mut socket, _) = site.ready().await;
    socket.expect("catchup.complete").await;
    site.shows_of(CONNECTIONS, &[("none", 1.0), ("agent", 1.0), ("user", 1.0), ("app", 0.0)]).await;
    site.shows_of(CONSUMERS, &[("held", 1.0), ("free", 0.0)]).await;
    site.append(3).await;
    assert_eq!(socket.seqs(3).await, [1, 2, 3]);
    site.shows(&[(IN_FLIGHT, 3.0), (&lag, 3.0)]).await;
    as_admin(
        &site.db,
        "UPDATE seqline.event_log SET occurred_at = occurred_at - interval '1 hour' WHERE seq IN (1, 3)",
    )
    .await;
    let is_old = async || site.server.figure(&age).await.is_some_and(|age| (3600.0..4000.0).contains(&age));
    eventually(DEADLINE, "the first event is old", is_old).await;
    // The first by number, not by time.
    socket.ack(1).await;
    site.shows(&[(IN_FLIGHT, 2.0), (&lag, 2.0)]).await;
    let pending = site.server.figure_there(&age).await;
    assert!((0.0..3600.0).contains(&pending), "{pending}");
    socket.ack(3).await;
    site.shows(&[(IN_FLIGHT, 0.0), (&lag, 0.0), (&age, 0.0)]).await;
    site.append(2).await;
    assert_eq!(socket.seqs(2).await, [4, 5]);
    site.shows(&[(IN_FLIGHT, 2.0)]).await;
    socket.leave(1000).await;
    site.shows(&[(IN_FLIGHT, 0.0), (&lag, 2.0)]).await;
    site.shows_of(CONSUMERS, &[("held", 0.0), ("free", 1.0)]).await;
    site.shows_of(CONNECTIONS, &[("none", 1.0), ("agent", 0.0), ("user", 1.0)]).await;
    site.shows_of(CLOSES, &[("left", 1.0), ("gone", 0.0)]).await;
    // Without a word.
    drop((nobody, person));
    site.shows_of(CONNECTIONS, &[("none", 0.0), ("user", 0.0)]).await;
    let (_, closed) = Socket::refused(&site.address, "identify", &serde_json::json!({ "token": "no" })).await;
    assert_eq!(closed.code, 4012);
    site.shows_of(CLOSES, &[("left", 1.0), ("gone", 2.0), ("unauthenticated", 1.0), ("internal", 0.0)]).await;
    site.stop().await;
}

#[tokio::test]
async fn takeovers_count_by_how_the_new_holder_comes() {
    const TAKEOVERS: &str = "seqline_agent_takeovers_total";

    let site = Site::new(&[SOON, QUICK]).await;
    let (older, _) = site.ready().await;
    site.shows_of(TAKEOVERS, &[("gateway", 0.0), ("rest", 0.0)]).await;
    let (newer, _) = site.ready().await;
    site.shows_of(TAKEOVERS, &[("gateway", 1.0), ("rest", 0.0)]).await;
    assert_eq!(site.rest().poll("").await.generation(), 3);
    site.shows_of(TAKEOVERS, &[("gateway", 1.0), ("rest", 1.0)]).await;
    site.shows_of("seqline_gateway_closes_total", &[("consumer_replaced", 2.0)]).await;
    drop((older, newer));
    // It has it already; and from who was silent for long nothing is taken.
    site.rest().poll("").await;
    let mut app = site.db.connect(Role::App).await;
    run_sql(&mut app, "UPDATE seqline.agent_consumer_cursors SET seen_at = now() - interval '1 day'").await;
    assert_eq!(site.rest().poll("").await.generation(), 4);
    let (_socket, _) = site.ready().await;
    site.shows_of(TAKEOVERS, &[("gateway", 2.0), ("rest", 1.0)]).await;
    site.stop().await;
}

#[tokio::test]
async fn what_is_not_acknowledged_in_time_counts_by_how_it_was_given() {
    let patient = Site::new(&[SOON, ("agent.ack_timeout", "30m")]).await;
    let (hasty, address) = patient.another_server(&[SOON, ("agent.ack_timeout", "1s")]).await;
    let counted = async |server: &Worker, over: &str| {
        let count = server.figure(&of("seqline_agent_redeliveries_total", over)).await;
        count.expect("it is there from the beginning")
    };
    // What is given for the first time, or because somebody comes anew, does not count.
    let (mut socket, _) = patient.ready().await;
    socket.expect("catchup.complete").await;
    patient.append(3).await;
    assert_eq!(socket.events(3).await, [(1, false), (2, false), (3, false)]);
    socket.leave(1000).await;
    patient.rest().knows(3).await;
    assert_eq!(patient.rest().poll("wait=30").await.seqs(), [1, 2, 3]);
    let of_patient = &patient.server;
    assert_eq!((counted(of_patient, "gateway").await, counted(of_patient, "rest").await), (0.0, 0.0));
    let (mut socket, _) = Socket::ready(&address, &patient.token).await;
    assert_eq!(socket.events(3).await, [(1, false), (2, false), (3, false)]);
    assert_eq!(socket.events(3).await, [(1, true), (2, true), (3, true)]);
    // As often as it happened, should this machine be slow.
    assert!(counted(&hasty, "gateway").await >= 3.0);
    let line = hasty.says("events of an agent not acknowledged in time").await;
    assert_eq!(
        (&line["consumer"], &line["over"], &line["events"]),
        (&json!("default"), &json!("gateway"), &json!(3))
    );
    socket.ack(3).await;
    socket.leave(1000).await;
    let of_gateway = counted(&hasty, "gateway").await;
    assert_eq!(of_gateway % 3.0, 0.0, "nothing else was counted");
    assert_eq!(counted(&hasty, "rest").await, 0.0);
    patient.append(2).await;
    let rest = Consumer { client: Client::new(&address).token(&patient.token), ..patient.rest() };
    rest.knows(5).await;
    assert_eq!(rest.poll("wait=30").await.seqs(), [4, 5]);
    // Found by a request that waits for it, and by one that comes later.
    assert_eq!(rest.poll("wait=30").await.seqs(), [4, 5]);
    let waited = counted(&hasty, "rest").await;
    assert!(waited >= 2.0, "{waited}");
    eventually(DEADLINE, "it comes again", async || rest.poll("").await.seqs() == [4, 5]).await;
    let asked = counted(&hasty, "rest").await;
    assert!(asked >= waited + 2.0, "{asked}");
    assert_eq!(counted(&hasty, "gateway").await, of_gateway);
    hasty.stop().await;
    patient.stop().await;
}

/// A hundred of them, and the others only in the count.
#[tokio::test]
async fn of_many_consumers_those_are_shown_that_are_furthest_behind() {
    let db = TestDb::new().await;
    small_partitions(&db, 50, 5).await;
    let site = Site::on(db, &[QUICK]).await;
    site.append(200).await;
    // The first fifty have expired, and what is left begins with an old one.
    as_admin(
        &site.db,
        "DO $$ BEGIN EXECUTE format('DROP TABLE seqline.%I',
             (SELECT name FROM seqline.event_log_partitions() ORDER BY lower_bound LIMIT 1)); END $$;
         UPDATE seqline.event_log SET occurred_at = occurred_at - interval '1 hour' WHERE seq = 51;
         INSERT INTO seqline.agent_consumer_cursors (agent_id, consumer, acked_seq)
         SELECT 'billing', 'c' || n, n FROM generate_series(0, 148) AS n UNION ALL SELECT 'billing', 'ahead', 300",
    )
    .await;
    site.shows_of("seqline_agent_consumer_count", &[("free", 150.0), ("held", 0.0)]).await;
    let (lag, age) = (|name: &str| of_consumer(LAG, name), |name: &str| of_consumer(AGE, name));
    site.shows(&[(&lag("c0"), 200.0), (&lag("c99"), 101.0)]).await;
    assert_eq!(site.server.figure(&lag("c100")).await, None);
    let age = async |name: &str| site.server.figure_there(&age(name)).await;
    for (name, is_old) in [("c0", true), ("c49", true), ("c50", true), ("c51", false), ("c99", false)] {
        let age = age(name).await;
        assert_eq!((3600.0..4000.0).contains(&age), is_old, "{name}: {age}");
    }
    for metric in [LAG, AGE] {
        let shown = async || {
            let (_, text) = site.server.get("/metrics").await;
            text.lines().filter(|line| line.starts_with(&format!("{metric}{{"))).count()
        };
        eventually(DEADLINE, "a hundred are shown", async || shown().await == 100).await;
    }
    // One that is above the head is not behind.
    as_admin(&site.db, "DELETE FROM seqline.agent_consumer_cursors WHERE acked_seq < 100").await;
    site.shows(&[(&lag("c100"), 100.0), (&lag("ahead"), 0.0)]).await;
    assert_eq!(age("ahead").await, 0.0);
    // Nobody waits for an agent that is disabled.
    site.rest().poll("").await;
    site.shows_of("seqline_agent_consumer_count", &[("free", 50.0), ("held", 1.0)]).await;
    let mut app = site.db.connect(Role::App).await;
    disable_principal(&mut app, "billing", None).await.expect("it is disabled");
    site.shows_of("seqline_agent_consumer_count", &[("free", 0.0), ("held", 0.0)]).await;
    assert_eq!(site.server.figure(&lag("c100")).await, None);
    enable_principal(&mut app, "billing", None).await.expect("it is enabled");
    site.shows_of("seqline_agent_consumer_count", &[("free", 50.0), ("held", 1.0)]).await;
    site.shows(&[(&lag("c100"), 100.0)]).await;
    site.stop().await;
}
