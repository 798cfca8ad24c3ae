//! Asking an identity provider for its keys.
//!
//! One request without a word of ours: no redirect is followed, no proxy asked, and an answer that is late or large is none. Its certificate
//! is checked against the authorities that this machine trusts.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::crypto::aws_lc_rs;
use seqline::Clock;

use crate::failure::Failure;
use crate::limits::JWKS_BYTES_MAX;

/// Where the keys are.
#[derive(Debug, Clone)]
pub(super) struct Source {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    uri: Uri,
    timeout: Duration,
    clock: Clock,
}

/// Why there are no keys. Its name is what is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FetchError {
    NoAnswer,
    Late,
    Status(StatusCode),
    TooLarge,
    NoKeys,
}

impl FetchError {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NoAnswer => "no_answer",
            Self::Late => "late",
            Self::Status(_) => "status",
            Self::TooLarge => "too_large",
            Self::NoKeys => "no_keys",
        }
    }

    pub(super) fn status(self) -> Option<u16> {
        match self {
            Self::Status(status) => Some(status.as_u16()),
            _ => None,
        }
    }
}

impl Source {
    pub(super) fn new(url: &str, timeout: Duration, clock: &Clock) -> Result<Self, Failure> {
        let uri: Uri = url.parse().map_err(|_| Failure::Usage("auth.jwks_url is not a URL".to_owned()))?;
        let tls = HttpsConnectorBuilder::new()
            .with_provider_and_platform_verifier(Arc::new(aws_lc_rs::default_provider()))
            .map_err(|error| {
                Failure::Unavailable(format!("cannot check certificates on this machine: {error}"))
            })?;
        let connector = match uri.scheme_str() {
            // The configuration allows it on this machine only.
            Some("http") => tls.https_or_http(),
            _ => tls.https_only(),
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build(connector.enable_http1().build());
        Ok(Self { client, uri, timeout, clock: clock.clone() })
    }

    pub(super) async fn fetch(&self) -> Result<Bytes, FetchError> {
        self.clock.timeout(self.timeout, self.ask()).await.unwrap_or(Err(FetchError::Late))
    }

    async fn ask(&self) -> Result<Bytes, FetchError> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = self.uri.clone();
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        let response = self.client.request(request).await.map_err(|_| FetchError::NoAnswer)?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status(response.status()));
        }
        let body = Limited::new(response.into_body(), JWKS_BYTES_MAX).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => FetchError::TooLarge,
            None => FetchError::NoAnswer,
        })
    }
}
