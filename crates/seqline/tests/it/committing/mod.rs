//! `seqline::commit`: flushes that are shared, and the gate in front of COMMIT.

use std::time::Duration;

use futures_util::future::join_all;
use seqline::embedded::Durability;
use seqline::settings::{Notification, Sequencing, set_notification};
use seqline::{CommitError, Committer, ErrorKind};
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use sqlx::{Connection, PgPool};
use tokio::task::JoinHandle;

use crate::support::{append, event, numbers};

const SOON: Duration = Duration::from_secs(20);

/// Commits on this server do not return until it is told that nobody is waited for.
async fn wait_for_a_standby_that_is_not_there(db: &TestDb, name: &str) {
    let mut admin = db.connect(Role::Admin).await;
    let sql = format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
    sqlx::raw_sql("SELECT pg_reload_conf()").execute(&mut admin).await.unwrap();
    eventually(SOON, "the setting holds", async || {
        let sql = "SELECT current_setting('synchronous_standby_names')";
        sqlx::query_scalar::<_, String>(sql).fetch_one(&mut admin).await.unwrap() == name
    })
    .await;
}

/// The processes that wait for a standby.
async fn waiting(admin: &PgPool) -> Vec<i32> {
    sqlx::query_scalar("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        .fetch_all(admin)
        .await
        .unwrap()
}

async fn begin_with(pool: &PgPool, n: i64) -> sqlx::PgTransaction<'static> {
    let mut tx = seqline::begin(pool).await.unwrap();
    seqline::append(&mut tx, &[event(n)]).await.unwrap();
    tx
}

/// Eight commits with an event each, all of them numbered, and one waits for the standby on behalf of all.
async fn eight_that_wait_for_one_flush(db: &TestDb) -> Vec<JoinHandle<Result<(), CommitError>>> {
    let pool = db.pool(Role::Producer, 8);
    wait_for_a_standby_that_is_not_there(db, "nobody").await;
    let transactions = join_all((1..=8).map(|n| begin_with(&pool, n))).await;
    let commits = transactions.into_iter().map(|tx| tokio::spawn(seqline::commit(tx))).collect();
    let mut reader = db.connect(Role::Reader).await;
    eventually(SOON, "all are numbered", async || numbers(&mut reader).await.len() == 8).await;
    let admin = db.admin();
    eventually(SOON, "one waits for the standby", async || waiting(&admin).await.len() == 1).await;
    commits
}

#[tokio::test]
async fn commits_wait_for_one_flush_and_the_numbering_lock_is_free_meanwhile() {
    let server = TestServer::with(Durability::Durable, &[]).await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    let commits = eight_that_wait_for_one_flush(&db).await;
    assert!(commits.iter().all(|commit| !commit.is_finished()), "none was answered before it is durable");

    wait_for_a_standby_that_is_not_there(&db, "").await;
    for commit in commits {
        commit.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_next_one_flushes_when_the_connection_of_the_one_that_does_is_lost() {
    let server = TestServer::with(Durability::Durable, &[]).await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    let pool = db.pool(Role::Producer, 4);
    wait_for_a_standby_that_is_not_there(&db, "nobody").await;
    let transactions = join_all((1..=4).map(|n| begin_with(&pool, n))).await;
    let commits: Vec<_> = transactions.into_iter().map(|tx| tokio::spawn(seqline::commit(tx))).collect();
    let admin = db.admin();
    let mut reader = db.connect(Role::Reader).await;
    eventually(SOON, "all are numbered", async || numbers(&mut reader).await.len() == 4).await;
    eventually(SOON, "one waits for the standby", async || waiting(&admin).await.len() == 1).await;
    let first = waiting(&admin).await;
    sqlx::query("SELECT pg_terminate_backend($1)").bind(first[0]).execute(&admin).await.unwrap();
    eventually(SOON, "another one waits for it", async || {
        let now = waiting(&admin).await;
        now.len() == 1 && now != first
    })
    .await;

    wait_for_a_standby_that_is_not_there(&db, "").await;
    let mut failed = Vec::new();
    for commit in commits {
        failed.extend(commit.await.unwrap().err());
    }
    let [error] = failed.as_slice() else { panic!("not one: {failed:?}") };
    assert!(matches!(error, CommitError::NotKnownDurable(_)), "{error}");
    assert_eq!(
        (error.had_no_effect(), error.is_retryable(), error.kind()),
        (false, false, ErrorKind::Unavailable)
    );
    assert!(
        error.to_string().starts_with("committed, but the connection was lost before that was durable: ")
    );
    assert_eq!(numbers(&mut reader).await.len(), 4);
}

/// Whoever is inside COMMIT waits, in a deferred trigger, for a row of one that waits in front of it.
#[tokio::test]
async fn the_gate_does_not_keep_out_whom_those_inside_wait_for() {
    let db = TestDb::at_commit().await;
    let schema = "
        CREATE TABLE rows (id integer PRIMARY KEY, n integer);
        INSERT INTO rows VALUES (1, 0);
        CREATE TABLE late (id integer);
        CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN UPDATE rows SET n = n + 1; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION wait();
        GRANT ALL ON rows, late TO PUBLIC";
    sqlx::raw_sql(schema).execute(&db.admin()).await.unwrap();
    let committer = Committer::new(1);
    let mut holds_row = begin_with(&db.app(), 1).await;
    sqlx::raw_sql("UPDATE rows SET n = n + 1").execute(&mut *holds_row).await.unwrap();
    let mut inside = begin_with(&db.app(), 2).await;
    sqlx::raw_sql("INSERT INTO late VALUES (1)").execute(&mut *inside).await.unwrap();
    let inside = tokio::spawn({
        let committer = committer.clone();
        async move { committer.commit(inside).await }
    });
    let admin = db.admin();
    eventually(SOON, "it waits inside COMMIT", async || {
        let sql = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock' AND query = 'COMMIT'";
        sqlx::query_scalar::<_, i64>(sql).fetch_one(&admin).await.unwrap() == 1
    })
    .await;
    committer.commit(holds_row).await.unwrap();
    inside.await.unwrap().unwrap();
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2]);
}

