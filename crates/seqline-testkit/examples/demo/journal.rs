//! What agents did, in one order: a file to which all of their processes append.
//!
//! A line is written with one call before anything follows from it, so it is there although the process is killed right after.

use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

/// One line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Which of the instances of the agent: 1, 2 or 3.
    pub(crate) instance: u32,
    pub(crate) process: u32,
    pub(crate) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum What {
    /// It is given events from here on, and so many at most that it has not acknowledged.
    Begins { how: How, acked: i64, window: usize },
    /// It has done what it does about an event.
    Handled { seq: i64, id: Uuid, payload: u64, redelivered: bool },
    /// It is about to acknowledge.
    Acknowledges { seq: i64 },
    /// The server has said that it has read this acknowledgement.
    Taken { seq: i64 },
    /// It was told not to come again.
    Ends { code: u16 },
    /// Said by the demo: now something happens after which acknowledgements count only as far as they are stored, and up to here they are.
    Unsaved { stored: i64 },
    /// Said by the demo: now somebody else comes at the same server. What was taken up to here has to be there then.
    Replaces,
}

/// How an agent comes to its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum How {
    /// It identified itself.
    Identified,
    /// It went on with the session of a connection that was lost.
    Resumed,
    /// It asks over REST.
    Asked,
}

/// Writes lines of one process.
pub(crate) struct Writer {
    file: File,
    instance: u32,
}

impl Writer {
    pub(crate) fn open(path: &Path, instance: u32) -> anyhow::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path).context("open the journal")?;
        Ok(Self { file, instance })
    }

    pub(crate) fn write(&mut self, what: What) -> anyhow::Result<()> {
        let entry = Entry { instance: self.instance, process: std::process::id(), what };
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        // All of it at once: others write as well.
        self.file.write_all(&line).context("write to the journal")
    }
}

/// Reads what has been written since.
pub(crate) struct Reader {
    file: File,
    /// A line that was not whole yet.
    rest: Vec<u8>,
    pub(crate) entries: Vec<Entry>,
}

impl Reader {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            file: File::open(path).context("open the journal")?,
            rest: Vec::new(),
            entries: Vec::new(),
        })
    }

    /// All entries that there are.
    pub(crate) fn read(&mut self) -> anyhow::Result<&[Entry]> {
        self.file.read_to_end(&mut self.rest).context("read the journal")?;
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for line in self.rest.drain(..whole).collect::<Vec<_>>().split(|byte| *byte == b'\n') {
            if !line.is_empty() {
                self.entries.push(serde_json::from_slice(line).context("a line of the journal")?);
            }
        }
        Ok(&self.entries)
    }
}

/// What an agent keeps of a payload, to compare it with that in the log.
pub(crate) fn fingerprint(payload: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    payload.to_string().hash(&mut hasher);
    hasher.finish()
}
