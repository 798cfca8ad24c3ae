//! The connection: logins, TLS, and brokers that come and go.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair as TlsKey};
use seqline::Clock;
use seqline_nats::broker::{Broker, BrokerConfig, BrokerError};
use seqline_nats::stream::{StreamSettings, ensure_stream};
use seqline_testkit::nats::{NatsOptions, NatsServer};
use seqline_testkit::{FaultProxy, eventually};
use serde_json::json;
use tempfile::TempDir;
use time::OffsetDateTime;

const SOON: Duration = Duration::from_secs(20);

/// Uses it for something that needs all of its rights.
async fn used(config: BrokerConfig) -> Result<(), BrokerError> {
    let broker = Broker::new(config);
    broker.client().await?;
    ensure_stream(&broker, &StreamSettings::default()).await.expect("who may connect may make the stream");
    Ok(())
}

fn with(server: &NatsServer, change: impl FnOnce(&mut BrokerConfig)) -> BrokerConfig {
    let mut config = BrokerConfig::new(server.url());
    change(&mut config);
    config
}

fn file(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn a_user_and_a_password_come_with_the_url() {
    let options = NatsOptions::default().lines("authorization { user: robin, password: \"se/cret\" }");
    let server = NatsServer::with(options).await;
    let url = server.url().replace("nats://", "nats://robin:se%2Fcret@");
    used(BrokerConfig::new(url.clone())).await.unwrap();
    for url in [server.url(), url.replace("cret", "wrong")] {
        let error = used(BrokerConfig::new(url)).await.unwrap_err();
        assert!(matches!(error, BrokerError::LoginRefused { .. }), "{error}");
        assert!(!format!("{error} {error:?}").contains("wrong"));
    }
}

#[tokio::test]
async fn a_token_comes_with_the_url() {
    let server = NatsServer::with(NatsOptions::default().lines("authorization { token: t0ken }")).await;
    used(BrokerConfig::new(server.url().replace("nats://", "nats://t0ken@"))).await.unwrap();
    assert!(used(BrokerConfig::new(server.url())).await.is_err());
}

#[tokio::test]
async fn an_nkey_is_read_from_its_file() {
    let (folder, key) = (TempDir::new().unwrap(), KeyPair::new_user());
    let lines = format!("authorization {{ users: [ {{ nkey: {} }} ] }}", key.public_key());
    let server = NatsServer::with(NatsOptions::default().lines(&lines)).await;
    let seed = file(&folder, "user.nk", &format!("{}\n", key.seed().unwrap()));
    used(with(&server, |it| it.nkey_seed_file = Some(seed))).await.unwrap();
    let other = file(&folder, "other.nk", &KeyPair::new_user().seed().unwrap());
    let error = used(with(&server, |it| it.nkey_seed_file = Some(other))).await.unwrap_err();
    assert!(matches!(error, BrokerError::LoginRefused { .. }), "{error}");
    let garbage = file(&folder, "garbage.nk", "no seed");
    let error = used(with(&server, |it| it.nkey_seed_file = Some(garbage))).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("no seed"), "{error}");
}

/// A token as accounts and users of a broker have them.
fn signed(key: &KeyPair, subject: &str, claims: serde_json::Value) -> String {
    let encode = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let body = json!({ "iss": key.public_key(), "sub": subject, "iat": 1, "jti": subject, "nats": claims });
    let signed = format!("{}.{}", encode(&json!({ "typ": "JWT", "alg": "ed25519-nkey" })), encode(&body));
    let signature = URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

#[tokio::test]
async fn credentials_are_read_from_their_file() {
    let folder = TempDir::new().unwrap();
    let (operator, account, user) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_user());
    let unlimited = json!({ "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1, "leaf": -1,
        "wildcards": true, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1 });
    let of_operator = signed(&operator, &operator.public_key(), json!({ "type": "operator", "version": 2 }));
    let system = KeyPair::new_account();
    let [of_account, of_system] = [(&account, Some(&unlimited)), (&system, None)].map(|(account, limits)| {
        let claims = json!({ "type": "account", "version": 2, "limits": limits });
        signed(&operator, &account.public_key(), claims)
    });
    let of_user = signed(
        &account,
        &user.public_key(),
        json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 }),
    );
    let lines = format!(
        "operator: {of_operator}\nresolver: MEMORY\nsystem_account: {system}\nresolver_preload {{ {system}: {of_system}\n {}: {of_account} }}\n",
        account.public_key(),
        system = system.public_key(),
    );
    let server = NatsServer::with(NatsOptions::default().lines(&lines)).await;
    let credentials = format!(
        "-----BEGIN NATS USER JWT-----\n{of_user}\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        user.seed().unwrap()
    );
    let path = file(&folder, "user.creds", &credentials);
    used(with(&server, |it| it.credentials_file = Some(path))).await.unwrap();
    let error = used(BrokerConfig::new(server.url())).await.unwrap_err();
    assert!(matches!(error, BrokerError::LoginRefused { .. }), "{error}");
    let garbage = file(&folder, "garbage.creds", "a secret");
    let error = used(with(&server, |it| it.credentials_file = Some(garbage))).await.unwrap_err();
    assert!(error.to_string().ends_with("it holds no credentials"), "{error}");
}

