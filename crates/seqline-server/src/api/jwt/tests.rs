//! JWTs of a provider that is run here, by a clock that is moved by hand.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use proptest::prelude::*;
use seqline::Clock;
use seqline::clock::ClockHand;
use seqline_testkit::eventually;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::{JwtError, JwtVerifier};
use crate::config::Config;
use crate::limits::{JWKS_BYTES_MAX, JWKS_PAUSE, JWKS_RETRY_PAUSE};

const START: OffsetDateTime = datetime!(2026-11-30 08:00 UTC);
const ISSUER: &str = "https://id.example.com/";
const AUDIENCE: &str = "shop";
const DEADLINE: Duration = Duration::from_secs(30);

/// A key that signs, with what is published of it.
struct Signer {
    name: &'static str,
    algorithm: Algorithm,
    key: EncodingKey,
}

impl Signer {
    fn new(name: &'static str, algorithm: Algorithm) -> Self {
        let random = SystemRandom::new();
        let key = match algorithm {
            Algorithm::ES256 => EncodingKey::from_ec_der(
                EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap().as_ref(),
            ),
            Algorithm::ES384 => EncodingKey::from_ec_der(
                EcdsaKeyPair::generate_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, &random).unwrap().as_ref(),
            ),
            Algorithm::EdDSA => {
                EncodingKey::from_ed_der(Ed25519KeyPair::generate_pkcs8v1(&random).unwrap().as_ref())
            }
            _ => {
                let pair = KeyPair::generate(KeySize::Rsa2048).unwrap();
                let der = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).unwrap();
                // What is inside of its envelope, whose length is the same for each key of this size.
                EncodingKey::from_rsa_der(&der.as_ref()[26..])
            }
        };
        Self { name, algorithm, key }
    }

    fn published(&self) -> Value {
        let mut key =
            serde_json::to_value(Jwk::from_encoding_key(&self.key, self.algorithm).unwrap()).unwrap();
        key["kid"] = self.name.into();
        key
    }

    fn sign(&self, claims: &Value) -> String {
        self.sign_with(self.algorithm, Some(self.name), claims)
    }

    fn sign_with(&self, algorithm: Algorithm, name: Option<&str>, claims: &Value) -> String {
        let header = Header { kid: name.map(str::to_owned), ..Header::new(algorithm) };
        encode(&header, claims, &self.key).unwrap()
    }
}

static FIRST: LazyLock<Signer> = LazyLock::new(|| Signer::new("first", Algorithm::ES256));
static SECOND: LazyLock<Signer> = LazyLock::new(|| Signer::new("second", Algorithm::ES256));
static RSA: LazyLock<Signer> = LazyLock::new(|| Signer::new("rsa", Algorithm::RS256));

/// What a good JWT says.
fn claims() -> Value {
    json!({ "iss": ISSUER, "aud": AUDIENCE, "exp": START.unix_timestamp() + 3_600, "sub": "alex", "name": "hunter2" })
}

/// The same with something else.
fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove(name);
    claims
}

/// An identity provider.
struct Provider {
    url: String,
    answer: Arc<Mutex<Answer>>,
    asked: Arc<AtomicUsize>,
    server: JoinHandle<()>,
}

#[derive(Clone)]
enum Answer {
    Body(Vec<u8>),
    Status(StatusCode),
    Redirect,
    Nothing,
}

impl Provider {
    async fn with(keys: &[&Signer]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        let (answer, asked) = (Arc::new(Mutex::new(Answer::Nothing)), Arc::new(AtomicUsize::new(0)));
        let router = Router::new().fallback(answer_with).with_state((answer.clone(), asked.clone()));
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let provider = Self { url, answer, asked, server };
        provider.publish(keys);
        provider
    }

    fn publish(&self, keys: &[&Signer]) {
        self.publish_all(keys.iter().map(|key| key.published()).collect());
    }

