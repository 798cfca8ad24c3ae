//! What the proxy understands of PostgreSQL's protocol: where a message begins, and of which kind it is.
//!
//! Nothing is held back to find that out. Each direction is read as it passes, in pieces of any length, and the kind
//! of a message is its first byte. What cannot be followed (it is encrypted, it cancels, it is not PostgreSQL at all) is
//! passed on as it is from there on.

/// A longer beginning is refused by PostgreSQL, and the bytes are then something else.
const BEGINNING_BYTES_MAX: u32 = 10_000;

const CANCEL: u32 = 80_877_102;
const ASK_FOR_SSL: u32 = 80_877_103;
const ASK_FOR_GSS: u32 = 80_877_104;
const PROTOCOL_MAJOR: u32 = 3;

/// How far a connection is: what both directions have to know of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Messages without a kind: the client may ask for encryption, each time for one byte, and says who it is.
    Beginning { bytes_due: u32 },
    /// Messages with a kind, in both directions.
    Messages,
    /// Nothing more can be known.
    Opaque,
}

impl Phase {
    pub(super) const START: Self = Self::Beginning { bytes_due: 0 };
}

/// Reads what the client sends.
#[derive(Debug, Default)]
pub(super) struct ClientSide {
    header: Header<8>,
    /// Bytes until the next message.
    rest: u64,
}

impl ClientSide {
    /// How many requests begin in these bytes.
    pub(super) fn read(&mut self, mut bytes: &[u8], phase: &mut Phase) -> u64 {
        let mut requests = 0;
        while !bytes.is_empty() {
            bytes = &bytes[skip(&mut self.rest, bytes)..];
            match *phase {
                Phase::Opaque => break,
                Phase::Beginning { bytes_due } => {
                    let Some(header) = self.header.take(&mut bytes, 8) else { break };
                    let (length, code) = (number(&header[..4]), number(&header[4..]));
                    *phase = match code {
                        _ if !(8..=BEGINNING_BYTES_MAX).contains(&length) => Phase::Opaque,
                        ASK_FOR_SSL | ASK_FOR_GSS => Phase::Beginning { bytes_due: bytes_due + 1 },
                        CANCEL => Phase::Opaque,
                        code if code >> 16 == PROTOCOL_MAJOR => Phase::Messages,
                        _ => Phase::Opaque,
                    };
                    self.rest = u64::from(length.saturating_sub(8));
                }
                Phase::Messages => {
                    let Some(header) = self.header.take(&mut bytes, 5) else { break };
                    let length = number(&header[1..5]);
                    if length < 4 {
                        *phase = Phase::Opaque;
                    }
                    self.rest = u64::from(length.saturating_sub(4));
                    requests += u64::from(is_request(header[0]));
                }
            }
        }
        requests
    }
}

/// A simple query, the Sync that ends an extended one, a function call: the client expects to hear when it is done.
fn is_request(kind: u8) -> bool {
    matches!(kind, b'Q' | b'S' | b'F')
}

/// Reads what the server sends, and can leave notifications out.
#[derive(Debug, Default)]
pub(super) struct ServerSide {
    header: Header<5>,
    rest: u64,
    dropping: bool,
}

impl ServerSide {
    /// Adds to `out` what is to be passed on of these bytes. A message is passed on or dropped as a whole: what counts is
    /// `drop_notifications` when its first byte comes.
    pub(super) fn filter(
        &mut self,
        mut bytes: &[u8],
        phase: &mut Phase,
        drop_notifications: bool,
        out: &mut Vec<u8>,
    ) {
        while !bytes.is_empty() {
            match *phase {
                Phase::Opaque => {
                    out.extend_from_slice(bytes);
                    return;
                }
                Phase::Beginning { bytes_due } => {
                    *phase = match bytes[0] {
                        b'N' if bytes_due > 0 => Phase::Beginning { bytes_due: bytes_due - 1 },
                        // Encrypted from here on; or a server that speaks first, which PostgreSQL does not.
                        _ => Phase::Opaque,
                    };
                    out.push(bytes[0]);
                    bytes = &bytes[1..];
                }
                Phase::Messages => {
                    if self.rest == 0 && self.header.is_empty() {
                        self.dropping = drop_notifications && bytes[0] == b'A';
                    }
                    let before = bytes;
                    if self.rest > 0 {
                        bytes = &bytes[skip(&mut self.rest, bytes)..];
                    } else if let Some(header) = self.header.take(&mut bytes, 5) {
                        let length = number(&header[1..5]);
                        if length < 4 {
                            *phase = Phase::Opaque;
                        }
                        self.rest = u64::from(length.saturating_sub(4));
                    }
                    if !self.dropping {
                        out.extend_from_slice(&before[..before.len() - bytes.len()]);
                    }
                }
            }
        }
    }
}

