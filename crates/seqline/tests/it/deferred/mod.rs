//! The application's own deferred constraints and triggers run in COMMIT too, and wait for anybody: numbering comes after
//! them, so that one idle client never stops the log. And nothing that a session may set makes numbering come early.

mod constraints;
mod sessions;
mod waits;
