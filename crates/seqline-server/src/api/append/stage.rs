//! What the transaction of a group does before its end.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use seqline::{AppendError, NewEvent, append};
use sqlx::PgTransaction;
use uuid::Uuid;

use super::group::{Because, GroupRefused, Request};
use super::queue::Key;
use super::{Appended, Idempotency};
use crate::api::{Code, Problem};
use crate::store::idempotency::{self, Keys};

/// What it has done.
pub(super) struct Stage {
    /// For each request in their order.
    pub(super) requests: Vec<Staged>,
    /// The events that are appended when it commits.
    pub(super) ids: Vec<Uuid>,
}

/// What becomes of a request.
pub(super) enum Staged {
    /// It is appended with these of the ids.
    Appended(Range<usize>),
    /// It was before, with these ids.
    Replayed(Vec<Uuid>),
    /// It is refused, whatever becomes of the others.
    Refused(Problem),
}

/// What is kept with keys that are in the table already: the fingerprint and the ids.
type Known = HashMap<Key, (Vec<u8>, Vec<Uuid>)>;

/// Takes the keys, appends the events of those requests that are new, and keeps with their keys what was appended.
pub(super) async fn stage(
    tx: &mut PgTransaction<'_>,
    requests: &[Request],
    events: &[NewEvent],
    retention: Duration,
) -> Result<Stage, GroupRefused> {
    let known = take(tx, requests, retention).await?;
    let mut count = 0;
    let mut staged = Vec::with_capacity(requests.len());
    for request in requests {
        let found = request.idempotency.as_ref().and_then(|asked| Some((asked, known.get(&asked.key())?)));
        staged.push(match found {
            None => {
                let begin = count;
                count += request.events.len();
                Staged::Appended(begin..count)
            }
            Some((asked, (fingerprint, ids))) if fingerprint[..] == asked.fingerprint => {
                Staged::Replayed(ids.clone())
            }
            Some(_) => Staged::Refused(Problem::new(
                Code::IdempotencyKeyReused,
                "this Idempotency-Key was used for another request: take a new one for each request",
            )),
        });
    }
    let new: Vec<(&Request, &Range<usize>)> = requests.iter().zip(&staged).filter_map(new).collect();
    let ids = match (new.first(), new.last()) {
        // As a rule all are new, and their events lie beside each other.
        (Some((first, _)), Some((last, _))) if last.events.end - first.events.start == count => {
            append(tx, &events[first.events.start..last.events.end]).await
        }
        (Some(_), Some(_)) => {
            let events: Vec<NewEvent> =
                new.iter().flat_map(|(request, _)| &events[request.events.clone()]).cloned().collect();
            append(tx, &events).await
        }
        _ => Ok(Vec::new()),
    };
    let ids = ids.map_err(|error| blamed(error, requests, &staged, events))?;
    keep(tx, &new, &ids).await?;
    Ok(Stage { requests: staged, ids })
}

/// Which request an event is of that was refused, as far as that is known.
fn blamed(error: AppendError, requests: &[Request], staged: &[Staged], events: &[NewEvent]) -> GroupRefused {
    match &error {
        AppendError::Invalid(invalid) => {
            let found = invalid.position().and_then(|position| {
                let range_of = |staged: &Staged| match staged {
                    Staged::Appended(range) if range.contains(&position) => Some(position - range.start),
                    _ => None,
                };
                staged.iter().enumerate().find_map(|(request, staged)| Some((request, range_of(staged)?)))
            });
            match found {
                Some((request, index)) => {
                    GroupRefused::This { request, because: Because::Event { index, error } }
                }
                None => error.into(),
            }
        }
        // Alone it is known whether it is in the log. Two requests of this group can have the same id: then the first one has it.
        AppendError::DuplicateId { id: Some(id), .. } if requests.len() > 1 => {
            let has_id = |request: &Request| {
                events[request.events.clone()].iter().any(|event| event.id() == Some(*id))
            };
            match requests.iter().rposition(has_id) {
                Some(request) => GroupRefused::This { request, because: Because::Unclear },
                None => error.into(),
            }
        }
        _ => error.into(),
    }
}

fn new<'a>((request, staged): (&'a Request, &'a Staged)) -> Option<(&'a Request, &'a Range<usize>)> {
    match staged {
        Staged::Appended(range) => Some((request, range)),
        Staged::Replayed(_) | Staged::Refused(_) => None,
    }
}

