//! In which form an event was appended, as the first of its transaction or not, says nothing about where it ends up and what is in it.

use seqline::settings::Sequencing;
use seqline_testkit::{Role, TestDb};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::support::{assert_nothing_staged, numbers};

#[derive(Debug, Clone, Copy)]
enum Form {
    Single,
    Batch,
    /// With an id of the caller's.
    Own,
    /// In a savepoint that is rolled back.
    Undone,
}

const FORMS: [Form; 4] = [Form::Single, Form::Batch, Form::Own, Form::Undone];

impl Form {
    fn sql(self, n: i64) -> String {
        let one = |id: &str| {
            format!("SELECT seqline.append('test.happened', '{{\"n\": {n}}}', 'test', 'any', id => {id});")
        };
        match self {
            Self::Single => one("NULL"),
            Self::Own => one("gen_random_uuid()"),
            Self::Batch => format!(
                "SELECT seqline.append_batch((SELECT jsonb_agg(jsonb_build_object('type', 'test.happened', 'payload',
                     jsonb_build_object('n', n), 'resource_kind', 'test', 'receive_action', 'any') ORDER BY n)
                     FROM generate_series({n}, {n} + 1) n));"
            ),
            Self::Undone => format!("SAVEPOINT s; {} ROLLBACK TO s;", one("NULL")),
        }
    }

    fn leaves(self, n: i64) -> Vec<i64> {
        match self {
            Self::Single | Self::Own => vec![n],
            Self::Batch => vec![n, n + 1],
            Self::Undone => vec![],
        }
    }
}

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.unwrap();
}

#[tokio::test]
async fn the_events_of_a_transaction_stay_in_their_order_whatever_form_each_has() {
    let db = TestDb::at_commit().await;
    let (mut producer, mut app) = (db.connect(Role::Producer).await, db.connect(Role::App).await);
    let mut units: Vec<Vec<i64>> = Vec::new();
    let mut n = 0;
    for (start, end) in [
        (Sequencing::AtCommit, Sequencing::AtCommit),
        (Sequencing::AtCommit, Sequencing::AfterCommit),
        (Sequencing::AfterCommit, Sequencing::AfterCommit),
        (Sequencing::AfterCommit, Sequencing::AtCommit),
    ] {
        for forms in FORMS.into_iter().flat_map(|a| FORMS.map(|b| FORMS.map(|c| [a, b, c]))).flatten() {
            let mut unit = Vec::new();
            run(&mut app, &format!("SELECT seqline.set_sequencing('{start}', NULL)")).await;
            run(&mut producer, "BEGIN").await;
            for form in forms {
                run(&mut producer, &form.sql(n)).await;
                unit.extend(form.leaves(n));
                n += 2;
            }
            run(&mut app, &format!("SELECT seqline.set_sequencing('{end}', NULL)")).await;
            run(&mut producer, "COMMIT").await;
            units.push(unit);
        }
    }
    seqline::sequencer::drain(&mut app).await.unwrap();
    assert_eq!(numbers(&mut app).await, units.concat());
    assert_nothing_staged(&mut db.connect(Role::Admin).await).await;
}

const ALL_MEMBERS: &str = r#"{"type": "order.paid", "payload": {"a": [1]}, "resource_kind": "order", "receive_action": "self",
    "resource_id": "17", "resource_version": 5, "space_id": "shop", "channel_id": "orders", "thread_id": "t", "actor_kind": "user",
    "actor_principal_id": "alex", "audience_principal_id": "sam", "schema_version": 3, "client_msg_id": "m", "truncated": true,
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}"#;

/// What the log has of each event, without what has to differ.
async fn contents(connection: &mut PgConnection) -> Vec<Value> {
    sqlx::query_scalar(
        "SELECT to_jsonb(l) - '{seq, id, occurred_at}'::text[] FROM seqline.event_log l ORDER BY seq",
    )
    .fetch_all(connection)
    .await
    .unwrap()
}

#[tokio::test]
async fn every_member_arrives_whatever_form_the_event_has() {
    for db in [TestDb::at_commit().await, TestDb::after_commit().await] {
        let mut app = db.connect(Role::App).await;
        for action in ["self", "any"] {
            let members = ALL_MEMBERS.replace("self", action);
            let members: serde_json::Map<String, Value> = serde_json::from_str(&members).unwrap();
            let arguments: Vec<String> = members
                .iter()
                .map(|(name, value)| match value {
                    Value::String(text) => format!("{name} => '{text}'"),
                    other => format!("{name} => '{other}'"),
                })
                .collect();
            let single = format!("SELECT seqline.append({})", arguments.join(", "));
            let own = format!("SELECT seqline.append({}, id => gen_random_uuid())", arguments.join(", "));
            let batch = format!("SELECT seqline.append_batch('[{}]')", Value::Object(members));
            for unit in
                [vec![&single], vec![&single, &single, &batch, &own], vec![&batch, &single], vec![&own]]
            {
                run(&mut app, "BEGIN").await;
                for sql in unit {
                    run(&mut app, sql).await;
                }
                run(&mut app, "COMMIT").await;
            }
        }
        db.settled().await;
        let log = contents(&mut app).await;
        assert_eq!(log.len(), 16);
        let expected: Value = serde_json::from_str(
            r#"{"type": "order.paid", "payload": {"a": [1]}, "resource_kind": "order", "receive_action": "self", "resource_id": "17",
                "resource_version": 5, "space_id": "shop", "channel_id": "orders", "thread_id": "t", "actor_kind": "user",
                "actor_principal_id": "alex", "audience_principal_id": "sam", "schema_version": 3, "client_msg_id": "m",
                "truncated": true, "permission_version": 0, "redacted_at": null,
                "correlation_id": "0af76519-16cd-43dd-8448-eb211c80319c",
                "trace_context": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}"#,
        )
        .unwrap();
        for (n, found) in log.iter().enumerate() {
            let mut expected = expected.clone();
            expected["receive_action"] = Value::from(if n < 8 { "self" } else { "any" });
            assert_eq!(*found, expected, "event {}", n + 1);
        }
    }
}