#[tokio::test]
async fn a_savepoint_ends_without_a_flush_and_the_whole_is_what_counts() {
    let db = TestDb::at_commit().await;
    let mut tx = begin_with(&db.producer(), 1).await;
    sqlx::raw_sql("SET LOCAL synchronous_commit = on").execute(&mut *tx).await.unwrap();
    let mut inner = tx.begin().await.unwrap();
    seqline::append(&mut inner, &[event(2)]).await.unwrap();
    seqline::commit(inner).await.unwrap();
    let mut failed = tx.begin().await.unwrap();
    sqlx::raw_sql("SELECT 1 / 0").execute(&mut *failed).await.unwrap_err();
    let error = seqline::commit(failed).await.unwrap_err();
    assert!(matches!(error, CommitError::AlreadyFailed), "{error}");
    let setting: String = sqlx::query_scalar("SHOW synchronous_commit").fetch_one(&mut *tx).await.unwrap();
    seqline::commit(tx).await.unwrap();
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2]);
    assert_eq!(setting, "on", "of the outer transaction, while it is open");
}

/// What shares a flush does not wait for its own; nothing of that is left on the connection.
#[tokio::test]
async fn a_session_is_as_it_was_before() {
    let server = TestServer::durable().await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    for (set, wanted) in [("on", "on"), ("off", "off"), ("remote_apply", "remote_apply"), ("local", "local")]
    {
        let pool = db.pool(Role::Producer, 1);
        let sql = format!("SET synchronous_commit = {set}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
        append(&pool, [1]).await;
        let after: (String, Option<String>) = sqlx::query_as(
            "SELECT current_setting('synchronous_commit'), nullif(current_setting('seqline.grouped_commit', true), '')",
        )
        .fetch_one(&pool)
        .await
        .unwrap();
        assert_eq!(after, (wanted.to_owned(), None));
    }
}

#[tokio::test]
async fn listeners_are_told_by_whom_the_setting_says() {
    let db = TestDb::at_commit().await;
    let mut listener = sqlx::postgres::PgListener::connect_with(&db.reader()).await.unwrap();
    listener.listen("event_log").await.unwrap();
    let mut app = db.connect(Role::App).await;
    set_notification(&mut app, Notification::AfterCommit, None).await.unwrap();
    append(&db.producer(), [1, 2]).await;
    assert_eq!(listener.recv().await.unwrap().payload(), "2");
    // Others say so themselves.
    let mut plain = db.connect(Role::Producer).await;
    let sql = "SELECT seqline.append('test.happened', '{\"n\": 3}', 'test', 'any')";
    sqlx::raw_sql(sql).execute(&mut plain).await.unwrap();
    sqlx::raw_sql("SELECT seqline.wake()").execute(&mut plain).await.unwrap();
    assert_eq!(listener.recv().await.unwrap().payload(), "3");

    set_notification(&mut app, Notification::Off, None).await.unwrap();
    append(&db.producer(), [4]).await;
    sqlx::raw_sql("SELECT seqline.wake()").execute(&mut plain).await.unwrap();
    set_notification(&mut app, Notification::InTransaction, None).await.unwrap();
    append(&db.producer(), [5]).await;
    assert_eq!(listener.recv().await.unwrap().payload(), "5", "nothing was said of the one before");
    // What else the transaction of such a call does is as durable as ever.
    sqlx::raw_sql("BEGIN; SET LOCAL synchronous_commit = on; SELECT seqline.wake()")
        .execute(&mut plain)
        .await
        .unwrap();
    let setting: String = sqlx::query_scalar("SHOW synchronous_commit").fetch_one(&mut plain).await.unwrap();
    assert_eq!(setting, "on");
    plain.close().await.unwrap();
}

/// With others under way the flush that they share tells of them, and not each transaction.
#[tokio::test]
async fn listeners_are_told_once_of_commits_that_share_a_flush() {
    let server = TestServer::with(Durability::Durable, &[("max_prepared_transactions", "0")]).await;
    let db = TestDb::numbering(&server, Sequencing::AtCommit).await;
    let mut listener = sqlx::postgres::PgListener::connect_with(&db.reader()).await.unwrap();
    listener.listen("event_log").await.unwrap();
    let commits = eight_that_wait_for_one_flush(&db).await;
    wait_for_a_standby_that_is_not_there(&db, "").await;
    join_all(commits).await;

    let mut told = Vec::new();
    while told.last().is_none_or(|seq| *seq < 8) {
        let notification =
            tokio::time::timeout(SOON, listener.recv()).await.expect("somebody tells").unwrap();
        told.push(notification.payload().parse::<i64>().unwrap());
    }
    // The first may not have known of the others, and the second flush is for all that waited for the first.
    assert!(told.len() <= 3, "{told:?}");
}

/// What a pooler makes of a crash: the flush is one of the server after it.
#[tokio::test]
async fn a_flush_of_another_life_of_the_server_is_none() {
    let db = TestDb::at_commit().await;
    let mut admin = db.connect(Role::Admin).await;
    sqlx::raw_sql(
        "CREATE TABLE ends (n int);
         GRANT INSERT ON ends TO PUBLIC;
         CREATE FUNCTION begin_another_life() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
         BEGIN
             UPDATE seqline.incarnation SET id = gen_random_uuid();
             RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER ends AFTER INSERT ON ends DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW EXECUTE FUNCTION begin_another_life()",
    )
    .execute(&mut admin)
    .await
    .unwrap();
    let mut tx = begin_with(&db.producer(), 1).await;
    sqlx::raw_sql("INSERT INTO ends VALUES (1)").execute(&mut *tx).await.unwrap();
    let error = seqline::commit(tx).await.unwrap_err();
    assert!(matches!(error, CommitError::NotKnownDurable(_)) && !error.had_no_effect(), "{error:?}");
    assert_eq!(
        error.to_string(),
        "committed, but the connection was lost before that was durable: error communicating with database: the server crashed before the commit was flushed"
    );
    append(&db.producer(), [2]).await;
    assert_eq!(numbers(&mut db.connect(Role::Reader).await).await, [1, 2]);
}

/// A role that reads only, or has nothing to do with events, commits as well.
#[tokio::test]
async fn transactions_without_events_commit_as_they_are() {
    let db = TestDb::at_commit().await;
    for role in [Role::App, Role::Producer, Role::Reader, Role::Consumer] {
        let mut tx = seqline::begin(&db.pool(role, 1)).await.unwrap();
        sqlx::raw_sql("SELECT pg_current_xact_id()").execute(&mut *tx).await.unwrap();
        seqline::commit(tx).await.unwrap();
    }
}

/// An answer means the same whatever the session says of its commits.
#[tokio::test]
async fn an_asynchronous_session_waits_in_both_ways_to_number() {
    let db = TestDb::at_commit().await;
    for (sequencing, shared, setting) in
        [(Sequencing::AtCommit, true, "off"), (Sequencing::AfterCommit, false, "on")]
    {
        seqline::settings::set_sequencing(&mut db.connect(Role::App).await, sequencing, None).await.unwrap();
        let mut tx = begin_with(&db.producer(), 1).await;
        sqlx::raw_sql("SET LOCAL synchronous_commit = off").execute(&mut *tx).await.unwrap();
        let prepared: (bool, String) = sqlx::query_as(
            "SELECT flushed_by IS NOT NULL, current_setting('synchronous_commit') FROM seqline.prepare_commit(false)",
        )
        .fetch_one(&mut *tx)
        .await
        .unwrap();
        assert_eq!(prepared, (shared, setting.to_owned()), "{sequencing}");
    }
}