    fn publish_all(&self, keys: Vec<Value>) {
        self.answers(Answer::Body(json!({ "keys": keys }).to_string().into_bytes()));
    }

    fn answers(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// A verifier that believes it.
    fn verifier(&self) -> (JwtVerifier, ClockHand) {
        let (clock, hand) = Clock::manual(START);
        let mut auth = Config::default().auth;
        auth.jwks_url = self.url.clone();
        auth.jwt_issuer = ISSUER.to_owned();
        auth.jwt_audience = AUDIENCE.to_owned();
        (JwtVerifier::new(&auth, &clock).unwrap().unwrap(), hand)
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer_with(State((answer, asked)): State<(Arc<Mutex<Answer>>, Arc<AtomicUsize>)>) -> Response {
    asked.fetch_add(1, Ordering::SeqCst);
    let answer = answer.lock().unwrap().clone();
    match answer {
        Answer::Body(body) => body.into_response(),
        Answer::Status(status) => status.into_response(),
        Answer::Redirect => (StatusCode::FOUND, [("location", "/elsewhere")]).into_response(),
        Answer::Nothing => std::future::pending().await,
    }
}

async fn principal(verifier: &JwtVerifier, token: &str) -> Result<String, JwtError> {
    verifier.verify(token).await.map(|vouched| vouched.principal)
}

fn alex() -> Result<String, JwtError> {
    Ok("alex".to_owned())
}

#[test]
fn nothing_counts_without_a_provider() {
    assert!(JwtVerifier::new(&Config::default().auth, &Clock::system()).unwrap().is_none());
}

#[tokio::test]
async fn each_way_to_sign_that_only_the_issuer_can_counts() {
    let all: Vec<Signer> = [
        ("a", Algorithm::ES256),
        ("b", Algorithm::ES384),
        ("c", Algorithm::EdDSA),
        ("d", Algorithm::RS256),
        ("e", Algorithm::PS384),
    ]
    .map(|(name, algorithm)| Signer::new(name, algorithm))
    .into();
    let provider = Provider::with(&all.iter().collect::<Vec<_>>()).await;
    let (verifier, _hand) = provider.verifier();
    for signer in &all {
        let vouched = verifier.verify(&signer.sign(&claims())).await.unwrap();
        assert_eq!(vouched.principal, "alex", "{:?}", signer.algorithm);
        assert_eq!(vouched.until, START + Duration::from_secs(3_630), "with what clocks may differ");
    }
    assert_eq!(provider.asked(), 1, "the keys are kept");
}

#[tokio::test]
async fn what_a_jwt_says_has_to_be_right_and_what_is_wrong_is_named() {
    let provider = Provider::with(&[&FIRST]).await;
    let (verifier, _hand) = provider.verifier();
    let at = |seconds: i64| Value::from(START.unix_timestamp() + seconds);
    let none: Result<String, JwtError> = Err(JwtError::Principal);
    for (what, claims, expected) in [
        ("good", claims(), alex()),
        ("for several", with("aud", json!(["other", AUDIENCE])), alex()),
        ("not before now", with("nbf", at(0)), alex()),
        ("a clock that is a little wrong", with("nbf", at(29)), alex()),
        ("the same at the end", with("exp", at(-29)), alex()),
        ("a fraction", with("exp", json!(START.unix_timestamp() as f64 + 0.5)), alex()),
        ("for ever", with("exp", json!(1e300)), alex()),
        ("another issuer", with("iss", json!("https://id.example.com")), Err(JwtError::Issuer)),
        ("several issuers", with("iss", json!([ISSUER])), Err(JwtError::Issuer)),
        ("no issuer", without("iss"), Err(JwtError::Issuer)),
        ("another audience", with("aud", json!("shop-2")), Err(JwtError::Audience)),
        ("other audiences", with("aud", json!(["a", "b"])), Err(JwtError::Audience)),
        ("no audience", without("aud"), Err(JwtError::Audience)),
        ("expired", with("exp", at(-30)), Err(JwtError::Expired)),
        ("expired long ago", with("exp", json!(-1e300)), Err(JwtError::Expired)),
        ("no expiry", without("exp"), Err(JwtError::NoExpiry)),
        ("an expiry in words", with("exp", json!("tomorrow")), Err(JwtError::NoExpiry)),
        ("not yet", with("nbf", at(31)), Err(JwtError::NotYetValid)),
        ("not yet in words", with("nbf", json!("yesterday")), Err(JwtError::NotYetValid)),
        ("nobody", without("sub"), none.clone()),
        ("an empty name", with("sub", json!("")), none.clone()),
        ("a number", with("sub", json!(17)), none.clone()),
        ("a long name", with("sub", json!("x".repeat(129))), none.clone()),
        ("a control character", with("sub", json!("a\u{7}")), none),
    ] {
        assert_eq!(principal(&verifier, &FIRST.sign(&claims)).await, expected, "{what}");
    }
}

#[tokio::test]
async fn another_claim_can_name_the_principal() {
    let provider = Provider::with(&[&FIRST]).await;
    let mut auth = Config::default().auth;
    auth.jwks_url = provider.url.clone();
    auth.jwt_issuer = ISSUER.to_owned();
    auth.jwt_audience = AUDIENCE.to_owned();
    auth.jwt_principal_claim = "employee".to_owned();
    let verifier = JwtVerifier::new(&auth, &Clock::manual(START).0).unwrap().unwrap();
    let sam = Ok("sam".to_owned());
    assert_eq!(principal(&verifier, &FIRST.sign(&with("employee", json!("sam")))).await, sam);
    assert_eq!(principal(&verifier, &FIRST.sign(&claims())).await, Err(JwtError::Principal));
}

/// Header and claims with a signature of one's own.
fn raw(header: &Value, claims: &Value, signature: &str) -> String {
    let part = |value: &Value| {
        // The alphabet of URLs, without padding.
        let bytes = value.to_string().into_bytes();
        jsonwebtoken_base64(&bytes)
    };
    format!("{}.{}.{signature}", part(header), part(claims))
}

fn jsonwebtoken_base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().enumerate().fold(0_u32, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
        for at in 0..=chunk.len() {
            text.push(char::from(ALPHABET[(bits >> (18 - 6 * at) & 63) as usize]));
        }
    }
    text
}

#[tokio::test]
async fn what_somebody_else_has_signed_does_not_count() {
    let provider = Provider::with(&[&FIRST, &RSA]).await;
    let (verifier, _hand) = provider.verifier();
    assert_eq!(principal(&verifier, &RSA.sign(&claims())).await, alex());

    // Whoever knows a public key knows nothing that signs.
    let published = RSA.published();
    let decoded =
        jsonwebtoken::DecodingKey::from_jwk(&serde_json::from_value(published.clone()).unwrap()).unwrap();
    let modulus = match decoded.kind() {
        jsonwebtoken::DecodingKeyKind::RsaModulusExponent { n, .. } => n.clone(),
        kind => panic!("{kind:?}"),
    };
    let texts = [published.to_string().into_bytes(), published["n"].as_str().unwrap().into(), modulus];
    for secret in &texts {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let header = Header { kid: Some("rsa".to_owned()), ..Header::new(algorithm) };
            let token = encode(&header, &claims(), &EncodingKey::from_secret(secret).unwrap()).unwrap();
            assert_eq!(principal(&verifier, &token).await, Err(JwtError::Algorithm));
        }
    }
    for algorithm in ["none", "None", "NONE", "", "HS256", "ES512", "dir"] {
        for signature in ["", "AAAA"] {
            let token = raw(&json!({ "alg": algorithm, "kid": "first" }), &claims(), signature);
            let refused = principal(&verifier, &token).await.unwrap_err();
            assert!(matches!(refused, JwtError::Algorithm | JwtError::Malformed), "{algorithm}: {refused:?}");
        }
    }
    // Another key under the name of this one, and one that the token brings along.
    let stranger = Signer::new("first", Algorithm::ES256);
    assert_eq!(principal(&verifier, &stranger.sign(&claims())).await, Err(JwtError::Signature));
    let own: Jwk = serde_json::from_value(stranger.published()).unwrap();
    let header = Header { kid: Some("first".to_owned()), jwk: Some(own), ..Header::new(Algorithm::ES256) };
    let token = encode(&header, &claims(), &stranger.key).unwrap();
    assert_eq!(principal(&verifier, &token).await, Err(JwtError::Signature));
    // An algorithm that is not that of the key.
    let token = RSA.sign_with(Algorithm::RS512, Some("rsa"), &claims());
    assert_eq!(principal(&verifier, &token).await, Err(JwtError::Algorithm), "the key says RS256");
    let token = RSA.sign_with(Algorithm::RS256, Some("first"), &claims());
    assert_eq!(principal(&verifier, &token).await, Err(JwtError::Algorithm));
    // Something that has to be understood, and is not.
    let header = Header {
        kid: Some("first".to_owned()),
        crit: Some(vec!["b64".to_owned()]),
        ..Header::new(Algorithm::ES256)
    };
    assert_eq!(
        principal(&verifier, &encode(&header, &claims(), &FIRST.key).unwrap()).await,
        Err(JwtError::Malformed)
    );
    // Other claims under a good signature.
    let (good, other) = (FIRST.sign(&claims()), FIRST.sign(&with("sub", json!("sam"))));
    let (good, other): (Vec<&str>, Vec<&str>) = (good.split('.').collect(), other.split('.').collect());
    let token = [good[0], other[1], good[2]].join(".");
    assert_eq!(principal(&verifier, &token).await, Err(JwtError::Signature));
}

#[test]
fn no_text_makes_it_fail_and_none_counts() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (provider, verifier) = runtime.block_on(async {
        let provider = Provider::with(&[&FIRST]).await;
        let (verifier, _) = provider.verifier();
        (provider, verifier)
    });
    let good = FIRST.sign(&claims());
    let strategy = prop_oneof![
        ".*",
        "[A-Za-z0-9_-]{0,40}\\.[A-Za-z0-9_-]{0,40}\\.[A-Za-z0-9_-]{0,40}",
        (0..good.len(), "[A-Za-z0-9_.-]?").prop_map({
            let good = good.clone();
            move |(at, with)| format!("{}{with}{}", &good[..at], &good[at + 1..])
        }),
    ];
    let mut runner = proptest::test_runner::TestRunner::default();
    let run = runner.run(&strategy, |text| {
        let outcome = runtime.block_on(principal(&verifier, &text));
        // Of its last character four bits say nothing.
        prop_assert!(outcome.is_err() || text[..text.len() - 1] == good[..good.len() - 1], "{text}");
        Ok(())
    });
    run.unwrap();
    drop(provider);
}

