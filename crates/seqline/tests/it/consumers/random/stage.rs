//! What goes on around a consumer in a case: writers, somebody who interferes, somebody who watches, and a journal of what was done.
//!
//! The journal has its order from one sequence. A number is drawn while the cursor of its lane is held, so of what was done to one event
//! the numbers are in the order in which it was committed. Cursors and parked events write to it by triggers.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use fastrand::Rng;
use seqline::consumer::{
    Mode, OperateError, Target, discard_parked, divide, pause, resume, retry_parked, rewind, skip,
};
use seqline_testkit::consumption::{self, Logged, Step, Tally};
use sqlx::Connection;
use tokio::task::JoinSet;

use super::plan::{Attributes, Plan, Poison, lane_of, some_lanes};
use crate::consumers::*;

/// One seed instead of some.
const SEED: &str = "SEQLINE_TEST_SEED";

/// Events that a consumer may be behind before writers wait for it.
const BACKLOG_MAX: i64 = 40;

const JOURNAL: &str = "
    CREATE TABLE journal (
        id bigserial PRIMARY KEY, what text NOT NULL, seq bigint NOT NULL, lane integer, head bigint,
        attempts integer, error_type text, xid xid8 NOT NULL DEFAULT pg_current_xact_id());
    GRANT INSERT, SELECT ON journal TO PUBLIC;
    GRANT USAGE ON SEQUENCE journal_id_seq TO PUBLIC;
    CREATE FUNCTION journal_cursor() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        IF TG_OP = 'DELETE' THEN
            INSERT INTO public.journal (what, seq, lane) VALUES ('gone', OLD.last_seq, OLD.lane);
        ELSE
            INSERT INTO public.journal (what, seq, lane, head) VALUES ('stands', NEW.last_seq, NEW.lane, seqline.head());
        END IF;
        RETURN NULL;
    END $$;
    CREATE FUNCTION journal_parked() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        INSERT INTO public.journal (what, seq, attempts, error_type) VALUES ('parked', NEW.seq, NEW.attempts, NEW.error_type);
        RETURN NULL;
    END $$;
    CREATE TRIGGER journal AFTER INSERT OR DELETE ON seqline.event_consumer_cursors
        FOR EACH ROW EXECUTE FUNCTION journal_cursor();
    CREATE TRIGGER journal_moves AFTER UPDATE ON seqline.event_consumer_cursors
        FOR EACH ROW WHEN (OLD.last_seq IS DISTINCT FROM NEW.last_seq) EXECUTE FUNCTION journal_cursor();
    CREATE TRIGGER journal AFTER INSERT ON seqline.parked_events FOR EACH ROW EXECUTE FUNCTION journal_parked()";

/// A row of the journal: number, what, seq, lane, head, attempts, error type.
type Entry = (i64, String, i64, Option<i32>, Option<i64>, Option<i32>, Option<String>);

pub(crate) struct Stage {
    pub(crate) db: TestDb,
    pub(crate) plan: Plan,
    /// Counts what workers do, and tells those who wait that something may have changed.
    pub(crate) stirred: watch::Sender<u64>,
    /// From here on nothing goes wrong that is not the event's fault.
    pub(crate) calm: CancellationToken,
    /// Everything is handled.
    pub(crate) over: CancellationToken,
    healed: AtomicBool,
    /// How often each event was handed to a handler, and what would have been its first entry in the journal.
    attempts: Mutex<HashMap<i64, (u32, i64)>>,
}

/// The seeds of a test: so many, or the one of the environment.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    match std::env::var(SEED) {
        Ok(seed) => vec![seed.parse().expect("the seed is a number")],
        Err(_) => (0..count).map(|_| fastrand::u64(..)).collect(),
    }
}

impl Stage {
    pub(crate) async fn new(plan: Plan) -> Arc<Self> {
        let db = TestDb::new().await;
        as_admin(&db, JOURNAL).await;
        Arc::new(Self {
            db,
            plan,
            stirred: watch::Sender::new(0),
            calm: CancellationToken::new(),
            over: CancellationToken::new(),
            healed: AtomicBool::new(false),
            attempts: Mutex::default(),
        })
    }

    pub(crate) fn stir(&self) {
        self.stirred.send_modify(|times| *times += 1);
    }

