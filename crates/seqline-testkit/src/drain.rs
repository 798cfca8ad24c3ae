//! Let a consumer handle everything that is there, in a test of what it does.

use seqline::consumer::{ConsumerName, Consumers, Outcome, RoundError};

/// Rounds after which draining is given up.
pub const ROUNDS_MAX: usize = 100_000;

/// Runs rounds of a consumer until there is nothing new, and returns how many events it handled.
///
/// For tests of an application: append, drain, look at what came of it. Nothing runs in the background, so nothing has to be waited
/// for.
///
/// ```no_run
/// # use seqline::consumer::{ConsumerName, Consumers};
/// # async fn example(consumers: Consumers) -> Result<(), Box<dyn std::error::Error>> {
/// consumers.ensure().await?;
/// assert_eq!(seqline_testkit::drain(&consumers, &ConsumerName::new("invoices")?).await?, 3);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`RoundError`] of the first round that fails. What the rounds before it did stays. With a consumer that parks each attempt is one, so drain
/// again until the event is parked.
///
/// # Panics
///
/// When the consumer is paused or retired, waits before it tries an event again, or another worker has it in hand, so that a test does
/// not pass because nothing happened; and after [`ROUNDS_MAX`] rounds, which is what a handler that appends for itself does.
pub async fn drain(consumers: &Consumers, name: &ConsumerName) -> Result<usize, RoundError> {
    let mut handled = 0;
    for _ in 0..ROUNDS_MAX {
        let round = consumers.round(name).await?;
        match round.outcome {
            Outcome::Processed => handled += round.processed,
            Outcome::Idle => return Ok(handled),
            Outcome::Locked => panic!("another worker has consumer {name} in hand: stop it before draining"),
            Outcome::Waiting => {
                panic!(
                    "consumer {name} waits before it tries an event again: let its backoff be zero in tests"
                )
            }
            Outcome::Paused => panic!("consumer {name} is paused"),
            outcome => panic!("no round of consumer {name} begins: it is {outcome:?}"),
        }
    }
    panic!("consumer {name} is not done after {ROUNDS_MAX} rounds: does its handler append for itself?")
}
