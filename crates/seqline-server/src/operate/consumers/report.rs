//! Everything about a consumer.

use seqline::consumer::{ConsumerDetails, Filter, LaneState, Loss};
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::row::Row;
use crate::operate::audit;
use crate::output::rfc3339;

/// Everything about a consumer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ConsumerDetails)]
pub(crate) struct Report {
    /// Where it stands, and how it is.
    consumer: Row,
    /// What it asks for.
    filter: FilterReport,
    /// What the events have in common that stay in order.
    lane_key: String,
    /// Each of its lanes.
    lanes: Vec<LaneReport>,
    /// The first events that it leaves out and has not come to.
    skipped: Vec<i64>,
    /// How many those are altogether.
    skipped_events: i64,
    /// What retention took before it had come there, the highest first.
    lost: Vec<LossReport>,
    /// How many ranges those are altogether.
    lost_ranges: i64,
    /// What people did to it last, the last first.
    audit: Vec<audit::Row>,
}

/// What a consumer asks for. A list that is missing asks for everything.
#[derive(Debug, Serialize, Default, ToSchema)]
#[schema(as = ConsumerFilter)]
struct FilterReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    types: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    spaces: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    channels: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    resource_kinds: Option<Vec<String>>,
}

/// Where a lane stands.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ConsumerLane)]
struct LaneReport {
    /// Its number, from 0.
    lane: u32,
    /// The last event that it has passed.
    last_seq: i64,
    /// When it was moved last.
    #[schema(format = DateTime)]
    updated_at: String,
    /// What it tries.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    trying: Option<TryingReport>,
}

/// A round that has begun and has not succeeded so far.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ConsumerAttempt)]
struct TryingReport {
    /// The last event of the round that took many.
    until_seq: i64,
    /// The event that is tried alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    seq: Option<i64>,
    /// How often it was.
    attempts: u32,
    /// When it is tried again.
    #[schema(format = DateTime)]
    next_attempt_at: String,
    /// How the last attempt ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error_type: Option<String>,
}

/// A piece of the log that was lost.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LostRange)]
struct LossReport {
    /// The first event.
    from: i64,
    /// The last event.
    to: i64,
    /// When the consumer found out.
    #[schema(format = DateTime)]
    at: String,
}

impl Report {
    pub(crate) fn of(details: ConsumerDetails, now: OffsetDateTime) -> Self {
        Self {
            consumer: Row::of(details.state, now),
            filter: FilterReport::of(&details.filter),
            lane_key: details.lane_key,
            lanes: details.lanes.into_iter().map(LaneReport::of).collect(),
            skipped: details.skipped,
            skipped_events: details.skipped_count,
            lost: details.losses.iter().map(LossReport::of).collect(),
            lost_ranges: details.losses_count,
            audit: details.audit.into_iter().map(audit::Row::of).collect(),
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
