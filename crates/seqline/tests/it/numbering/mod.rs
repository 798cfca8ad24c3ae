//! When events get their numbers, which ones, and what happens when they cannot have them.

mod ends;
mod forms;
mod ids;
mod lock;
mod permissions;
mod rollbacks;
mod units;

use std::time::Duration;

use seqline_testkit::{Role, TestDb, eventually};
use sqlx::{Connection, PgConnection, PgPool};

/// Long enough for anything that is going to happen.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) async fn backend_pid(connection: &mut PgConnection) -> i32 {
    sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(connection).await.unwrap()
}

/// Waits until the backend waits for a lock.
pub(crate) async fn until_blocked(admin: &PgPool, pid: i32) {
    eventually(DEADLINE, "waiting for a lock", async || {
        sqlx::query_scalar(
            "SELECT wait_event_type IS NOT DISTINCT FROM 'Lock' FROM pg_stat_activity WHERE pid = $1",
        )
        .bind(pid)
        .fetch_optional(admin)
        .await
        .unwrap()
        .unwrap_or(false)
    })
    .await;
}

/// Waits until the backend is gone.
pub(crate) async fn until_gone(admin: &PgPool, pid: i32) {
    eventually(DEADLINE, "the end of a backend", async || {
        let backends: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_stat_activity WHERE pid = $1")
            .bind(pid)
            .fetch_one(admin)
            .await
            .unwrap();
        backends == 0
    })
    .await;
}

/// Whether this backend holds or waits for any lock on `seqline.numbering`.
pub(crate) async fn locks_numbering(connection: &mut PgConnection, pid: i32) -> bool {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND relation = 'seqline.numbering'::regclass)",
    )
    .bind(pid)
    .fetch_one(connection)
    .await
    .unwrap()
}

/// A session that holds the numbering lock until it ends its transaction.
pub(crate) async fn hold_numbering_lock(db: &TestDb) -> PgConnection {
    let options = db.options(Role::Admin).application_name("holder");
    let mut holder = PgConnection::connect_with(&options).await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE seqline.numbering IN EXCLUSIVE MODE")
        .execute(&mut holder)
        .await
        .unwrap();
    holder
}

/// Makes a table `late` whose rows make COMMIT fail, but only after the events of the transaction have their numbers, or their place
/// among those that wait for one: its deferred trigger puts itself behind everything that is queued until it sees them there, and then
/// refuses.
pub(crate) async fn create_late_refusal(db: &TestDb) {
    sqlx::raw_sql(
        "CREATE TABLE late (head bigint NOT NULL DEFAULT seqline.head(), pass integer NOT NULL DEFAULT 0);
         GRANT INSERT ON late TO PUBLIC;
         CREATE FUNCTION refuse_late() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
         BEGIN
             IF EXISTS (SELECT FROM seqline.event_log WHERE seq > NEW.head AND xmin = pg_current_xact_id()::xid)
                 OR EXISTS (SELECT FROM seqline.staged_transactions WHERE xid = pg_current_xact_id())
             THEN
                 RAISE EXCEPTION 'refused after numbering' USING ERRCODE = 'P0001';
             ELSIF NEW.pass = 50 THEN
                 RAISE EXCEPTION 'no numbers in sight' USING ERRCODE = 'P0002';
             END IF;
             UPDATE public.late SET pass = NEW.pass + 1 WHERE ctid = NEW.ctid;
             RETURN NULL;
         END
         $$;
         CREATE CONSTRAINT TRIGGER refuse_late AFTER INSERT OR UPDATE ON late
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse_late();",
    )
    .execute(&db.admin())
    .await
    .unwrap();
}
