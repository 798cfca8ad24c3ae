//! The file of rejected lines: one JSON object each, with the number of the line, the reason and the line itself.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::commands::file_failure;
use crate::failure::Failure;

/// A line that did not become an event.
#[derive(Debug, Serialize)]
pub(super) struct Reject {
    pub(super) line: i64,
    pub(super) reason: String,
    /// Absent when the line is too long or not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
}

/// Opened at the first reject, so that an import without one leaves no file. Appended to, because a resumed import adds to
/// what the first run rejected.
pub(super) struct Rejects {
    path: PathBuf,
    file: Option<File>,
}

impl Rejects {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is a place for the file, before lines depend on it.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let folder = match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let checked = folder.metadata().and_then(|found| match found.is_dir() {
            true => Ok(()),
            false => Err(ErrorKind::NotADirectory.into()),
        });
        checked.map_err(|error| file_failure("write", &self.path, &error))
    }

    /// Writes rejects through to the disk: the transaction that notes their lines as done comes after.
    pub(super) fn write(&mut self, rejects: &[&Reject]) -> Result<(), Failure> {
        if rejects.is_empty() {
            return Ok(());
        }
        let mut text = String::new();
        for reject in rejects {
            text.push_str(
                &serde_json::to_string(reject).map_err(|error| Failure::Unexpected(error.to_string()))?,
            );
            text.push('\n');
        }
        self.append(text.as_bytes()).map_err(|error| file_failure("write", &self.path, &error))
    }

    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(open(&self.path)?),
        };
        file.write_all(bytes)?;
        file.sync_data()
    }
}

/// A new file is for the owner only: the lines can hold anything.
fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}
