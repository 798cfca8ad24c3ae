//! Let a consumer handle everything that is there, in a test of what it does.

use seqline::consumer::{ConsumerName, Consumers, Outcome, RoundError};

/// Runs rounds of a consumer until there is nothing new, and returns how many events it handled.
///
/// For tests of an application: append, drain, look at what came of it. Nothing runs in the background, so nothing has to be waited
/// for. A consumer that is paused, or that a running worker has in hand, handles nothing.
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
/// [`RoundError`] of the first round that fails. What the rounds before it did stays.
pub async fn drain(consumers: &Consumers, name: &ConsumerName) -> Result<usize, RoundError> {
    let mut handled = 0;
    loop {
        let round = consumers.round(name).await?;
        match round.outcome {
            Outcome::Processed => handled += round.processed,
            _ => return Ok(handled),
        }
    }
}
