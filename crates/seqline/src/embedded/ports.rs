//! A port on the loopback interface.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use super::EmbeddedError;

/// Below the ports that Linux and macOS give to outgoing connections (from 32768 and from 49152): one of those
/// could take the port of a server that is down for a moment.
const FREE_PORTS: std::ops::Range<u16> = 20_000..32_000;

/// How many ports are tried.
const TRIES: u32 = 100;

/// A port that is free now. It can be taken before the server binds it, so the caller tries again.
pub(super) fn free_port() -> Result<u16, EmbeddedError> {
    (0..TRIES)
        .map(|_| fastrand::u16(FREE_PORTS))
        .find(|port| bind(*port).is_ok())
        .ok_or(EmbeddedError::NoFreePort { tries: TRIES })
}

/// Refuses a port that somebody listens on. Other failures (a port below 1024) are left to PostgreSQL, which
/// explains them.
pub(super) fn require_free(port: u16) -> Result<(), EmbeddedError> {
    match bind(port) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(EmbeddedError::PortInUse { port }),
        _ => Ok(()),
    }
}

fn bind(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_with_a_listener_is_refused() {
        let port = free_port().unwrap();
        let held = bind(port).unwrap();
        assert!(
            matches!(require_free(port), Err(EmbeddedError::PortInUse { port: refused }) if refused == port)
        );
        drop(held);
        require_free(port).unwrap();
    }
}
