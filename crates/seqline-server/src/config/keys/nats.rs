//! Keys about the broker and the stream.

use super::super::kinds::{days, duration, hours, integer, mins, ms, secs, size, switch, text};
use super::super::schema::{Key, Kind};
use super::super::values::STREAM_NAME;

pub(super) const CREDENTIALS_FILE: Key = text(
    "nats.credentials_file",
    "",
    |config| &mut config.nats.credentials_file,
    "A file with the credentials for the broker: a JWT and the seed of its key. A user and a password, or a token, are in the URL instead.",
);

pub(super) const NKEY_SEED_FILE: Key = text(
    "nats.nkey_seed_file",
    "",
    |config| &mut config.nats.nkey_seed_file,
    "A file with the seed of an nkey.",
);

pub(super) const TLS_REQUIRED: Key = switch(
    "nats.tls_required",
    false,
    |config| &mut config.nats.tls_required,
    "Whether a broker that does not speak TLS is refused. Without it TLS is spoken where the broker asks for it, or the URL begins with tls://.",
);

pub(super) const TLS_CA_FILE: Key = text(
    "nats.tls_ca_file",
    "",
    |config| &mut config.nats.tls_ca_file,
    "A file with certificates that are trusted beside those of the system.",
);

pub(super) const TLS_CERT_FILE: Key = text(
    "nats.tls_cert_file",
    "",
    |config| &mut config.nats.tls_cert_file,
    "A file with the certificate to show to the broker.",
);

pub(super) const TLS_KEY_FILE: Key = text(
    "nats.tls_key_file",
    "",
    |config| &mut config.nats.tls_key_file,
    "A file with the key of that certificate.",
);

pub(super) const REQUEST_TIMEOUT: Key = duration(
    "nats.request_timeout",
    secs(5),
    ms(100)..=mins(1),
    |config| &mut config.nats.request_timeout,
    "How long the broker may take to answer. A cluster that elects a leader is silent for a few seconds, and is asked again.",
);

pub(super) const STREAM: Key = Key {
    name: "stream.name",
    doc: "The stream that holds the log. It is made where there is none, and one of another kind is refused and never changed.",
    kind: Kind::Name { default: "EVENTS", form: &STREAM_NAME, field: |config| &mut config.stream.name },
};

pub(super) const MAX_AGE: Key = duration(
    "stream.max_age",
    days(7),
    hours(24)..=days(36_500),
    |config| &mut config.stream.max_age,
    "How long it keeps a message: for how long a consumer can be away without getting what it missed from the log one by one. Seven days cover an outage over a weekend, and time to mend it.",
);

pub(super) const MAX_BYTES: Key = size(
    "stream.max_bytes",
    1 << 30,
    1 << 20..=1 << 50,
    |config| &mut config.stream.max_bytes,
    "How many bytes it may hold; at the bound the oldest messages go before their time. The broker sets the room aside, for each replica.",
);

pub(super) const REPLICAS: Key = integer(
    "stream.replicas",
    1,
    1..=5,
    |config| &mut config.stream.replicas,
    "How many brokers hold each message. 1 is for one broker; in production have a cluster and set 3, which survives the loss of one. It is raised on a stream that is there, and never lowered.",
);
