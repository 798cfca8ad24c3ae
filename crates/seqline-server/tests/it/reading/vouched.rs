//! Those for whom an identity provider vouches: who they are comes from it, what they see from here.

use std::sync::{Arc, Mutex};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use seqline::access::{Grant, disable_principal, grant};
use seqline_testkit::Role;
use serde_json::json;
use tokio::net::TcpListener;

use super::{Client, Site, append_all, order};
use crate::support::append;

/// A provider with one key.
struct Provider {
    url: String,
    key: EncodingKey,
    /// Nothing while it is away.
    answer: Arc<Mutex<Option<String>>>,
}

impl Provider {
    async fn start() -> Self {
        let pair =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
        let key = EncodingKey::from_ec_der(pair.as_ref());
        let mut published =
            serde_json::to_value(Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap()).unwrap();
        published["kid"] = "one".into();
        let answer = Arc::new(Mutex::new(Some(json!({ "keys": [published] }).to_string())));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        let keys = async |State(answer): State<Arc<Mutex<Option<String>>>>| {
            let answer = answer.lock().unwrap().clone();
            answer.ok_or(StatusCode::SERVICE_UNAVAILABLE)
        };
        let router = Router::new().fallback(keys).with_state(answer.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, key, answer }
    }

    /// A JWT for this user that expires so many seconds from now.
    fn jwt(&self, id: &str, seconds: i64) -> String {
        let expires = seqline::Clock::system().now().unix_timestamp() + seconds;
        let claims = json!({ "iss": "https://id.example.com", "aud": ["shop"], "exp": expires, "sub": id });
        let header = Header { kid: Some("one".to_owned()), ..Header::new(Algorithm::ES256) };
        encode(&header, &claims, &self.key).unwrap()
    }

    /// A server that believes it.
    async fn site(&self) -> Site {
        self.site_with(&[]).await
    }

    async fn site_with(&self, keys: &[(&str, &str)]) -> Site {
        let own = [
            ("auth.jwks_url", self.url.as_str()),
            ("auth.jwt_issuer", "https://id.example.com"),
            ("auth.jwt_audience", "shop"),
            ("api.stream_heartbeat_interval", "200ms"),
            ("api.permissions_max_age", "100ms"),
        ];
        Site::new(&[&own[..], keys].concat()).await
    }
}

#[tokio::test]
async fn a_jwt_says_who_somebody_is_and_the_rest_is_decided_here() {
    let provider = Provider::start().await;
    let site = provider.site().await;
    let mut app = site.db.connect(Role::App).await;
    let by_token = site.user("alex", &[Grant::of("order.read").space("shop-1")]).await;
    append_all(
        &site.db.app(),
        &[order("order.created", "1", "shop-1"), order("order.created", "2", "shop-2")],
    )
    .await;
    let jwt = provider.jwt("alex", 600);
    let by_jwt = Client::new(&site.address, &jwt);
    let mut next = String::new();
    for client in [&by_jwt, &by_token] {
        let page = client.page("after=oldest&wait=30").await;
        assert_eq!(page.events.iter().map(|event| event["seq"].clone()).collect::<Vec<_>>(), [1]);
        next = page.next;
    }
    grant(&mut app, "alex", &Grant::of("order.read").space("shop-2"), None).await.unwrap();
    append(&site.db.app(), [3]).await;
    assert_eq!(by_jwt.page(&format!("after={next}&wait=30")).await.events[0]["seq"], 3);
    let page = by_jwt.page("after=oldest").await;
    assert_eq!(page.events.len(), 3, "what was granted meanwhile is seen");

    let refused = async |jwt: &str| {
        let (status, problem) = Client::new(&site.address, jwt).refused("after=oldest").await;
        assert_eq!((status, &problem["code"]), (401, &json!("unauthenticated")), "{problem}");
        for part in jwt.split('.') {
            assert!(!problem.to_string().contains(part), "{problem}");
        }
        problem["detail"].as_str().unwrap().to_owned()
    };
    let unknown = "the principal that the JWT names does not exist here, or is disabled";
    assert_eq!(refused(&provider.jwt("nobody", 600)).await, unknown);
    assert_eq!(refused(&provider.jwt("alex", -600)).await, "the JWT has expired");
    let other = Provider::start().await;
    assert_eq!(refused(&other.jwt("alex", 600)).await, "the signature of the JWT is not that of its issuer");
    let mistyped = "this is neither a token nor a JWT: it was cut off or mistyped";
    assert_eq!(refused(&jwt[..jwt.len() / 2]).await, mistyped);
    disable_principal(&mut app, "alex", None).await.unwrap();
    append(&site.db.app(), [4]).await;
    let text = refused_in_time(&by_jwt).await;
    assert_eq!(text, unknown);
    site.stop().await;
}

/// What somebody is refused with who was let in a moment ago.
async fn refused_in_time(client: &Client) -> String {
    let mut detail = String::new();
    seqline_testkit::eventually(crate::support::DEADLINE, "a refusal", async || {
        let answer = client.get("/v1/me").await;
        answer.status == 401 && {
            let (_, problem) = answer.refusal();
            detail = problem["detail"].as_str().unwrap_or_default().to_owned();
            true
        }
    })
    .await;
    detail
}

#[tokio::test]
async fn a_stream_ends_when_its_jwt_does() {
    let provider = Provider::start().await;
    let site = provider.site().await;
    site.user("alex", &[]).await;
    append(&site.db.app(), [1]).await;
    // It counts for another half minute, for clocks that differ.
    let alex = Client::new(&site.address, &provider.jwt("alex", -20));
    let mut stream = alex.stream("after=oldest").await;
    assert_eq!(stream.event().await["seq"], 1);
    let (events, problem) = stream.end().await;
    assert_eq!((events.len(), &problem["code"]), (0, &json!("unauthenticated")));
    site.stop().await;
}

#[tokio::test]
async fn while_no_key_is_known_it_is_said_when_to_come_again() {
    let provider = Provider::start().await;
    let answer = provider.answer.lock().unwrap().take();
    let site = provider.site().await;
    let by_token = site.user("alex", &[]).await;
    let alex = Client::new(&site.address, &provider.jwt("alex", 600));
    let refused = alex.get("/v1/me").await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.retry_after.is_some());
    let told = site.server.says("keys of the identity provider not fetched").await;
    assert_eq!((&told["error"], &told["status"]), (&json!("status"), &json!(503)));
    assert_eq!(by_token.get("/v1/me").await.status, 200, "tokens of the database do not need it");
    *provider.answer.lock().unwrap() = answer;
    seqline_testkit::eventually(crate::support::DEADLINE, "keys", async || {
        alex.get("/v1/me").await.status == 200
    })
    .await;
    site.stop().await;
}

#[tokio::test]
async fn whoever_is_vouched_for_does_not_notice_those_who_are_nobody() {
    let provider = Provider::start().await;
    let site = provider.site_with(&[("api.requests_per_second", "1"), ("api.requests_burst", "10")]).await;
    site.user("alex", &[]).await;
    for made_up in ["nothing", "a.b.c", seqline::access::Token::generate().reveal()] {
        let nobody = Client::new(&site.address, made_up);
        seqline_testkit::eventually(crate::support::DEADLINE, "too many requests", async || {
            nobody.get("/v1/me").await.status == 429
        })
        .await;
    }
    // It was never seen before.
    assert_eq!(Client::new(&site.address, &provider.jwt("alex", 600)).get("/v1/me").await.status, 200);
    site.stop().await;
}
