//! Codes of PostgreSQL by which something is decided here.

pub(crate) const UNIQUE_VIOLATION: &str = "23505";
pub(crate) const DEADLOCK_DETECTED: &str = "40P01";
pub(crate) const INSUFFICIENT_PRIVILEGE: &str = "42501";
pub(crate) const UNDEFINED_OBJECT: &str = "42704";
pub(crate) const UNDEFINED_FUNCTION: &str = "42883";
pub(crate) const UNDEFINED_TABLE: &str = "42P01";
pub(crate) const UNDEFINED_SCHEMA: &str = "3F000";
pub(crate) const LOCK_NOT_AVAILABLE: &str = "55P03";
pub(crate) const QUERY_CANCELED: &str = "57014";
