//! The proxy in front of a real database.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use seqline_testkit::{FaultProxy, Role, TestDb, TestServer};
use sqlx::{Connection, PgConnection};

#[tokio::test]
async fn a_connection_survives_silence_and_not_a_cut() {
    let db = TestDb::empty().await;
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, TestServer::shared().await.postgres().port()));
    let proxy = FaultProxy::start(target).await.unwrap();
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
