//! Asking a running process over HTTP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::body::Bytes;
use axum::http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::limits::HEALTH_BYTES_MAX;

/// What it answered: the status and the body.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: String,
}

/// Asks for a path. The caller bounds the time.
///
/// The error is a sentence without values of secrets: there are none in it.
pub(crate) async fn get(address: SocketAddr, path: &str) -> Result<Answer, String> {
    let address = reachable(address);
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let request = Request::get(path).header(header::HOST, address.to_string()).body(Empty::<Bytes>::new());
    let request = request.map_err(|error| error.to_string())?;
    let asked = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let body = Limited::new(response.into_body(), HEALTH_BYTES_MAX).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok(Answer { status, body: String::from_utf8_lossy(&body).trim_end().to_owned() })
    };
    tokio::pin!(asked);
    // The connection has to be driven while the answer is read, and ends with it.
    tokio::select! {
        answer = &mut asked => answer,
        ended = connection => match ended {
            Ok(()) => asked.await,
            Err(error) => Err(error.to_string()),
        },
    }
}

/// Where a process can be asked that listens on all addresses.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_are_asked_at_the_own_one() {
        for (given, asked) in
            [("0.0.0.0:80", "127.0.0.1:80"), ("[::]:80", "[::1]:80"), ("192.0.2.7:80", "192.0.2.7:80")]
        {
            assert_eq!(reachable(given.parse().unwrap()), asked.parse().unwrap());
        }
    }
}
