//! A consumer as JSON.

use seqline::consumer::{AuditEntry, ConsumerDetails, Filter, LaneState, Loss};
use serde::Serialize;
use serde_json::value::RawValue;
use time::OffsetDateTime;

use crate::commands::status::consumers as view;
use crate::output::rfc3339;

#[derive(Serialize)]
pub(super) struct Report {
    consumer: view::Row,
    filter: FilterReport,
    lane_key: String,
    lanes: Vec<LaneReport>,
    skipped: Vec<i64>,
    skipped_events: i64,
    lost: Vec<LossReport>,
    lost_ranges: i64,
    audit: Vec<AuditReport>,
}

/// A list that is missing asks for everything.
#[derive(Serialize, Default)]
struct FilterReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    types: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spaces: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    channels: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_kinds: Option<Vec<String>>,
}

#[derive(Serialize)]
struct LaneReport {
    lane: u32,
    last_seq: i64,
    updated_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    trying: Option<TryingReport>,
}

#[derive(Serialize)]
struct TryingReport {
    until_seq: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<i64>,
    attempts: u32,
    next_attempt_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<String>,
}

#[derive(Serialize)]
struct LossReport {
    from: i64,
    to: i64,
    at: String,
}

/// What was before and after is missing when it is too long.
#[derive(Serialize)]
struct AuditReport {
    at: String,
    who: String,
    action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Report {
    pub(super) fn of(details: ConsumerDetails, now: OffsetDateTime) -> Self {
        Self {
            consumer: view::row(details.state, now),
            filter: FilterReport::of(&details.filter),
            lane_key: details.lane_key,
            lanes: details.lanes.into_iter().map(LaneReport::of).collect(),
            skipped: details.skipped,
            skipped_events: details.skipped_count,
            lost: details.losses.iter().map(LossReport::of).collect(),
            lost_ranges: details.losses_count,
            audit: details.audit.into_iter().map(AuditReport::of).collect(),
        }
    }
}

impl FilterReport {
    fn of(filter: &Filter) -> Self {
        let mut report = Self::default();
        for (what, values) in filter.lists() {
            let list = match what {
                "type" => &mut report.types,
                "space" => &mut report.spaces,
                "channel" => &mut report.channels,
                _ => &mut report.resource_kinds,
            };
            *list = Some(values.to_vec());
        }
        report
    }
}

impl LaneReport {
    fn of(lane: LaneState) -> Self {
        let trying = lane.trying.map(|trying| TryingReport {
            until_seq: trying.until_seq,
            seq: trying.seq,
            attempts: trying.attempts,
            next_attempt_at: rfc3339(trying.next_attempt_at),
            error_type: trying.error_type,
        });
        Self { lane: lane.lane, last_seq: lane.last_seq, updated_at: rfc3339(lane.updated_at), trying }
    }
}

impl LossReport {
    fn of(loss: &Loss) -> Self {
        Self { from: loss.from, to: loss.to, at: rfc3339(loss.at) }
    }
}

impl AuditReport {
    fn of(entry: AuditEntry) -> Self {
        Self {
            at: rfc3339(entry.at),
            who: entry.who,
            action: entry.action,
            before: RawValue::from_string(entry.before).ok(),
            after: RawValue::from_string(entry.after).ok(),
            why: entry.why,
        }
    }
}