#[tokio::test]
async fn a_key_that_is_not_known_is_looked_for_once_a_minute() {
    let provider = Provider::with(&[&FIRST]).await;
    let (verifier, hand) = provider.verifier();
    assert_eq!(principal(&verifier, &FIRST.sign(&claims())).await, alex());
    for name in ["made-up", "made-up-too"] {
        let token = SECOND.sign_with(Algorithm::ES256, Some(name), &claims());
        assert_eq!(principal(&verifier, &token).await, Err(JwtError::UnknownKey));
    }
    assert_eq!(provider.asked(), 1);

    // The provider takes another key.
    provider.publish(&[&SECOND]);
    assert_eq!(principal(&verifier, &SECOND.sign(&claims())).await, Err(JwtError::UnknownKey), "too soon");
    hand.advance(JWKS_PAUSE);
    let (first, second) = (FIRST.sign(&claims()), SECOND.sign(&claims()));
    let at_once = futures_util::future::join_all((0..20).map(|_| principal(&verifier, &second))).await;
    assert_eq!(at_once, vec![alex(); 20]);
    assert_eq!(provider.asked(), 2, "one fetch for all who wait");
    assert_eq!(principal(&verifier, &first).await, Err(JwtError::UnknownKey), "that one was withdrawn");
}

#[tokio::test]
async fn keys_are_fetched_again_so_that_one_that_was_withdrawn_stops_to_count() {
    let provider = Provider::with(&[&FIRST, &SECOND]).await;
    let (verifier, hand) = provider.verifier();
    let token = FIRST.sign(&with("exp", json!(1e300)));
    assert_eq!(principal(&verifier, &token).await, alex());
    provider.publish(&[&SECOND]);
    hand.advance(Config::default().auth.jwks_refresh_interval - Duration::from_secs(1));
    assert_eq!((principal(&verifier, &token).await, provider.asked()), (alex(), 1));
    hand.advance(Duration::from_secs(1));
    // Nobody waits for it, so this one counts once more.
    assert_eq!(principal(&verifier, &token).await, alex());
    eventually(DEADLINE, "the end of the key", async || {
        principal(&verifier, &token).await == Err(JwtError::UnknownKey)
    })
    .await;
    assert_eq!(provider.asked(), 2);
}

