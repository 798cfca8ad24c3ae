//! The proxy in front of a real database.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use seqline_testkit::{FaultProxy, Role, TestDb, TestServer};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Connection, PgConnection};

async fn proxy() -> FaultProxy {
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, TestServer::shared().await.postgres().port()));
    FaultProxy::start(target).await.unwrap()
}

#[tokio::test]
async fn a_connection_survives_silence_and_not_a_cut() {
    let db = TestDb::empty().await;
    let proxy = proxy().await;
    let options = db.options(Role::App).port(proxy.addr().port());
    let mut connection = PgConnection::connect_with(&options).await.unwrap();

    proxy.black_hole();
    let silent = tokio::time::timeout(Duration::from_millis(100), connection.ping()).await;
    assert!(silent.is_err());
    proxy.heal();
    let answer: i32 = sqlx::query_scalar("SELECT 1").fetch_one(&mut connection).await.unwrap();
    assert_eq!(answer, 1);

    proxy.cut();
    assert!(connection.ping().await.is_err());
}

#[tokio::test]
async fn what_is_asked_is_counted_and_logging_in_is_not() {
    let db = TestDb::empty().await;
    let proxy = proxy().await;
    let options = db.options(Role::App).port(proxy.addr().port());
    let mut connection = PgConnection::connect_with(&options).await.unwrap();
    let connected = proxy.requests();
    connection.ping().await.unwrap();
    assert_eq!(proxy.requests() - connected, 1);
    sqlx::raw_sql("SELECT 1; SELECT 2").execute(&mut connection).await.unwrap();
    assert_eq!(proxy.requests() - connected, 2);

    let ask = async |connection: &mut PgConnection| {
        let text: String =
            sqlx::query_scalar("SELECT repeat('S', 100000)").fetch_one(connection).await.unwrap();
        assert_eq!(text.len(), 100_000);
        proxy.requests()
    };
    ask(&mut connection).await;
    let prepared = proxy.requests();
    assert_eq!(ask(&mut connection).await - prepared, 1);
}

#[tokio::test]
async fn dropped_notifications_vanish_and_nothing_else() {
    let db = TestDb::empty().await;
    let proxy = proxy().await;
    let options = db.options(Role::App).port(proxy.addr().port());
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&pool).await.unwrap();
    listener.listen("channel").await.unwrap();
    let mut other = db.connect(Role::App).await;
    let mut notify = async |payload: &str| {
        sqlx::query("SELECT pg_notify('channel', $1)").bind(payload).execute(&mut other).await.unwrap();
    };
    notify("first").await;
    assert_eq!(listener.recv().await.unwrap().payload(), "first");

    proxy.drop_notifications();
    notify("second").await;
    let large: String =
        sqlx::query_scalar("SELECT repeat('A', 100000)").fetch_one(&mut listener).await.unwrap();
    assert_eq!(large.len(), 100_000);
    assert!(tokio::time::timeout(Duration::from_millis(100), listener.recv()).await.is_err());

    proxy.heal();
    notify("third").await;
    assert_eq!(listener.recv().await.unwrap().payload(), "third");
}
