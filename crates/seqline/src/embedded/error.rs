//! What can go wrong with a private server; every message says what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use super::binaries::OLDEST_MAJOR;

/// Why a private PostgreSQL server could not be found, started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// No usable installation in any of the usual places.
    #[error(
        "no PostgreSQL {OLDEST_MAJOR} or newer was found: install it (Debian and Ubuntu: `apt install \
         postgresql`, Fedora: `dnf install postgresql-server`, macOS: `brew install postgresql@18`), or name \
         the folder that holds `postgres` and `initdb` with --pg-bin or SEQLINE_PG_BIN; looked in {looked_in}"
    )]
    BinariesMissing {
        /// The places, and why something found there was passed over.
        looked_in: String,
    },

    /// A folder that was named explicitly lacks a program.
    #[error("{origin} names {}, which has no program `{missing}`: install PostgreSQL {OLDEST_MAJOR} or newer, or name the folder that holds it", dir.display())]
    NotBinaries {
        /// Which option or variable named the folder.
        origin: &'static str,
        /// The folder.
        dir: PathBuf,
        /// The missing program.
        missing: &'static str,
    },

    /// A program that was named explicitly does not tell its version.
    #[error("`{} --version` did not tell a version ({reason}); reinstall PostgreSQL or name another folder", program.display())]
    VersionUnknown {
        /// The program.
        program: PathBuf,
        /// What happened instead.
        reason: String,
    },

    /// A folder that was named explicitly holds too old a version.
    #[error("{} holds PostgreSQL {version}, but {OLDEST_MAJOR} or newer is needed", dir.display())]
    TooOld {
        /// The folder.
        dir: PathBuf,
        /// The version found there.
        version: String,
    },

    /// The data folder was written by another major version.
    #[error(
        "the data in {} belongs to PostgreSQL {data_major}, but the binaries in {} are version {}: name the \
         binaries of PostgreSQL {data_major} with --pg-bin, or choose another data folder",
        folder.display(), binaries.display(), binaries_major
    )]
    OtherMajor {
        /// The data folder.
        folder: PathBuf,
        /// The major version that wrote it.
        data_major: String,
        /// The folder of the binaries.
        binaries: PathBuf,
        /// Their major version.
        binaries_major: u16,
    },

    /// The data folder holds something else.
    #[error(
        "{} is not empty and was not made by seqline (it holds `{found}`); choose an empty or a new data folder",
        folder.display()
    )]
    NotOurs {
        /// The data folder.
        folder: PathBuf,
        /// One of the things in it.
        found: String,
    },

    /// Another process has a server on this data folder.
    #[error(
        "a server is already running on {}{}; stop it first or choose another data folder",
        folder.display(), pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    AlreadyRunning {
        /// The data folder.
        folder: PathBuf,
        /// The server's process, where it is known.
        pid: Option<i32>,
    },

    /// The port that was asked for is taken.
    #[error("port {port} on 127.0.0.1 is already in use; choose another port, or none to get a free one")]
    PortInUse {
        /// The port.
        port: u16,
    },

    /// No free port was found.
    #[error("no free port was found on 127.0.0.1 after {tries} tries; name one that is free")]
    NoFreePort {
        /// How many were tried.
        tries: u32,
    },

    /// The data folder cannot be used by this user.
    #[error("the data folder {} cannot be written ({source}); choose another or change its owner", folder.display())]
    Unwritable {
        /// The data folder.
        folder: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },

    /// Started by root, and the server's user cannot enter the data folder.
    #[error(
        "PostgreSQL must run as user `{user}` here (it refuses root), who may not enter {}; choose a data \
         folder that this user can reach, for example {}",
        blocked_by.display(), suggestion.display()
    )]
    Unreachable {
        /// The folder on the way that is closed to the user.
        blocked_by: PathBuf,
        /// The user.
        user: String,
        /// A folder that would do.
        suggestion: PathBuf,
    },

    /// Started by root, and there is nobody else to run the server as.
    #[error(
        "PostgreSQL refuses to run as root, and {why}; create a user `postgres`, or start as another user"
    )]
    NoAccount {
        /// What was tried.
        why: String,
    },

    /// The folder for the copied binaries belongs to somebody else.
    #[error("{} could be changed by other users and is not used for binaries; remove it", folder.display())]
    UntrustedCopy {
        /// The folder.
        folder: PathBuf,
    },

    /// There is a cluster, but its password is gone.
    #[error(
        "the password file {} is missing, although the folder holds a database; restore it, or choose \
         another data folder", file.display()
    )]
    PasswordMissing {
        /// The file.
        file: PathBuf,
    },

    /// The server runs, but it refuses the password that is kept beside its data.
    #[error(
        "the server refuses the password in {}; write the one of its superuser `postgres` into it",
        file.display()
    )]
    PasswordRejected {
        /// The file.
        file: PathBuf,
    },

    /// The new cluster could not be made.
    #[error("initdb failed in {}: {output}", folder.display())]
    InitFailed {
        /// The data folder.
        folder: PathBuf,
        /// The end of what initdb said.
        output: String,
    },

    /// The server ended before it answered.
    #[error("PostgreSQL ended while it was starting: {lines} (more in {})", log.display())]
    EndedEarly {
        /// The last lines of its own messages, no statements.
        lines: String,
        /// Its log.
        log: PathBuf,
    },

    /// The server runs, but it did not answer in time.
    #[error("PostgreSQL did not answer within {seconds} s; see {}", log.display())]
    NotReady {
        /// How long was waited.
        seconds: u64,
        /// Its log.
        log: PathBuf,
    },

    /// The server did not end in time.
    #[error("PostgreSQL (process {pid}) did not end in time; end it by hand")]
    NotStopped {
        /// The postmaster's process.
        pid: i32,
    },

    /// A call to the operating system failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was to be done, as "create" or "read".
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl EmbeddedError {
    /// For `map_err`: a failed call, with what it was for.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EmbeddedError {
        let path = path.to_owned();
        move |source| EmbeddedError::Io { action, path, source }
    }
}