    /// Tells those who wait to look again.
    fn wake(&self) {
        self.stirred.send_modify(|_| ());
    }

    /// Waits until something was done since the last look, or there is no point in it any more.
    pub(crate) async fn is_stirred(stirred: &mut watch::Receiver<u64>, end: &CancellationToken) {
        tokio::select! {
            () = end.cancelled() => {}
            changed = stirred.changed() => changed.expect("the stage is there"),
        }
    }

    /// How often something was done.
    pub(crate) fn times(&self) -> u64 {
        *self.stirred.borrow()
    }

    /// Whether the handler of an event has to fail this time, which has written this entry.
    pub(crate) fn fails(&self, seq: i64, entry: i64) -> Option<Poison> {
        let mut attempts = self.attempts.lock().expect("nobody panicked");
        let (attempt, _) = attempts.entry(seq).or_insert((0, entry));
        *attempt += 1;
        let (poison, times) = self.plan.poison(seq)?;
        let fails = times.is_none_or(|times| *attempt <= times) && !self.healed.load(Ordering::SeqCst);
        fails.then_some(poison)
    }

    fn was_tried(&self, seq: i64, before: i64) -> bool {
        self.attempts.lock().expect("nobody panicked").get(&seq).is_some_and(|(_, entry)| *entry < before)
    }

    /// Lets the workers work while others append and interfere, and then until all is done, and checks what they did.
    pub(crate) async fn play(self: &Arc<Self>, mut workers: JoinSet<()>) -> Tally {
        let mut writers = JoinSet::new();
        for writer in 0..2 {
            writers.spawn(self.clone().write(writer));
        }
        workers.spawn(self.clone().watch());
        let mut random = self.plan.random(u64::MAX);
        let mut operator = self.db.connect(Role::App).await;
        for _ in 0..self.plan.orders {
            self.goes_on(&mut workers, random.u64(3..30)).await;
            self.interfere(&mut operator, &mut random).await;
            self.stir();
        }
        self.calm.cancel();
        // From here on the head is where it is.
        writers.join_all().await;
        if self.plan.parks() {
            self.comes_to(&mut workers, "what cannot be handled is put aside", async || {
                self.lag().await == 0
            })
            .await;
        }
        self.healed.store(true, Ordering::SeqCst);
        self.comes_to(&mut workers, "everything is handled", async || {
            let all = Mode::Apply { why: Some("healed") };
            retry_parked(&mut self.db.connect(Role::App).await, &name(PROBE), None, all)
                .await
                .expect("a retry");
            self.lag().await == 0 && self.parked().await.is_empty()
        })
        .await;
        self.over.cancel();
        self.stir();
        while let Some(ended) = workers.join_next().await {
            ended.expect("nobody panics");
        }
        self.check().await
    }

    async fn comes_to(
        &self,
        workers: &mut JoinSet<()>,
        what: &str,
        mut condition: impl AsyncFnMut() -> bool,
    ) {
        eventually(2 * DEADLINE, what, async || {
            assert_sound(workers);
            self.wake();
            condition().await
        })
        .await;
    }

    /// Waits until workers have done something, or there is nothing to do.
    async fn goes_on(&self, workers: &mut JoinSet<()>, calls: u64) {
        let (begun, head) = (self.times(), self.head().await);
        eventually(DEADLINE, "the consumer goes on", async || {
            assert_sound(workers);
            self.wake();
            self.times() >= begun + calls || self.head().await > head + 40 || self.lag().await == 0
        })
        .await;
    }

    async fn head(&self) -> i64 {
        seqline::read::head(&mut self.db.admin().acquire().await.unwrap()).await.expect("the head")
    }

    /// Where the lanes are.
    async fn positions(&self) -> Vec<i64> {
        sqlx::query_scalar("SELECT last_seq FROM seqline.consumer_positions(ARRAY[$1])")
            .bind(PROBE)
            .fetch_all(&self.db.admin())
            .await
            .expect("the positions can be read")
    }

    async fn lag(&self) -> i64 {
        // In this order: what is appended in between is still to come.
        let positions = self.positions().await;
        self.head().await - positions.into_iter().min().expect("there is a lane")
    }

    async fn parked(&self) -> Vec<i64> {
        sqlx::query_scalar("SELECT seq FROM seqline.parked_events ORDER BY seq")
            .fetch_all(&self.db.admin())
            .await
            .expect("the parked events can be read")
    }

