//! How a number of the log leaves the server: with the epoch that it belongs to.
//!
//! After a restore the same number is another event. A reader that gives back what it got is told so, and never gets events of a history
//! that it did not read.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

/// A place in one history of the log: everything up to `seq`. As text `<epoch>:<seq>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) epoch: Uuid,
    pub(crate) seq: i64,
}

/// A text that is no position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoPosition;

impl fmt::Display for NoPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a position is <epoch>:<number>, as the server gave it")
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.seq)
    }
}

impl FromStr for Position {
    type Err = NoPosition;

    /// Only as it is written: two texts are never the same position, so a client may compare them.
    fn from_str(text: &str) -> Result<Self, NoPosition> {
        let (epoch, seq) = text.split_once(':').ok_or(NoPosition)?;
        let position = Self {
            epoch: Uuid::try_parse(epoch).map_err(|_| NoPosition)?,
            seq: seq.parse().map_err(|_| NoPosition)?,
        };
        if position.seq >= 0 && position.to_string() == text { Ok(position) } else { Err(NoPosition) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EPOCH: &str = "0198c8f2-7a4b-7000-8000-00000000abcd";

    #[test]
    fn a_position_is_read_only_as_it_is_written() {
        for seq in ["0", "1", "9223372036854775807"] {
            let text = format!("{EPOCH}:{seq}");
            assert_eq!(text.parse::<Position>().map(|position| position.to_string()), Ok(text));
        }
        for seq in ["", "-1", "+1", "01", "1 ", " 1", "1:2", "0x1", "9223372036854775808", "1.0"] {
            assert_eq!(format!("{EPOCH}:{seq}").parse::<Position>(), Err(NoPosition), "{seq}");
        }
        for epoch in [EPOCH.to_uppercase(), EPOCH.replace('-', ""), format!("{{{EPOCH}}}"), String::new()] {
            assert_eq!(format!("{epoch}:1").parse::<Position>(), Err(NoPosition), "{epoch}");
        }
        assert_eq!("7".parse::<Position>(), Err(NoPosition));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back_and_nothing_breaks_it(
            epoch in any::<u128>(), seq in 0..=i64::MAX, text in ".{0,60}"
        ) {
            let position = Position { epoch: Uuid::from_u128(epoch), seq };
            prop_assert_eq!(position.to_string().parse(), Ok(position));
            if let Ok(position) = text.parse::<Position>() {
                prop_assert_eq!(position.to_string(), text);
            }
        }
    }
}