#[tokio::test]
async fn keys_that_are_known_go_on_to_count_while_the_provider_is_away() {
    let provider = Provider::with(&[&FIRST]).await;
    let (verifier, hand) = provider.verifier();
    let (known, unknown) = (FIRST.sign(&with("exp", json!(1e300))), SECOND.sign(&with("exp", json!(1e300))));
    assert_eq!(principal(&verifier, &known).await, alex());
    let huge = json!({ "keys": [FIRST.published()], "more": "x".repeat(JWKS_BYTES_MAX) });
    for (what, answer) in [
        ("an error", Answer::Status(StatusCode::INTERNAL_SERVER_ERROR)),
        ("nothing there", Answer::Status(StatusCode::NOT_FOUND)),
        ("a way to elsewhere", Answer::Redirect),
        ("something huge", Answer::Body(huge.to_string().into_bytes())),
        ("no JSON", Answer::Body(b"<html>".to_vec())),
        ("no keys", Answer::Body(b"{\"keys\": []}".to_vec())),
    ] {
        provider.answers(answer);
        hand.advance(Duration::from_secs(24 * 60 * 60));
        let before = provider.asked();
        assert_eq!(principal(&verifier, &unknown).await, Err(JwtError::KeysUnavailable), "{what}");
        assert_eq!(provider.asked(), before + 1, "{what}: nothing is followed, and nothing tried twice");
        assert_eq!(principal(&verifier, &known).await, alex(), "{what}");
        assert_eq!(principal(&verifier, &unknown).await, Err(JwtError::KeysUnavailable), "{what}");
    }
    provider.server.abort();
    eventually(DEADLINE, "a provider that is gone", async || provider.server.is_finished()).await;
    hand.advance(JWKS_PAUSE);
    assert_eq!(principal(&verifier, &unknown).await, Err(JwtError::KeysUnavailable));
    assert_eq!(principal(&verifier, &known).await, alex());
}