    async fn append_some(&self, random: &mut Rng) {
        let events: Vec<_> = (0..random.usize(1..12)).map(|_| self.plan.some_event(random)).collect();
        let mut tx = seqline::begin(&self.db.producer()).await.unwrap();
        seqline::append(&mut tx, &events).await.unwrap();
        match random.u8(0..6) {
            0 => tx.rollback().await.unwrap(),
            _ => seqline::commit(tx).await.unwrap(),
        }
        self.wake();
    }

    async fn write(self: Arc<Self>, writer: u64) {
        let mut random = self.plan.random(u64::MAX - 1 - writer);
        let mut stirred = self.stirred.subscribe();
        while !self.calm.is_cancelled() {
            if self.lag().await < BACKLOG_MAX {
                self.append_some(&mut random).await;
            } else {
                Self::is_stirred(&mut stirred, &self.calm).await;
            }
        }
    }

    /// No cursor is ever above the head, or at a number that is not in the log.
    async fn watch(self: Arc<Self>) {
        let mut stirred = self.stirred.subscribe();
        let mut session = self.db.connect(Role::Admin).await;
        while !self.over.is_cancelled() {
            let wrong: Vec<(i32, i64, i64)> = sqlx::query_as(
                "SELECT p.lane, p.last_seq, p.head FROM seqline.consumer_positions(ARRAY[$1]) p
                 WHERE p.last_seq > p.head OR p.last_seq > 0
                   AND NOT EXISTS (SELECT FROM seqline.event_log e WHERE e.seq = p.last_seq)",
            )
            .bind(PROBE)
            .fetch_all(&mut session)
            .await
            .expect("the positions can be read");
            assert_eq!(wrong, [], "lanes, where they are, and the head");
            Self::is_stirred(&mut stirred, &self.over).await;
        }
    }

    /// Does one of the things that people do. What is refused was not possible just then.
    async fn interfere(&self, operator: &mut PgConnection, random: &mut Rng) {
        let (probe, apply) = (name(PROBE), Mode::Apply { why: Some("on purpose") });
        let positions = self.positions().await;
        let (first, last) = (*positions.iter().min().unwrap(), *positions.iter().max().unwrap());
        let parked = self.parked().await;
        let one_parked = (!parked.is_empty()).then(|| parked[random.usize(0..parked.len())]);
        let mut tx = operator.begin().await.unwrap();
        let (what, done) = match random.u8(0..12) {
            0 => {
                tx.rollback().await.unwrap();
                return self.pause_a_while(operator, random).await;
            }
            1..4 => {
                tx.rollback().await.unwrap();
                let division = (some_lanes(random), None);
                let wait = Duration::from_millis(500);
                let divided = divide(operator, &Clock::system(), &probe, division, wait, apply).await;
                return assert_possible(divided.map(drop));
            }
            4..6 => {
                let to = random.i64((last - 40).max(0)..=last).max(1);
                (("rewound", vec![to]), rewind(&mut tx, &probe, Target::Seq(to), apply).await.map(drop))
            }
            6..8 => {
                let seq = first + random.i64(1..20);
                (("skipped", vec![seq]), skip(&mut tx, &probe, seq, apply).await.map(drop))
            }
            8..10 => {
                let seq = one_parked.filter(|_| random.bool());
                (("retried", vec![]), retry_parked(&mut tx, &probe, seq, apply).await.map(drop))
            }
            _ => {
                let Some(seq) = one_parked else { return };
                (("discarded", vec![seq]), discard_parked(&mut tx, &probe, Some(seq), apply).await.map(drop))
            }
        };
        if done.is_ok() {
            // While the cursors are held.
            sqlx::query("INSERT INTO journal (what, seq) SELECT $1, unnest($2::bigint[])")
                .bind(what.0)
                .bind(what.1)
                .execute(&mut *tx)
                .await
                .unwrap();
            tx.commit().await.unwrap();
        }
        assert_possible(done);
    }

    /// Nothing is handled between a pause and the end of it.
    async fn pause_a_while(&self, operator: &mut PgConnection, random: &mut Rng) {
        let handled = async || -> i64 {
            let handled = "SELECT count(*) FROM journal WHERE what = 'handled'";
            sqlx::query_scalar(handled).fetch_one(&self.db.admin()).await.unwrap()
        };
        assert!(pause(operator, &name(PROBE), None).await.unwrap());
        let before = handled().await;
        for _ in 0..3 {
            self.append_some(random).await;
        }
        assert_eq!(handled().await, before, "events were handled in a pause");
        assert!(resume(operator, &name(PROBE), None).await.unwrap());
    }

