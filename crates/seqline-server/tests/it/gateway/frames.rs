//! Frames that are none, and connections that say nothing.

use seqline::access::PrincipalKind;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::{Site, Socket};
use crate::agents::agent;
use crate::api::Client;

#[tokio::test]
async fn a_client_is_told_first_what_it_has_to_keep_to() {
    let site = Site::new(&[("gateway.heartbeat_interval", "7s")]).await;
    let socket = Socket::connect(&site.address).await;
    assert_eq!(
        (&socket.hello["heartbeat_interval_ms"], &socket.hello["protocol"]),
        (&json!(7000), &json!(1))
    );
    let codes = socket.hello["close_codes"].as_array().unwrap();
    let replaced =
        json!({ "code": 4015, "reason": "consumer_replaced", "reconnect": false, "resume": false });
    assert!(codes.contains(&replaced) && codes.len() == 14, "{codes:?}");
    // What is no WebSocket is told so, and the schema is there for everybody.
    let client = Client::new(&site.address);
    client.get("/v1/gateway").await.problem(400, "malformed_request");
    let schema = client.get("/v1/gateway/schema").await.ok(200);
    assert!(schema["$defs"]["ClientFrame"].is_object() && schema["$defs"]["Event"].is_object(), "{schema}");
    site.stop().await;
}

#[tokio::test]
async fn what_is_no_frame_closes_the_connection_with_the_reason() {
    let site = Site::new(&[("gateway.frame_bytes_max", "1024")]).await;
    let text = |text: &str| Message::text(text);
    let large = text(&format!("{{\"op\":\"heartbeat\",\"d\":{{\"position\":\"{}\"}}}}", "x".repeat(1024)));
    for (message, code) in [
        (Message::binary(vec![0_u8, 159, 146, 150]), 4002),
        (text("nonsense"), 4002),
        (text("{\"op\": \"dance\", \"d\": {}}"), 4002),
        (text("{\"op\": \"ack\", \"d\": {\"seq\": \"1\"}}"), 4002),
        (text("{\"op\": \"ack\", \"d\": {\"sequence\": 1}}"), 4002),
        (large, 1009),
    ] {
        for identified in [false, true] {
            let mut socket = match identified {
                true => site.ready().await.0,
                false => Socket::connect(&site.address).await,
            };
            socket.send_message(message.clone()).await;
            assert_eq!(socket.code().await, code, "{message:?} {identified}");
        }
    }
    let early = Socket::refused(&site.address, "ack", &json!({ "seq": 0 })).await;
    assert_eq!((early.1.code, &early.0[0]["op"]), (4002, &json!("error")));
    let (mut socket, _) = site.ready().await;
    socket.send("identify", &json!({ "token": site.token })).await;
    assert_eq!(socket.code().await, 4005);
    site.stop().await;
}

#[tokio::test]
async fn who_identifies_wrongly_is_told_why() {
    let site = Site::new(&[]).await;
    let name = json!({ "token": site.token, "consumer": "Invoices" });
    let (frames, closed) = Socket::refused(&site.address, "identify", &name).await;
    assert_eq!((closed.code, &frames[0]["d"]["errors"][0]["pointer"]), (4002, &json!("/consumer")));
    let (_, closed) = Socket::refused(&site.address, "identify", &json!({ "token": "nonsense" })).await;
    assert_eq!((closed.code, &closed.reason["reconnect"]), (4012, &json!(false)));
    // Members of the other kind are ignored.
    let user = agent(&site.db, "alex", PrincipalKind::User).await;
    let (_, ready) =
        Socket::identified(&site.address, &json!({ "token": user, "consumer": "Invoices" })).await;
    assert!(ready.get("consumer").is_none(), "{ready}");
    let (_, ready) =
        Socket::identified(&site.address, &json!({ "token": site.token, "position": "x" })).await;
    assert_eq!(ready["consumer"], "default");
    let wrong = json!({ "token": user, "position": "x" });
    assert_eq!(Socket::refused(&site.address, "identify", &wrong).await.1.code, 4002);
    site.stop().await;
}

#[tokio::test]
async fn a_client_of_which_nothing_is_heard_is_closed() {
    let site = Site::new(&[("gateway.heartbeat_interval", "2s"), ("gateway.identify_timeout", "2s")]).await;
    assert_eq!(Socket::connect(&site.address).await.code().await, 4010);
    let (mut socket, _) = site.ready().await;
    socket.expect("catchup.complete").await;
    for _ in 0..3 {
        socket.is_quiet().await;
    }
    let (_, closed) = socket.closed().await;
    assert_eq!((closed.code, &closed.reason["resume"]), (4009, &json!(true)));
    site.stop().await;
}