#[tokio::test]
async fn a_provider_that_does_not_answer_is_waited_for_so_long() {
    let provider = Provider::with(&[]).await;
    provider.answers(Answer::Nothing);
    let (verifier, hand) = provider.verifier();
    let token = FIRST.sign(&claims());
    let asking = tokio::spawn({
        let (verifier, token) = (verifier.clone(), token.clone());
        async move { principal(&verifier, &token).await }
    });
    eventually(DEADLINE, "the question", async || provider.asked() == 1).await;
    assert!(!asking.is_finished());
    hand.advance(Config::default().auth.jwks_timeout);
    assert_eq!(asking.await.unwrap(), Err(JwtError::KeysUnavailable));

    // From the start no key is known, so it is asked again soon.
    provider.publish(&[&FIRST]);
    assert_eq!(principal(&verifier, &token).await, Err(JwtError::KeysUnavailable));
    hand.advance(JWKS_RETRY_PAUSE);
    assert_eq!(principal(&verifier, &token).await, alex());
    assert_eq!(provider.asked(), 2);
}

#[tokio::test]
async fn whoever_gives_up_does_not_end_the_fetch() {
    let provider = Provider::with(&[]).await;
    provider.answers(Answer::Nothing);
    let (verifier, _hand) = provider.verifier();
    let token = FIRST.sign(&claims());
    let asking = tokio::spawn({
        let (verifier, token) = (verifier.clone(), token.clone());
        async move { principal(&verifier, &token).await }
    });
    eventually(DEADLINE, "the question", async || provider.asked() == 1).await;
    asking.abort();
    let waiting = tokio::spawn({
        let (verifier, token) = (verifier.clone(), token.clone());
        async move { principal(&verifier, &token).await }
    });
    eventually(DEADLINE, "the end of the first", async || asking.is_finished()).await;
    assert!(!waiting.is_finished());
    assert_eq!(provider.asked(), 1, "it goes on for the one that waits");
}