    async fn check(&self) -> Tally {
        let admin = self.db.admin();
        let log: Vec<Attributes> = sqlx::query_as("SELECT * FROM seqline.event_log ORDER BY seq")
            .fetch_all(&admin)
            .await
            .expect("the log can be read");
        // Where a cursor stands counts from the end of its transaction: whoever polls writes effects behind that.
        let journal: Vec<Entry> = sqlx::query_as(
            "SELECT id, what, seq, lane, head, attempts, error_type FROM journal
             ORDER BY CASE what WHEN 'stands' THEN max(id) OVER (PARTITION BY xid) ELSE id END, what = 'stands', id",
        )
        .fetch_all(&admin)
        .await
        .expect("the journal can be read");
        self.check_lanes(&log, &journal);
        let (entries, steps): (Vec<&Entry>, Vec<Step>) =
            journal.iter().filter_map(|entry| Some((entry, step(entry)?))).unzip();
        let log: Vec<Logged> = log
            .iter()
            .map(|event| Logged {
                seq: event.seq,
                key: self.plan.key_of(event),
                matches: self.plan.asked.matches(event),
            })
            .collect();
        let head = log.len() as i64;
        assert!(self.positions().await.iter().all(|at| *at == head), "all lanes are at the head");
        consumption::check(&log, &steps).unwrap_or_else(|misstep| {
            let around = &entries[misstep.step.saturating_sub(60)..entries.len().min(misstep.step + 5)];
            let lines: Vec<String> = around.iter().map(|entry| format!("{entry:?}")).collect();
            panic!("{misstep}\nthe journal until then:\n{}", lines.join("\n"))
        })
    }

    /// Each event was handled in the lane of its key, and parked after as many attempts as it has, of which there were some.
    fn check_lanes(&self, log: &[Attributes], journal: &[Entry]) {
        let mut lanes = BTreeSet::new();
        for (id, what, seq, lane, _, attempts, error_type) in journal {
            match (what.as_str(), lane) {
                ("stands", Some(lane)) => drop(lanes.insert(*lane)),
                ("gone", Some(lane)) => drop(lanes.remove(lane)),
                ("handled", Some(lane)) => {
                    let key = self.plan.key_of(&log[*seq as usize - 1]);
                    assert_eq!(
                        *lane,
                        lane_of(key.as_deref(), lanes.len()),
                        "entry {id}: seq {seq} of {key:?}"
                    );
                }
                ("parked", _) => {
                    let expected = if error_type.is_some() { self.plan.attempts() } else { 0 };
                    assert_eq!(*attempts, Some(expected), "entry {id}: seq {seq} after {error_type:?}");
                    // Nothing is known of one whose attempt was cut off.
                    let failed = error_type.as_deref().is_some_and(|error_type| error_type != "aborted");
                    assert!(!failed || self.was_tried(*seq, *id), "entry {id}: seq {seq} was never tried");
                }
                _ => {}
            }
        }
    }
}

fn step((_, what, seq, lane, head, ..): &Entry) -> Option<Step> {
    let (seq, lane) = (*seq, lane.unwrap_or_default());
    Some(match what.as_str() {
        "handled" => Step::Handled { seq },
        "parked" => Step::Parked { seq },
        "discarded" => Step::Discarded { seq },
        "skipped" => Step::Skipped { seq },
        "rewound" => Step::Rewound { to: seq },
        "stands" => Step::Stands { lane, at: seq, head: head.expect("it was read") },
        "gone" => Step::Gone { lane },
        _ => return None,
    })
}

/// Whoever of them has failed says why, at once.
fn assert_sound(workers: &mut JoinSet<()>) {
    while let Some(ended) = workers.try_join_next() {
        ended.expect("nobody panics");
    }
}

fn assert_possible(done: Result<(), OperateError>) {
    if let Err(error) = done {
        let possible = matches!(error, OperateError::Refused { .. } | OperateError::LaneBehind { .. });
        assert!(possible, "{error:?}");
    }
}
