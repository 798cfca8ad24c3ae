//! Opening an address, so that one that cannot be had is told before anything runs.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::failure::Failure;

/// Opens it, and says where it is, with the port that it got. `named` is who gave it.
pub(crate) async fn open(address: SocketAddr, named: &str) -> Result<(TcpListener, SocketAddr), Failure> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| {
        Failure::Unavailable(format!(
            "cannot listen on {address}: {error}: choose another address with {named}"
        ))
    })?;
    let address = listener.local_addr().map_err(|error| Failure::Unexpected(error.to_string()))?;
    Ok((listener, address))
}