#[tokio::test]
async fn keys_that_are_not_for_signatures_are_left_out() {
    let provider = Provider::with(&[]).await;
    let changed = |signer: &Signer, name: &str, value: Value| {
        let mut key = signer.published();
        key[name] = value;
        key
    };
    let secret = json!({ "kty": "oct", "k": "aHVudGVyMg", "kid": "secret", "alg": "HS256" });
    let mut no_algorithm = RSA.published();
    no_algorithm.as_object_mut().unwrap().remove("alg");
    provider.publish_all(vec![
        json!("no key"),
        json!({ "kty": "of-tomorrow", "kid": "first" }),
        secret,
        changed(&FIRST, "use", json!("enc")),
        changed(&SECOND, "key_ops", json!(["sign"])),
        changed(&FIRST, "alg", json!("RS256")),
        changed(&RSA, "alg", json!("RSA-OAEP-256")),
        no_algorithm,
    ]);
    let (verifier, _hand) = provider.verifier();
    for (signer, expected) in
        [(&FIRST, Err(JwtError::UnknownKey)), (&SECOND, Err(JwtError::UnknownKey)), (&RSA, alex())]
    {
        assert_eq!(principal(&verifier, &signer.sign(&claims())).await, expected, "{}", signer.name);
    }
    let token = RSA.sign_with(Algorithm::PS512, Some("rsa"), &claims());
    assert_eq!(principal(&verifier, &token).await, alex(), "the key does not say with which of its kind");
    // One without a name is that of the only key.
    assert_eq!(principal(&verifier, &RSA.sign_with(Algorithm::RS256, None, &claims())).await, alex());
    let token = SECOND.sign_with(Algorithm::ES256, None, &claims());
    assert_eq!(principal(&verifier, &token).await, Err(JwtError::UnknownKey));
}

#[tokio::test]
async fn without_a_name_there_has_to_be_one_key() {
    let provider = Provider::with(&[&FIRST, &SECOND]).await;
    let (verifier, _hand) = provider.verifier();
    let token = FIRST.sign_with(Algorithm::ES256, None, &claims());
    assert_eq!(principal(&verifier, &token).await, Err(JwtError::UnknownKey));
}

#[test]
fn each_reason_has_words_of_its_own() {
    use JwtError::*;
    let all = [
        Malformed,
        Algorithm,
        UnknownKey,
        Signature,
        Issuer,
        Audience,
        NoExpiry,
        Expired,
        NotYetValid,
        Principal,
        KeysUnavailable,
    ];
    assert_eq!(all.map(JwtError::message).into_iter().collect::<BTreeSet<_>>().len(), all.len());
}