/// The first bytes of a message, which may come one by one.
#[derive(Debug)]
struct Header<const N: usize> {
    bytes: [u8; N],
    have: usize,
}

impl<const N: usize> Default for Header<N> {
    fn default() -> Self {
        Self { bytes: [0; N], have: 0 }
    }
}

impl<const N: usize> Header<N> {
    fn is_empty(&self) -> bool {
        self.have == 0
    }

    /// Takes from `bytes` what is missing of `wanted`; the header once it is whole.
    fn take(&mut self, bytes: &mut &[u8], wanted: usize) -> Option<[u8; N]> {
        let taken = bytes.len().min(wanted - self.have);
        self.bytes[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
        self.have += taken;
        *bytes = &bytes[taken..];
        if self.have < wanted {
            return None;
        }
        self.have = 0;
        Some(self.bytes)
    }
}

/// How many of these bytes belong to the message that is under way.
fn skip(rest: &mut u64, bytes: &[u8]) -> usize {
    let skipped = usize::try_from(*rest).map_or(bytes.len(), |rest| rest.min(bytes.len()));
    *rest -= skipped as u64;
    skipped
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn beginning(code: u32, text: &[u8]) -> Vec<u8> {
        let length = 8 + u32::try_from(text.len()).unwrap();
        [&length.to_be_bytes()[..], &code.to_be_bytes(), text].concat()
    }

    fn hello() -> Vec<u8> {
        beginning(PROTOCOL_MAJOR << 16, b"user\0alex\0\0")
    }

    fn message(kind: u8, text: &[u8]) -> Vec<u8> {
        let length = 4 + u32::try_from(text.len()).unwrap();
        [&[kind][..], &length.to_be_bytes(), text].concat()
    }

    fn requests(bytes: &[u8], piece: usize) -> (u64, Phase) {
        let (mut client, mut phase) = (ClientSide::default(), Phase::START);
        (bytes.chunks(piece).map(|piece| client.read(piece, &mut phase)).sum(), phase)
    }

    fn passed(bytes: &[u8], piece: usize, mut phase: Phase, drop_notifications: bool) -> Vec<u8> {
        let (mut server, mut out) = (ServerSide::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            server.filter(piece, &mut phase, drop_notifications, &mut out);
        }
        out
    }

    #[test]
    fn simple_queries_syncs_and_function_calls_are_requests() {
        let sent = [
            hello(),
            message(b'p', b"secret\0"),
            message(b'Q', b"SELECT 'SSS'\0"),
            message(b'P', b"\0SELECT 'QQQ'\0\0\0"),
            message(b'B', b"SQF"),
            message(b'E', b""),
            message(b'H', b""),
            message(b'S', b""),
            message(b'F', b"SQF"),
            message(b'X', b""),
        ];
        for piece in [1, 2, 3, 7, 1_000] {
            assert_eq!(requests(&sent.concat(), piece), (3, Phase::Messages), "in pieces of {piece}");
        }
    }

    #[test]
    fn asking_for_encryption_in_vain_changes_nothing() {
        for piece in [1, 5, 1_000] {
            let (mut client, mut server) = (ClientSide::default(), ServerSide::default());
            let (mut phase, mut out) = (Phase::START, Vec::new());
            for code in [ASK_FOR_GSS, ASK_FOR_SSL] {
                for piece in beginning(code, b"").chunks(piece) {
                    client.read(piece, &mut phase);
                }
                assert_eq!(phase, Phase::Beginning { bytes_due: 1 });
                server.filter(b"N", &mut phase, true, &mut out);
            }
            for piece in hello().chunks(piece) {
                client.read(piece, &mut phase);
            }
            let answer = [message(b'R', b"AAAA"), message(b'A', b"event_log\0"), message(b'Z', b"I")];
            for piece in answer.concat().chunks(piece) {
                server.filter(piece, &mut phase, true, &mut out);
            }
            assert_eq!(out, [&b"NN"[..], &answer[0], &answer[2]].concat(), "in pieces of {piece}");
            assert_eq!(client.read(&message(b'S', b""), &mut phase), 1);
        }
    }

    #[test]
    fn what_is_encrypted_is_passed_on_as_it_is() {
        let (mut client, mut server) = (ClientSide::default(), ServerSide::default());
        let (mut phase, mut out) = (Phase::START, Vec::new());
        client.read(&beginning(ASK_FOR_SSL, b""), &mut phase);
        server.filter(b"S", &mut phase, true, &mut out);
        assert_eq!(phase, Phase::Opaque);
        let noise = message(b'A', b"no message at all");
        assert_eq!(client.read(&message(b'Q', b""), &mut phase), 0);
        server.filter(&noise, &mut phase, true, &mut out);
        assert_eq!(out, [b"S", &noise[..]].concat());
    }

    #[test]
    fn cancelling_and_other_protocols_are_passed_on_as_they_are() {
        for bytes in [
            &beginning(CANCEL, b"12345678")[..],
            b"GET / HTTP/1.1\r\n\r\n",
            &[0x16, 3, 1, 0, 5, 1, 0, 0, 1, 3],
            &beginning(2 << 16, b""),
        ] {
            assert_eq!(requests(bytes, 1), (0, Phase::Opaque));
        }
        assert_eq!(
            passed(b"A server that speaks first", 1, Phase::START, true),
            b"A server that speaks first"
        );
    }

    #[test]
    fn a_length_that_cannot_be_ends_the_reading_and_not_the_passing() {
        let broken = [&message(b'Z', b"I")[..], &[b'A', 0, 0, 0, 3], &message(b'A', b"later")].concat();
        let passed = passed(&broken, 1, Phase::Messages, true);
        assert!(passed.ends_with(&message(b'A', b"later")));
        assert_eq!(requests(&[hello(), vec![b'Q', 0, 0, 0, 0, b'Q']].concat(), 1).1, Phase::Opaque);
    }

    #[test]
    fn a_message_that_has_begun_to_pass_passes_to_its_end() {
        let notification = message(b'A', b"event_log\0");
        let (mut server, mut phase, mut out) = (ServerSide::default(), Phase::Messages, Vec::new());
        server.filter(&notification[..3], &mut phase, false, &mut out);
        server.filter(&notification[3..], &mut phase, true, &mut out);
        assert_eq!(out, notification);
        server.filter(&notification[..3], &mut phase, true, &mut out);
        server.filter(&notification[3..], &mut phase, false, &mut out);
        assert_eq!(out, notification);
    }

    proptest! {
        #[test]
        fn notifications_and_nothing_else_vanish_however_the_bytes_are_cut(
            messages in prop::collection::vec((prop::sample::select(b"ATDCZEN".to_vec()), prop::collection::vec(any::<u8>(), 0..40)), 0..20),
            piece in 1_usize..50,
        ) {
            let whole = |wanted: fn(u8) -> bool| -> Vec<u8> {
                messages.iter().filter(|(kind, _)| wanted(*kind)).flat_map(|(kind, text)| message(*kind, text)).collect()
            };
            let (all, others) = (whole(|_| true), whole(|kind| kind != b'A'));
            prop_assert_eq!(&passed(&all, piece, Phase::Messages, false), &all);
            prop_assert_eq!(&passed(&all, piece, Phase::Messages, true), &others);
        }

        #[test]
        fn requests_are_counted_however_the_bytes_are_cut(
            messages in prop::collection::vec((prop::sample::select(b"QSFPBEDHCX".to_vec()), prop::collection::vec(any::<u8>(), 0..40)), 0..20),
            piece in 1_usize..50,
        ) {
            let expected = messages.iter().filter(|(kind, _)| b"QSF".contains(kind)).count() as u64;
            let bytes: Vec<u8> = messages.iter().flat_map(|(kind, text)| message(*kind, text)).collect();
            prop_assert_eq!(requests(&[hello(), bytes].concat(), piece), (expected, Phase::Messages));
        }
    }
}
