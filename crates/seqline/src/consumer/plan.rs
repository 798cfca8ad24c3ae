//! What a round may do with what it has read: a pure decision.
//!
//! A round has looked at the events after its cursor. Either they go on where the cursor stands, or retention has taken those
//! in between, or something is wrong and the round must not move. Which of them are to be handled does not matter for that: the
//! cursor moves over what was looked at, and over nothing else.

use crate::error::GapError;

/// What a round does: it handles every event that it has read and is to be handled, and then moves the cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundPlan {
    /// Where the cursor goes: the number of the last event that was looked at. Always above where it is.
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

/// What a round has looked at: an unbroken piece of the log, and which of its events are to be handled. A cursor never passes what
/// is not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan<'a> {
    /// The first number that was looked at.
    pub first: i64,
    /// The last number that was looked at.
    pub last: i64,
    /// How many events there are from the first to the last.
    pub count: i64,
    /// The numbers of those that are to be handled, in order.
    pub matching: &'a [i64],
}

impl<'a> Scan<'a> {
    /// A scan in which everything is to be handled; `None` without numbers.
    #[must_use]
    pub fn of_all(seqs: &'a [i64]) -> Option<Self> {
        let (&first, &last) = seqs.first().zip(seqs.last())?;
        Some(Self { first, last, count: i64::try_from(seqs.len()).unwrap_or(i64::MAX), matching: seqs })
    }
}

/// Decides about what was read for a consumer at `last_seq`.
///
/// `min_retained` is the lowest number in the log, looked up after the scan and before retention could go on. It is
/// only needed, and only looked at, when the first number does not follow `last_seq`; without it such a jump is a gap.
///
/// ```
/// use seqline::consumer::{LostRange, Scan, plan_round};
///
/// let plan = plan_round(3, Scan::of_all(&[4, 5]), None)?;
/// assert_eq!((plan.new_last_seq, plan.lost), (5, None));
///
/// let plan = plan_round(3, Scan::of_all(&[10, 11]), Some(10))?;
/// assert_eq!(plan.lost, Some(LostRange { from: 4, to: 9 }));
///
/// // A thousand were looked at, one is to be handled.
/// let plan = plan_round(3, Some(Scan { first: 4, last: 1003, count: 1000, matching: &[17] }), None)?;
/// assert_eq!(plan.new_last_seq, 1003);
///
/// assert!(plan_round(3, Scan::of_all(&[5]), Some(1)).is_err());
/// # Ok::<(), seqline::consumer::PlanError>(())
/// ```
///
/// # Errors
///
/// [`PlanError`]: the cursor stays where it is.
pub fn plan_round(
    last_seq: i64,
    scan: Option<Scan<'_>>,
    min_retained: Option<i64>,
) -> Result<RoundPlan, PlanError> {
    let Scan { first, last, count, matching } = scan.ok_or(PlanError::Empty)?;
    // Nothing comes after the last number there is, so whatever came is not what follows.
    let expected = last_seq.checked_add(1).ok_or(GapError { expected: last_seq, found: first })?;
    let lost = match first {
        first if first == expected => None,
        first if first > expected && min_retained == Some(first) => {
            Some(LostRange { from: expected, to: first - 1 })
        }
        found => return Err(GapError { expected, found }.into()),
    };
    let ascends = matching.is_sorted_by(|a, b| a < b);
    let within = matching.iter().all(|seq| (first..=last).contains(seq));
    let whole = first <= last && i128::from(last) - i128::from(first) + 1 == i128::from(count);
    if !(ascends && within && whole) {
        return Err(hole(first, last, matching).into());
    }
    Ok(RoundPlan { new_last_seq: last, lost })
}

/// Where the numbers do not go on, as far as they say it.
fn hole(first: i64, last: i64, seqs: &[i64]) -> GapError {
    let mut pairs = seqs.windows(2).map(|pair| (pair[0], pair[1]));
    let broken = pairs.find(|&(a, b)| a.checked_add(1) != Some(b));
    let (before, found) = broken.unwrap_or((first, last));
    GapError { expected: before.saturating_add(1), found }
}

#[cfg(test)]
mod check;
#[cfg(test)]
mod tests;
