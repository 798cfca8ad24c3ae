//! Room for what clients send, in memory. No principal gets more than its share of it, so that none keeps the others out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::{Code, Problem};
use crate::limits::{API_BODIES_KIB_MAX, API_BODIES_SHARES, API_RETRY_AFTER};

/// All the room that there is. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Bodies {
    room: Arc<Semaphore>,
    /// How many KiB each principal has that has any.
    taken: Arc<Mutex<HashMap<Arc<str>, u32>>>,
    /// How many it may have.
    share: u32,
}

/// Some of it, until this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    permit: OwnedSemaphorePermit,
    principal: Arc<str>,
    bodies: Bodies,
}

impl Bodies {
    pub(crate) fn new() -> Self {
        Self::of(API_BODIES_KIB_MAX)
    }

    fn of(kib: usize) -> Self {
        let share = u32::try_from(kib / API_BODIES_SHARES).unwrap_or(u32::MAX);
        Self { room: Arc::new(Semaphore::new(kib)), taken: Arc::default(), share }
    }

    /// Room for so many KiB, for a principal.
    pub(crate) fn take(&self, principal: &str, kib: u32) -> Result<Room, Problem> {
        let full =
            |_| Problem::unavailable("the bodies of other requests fill the memory that there is for them");
        let principal = self.count(principal, kib)?;
        match self.room.clone().try_acquire_many_owned(kib) {
            Ok(permit) => Ok(Room { permit, principal, bodies: self.clone() }),
            Err(error) => {
                self.give_back(&principal, kib);
                Err(full(error))
            }
        }
    }

    fn count(&self, principal: &str, kib: u32) -> Result<Arc<str>, Problem> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let of_it = taken.get(principal).copied().unwrap_or_default().saturating_add(kib);
        if of_it > self.share {
            let detail =
                "the bodies of other requests of yours fill the memory that there is for one principal";
            return Err(Problem::new(Code::RateLimited, detail).retry_after(API_RETRY_AFTER));
        }
        let name = taken.get_key_value(principal).map_or_else(|| principal.into(), |(name, _)| name.clone());
        taken.insert(Arc::clone(&name), of_it);
        Ok(name)
    }

    fn give_back(&self, principal: &Arc<str>, kib: u32) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let left = taken.get(principal).copied().unwrap_or_default().saturating_sub(kib);
        match left {
            0 => drop(taken.remove(principal)),
            left => drop(taken.insert(Arc::clone(principal), left)),
        }
    }
}

impl Room {
    /// How much it is.
    pub(crate) fn kib(&self) -> u32 {
        u32::try_from(self.permit.num_permits()).unwrap_or(u32::MAX)
    }

    /// Adds more of the same principal.
    pub(crate) fn merge(&mut self, mut more: Self) {
        if let Some(permit) = more.permit.split(more.permit.num_permits()) {
            self.permit.merge(permit);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.bodies.give_back(&self.principal, self.kib());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(refused: Result<Room, Problem>) -> Code {
        refused.expect_err("there is no room").code()
    }

    #[test]
    fn nobody_gets_more_than_a_share_and_all_together_no_more_than_there_is() {
        let bodies = Bodies::of(40);
        let mut some = bodies.take("shop", 4).unwrap();
        some.merge(bodies.take("shop", 6).unwrap());
        assert_eq!(some.kib(), 10);
        assert_eq!(code(bodies.take("shop", 1)), Code::RateLimited);
        let others: Vec<Room> = ["a", "b", "c"].iter().map(|name| bodies.take(name, 10).unwrap()).collect();
        assert_eq!(code(bodies.take("d", 1)), Code::Unavailable);
        drop(some);
        assert_eq!(code(bodies.take("a", 1)), Code::RateLimited);
        assert_eq!(bodies.take("shop", 10).unwrap().kib(), 10);
        drop(others);
        assert!(bodies.taken.lock().unwrap().is_empty());
        assert_eq!(bodies.room.available_permits(), 40);
    }
}
