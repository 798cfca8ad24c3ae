//! A plan steps over nothing but what retention took, whatever a round has read.

#![no_main]

use seqline::consumer::{LostRange, PlanError, RoundPlan, Scan, plan_round};

// The same that the library's own tests check.
#[path = "../../crates/seqline/src/consumer/plan/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::check_bytes(bytes));
