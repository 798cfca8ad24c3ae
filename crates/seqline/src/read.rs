//! Pages of the log and its two ends.
//!
//! A page continues exactly where the reader stands: it starts with the next number and has no hole. When that is
//! impossible the error says why, so that no reader ever skips an event without knowing.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::consumer::Filter;
use crate::error::{DatabaseError, GapError, ReadError};
use crate::event::StoredEvent;
use crate::limits::{HISTORY_SCAN_EVENTS_MAX, READ_EVENTS_MAX, SCAN_EVENTS_MAX};
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

/// What somebody may see of a piece of the log.
#[derive(Debug)]
pub struct VisiblePage {
    /// The events, in order.
    pub events: Vec<StoredEvent>,
    /// All events up to here were looked at: reading goes on behind it, whether or not any was seen.
    pub position: i64,
}

/// The next events above `after` that match the filter and that the principal may see, at most `limit` (and [`READ_EVENTS_MAX`]) out of at
/// most `scan` (and [`SCAN_EVENTS_MAX`]) events that are looked at. A position that stays where it was means that the reader is at the
/// head.
///
/// Events and permissions are read in one statement: what is seen is what the principal may see at one moment. Nobody sees anything as a
/// principal that is unknown or disabled, and the position moves all the same.
///
/// Events that are committed and not yet durable are among them: whoever hands them out waits for the
/// [durable head](crate::DurableHead) to pass the position.
///
/// ```no_run
/// # async fn example(connection: &mut sqlx::PgConnection) -> Result<(), seqline::ReadError> {
/// use seqline::consumer::Filter;
///
/// let orders = Filter::everything().types(["order.*"]);
/// let page = seqline::read::visible_after(connection, "alex", 0, &orders, 100, 5_000).await?;
/// println!("{} events up to seq {}", page.events.len(), page.position);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As [`events_after`].
pub async fn visible_after(
    connection: &mut PgConnection,
    principal: &str,
    after: i64,
    filter: &Filter,
    limit: u32,
    scan: u32,
) -> Result<VisiblePage, ReadError> {
    let after = after.max(0);
    let (limit, scan) =
        (i64::from(limit.clamp(1, READ_EVENTS_MAX)), i64::from(scan.clamp(1, SCAN_EVENTS_MAX)));
    let mut seen = store::read::visible_after(connection, principal, after, filter, limit, scan).await?;
    let mut head = after;
    if seen.looked.is_none() {
        head = store::read::head(connection).await?;
        if head == after {
            return Ok(VisiblePage { events: Vec::new(), position: after });
        }
        if head < after {
            return Err(ReadError::AheadOfHead { after, head });
        }
        // The head moved after the page was read, or the next event is gone.
        seen = store::read::visible_after(connection, principal, after, filter, limit, scan).await?;
    }
    let Some((first, last, count)) = seen.looked else {
        let found = store::read::first_after(connection, after).await?.unwrap_or(head);
        return Err(missing(connection, GapError { expected: after + 1, found }).await?);
    };
    if first != after + 1 {
        return Err(missing(connection, GapError { expected: after + 1, found: first }).await?);
    }
    if count != last - first + 1 {
        let before = store::read::before_hole(connection, first, last).await?.unwrap_or(first);
        let found = store::read::first_after(connection, before).await?.unwrap_or(last);
        return Err(missing(connection, GapError { expected: before + 1, found }).await?);
    }
    Ok(VisiblePage { events: seen.events, position: last })
}

/// The events of one resource above `after` that the principal may see, at most `limit` (and [`READ_EVENTS_MAX`]). The position is the head
/// when these are all that there are; it is less when there can be more, even if none was seen. Fewer than the limit come when they are large.
///
/// It looks by the index of resources, whatever else is in the log. As with [`visible_after`] all is of one moment, and not yet durable.
///
/// # Errors
///
/// As [`events_after`], but for holes, which it does not look for.
pub async fn history_after(
    connection: &mut PgConnection,
    principal: &str,
    resource_kind: &str,
    resource_id: &str,
    after: i64,
    limit: u32,
) -> Result<VisiblePage, ReadError> {
    let (after, limit) = (after.max(0), i64::from(limit.clamp(1, READ_EVENTS_MAX)));
    let history = store::read::visible_history(
        connection,
        principal,
        resource_kind,
        resource_id,
        after,
        limit,
        i64::from(HISTORY_SCAN_EVENTS_MAX),
    )
    .await?;
    if history.head < after {
        return Err(ReadError::AheadOfHead { after, head: history.head });
    }
    if history.min_retained > after + 1 {
        return Err(ReadError::Expired { next_seq: after + 1, min_retained: history.min_retained });
    }
    Ok(VisiblePage { events: history.events, position: history.position })
}

/// One event, if it is in the log and the principal may see it. Not yet durable either.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn visible_event(
    connection: &mut PgConnection,
    principal: &str,
    id: Uuid,
) -> Result<Option<StoredEvent>, DatabaseError> {
    // By its number, because an id says nothing about the partition.
    let Some(seq) = store::read::seq_of(connection, id).await? else { return Ok(None) };
    Ok(store::read::visible_event(connection, principal, seq, id).await?)
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
