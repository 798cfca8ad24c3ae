//! Backups, and what becomes of them.

use seqline_testkit::backup::load_dump;
use seqline_testkit::{Backup, Role, TestDb, TestServer};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

async fn rows(options: PgConnectOptions) -> i64 {
    let mut connection = PgConnection::connect_with(&options).await.unwrap();
    sqlx::query_scalar("SELECT count(*) FROM kept").fetch_one(&mut connection).await.unwrap()
}

async fn timeline(options: PgConnectOptions) -> String {
    let mut connection = PgConnection::connect_with(&options).await.unwrap();
    let name: String = sqlx::query_scalar("SELECT pg_walfile_name(pg_current_wal_lsn())")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    name[..8].to_owned()
}

#[tokio::test]
async fn a_backup_is_the_state_of_a_while_ago_in_place_and_on_another_server() {
    let mut server = TestServer::durable().await;
    let db = TestDb::on(&server).await;
    sqlx::query("CREATE TABLE kept AS SELECT 1").execute(&db.admin()).await.unwrap();
    let backup = Backup::take(&server).await;
    sqlx::query("INSERT INTO kept VALUES (2)").execute(&db.admin()).await.unwrap();

    let recovered = backup.recover().await;
    let elsewhere = recovered.options(db.options(Role::Admin));
    assert_eq!((rows(elsewhere.clone()).await, rows(db.options(Role::Admin)).await), (1, 2));
    assert_eq!(timeline(elsewhere).await, "00000002");

    backup.restore_in_place(&mut server).await;
    assert_eq!(rows(db.options(Role::Admin)).await, 1);
    assert_eq!(timeline(db.options(Role::Admin)).await, "00000001");
}

#[tokio::test]
async fn a_dump_is_loaded_into_another_cluster() {
    let (one, other) = (TestServer::fast().await, TestServer::fast().await);
    let (from, _roles) = (TestDb::on(&one).await, TestDb::on(&other).await);
    sqlx::query("CREATE TABLE kept AS SELECT 1").execute(&from.admin()).await.unwrap();
    let into = TestDb::empty_on(&other).await;
    load_dump(&from, &into).await;
    assert_eq!(rows(into.options(Role::Admin)).await, 1);
}
