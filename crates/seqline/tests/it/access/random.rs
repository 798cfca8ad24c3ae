//! Principals, grants and events by chance, from few enough values that they often meet.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use seqline::access::{Grant, disable_principal};
use seqline::{NewEvent, StoredEvent, append, begin, commit, read};
use seqline_testkit::{Role, TestDb};
use sqlx::PgConnection;

use super::users;

/// The third is disabled, and the last one is not there.
pub(super) const PRINCIPALS: [&str; 4] = ["alex", "sam", "robin", "nobody"];
const ACTIONS: [&str; 4] = ["any", "message.read", "message", "order.read"];
/// Type, kind of the resource, and its id.
const RESOURCES: [(&str, &str, &str); 4] = [
    ("order.created", "order", "1"),
    ("order.paid", "order", "2"),
    ("orders.counted", "report", "1"),
    ("message.posted", "message", "1"),
];
const PARTS: [Option<&str>; 3] = [None, Some("a"), Some("b")];

fn any_of<T: Copy + std::fmt::Debug, const N: usize>(values: [T; N]) -> impl Strategy<Value = T> {
    (0..N).prop_map(move |index| values[index])
}

/// A scope of which each part is given or not.
fn scope() -> impl Strategy<Value = [Option<&'static str>; 3]> {
    [any_of(PARTS), any_of(PARTS), any_of(PARTS)]
}

fn grants() -> impl Strategy<Value = Vec<(usize, Grant)>> {
    let grant = (0..3_usize, any_of(ACTIONS), scope()).prop_map(|(who, action, [space, channel, thread])| {
        let own = |part: Option<&str>| part.map(str::to_owned);
        let (space_id, channel_id, thread_id) = (own(space), own(channel), own(thread));
        (who, Grant { action: action.to_owned(), space_id, channel_id, thread_id })
    });
    prop::collection::vec(grant, 0..8)
}

fn event() -> impl Strategy<Value = NewEvent> {
    (any_of(ACTIONS), scope(), prop::option::weighted(0.2, any_of(PRINCIPALS)), any_of(RESOURCES)).prop_map(
        |(action, [space, channel, thread], audience, (kind, resource, id))| {
            NewEvent::builder(kind, resource, action)
                .resource_id(id)
                .space(space.unwrap_or_default())
                .channel(channel.unwrap_or_default())
                .thread(thread.unwrap_or_default())
                .audience(audience.unwrap_or_default())
                .build()
                .expect("the event is valid")
        },
    )
}

pub(super) struct Random(TestRunner);

impl Random {
    pub(super) fn new() -> Self {
        Self(TestRunner::new(Config::default()))
    }

    pub(super) fn one<S: Strategy>(&mut self, strategy: S) -> S::Value {
        strategy.new_tree(&mut self.0).expect("a value is made").current()
    }

    /// Creates the principals, and appends so many events.
    pub(super) async fn log(&mut self, db: &TestDb, count: usize) -> Vec<StoredEvent> {
        let mut app = db.connect(Role::App).await;
        users(&mut app, &PRINCIPALS[..3]).await;
        disable_principal(&mut app, PRINCIPALS[2], None).await.expect("it is disabled");
        let events: Vec<NewEvent> = (0..count).map(|_| self.one(event())).collect();
        let mut tx = begin(&db.app()).await.expect("a transaction begins");
        append(&mut tx, &events).await.expect("the events are appended");
        commit(tx).await.expect("the transaction commits");
        db.settled().await;
        read::events_after(&mut app, 0, 10_000).await.expect("the log can be read")
    }

    /// Gives the principals other grants than they have.
    pub(super) async fn grants(&mut self, app: &mut PgConnection) -> Vec<(usize, Grant)> {
        let grants = self.one(grants());
        sqlx::query("DELETE FROM seqline.grants").execute(&mut *app).await.expect("grants are removed");
        for (who, grant) in &grants {
            sqlx::query(
                "INSERT INTO seqline.grants (principal_id, action, space_id, channel_id, thread_id)
                 VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
            )
            .bind(PRINCIPALS[*who])
            .bind(&grant.action)
            .bind(&grant.space_id)
            .bind(&grant.channel_id)
            .bind(&grant.thread_id)
            .execute(&mut *app)
            .await
            .expect("the grant is made");
        }
        grants
    }
}
