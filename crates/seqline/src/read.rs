//! Pages of the log and its two ends.
//!
//! A page continues exactly where the reader stands: it starts with the next number and has no hole. When that is
//! impossible the error says why, so that no reader ever skips an event without knowing.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::error::{DatabaseError, GapError, ReadError};
use crate::event::StoredEvent;
use crate::limits::READ_EVENTS_MAX;
use crate::store;

/// The highest number in the log, 0 when it is empty.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn head(connection: &mut PgConnection) -> Result<i64, DatabaseError> {
    Ok(store::read::head(connection).await?)
}

/// The lowest number that retention has left, `head + 1` when the log is empty.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn min_retained(connection: &mut PgConnection) -> Result<i64, DatabaseError> {
    Ok(store::read::min_retained(connection).await?)
}

/// The number of an event, `None` while its transaction has not committed or when retention has dropped it.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn seq_of(connection: &mut PgConnection, id: Uuid) -> Result<Option<i64>, DatabaseError> {
    Ok(store::read::seq_of(connection, id).await?)
}

/// The next events above `after`, at most `limit` (and [`READ_EVENTS_MAX`]); fewer than that only at the head. Empty
/// means that the reader is at the head.
///
/// Reads all events whatever their receive action: deciding who may see one is up to the caller.
///
/// ```no_run
/// # async fn example(connection: &mut sqlx::PgConnection) -> Result<(), seqline::ReadError> {
/// let mut after = 0;
/// loop {
///     let page = seqline::read::events_after(connection, after, 500).await?;
///     let Some(last) = page.last() else { break };
///     after = last.seq;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`ReadError::Expired`] when retention has dropped the next event, [`ReadError::AheadOfHead`] when the position is from
/// another history, [`ReadError::Gap`] when a number is missing, which is a bug, or what the database reported.
pub async fn events_after(
    connection: &mut PgConnection,
    after: i64,
    limit: u32,
) -> Result<Vec<StoredEvent>, ReadError> {
    let (after, limit) = (after.max(0), i64::from(limit.clamp(1, READ_EVENTS_MAX)));
    let page = store::read::events_after(connection, after, limit).await?;
    checked(connection, after, limit, page).await
}

/// The same, and which event is at the position: none when it is not in the log, or nothing comes after it.
pub(crate) async fn events_behind(
    connection: &mut PgConnection,
    after: i64,
    limit: u32,
) -> Result<(Option<Uuid>, Vec<StoredEvent>), ReadError> {
    let (after, limit) = (after.max(0), i64::from(limit.clamp(1, READ_EVENTS_MAX)));
    let (mut at, page) = store::read::events_behind(connection, after, limit).await?;
    let page = checked(connection, after, limit, page).await?;
    if at.is_none() && !page.is_empty() {
        // It came out empty at first, or retention has dropped that event.
        at = store::read::id_at(connection, after).await?;
    }
    Ok((at, page))
}

/// Which event has this number, if it is in the log.
pub(crate) async fn id_at(connection: &mut PgConnection, seq: i64) -> Result<Option<Uuid>, DatabaseError> {
    Ok(store::read::id_at(connection, seq).await?)
}

/// A page, if it is what comes after the position. One that came out empty is read again.
async fn checked(
    connection: &mut PgConnection,
    after: i64,
    limit: i64,
    mut page: Vec<StoredEvent>,
) -> Result<Vec<StoredEvent>, ReadError> {
    if page.is_empty() {
        let head = store::read::head(connection).await?;
        if head == after {
            return Ok(page);
        }
        if head < after {
            return Err(ReadError::AheadOfHead { after, head });
        }
        // The head moved after the page was read, or the next event is gone.
        page = store::read::events_after(connection, after, limit).await?;
        if page.is_empty() {
            let found = store::read::first_after(connection, after).await?.unwrap_or(head);
            return Err(missing(connection, GapError { expected: after + 1, found }).await?);
        }
    }
    if let Err(gap) = check_dense(after, page.iter().map(|event| event.seq)) {
        return Err(missing(connection, gap).await?);
    }
    Ok(page)
}

/// Whether the numbers go on from `after` without a hole.
pub(crate) fn check_dense(after: i64, seqs: impl IntoIterator<Item = i64>) -> Result<(), GapError> {
    for (expected, found) in (after + 1..).zip(seqs) {
        if found != expected {
            return Err(GapError { expected, found });
        }
    }
    Ok(())
}

/// Whether retention explains why a number is not there.
async fn missing(connection: &mut PgConnection, gap: GapError) -> Result<ReadError, ReadError> {
    let min_retained = store::read::min_retained(connection).await?;
    Ok(if min_retained > gap.expected {
        ReadError::Expired { next_seq: gap.expected, min_retained }
    } else {
        ReadError::Gap(gap)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_missing_repeated_or_swapped_number_is_a_gap(after in 0_i64..100, length in 1_usize..20, at in 0_usize..20) {
            let dense: Vec<i64> = (after + 1..).take(length).collect();
            prop_assert_eq!(check_dense(after, dense.clone()), Ok(()));
            let at = at % length;
            let mut missing = dense.clone();
            missing.remove(at);
            if at + 1 < length {
                prop_assert_eq!(check_dense(after, missing), Err(GapError { expected: dense[at], found: dense[at] + 1 }));
            }
            let mut repeated = dense.clone();
            repeated.insert(at, dense[at]);
            prop_assert!(check_dense(after, repeated).is_err());
            prop_assert!(check_dense(after + 1, dense).is_err());
        }
    }
}
