//! What benchmarks have in common: the thresholds of the documentation, what is said of many samples, and the report.
//!
//! Everything here decides or formats and does nothing else, but for [`machine`] and [`arguments`], which look at what they
//! describe.

pub mod arguments;
pub mod chart;
pub mod machine;
pub mod report;
pub mod samples;
pub mod thresholds;

pub use arguments::{Arguments, Usage};
pub use chart::Chart;
pub use report::{Report, Table};
pub use samples::{Latencies, Samples, median};
pub use thresholds::{Judgement, Threshold, Thresholds};