/// Takes the keys of requests, and returns what is known of those that cannot be taken.
async fn take(
    tx: &mut PgTransaction<'_>,
    requests: &[Request],
    retention: Duration,
) -> Result<Known, GroupRefused> {
    let asked = keys(requests.iter().filter_map(|request| request.idempotency.as_ref()));
    let mut known = Known::new();
    if asked.keys.is_empty() {
        return Ok(known);
    }
    let taken = idempotency::claim(tx, &asked, retention).await?;
    if taken.len() == asked.keys.len() {
        return Ok(known);
    }
    for found in idempotency::known(tx, &asked).await? {
        known.insert((found.principal, found.key), (found.fingerprint, found.event_ids));
    }
    for key in taken {
        known.remove(&key);
    }
    Ok(known)
}

/// Keeps with the keys what was appended for them.
async fn keep(
    tx: &mut PgTransaction<'_>,
    new: &[(&Request, &Range<usize>)],
    ids: &[Uuid],
) -> Result<(), GroupRefused> {
    let keyed = new.iter().filter_map(|(request, range)| Some((request.idempotency.as_ref()?, range)));
    let (asked, ranges): (Vec<&Idempotency>, Vec<&Range<usize>>) = keyed.unzip();
    if asked.is_empty() {
        return Ok(());
    }
    let from_one = |index: usize| i32::try_from(index).unwrap_or(i32::MAX);
    let firsts: Vec<i32> = ranges.iter().map(|range| from_one(range.start + 1)).collect();
    let lasts: Vec<i32> = ranges.iter().map(|range| from_one(range.end)).collect();
    Ok(idempotency::keep(tx, &keys(asked.into_iter()), &firsts, &lasts, ids).await?)
}

fn keys<'a>(asked: impl Iterator<Item = &'a Idempotency>) -> Keys<'a> {
    let mut keys = Keys::default();
    for asked in asked {
        keys.principals.push(&asked.principal);
        keys.keys.push(&asked.key);
        keys.fingerprints.push(&asked.fingerprint);
    }
    keys
}

impl Stage {
    /// The event whose number is that of a request. For those that are appended it is the last of them all: the events of a transaction have
    /// numbers that follow each other.
    pub(super) fn last_ids(&self) -> Vec<Option<Uuid>> {
        let mut appended = self.ids.last().copied();
        let last_id = |request: &Staged| match request {
            Staged::Appended(_) => appended.take(),
            Staged::Replayed(ids) => ids.last().copied(),
            Staged::Refused(_) => None,
        };
        self.requests.iter().map(last_id).collect()
    }

    /// What each request is told. `numbers` are those of [`last_ids`](Self::last_ids).
    pub(super) fn outcomes(self, numbers: &[Option<i64>]) -> Vec<Result<Appended, Problem>> {
        let is_appended = |request: &&Staged| matches!(request, Staged::Appended(_));
        let first = self.requests.iter().position(|request| is_appended(&request));
        let last_of_all = first.and_then(|first| numbers.get(first).copied().flatten());
        let all = self.ids.len();
        let outcome = |(request, number): (Staged, &Option<i64>)| match request {
            Staged::Appended(range) => {
                let behind = i64::try_from(all - range.end).unwrap_or_default();
                let last_seq = last_of_all.map(|seq| seq - behind);
                Ok(Appended { ids: self.ids[range].to_vec(), last_seq, replayed: false })
            }
            Staged::Replayed(ids) => Ok(Appended { ids, last_seq: *number, replayed: true }),
            Staged::Refused(problem) => Err(problem),
        };
        self.requests.into_iter().zip(numbers).map(outcome).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_learns_its_own_ids_and_the_number_of_its_last_event() {
        let ids: Vec<Uuid> = (1..=5).map(Uuid::from_u128).collect();
        let old = vec![Uuid::from_u128(90), Uuid::from_u128(91)];
        let refused = Problem::new(Code::IdempotencyKeyReused, "x");
        let requests = vec![
            Staged::Replayed(old.clone()),
            Staged::Appended(0..2),
            Staged::Refused(refused.clone()),
            Staged::Appended(2..5),
        ];
        let stage = Stage { requests, ids: ids.clone() };
        let asked = stage.last_ids();
        assert_eq!(asked, [Some(old[1]), Some(ids[4]), None, None]);
        let appended =
            |ids: &[Uuid], last_seq, replayed| Ok(Appended { ids: ids.to_vec(), last_seq, replayed });
        assert_eq!(
            stage.outcomes(&[Some(3), Some(25), None, None]),
            [
                appended(&old, Some(3), true),
                appended(&ids[..2], Some(22), false),
                Err(refused),
                appended(&ids[2..], Some(25), false),
            ]
        );
    }
}
