//! A broker older than what is supported, where there is one.

use std::io::Write;

use seqline_testkit::nats::NatsServer;

/// One, or a word that there is none: past what the test program keeps to itself of tests that pass.
pub(crate) async fn older_broker() -> Option<NatsServer> {
    let server = NatsServer::old().await;
    if server.is_none() {
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        let _ = writeln!(
            std::io::stderr(),
            "{test} is left out: SEQLINE_NATS_OLD_BIN names no nats-server before 2.10"
        );
    }
    server
}
