//! Which requests are appended together, and when. It decides and does nothing.
//!
//! Whoever has waited longest is in the next group. Requests whose events have ids of their own are in other groups than those without:
//! such ids are looked up, and one that is taken fails its transaction. Of requests with the same key one is under way at a time, so that
//! the others get its answer.

use std::collections::{HashSet, VecDeque};

/// A request that waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Waiting<T> {
    /// How many events it has.
    pub(super) events: usize,
    /// Whether any of them has an id of its own.
    pub(super) has_ids: bool,
    /// Whose key, and which.
    pub(super) key: Option<Key>,
    pub(super) what: T,
}

/// A principal and a key of it.
pub(super) type Key = (String, String);

/// All that wait.
#[derive(Debug)]
pub(super) struct Queue<T> {
    groups_max: usize,
    events_max: usize,
    waiting: VecDeque<Waiting<T>>,
    /// Groups that are under way.
    groups: usize,
    /// Keys of requests in them.
    under_way: HashSet<Key>,
}

impl<T> Queue<T> {
    /// At most so many groups are under way, with at most so many events each; a request that has more is alone in its group.
    pub(super) fn new(groups_max: usize, events_max: usize) -> Self {
        Self { groups_max, events_max, waiting: VecDeque::new(), groups: 0, under_way: HashSet::new() }
    }

    pub(super) fn push(&mut self, waiting: Waiting<T>) {
        self.waiting.push_back(waiting);
    }

    /// The next group, and its keys, which are to be given back when it has ended.
    pub(super) fn next(&mut self) -> Option<(Vec<T>, Vec<Key>)> {
        if self.groups >= self.groups_max {
            return None;
        }
        let mut group = Vec::new();
        let mut keys = Vec::new();
        let mut events = 0;
        let mut has_ids = None;
        let mut rest = VecDeque::with_capacity(self.waiting.len());
        for waiting in self.waiting.drain(..) {
            let fits = group.is_empty() || events + waiting.events <= self.events_max;
            let is_alike = has_ids.is_none_or(|has_ids| has_ids == waiting.has_ids);
            let is_free = waiting.key.as_ref().is_none_or(|key| !self.under_way.contains(key));
            if !(fits && is_alike && is_free) {
                rest.push_back(waiting);
                continue;
            }
            events += waiting.events;
            has_ids = Some(waiting.has_ids);
            if let Some(key) = waiting.key {
                self.under_way.insert(key.clone());
                keys.push(key);
            }
            group.push(waiting.what);
        }
        self.waiting = rest;
        if group.is_empty() {
            return None;
        }
        self.groups += 1;
        Some((group, keys))
    }

    /// A group with these keys has ended.
    pub(super) fn ended(&mut self, keys: Vec<Key>) {
        self.groups = self.groups.saturating_sub(1);
        for key in keys {
            self.under_way.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn waiting(number: usize, events: usize, has_ids: bool, key: Option<u8>) -> Waiting<usize> {
        let key = key.map(|key| ("app".to_owned(), key.to_string()));
        Waiting { events, has_ids, key, what: number }
    }

    fn queue(groups_max: usize, events_max: usize, all: Vec<Waiting<usize>>) -> Queue<usize> {
        let mut queue = Queue::new(groups_max, events_max);
        all.into_iter().for_each(|waiting| queue.push(waiting));
        queue
    }

    fn next(queue: &mut Queue<usize>) -> Option<Vec<usize>> {
        queue.next().map(|(group, _)| group)
    }

    #[test]
    fn what_waits_goes_together_as_far_as_it_fits() {
        let all = (0..5).map(|number| waiting(number, 2, false, None)).collect();
        let mut queue = queue(9, 6, all);
        assert_eq!(next(&mut queue), Some(vec![0, 1, 2]));
        assert_eq!(next(&mut queue), Some(vec![3, 4]));
        assert_eq!(next(&mut queue), None);
    }

    #[test]
    fn a_large_request_goes_alone_and_holds_nobody_up() {
        let mut queue = queue(
            9,
            6,
            vec![waiting(0, 1, false, None), waiting(1, 50, false, None), waiting(2, 1, false, None)],
        );
        assert_eq!(next(&mut queue), Some(vec![0, 2]));
        assert_eq!(next(&mut queue), Some(vec![1]));
    }

    #[test]
    fn few_groups_are_under_way_at_once() {
        let all = (0..4).map(|number| waiting(number, 1, false, None)).collect();
        let mut queue = queue(2, 1, all);
        assert_eq!(
            (next(&mut queue), next(&mut queue), next(&mut queue)),
            (Some(vec![0]), Some(vec![1]), None)
        );
        queue.ended(Vec::new());
        assert_eq!((next(&mut queue), next(&mut queue)), (Some(vec![2]), None));
    }

    #[test]
    fn of_requests_with_one_key_one_is_under_way() {
        let all = vec![
            waiting(0, 1, false, Some(1)),
            waiting(1, 1, false, Some(1)),
            waiting(2, 1, false, Some(2)),
            waiting(3, 1, false, None),
        ];
        let mut queue = queue(9, 9, all);
        let (group, keys) = queue.next().unwrap();
        assert_eq!((group, keys.len()), (vec![0, 2, 3], 2));
        assert_eq!(next(&mut queue), None);
        queue.ended(keys);
        assert_eq!(next(&mut queue), Some(vec![1]));
    }

    #[test]
    fn events_with_ids_of_their_own_go_apart() {
        let all = (0..4).map(|number| waiting(number, 1, number % 2 == 1, None)).collect();
        let mut queue = queue(9, 9, all);
        assert_eq!((next(&mut queue), next(&mut queue)), (Some(vec![0, 2]), Some(vec![1, 3])));
    }

    proptest! {
        #[test]
        fn each_request_goes_once_and_within_all_bounds(
            asked in proptest::collection::vec((1..9_usize, any::<bool>(), proptest::option::of(0..3_u8)), 1..40),
            groups_max in 1..4_usize,
            events_max in 1..12_usize,
            ends in proptest::collection::vec(any::<bool>(), 200),
        ) {
            let mut queue = Queue::new(groups_max, events_max);
            let mut left = asked.iter().enumerate();
            let mut gone = Vec::new();
            let mut under_way: Vec<(Vec<usize>, Vec<Key>)> = Vec::new();
            for ends in ends.into_iter().chain(std::iter::repeat_n(true, 200)) {
                if let Some((number, (events, has_ids, key))) = left.next() {
                    queue.push(waiting(number, *events, *has_ids, *key));
                }
                if let Some((group, keys)) = queue.next() {
                    let events: usize = group.iter().map(|number| asked[*number].0).sum();
                    prop_assert!(group.len() == 1 || events <= events_max);
                    prop_assert!(group.iter().all(|number| asked[*number].1 == asked[group[0]].1));
                    let busy: Vec<&Key> = under_way.iter().flat_map(|(_, keys)| keys).collect();
                    prop_assert!(keys.iter().all(|key| !busy.contains(&key)));
                    prop_assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
                    gone.extend(group.iter().copied());
                    under_way.push((group, keys));
                    prop_assert!(under_way.len() <= groups_max);
                }
                if ends && !under_way.is_empty() {
                    let (_, keys) = under_way.remove(0);
                    queue.ended(keys);
                }
            }
            gone.sort_unstable();
            prop_assert_eq!(gone, (0..asked.len()).collect::<Vec<_>>());
        }
    }
}