#[tokio::test]
async fn tls_is_spoken_with_the_certificates_of_the_files() {
    let folder = TempDir::new().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, TlsKey::generate().unwrap()).unwrap();
    let ca = file(&folder, "ca.pem", &authority.pem());
    let issued = |name: &str| {
        let key = TlsKey::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
        let certificate = file(&folder, &format!("{name}.pem"), &certificate.pem());
        (certificate, file(&folder, &format!("{name}.key"), &key.serialize_pem()))
    };
    let (certificate, key) = issued("server");
    let lines = format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}",
        certificate, key, ca
    );
    let server = NatsServer::with(NatsOptions::default().lines(&lines)).await;
    let client = issued("client");
    used(with(&server, |it| {
        it.tls_required = true;
        it.tls_ca_file = Some(ca.clone());
        it.tls_client_files = Some(client);
    }))
    .await
    .unwrap();
    // Nobody vouches for the server.
    let error = used(with(&server, |it| it.tls_required = true)).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    // The client has nothing to show.
    assert!(used(with(&server, |it| it.tls_ca_file = Some(ca.clone()))).await.is_err());
}

#[tokio::test]
async fn a_broker_without_tls_is_refused_where_it_is_required() {
    let server = NatsServer::start().await;
    let error = used(with(&server, |it| it.tls_required = true)).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test]
async fn a_broker_that_comes_back_is_used_again_and_so_is_one_whose_connection_was_closed() {
    let mut server = NatsServer::start().await;
    let broker = Broker::new(BrokerConfig::new(server.url()));
    assert!(!broker.is_connected().await);
    server.kill().await;
    let error = broker.client().await.unwrap_err();
    assert!(matches!(error, BrokerError::Unreachable { .. }), "{error}");
    server.restart().await;
    broker.client().await.unwrap();
    assert!(broker.is_connected().await);
    server.kill().await;
    eventually(SOON, "the loss is seen", async || !broker.is_connected().await).await;
    server.restart().await;
    eventually(SOON, "it is connected again", async || broker.is_connected().await).await;
    broker.close().await;
    assert!(!broker.is_connected().await);
    ensure_stream(&broker, &StreamSettings::default()).await.unwrap();
}

/// By a clock that the test moves, so that nobody waits for half a minute.
#[tokio::test]
async fn a_connection_that_is_away_for_half_a_minute_is_given_up_for_a_new_one() {
    let server = NatsServer::start().await;
    let proxy = FaultProxy::start(server.addr()).await.unwrap();
    let folder = TempDir::new().unwrap();
    let authority = file(&folder, "ca.pem", "");
    let (clock, hand) = Clock::manual(OffsetDateTime::UNIX_EPOCH);
    let mut config = BrokerConfig::new(format!("nats://{}", proxy.addr()));
    config.tls_ca_file = Some(authority.clone());
    let broker = Broker::with_clock(config, clock);
    let first = broker.client().await.unwrap();
    let is_first = |client: &Client| Arc::ptr_eq(&client.statistics(), &first.statistics());
    fs::remove_file(&authority).unwrap();
    // It comes back in time once, and what it was away before does not count for the second time.
    for _ in 0..2 {
        proxy.heal();
        eventually(SOON, "it is connected", async || broker.is_connected().await).await;
        assert!(is_first(&broker.client().await.unwrap()));
        proxy.refuse();
        proxy.cut();
        eventually(SOON, "the loss is seen", async || !broker.is_connected().await).await;
        for away in [0, 29] {
            hand.advance(Duration::from_secs(away));
            assert!(is_first(&broker.client().await.unwrap()), "after {away} s");
        }
    }
    hand.advance(Duration::from_secs(1));
    // What the files hold by now counts.
    let error = broker.client().await.unwrap_err();
    assert!(matches!(error, BrokerError::File { .. }), "{error}");
    fs::write(&authority, "").unwrap();
    let error = broker.client().await.unwrap_err();
    assert!(matches!(error, BrokerError::Unreachable { .. }), "{error}");
    proxy.heal();
    assert!(!is_first(&broker.client().await.unwrap()));
    assert!(broker.is_connected().await);
}
