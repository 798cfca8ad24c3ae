use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn batch(taken: &[i64], drawn: i64) -> Batch {
    Batch { taken: taken.to_vec(), drawn, ..Batch::default() }
}

#[test]
fn what_was_drawn_and_not_seen_is_missing_until_it_is_taken() {
    let mut window = Window::new(10, vec![]);
    window.after(&batch(&[11, 13], 15));
    assert_eq!((window.high(), window.missing()), (15, vec![12, 14, 15]));
    window.after(&batch(&[12, 15, 16], 16));
    assert_eq!((window.high(), window.missing()), (16, vec![14]));
    window.after(&batch(&[14], 16));
    assert_eq!((window.high(), window.missing()), (16, vec![]));
}

#[test]
fn a_number_is_given_up_when_everyone_who_can_have_drawn_it_is_finished() {
    let mut window = Window::new(0, vec![]);
    window.after(&batch(&[2], 2));
    assert!(window.needs_mark());
    // The id of the batch in which it was noticed is no mark: it was drawn before.
    window.after(&Batch { xid: Some(100), xmin: 100, ..batch(&[], 2) });
    assert!(!window.needs_mark());
    window.after(&Batch { xmin: 100, ..batch(&[], 2) });
    assert_eq!(window.missing(), [1]);
    window.after(&Batch { xmin: 101, ..batch(&[], 2) });
    assert_eq!((window.high(), window.missing()), (2, vec![]));
}

#[test]
fn a_batch_that_left_some_gives_nothing_up_and_looks_no_further_than_it_took() {
    let mut window = Window::new(0, vec![]);
    window.after(&batch(&[2], 2));
    window.after(&Batch { xid: Some(100), ..batch(&[], 2) });
    window.after(&Batch { xmin: 200, more: true, ..batch(&[3, 4], 9) });
    assert_eq!((window.high(), window.missing()), (4, vec![1]));
}

/// A model of transactions that have an id, draw a number, and commit or fail.
#[derive(Debug, Clone, Copy)]
enum Step {
    Begin,
    Draw(usize),
    Commit(usize),
    Fail(usize),
    Look { limit: usize },
    TakeOver,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Begin),
        3 => (0_usize..8).prop_map(Step::Draw),
        2 => (0_usize..8).prop_map(Step::Commit),
        1 => (0_usize..8).prop_map(Step::Fail),
        4 => (1_usize..6).prop_map(|limit| Step::Look { limit }),
        1 => Just(Step::TakeOver),
    ]
}

/// What the database does, as simply as it can be said.
#[derive(Default)]
struct Database {
    next_xid: i64,
    drawn: i64,
    open: Vec<(i64, Option<i64>)>,
    waiting: BTreeSet<i64>,
    committed: BTreeSet<i64>,
}

impl Database {
    fn xid(&mut self) -> i64 {
        self.next_xid += 1;
        self.next_xid
    }

    fn look(&mut self, window: &Window, limit: usize) -> Batch {
        let xid = window.needs_mark().then(|| self.xid());
        let xmin = self.open.iter().map(|(xid, _)| *xid).chain(xid).min().unwrap_or(self.next_xid + 1);
        let missing = window.missing();
        let seen: Vec<i64> =
            self.waiting.iter().copied().filter(|n| missing.contains(n) || *n > window.high()).collect();
        let taken: Vec<i64> = seen.iter().copied().take(limit).collect();
        taken.iter().for_each(|n| {
            self.waiting.remove(n);
        });
        Batch { more: seen.len() >= limit, taken, events: 0, drawn: self.drawn, xid, xmin }
    }
}

proptest! {
    #[test]
    fn everything_that_commits_is_taken_once_also_when_another_sequencer_goes_on(
        steps in proptest::collection::vec(step(), 1..200)
    ) {
        let (mut database, mut window, mut taken) = (Database::default(), Window::new(0, vec![]), BTreeSet::new());
        for step in steps {
            match step {
                Step::Begin => {
                    let xid = database.xid();
                    database.open.push((xid, None));
                }
                Step::Draw(at) if at < database.open.len() => {
                    // Drawn again, it comes later.
                    database.drawn += 1;
                    database.open[at].1 = Some(database.drawn);
                }
                Step::Commit(at) if at < database.open.len() => {
                    if let (_, Some(number)) = database.open.remove(at) {
                        database.waiting.insert(number);
                        database.committed.insert(number);
                    }
                }
                Step::Fail(at) if at < database.open.len() => {
                    database.open.remove(at);
                }
                // Another one goes on from what was noted.
                Step::TakeOver => window = Window::new(window.high(), window.missing()),
                Step::Look { limit } => {
                    let batch = database.look(&window, limit);
                    for number in &batch.taken {
                        prop_assert!(taken.insert(*number), "{number} twice");
                    }
                    window.after(&batch);
                    let still = database.open.iter().filter_map(|(_, number)| *number).chain(database.waiting.iter().copied());
                    for number in still {
                        prop_assert!(
                            number > window.high() || window.missing().contains(&number),
                            "{number} can still come, and nobody looks for it"
                        );
                    }
                }
                _ => {}
            }
        }
        // Once all have ended, a few looks take what there is and leave nothing to look for.
        database.open.clear();
        for _ in 0..database.committed.len() + 3 {
            let batch = database.look(&window, 5);
            taken.extend(batch.taken.iter().copied());
            window.after(&batch);
        }
        prop_assert_eq!(&taken, &database.committed);
        prop_assert_eq!(window.missing(), Vec::<i64>::new());
    }
}
