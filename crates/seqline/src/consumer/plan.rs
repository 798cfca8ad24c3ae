//! What a round may do with what it has read: a pure decision.
//!
//! A round has read the numbers after its cursor. Either they go on where the cursor stands, or retention has taken the
//! numbers in between, or something is wrong and the round must not move.

use crate::error::GapError;

/// What a round does: it handles every event that it has read and then moves the cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundPlan {
    /// Where the cursor goes: the number of the last event that was read. Always above where it is.
    pub new_last_seq: i64,
    /// What retention took before the consumer had come to it.
    pub lost: Option<LostRange>,
}

/// Numbers that a consumer will never get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct LostRange {
    pub from: i64,
    pub to: i64,
}

impl LostRange {
    /// How many that are.
    #[must_use]
    pub fn events(&self) -> i64 {
        self.to - self.from + 1
    }
}

/// Why a round must not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// There is nothing to plan: a round without events does nothing.
    #[error("a round without events cannot be planned")]
    Empty,
    /// Numbers are missing that retention does not explain, or they do not ascend.
    #[error(transparent)]
    Gap(#[from] GapError),
}

/// Decides about the numbers `seqs` that were read, in order, for a consumer at `last_seq`.
///
/// `min_retained` is the lowest number in the log, looked up after they were read and before retention could go on. It is
/// only needed, and only looked at, when the first number does not follow `last_seq`; without it such a jump is a gap.
///
/// ```
/// use seqline::consumer::{LostRange, plan_round};
///
/// let plan = plan_round(3, &[4, 5], None)?;
/// assert_eq!((plan.new_last_seq, plan.lost), (5, None));
///
/// let plan = plan_round(3, &[10, 11], Some(10))?;
/// assert_eq!(plan.lost, Some(LostRange { from: 4, to: 9 }));
///
/// assert!(plan_round(3, &[5], Some(1)).is_err());
/// # Ok::<(), seqline::consumer::PlanError>(())
/// ```
///
/// # Errors
///
/// [`PlanError`]: the cursor stays where it is.
pub fn plan_round(last_seq: i64, seqs: &[i64], min_retained: Option<i64>) -> Result<RoundPlan, PlanError> {
    let (&first, &last) = seqs.first().zip(seqs.last()).ok_or(PlanError::Empty)?;
    // Nothing comes after the last number there is, so whatever came is not what follows.
    let expected = last_seq.checked_add(1).ok_or(GapError { expected: last_seq, found: first })?;
    let lost = match first {
        first if first == expected => None,
        first if first > expected && min_retained == Some(first) => {
            Some(LostRange { from: expected, to: first - 1 })
        }
        found => return Err(GapError { expected, found }.into()),
    };
    for pair in seqs.windows(2) {
        if pair[0].checked_add(1) != Some(pair[1]) {
            return Err(GapError { expected: pair[0].saturating_add(1), found: pair[1] }.into());
        }
    }
    Ok(RoundPlan { new_last_seq: last, lost })
}

#[cfg(test)]
mod check;
#[cfg(test)]
mod tests;
