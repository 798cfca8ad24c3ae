//! What is remembered of credentials: not longer than a moment, not more than a number, and nothing from before a change.
//!
//! An entry may be used until it has an age, counted from before it was read, and only if it was read in a state of the database that
//! has the permissions of the version that the log has reached. Entries live in two generations: the young one becomes the old one when it
//! is full or has an age, and the old one is gone. So memory is bounded whoever asks for what, and nothing has to be searched.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// How much is remembered, and how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) max_age: Duration,
    /// Entries of both generations together.
    pub(super) entries: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Cache<K, V> {
    bounds: Bounds,
    young: HashMap<K, Entry<V>>,
    old: HashMap<K, Entry<V>>,
    /// When the young generation began, by the clock's elapsed time.
    began: Duration,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    as_of: AsOf,
}

/// What a value is as new as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AsOf {
    /// A moment before it was read, by the clock's elapsed time.
    pub(super) time: Duration,
    /// A version of the permissions that it has, or a later one.
    pub(super) version: i64,
}

impl<K: Eq + Hash, V> Cache<K, V> {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, young: HashMap::new(), old: HashMap::new(), began: Duration::ZERO }
    }

    /// What is known of a key, if it may be used now, when the log has reached this version of the permissions.
    pub(super) fn get(&self, key: &K, now: Duration, version: i64) -> Option<&V> {
        let entry = self.young.get(key).or_else(|| self.old.get(key))?;
        let young = now.saturating_sub(entry.as_of.time) < self.bounds.max_age;
        (young && entry.as_of.version >= version).then_some(&entry.value)
    }

    pub(super) fn put(&mut self, key: K, value: V, as_of: AsOf, now: Duration) {
        let full = self.young.len() >= self.bounds.entries / 2;
        if full || now.saturating_sub(self.began) >= self.bounds.max_age {
            self.old = std::mem::take(&mut self.young);
            self.began = now;
        }
        self.young.insert(key, Entry { value, as_of });
    }

    /// Forgets what is known of a key.
    pub(super) fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        (self.young, self.old) = (HashMap::new(), HashMap::new());
    }

    pub(super) fn entries(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn cache(entries: usize) -> Cache<u8, &'static str> {
        Cache::new(Bounds { max_age: SECOND, entries })
    }

    fn as_of(millis: u64, version: i64) -> AsOf {
        AsOf { time: Duration::from_millis(millis), version }
    }

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn an_entry_may_be_used_until_it_has_its_age_counted_from_before_it_was_read() {
        let mut cache = cache(10);
        cache.put(1, "a", as_of(500, 3), at(900));
        assert_eq!(cache.get(&1, at(1_499), 3), Some(&"a"));
        assert_eq!(cache.get(&1, at(1_500), 3), None);
        assert_eq!(cache.get(&2, at(1_000), 3), None);
    }

    #[test]
    fn an_entry_of_an_older_version_may_not_be_used() {
        let mut cache = cache(10);
        cache.put(1, "a", as_of(0, 3), at(0));
        cache.put(2, "b", as_of(0, 4), at(0));
        assert_eq!((cache.get(&1, at(1), 4), cache.get(&2, at(1), 4)), (None, Some(&"b")));
    }

    #[test]
    fn the_newest_of_a_key_counts_and_one_that_was_removed_is_gone() {
        let mut cache = cache(4);
        cache.put(1, "a", as_of(0, 3), at(0));
        cache.put(2, "b", as_of(0, 3), at(0));
        // From here on the first two are the old generation.
        cache.put(1, "c", as_of(5, 3), at(5));
        assert_eq!(cache.get(&1, at(5), 3), Some(&"c"));
        cache.remove(&1);
        assert_eq!((cache.get(&1, at(5), 3), cache.get(&2, at(5), 3)), (None, Some(&"b")));
    }

    proptest! {
        #[test]
        fn it_is_bounded_and_never_gives_what_is_too_old(
            entries in 2_usize..8,
            steps in proptest::collection::vec((0_u8..20, 0_u64..400, 0_u64..300, 0_i64..4), 1..80),
        ) {
            let mut cache = Cache::new(Bounds { max_age: SECOND, entries });
            let mut now = 5_000;
            for (key, pause, late, version) in steps {
                now += pause;
                let given = as_of(now - late, version);
                cache.put(key, given, given, at(now));
                prop_assert!(cache.entries() <= entries, "{} entries of {entries}", cache.entries());
                for key in 0..20 {
                    if let Some(found) = cache.get(&key, at(now), 2) {
                        prop_assert!(at(now) - found.time < SECOND && found.version >= 2);
                    }
                }
            }
        }
    }
}
