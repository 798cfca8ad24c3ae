//! What holds for an agent over either transport: each of these runs over the gateway and over REST.

mod acks;
mod delivery;
mod losses;
mod rivals;
mod transport;
mod who;

use self::transport::{Gateway, Place, Rest, Transport};
use super::{Consumer, Site, number};
use crate::support::DEADLINE;

/// One test over each transport, of each of these.
macro_rules! over_both {
    ($($scenario:ident),+ $(,)?) => {
        mod over_the_gateway {
            $(#[tokio::test] async fn $scenario() { super::$scenario::<super::Gateway>().await })+
        }
        mod over_rest {
            $(#[tokio::test] async fn $scenario() { super::$scenario::<super::Rest>().await })+
        }
    };
}
use over_both;

impl Site {
    fn place(&self) -> Place {
        self.place_of(&self.token, &self.consumer)
    }

    /// The same consumer for somebody else, or at another server.
    fn place_of(&self, token: &str, consumer: &Consumer) -> Place {
        let (address, path) = (consumer.client.address.clone(), consumer.path.clone());
        Place { address, token: token.to_owned(), path }
    }

    /// Waits until this is stored as acknowledged.
    async fn stands_at(&self, acked: i64) {
        seqline_testkit::eventually(DEADLINE, "it is stored", async || {
            number(&self.consumer.state().await["acked"]) == acked
        })
        .await;
    }
}

/// Acknowledgements over a connection are stored soon.
const SOON: (&str, &str) = ("agent.ack_persist_interval", "50ms");
