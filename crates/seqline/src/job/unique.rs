//! The key of a unique job, equal to the one that River's clients compute for the same job.

use std::fmt::Write;
use std::time::Duration;

use sha2::{Digest, Sha256};
use time::{Date, Month, OffsetDateTime, UtcOffset};

use super::new_job::{NewJob, Unique};

pub(super) fn key(job: &NewJob, unique: Unique, now: OffsetDateTime) -> [u8; 32] {
    let mut text = format!("&kind={}", job.kind);
    if unique.by_args {
        let _ = write!(text, "&args={}", job.args.to_json());
    }
    if let Some(period) = unique.by_period {
        let begin = beginning_of_period(job.run_at.unwrap_or(now), period);
        let (date, [hour, minute, second]) = (begin.date(), [begin.hour(), begin.minute(), begin.second()]);
        let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
        let _ = write!(text, "&period={year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z");
    }
    if unique.by_queue {
        let _ = write!(text, "&queue={}", job.queue);
    }
    Sha256::digest(text).into()
}

/// Periods follow each other since the beginning of the year 1, as Go counts them.
fn beginning_of_period(at: OffsetDateTime, period: Duration) -> OffsetDateTime {
    let year_one = Date::from_calendar_date(1, Month::January, 1)
        .map_or(OffsetDateTime::UNIX_EPOCH, |date| date.midnight().assume_utc());
    let since = (at - year_one).whole_nanoseconds();
    let period = i128::try_from(period.as_nanos()).unwrap_or(i128::MAX);
    let into_period = since.rem_euclid(period);
    // In two parts, because 64 bits of nanoseconds are no more than 292 years.
    let seconds = i64::try_from(into_period / 1_000_000_000).unwrap_or(i64::MAX);
    let nanoseconds = i32::try_from(into_period % 1_000_000_000).unwrap_or(0);
    let begin = at.to_offset(UtcOffset::UTC).checked_sub(time::Duration::new(seconds, nanoseconds));
    begin.unwrap_or(year_one)
}

#[cfg(test)]
mod tests;
