//! x
/// x
#[derive(Debug)]
pub struct Standby;
