//! What a test database promises.

use std::time::Duration;

use seqline_testkit::{Role, TestDb, TestServer, eventually, settled, settled_behind};
use sqlx::postgres::PgListener;
use sqlx::{Connection, PgConnection};

#[tokio::test]
async fn databases_are_apart() {
    let (one, other) = tokio::join!(TestDb::new(), TestDb::new());
    sqlx::query("CREATE TABLE mine (id int)").execute(&one.app()).await.unwrap();
    let seen: Option<String> =
        sqlx::query_scalar("SELECT to_regclass('public.mine')::text").fetch_one(&other.app()).await.unwrap();
    assert_eq!(seen, None);
}

#[tokio::test]
async fn a_new_database_is_migrated_and_an_empty_one_is_not() {
    let migrated = TestDb::new().await;
    let empty = TestDb::empty().await;
    let ask = "SELECT to_regclass('seqline.event_log') IS NOT NULL";
    assert!(sqlx::query_scalar::<_, bool>(ask).fetch_one(&migrated.admin()).await.unwrap());
    assert!(!sqlx::query_scalar::<_, bool>(ask).fetch_one(&empty.admin()).await.unwrap());
}

/// A copy is as good as a database that was migrated by itself.
#[tokio::test]
async fn each_database_has_a_log_of_its_own() {
    let (one, other) = tokio::join!(TestDb::new(), TestDb::new());
    let mut epochs = Vec::new();
    for db in [&one, &other] {
        let ask = "SELECT i.epoch::text FROM seqline.log_identity i JOIN pg_catalog.pg_database d \
                   ON d.oid = i.database_oid AND d.datname = current_database()";
        epochs.push(sqlx::query_scalar::<_, String>(ask).fetch_one(&db.admin()).await.unwrap());
    }
    assert_ne!(epochs[0], epochs[1]);
}

#[tokio::test]
async fn logins_are_members_of_one_role_each() {
    let db = TestDb::new().await;
    let groups = ["seqline_app", "seqline_producer", "seqline_reader"];
    let pools = [db.app(), db.producer(), db.reader(), db.nobody()];
    for (login, pool) in pools.iter().enumerate() {
        for (group, name) in groups.into_iter().enumerate() {
            let member: bool = sqlx::query_scalar("SELECT pg_has_role(current_user, $1, 'MEMBER')")
                .bind(name)
                .fetch_one(pool)
                .await
                .unwrap();
            assert_eq!(member, login == group, "login {login} in {name}");
        }
        let superuser: bool =
            sqlx::query_scalar("SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user")
                .fetch_one(pool)
                .await
                .unwrap();
        assert!(!superuser);
    }
}

#[tokio::test]
async fn urls_and_options_lead_to_the_same_database() {
    let db = TestDb::empty().await;
    for role in [Role::Admin, Role::App, Role::Producer, Role::Reader, Role::Nobody] {
        let mut by_url = PgConnection::connect(&db.url(role)).await.unwrap();
        let mut by_options = db.connect(role).await;
        for connection in [&mut by_url, &mut by_options] {
            let (database, login): (String, String) =
                sqlx::query_as("SELECT current_database(), current_user::text")
                    .fetch_one(connection)
                    .await
                    .unwrap();
            assert_eq!((database.as_str(), login.as_str()), (db.name(), role.login()));
        }
    }
}

#[tokio::test]
async fn a_dropped_database_goes_away_although_a_pool_is_still_open() {
    let db = TestDb::new().await;
    let name = db.name().to_owned();
    let pool = db.app();
    sqlx::query("SELECT 1").execute(&pool).await.unwrap();
    drop(db);
    let mut admin = PgConnection::connect_with(&TestServer::shared().await.admin_options()).await.unwrap();
    eventually(Duration::from_secs(30), "the end of the database", async || {
        let ask = "SELECT count(*) FROM pg_catalog.pg_database WHERE datname = $1";
        let left: i64 = sqlx::query_scalar(ask).bind(&name).fetch_one(&mut admin).await.unwrap();
        left == 0
    })
    .await;
}

#[tokio::test]
async fn many_databases_can_be_made_at_once() {
    let server = TestServer::shared().await;
    let makers: Vec<_> = (0..8).map(|_| tokio::spawn(TestDb::on(server))).collect();
    for maker in makers {
        let db = maker.await.unwrap();
        sqlx::query("SELECT 1").execute(&db.app()).await.unwrap();
    }
}

async fn append(db: &TestDb) {
    let put = "SELECT seqline.append('test.happened', '{}', 'test', 'any')";
    sqlx::query(put).execute(&db.producer()).await.unwrap();
}

#[tokio::test]
async fn what_was_committed_is_in_the_log_once_a_database_is_settled_in_both_ways_to_number() {
    for db in [TestDb::at_commit().await, TestDb::after_commit().await] {
        let mut reader = db.connect(Role::Reader).await;
        for n in 1..=20 {
            append(&db).await;
            match n % 3 {
                0 => db.settled().await,
                1 => settled(&db.producer()).await,
                _ => settled_behind(&mut reader).await,
            }
            assert_eq!(seqline::read::head(&mut reader).await.unwrap(), n);
        }
    }
}

#[tokio::test]
async fn listeners_were_told_once_a_database_is_settled() {
    let db = TestDb::after_commit().await;
    for _ in 0..20 {
        append(&db).await;
        db.settled().await;
        let mut listener = PgListener::connect_with(&db.reader()).await.unwrap();
        listener.listen("event_log").await.unwrap();
        sqlx::query("SELECT pg_notify('event_log', 'late')").execute(&db.admin()).await.unwrap();
        assert_eq!(listener.recv().await.unwrap().payload(), "late");
    }
}

#[tokio::test]
async fn writers_that_go_on_do_not_keep_a_database_from_being_settled() {
    let db = TestDb::after_commit().await;
    let writing = async {
        loop {
            append(&db).await;
        }
    };
    let settling = async {
        for _ in 0..10 {
            db.settled().await;
        }
    };
    tokio::select! {
        () = settling => {}
        () = writing => {}
    }
}

#[tokio::test]
async fn a_sequencer_goes_on_when_its_sessions_are_ended_and_goes_with_its_database() {
    let db = TestDb::after_commit().await;
    let ending = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                  WHERE datname = current_database() AND usename = $1";
    for _ in 0..3 {
        append(&db).await;
        db.settled().await;
        let ended: i64 =
            sqlx::query_scalar(ending).bind(Role::Sequencer.login()).fetch_one(&db.admin()).await.unwrap();
        assert!(ended > 0);
        append(&db).await;
        db.settled().await;
    }
    let name = db.name().to_owned();
    drop(db);
    let mut admin = PgConnection::connect_with(&TestServer::shared().await.admin_options()).await.unwrap();
    eventually(Duration::from_secs(30), "the end of the database and of its sequencer", async || {
        let left = "SELECT (SELECT count(*) FROM pg_database WHERE datname = $1)
                        + (SELECT count(*) FROM pg_stat_activity WHERE datname = $1)";
        sqlx::query_scalar::<_, i64>(left).bind(&name).fetch_one(&mut admin).await.unwrap() == 0
    })
    .await;
}
