//! The data folder: what lies where, who may use it, and that one process uses it at a time.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use uuid::Uuid;

use super::account::{Account, ENTER};
use super::processes::is_postgres;
use super::waiting::wait_until;
use super::{EmbeddedError, PostgresBinaries};

/// The cluster.
const CLUSTER: &str = "pgdata";
/// A cluster that initdb is still writing.
const UNFINISHED: &str = "pgdata.new-";
const LOG: &str = "postgres.log";
const OLD_LOG: &str = "postgres.log.old";
const PASSWORD: &str = "seqline.password";
const SOCKET: &str = "socket";

/// A log larger than this is set aside at the next start.
const LOG_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// PostgreSQL takes 107 bytes on Linux and 103 on macOS for the path of a socket, with its own name in it.
const SOCKET_PATH_BYTES_MAX: usize = 100;

/// How long a server whose process has just died may take to end.
const PREDECESSOR_LIMIT: Duration = Duration::from_secs(15);

/// A data folder that this process alone uses.
#[derive(Debug)]
pub(super) struct DataFolder {
    root: PathBuf,
    account: Option<Account>,
    /// Locked for as long as it is open. The kernel frees it when this process ends, however it ends.
    _lock: File,
}

/// What a running server writes into its cluster.
#[derive(Debug)]
pub(super) struct PidFile {
    pub(super) pid: i32,
    pub(super) is_ready: bool,
}

impl DataFolder {
    /// Takes a folder into use; makes it if there is none.
    pub(super) async fn claim(path: &Path) -> Result<DataFolder, EmbeddedError> {
        let root = make(path)?;
        let lock = lock(&root)?;
        require_ours(&root)?;
        let account = Account::for_data(&root)?;
        if let Some(account) = &account {
            hand_over(&root, account)?;
        }
        let folder = DataFolder { root, account, _lock: lock };
        folder.wait_for_predecessor().await?;
        folder.sweep()?;
        Ok(folder)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Who the server runs as; `None` is ourselves.
    pub(super) fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }

    pub(super) fn cluster(&self) -> PathBuf {
        self.root.join(CLUSTER)
    }

    pub(super) fn log(&self) -> PathBuf {
        self.root.join(LOG)
    }

    pub(super) fn password_file(&self) -> PathBuf {
        self.root.join(PASSWORD)
    }

    /// A name for a cluster that becomes ours only when it is complete.
    pub(super) fn unfinished_cluster(&self) -> PathBuf {
        self.root.join(format!("{UNFINISHED}{}", Uuid::new_v4().simple()))
    }

    /// Whether there is a cluster. One of another major version is refused.
    pub(super) fn has_cluster_for(&self, binaries: &PostgresBinaries) -> Result<bool, EmbeddedError> {
        let file = self.cluster().join("PG_VERSION");
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(EmbeddedError::io("read", &file)(error)),
        };
        if text.trim() == binaries.major().to_string() {
            return Ok(true);
        }
        Err(EmbeddedError::OtherMajor {
            folder: self.root.clone(),
            data_major: text.trim().into(),
            binaries: binaries.dir().into(),
            binaries_major: binaries.major(),
        })
    }

    /// The superuser's password.
    pub(super) fn password(&self) -> Result<String, EmbeddedError> {
        let file = self.password_file();
        match fs::read_to_string(&file) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(EmbeddedError::PasswordMissing { file })
            }
            Err(error) => Err(EmbeddedError::io("read", &file)(error)),
        }
    }

    /// Writes a new password, unless an earlier start that did not get further left one.
    pub(super) fn create_password(&self) -> Result<(), EmbeddedError> {
        let file = self.password_file();
        if file.exists() {
            return Ok(());
        }
        // Under another name first: the file is complete or not there.
        let draft = self.root.join(format!("{PASSWORD}.new"));
        let unwritable = |source| EmbeddedError::Unwritable { folder: self.root.clone(), source };
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unwritable(error)),
            _ => {}
        }
        let mut open =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).map_err(unwritable)?;
        // A version 4 UUID comes from the operating system's source of randomness.
        writeln!(open, "{}", Uuid::new_v4().simple()).and_then(|()| open.sync_all()).map_err(unwritable)?;
        if let Some(account) = &self.account {
            account.adopt(&draft)?;
        }
        fs::rename(&draft, &file).map_err(unwritable)
    }

    /// The folder for the Unix socket of a server on this port, and whether it is only for this run.
    pub(super) fn socket(&self, port: u16) -> Result<(PathBuf, bool), EmbeddedError> {
        let own = self.root.join(SOCKET);
        let (socket, temporary) = if own.join(socket_name(port)).as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
            (own, false)
        } else {
            let name = format!("seqline-socket-{}", Uuid::new_v4().simple());
            (Path::new("/tmp").join(name), true)
        };
        match DirBuilder::new().mode(0o700).create(&socket) {
            Err(error) if temporary || error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(EmbeddedError::io("create", &socket)(error));
            }
            _ => {}
        }
        if let Some(account) = &self.account {
            account.adopt(&socket)?;
        }
        Ok((socket, temporary))
    }

    /// What the server says about itself, if it has written all of it.
    pub(super) fn pid_file(&self) -> Option<PidFile> {
        parse_pid_file(&fs::read_to_string(self.cluster().join("postmaster.pid")).ok()?)
    }

    /// Sets a large log aside, so that it does not grow without end.
    pub(super) fn rotate_log(&self) -> Result<(), EmbeddedError> {
        let log = self.log();
        if log.symlink_metadata().is_ok_and(|found| found.len() > LOG_BYTES_MAX) {
            fs::rename(&log, self.root.join(OLD_LOG)).map_err(EmbeddedError::io("rename", &log))?;
        }
        Ok(())
    }

    /// The server of a process that was killed is stopped by its supervisor, which takes a moment.
    async fn wait_for_predecessor(&self) -> Result<(), EmbeddedError> {
        let running = || self.pid_file().map(|file| file.pid).filter(|pid| is_postgres(*pid));
        if wait_until(PREDECESSOR_LIMIT, || running().is_none()).await {
            return Ok(());
        }
        Err(EmbeddedError::AlreadyRunning { folder: self.root.clone(), pid: running() })
    }

    /// Removes what a killed first start left.
    fn sweep(&self) -> Result<(), EmbeddedError> {
        for name in names_in(&self.root)? {
            if name.as_bytes().starts_with(UNFINISHED.as_bytes()) {
                let left = self.root.join(name);
                fs::remove_dir_all(&left).map_err(EmbeddedError::io("remove", &left))?;
            }
        }
        Ok(())
    }
}

fn make(path: &Path) -> Result<PathBuf, EmbeddedError> {
    let unwritable = |source| EmbeddedError::Unwritable { folder: path.into(), source };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(unwritable)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(unwritable(error)),
        _ => {}
    }
    // Absolute, because the server starts in another working directory.
    path.canonicalize().map_err(unwritable)
}

fn lock(root: &Path) -> Result<File, EmbeddedError> {
    let unwritable = |source| EmbeddedError::Unwritable { folder: root.into(), source };
    let folder = File::open(root).map_err(unwritable)?;
    match folder.try_lock() {
        Ok(()) => Ok(folder),
        Err(TryLockError::WouldBlock) => {
            let text = fs::read_to_string(root.join(CLUSTER).join("postmaster.pid")).unwrap_or_default();
            let pid = parse_pid_file(&text).map(|file| file.pid);
            Err(EmbeddedError::AlreadyRunning { folder: root.into(), pid })
        }
        Err(TryLockError::Error(source)) => Err(unwritable(source)),
    }
}

/// Ours is a folder with a finished cluster, or one with nothing but what a first start leaves.
fn require_ours(root: &Path) -> Result<(), EmbeddedError> {
    if root.join(CLUSTER).join("PG_VERSION").exists() {
        return Ok(());
    }
    match names_in(root)?.into_iter().find(|name| !is_ours(name)) {
        None => Ok(()),
        Some(name) => {
            Err(EmbeddedError::NotOurs { folder: root.into(), found: name.to_string_lossy().into_owned() })
        }
    }
}

fn is_ours(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let starts = [UNFINISHED, PASSWORD].iter().any(|start| name.starts_with(start.as_bytes()));
    starts || [LOG, OLD_LOG, SOCKET].iter().any(|known| name == known.as_bytes())
}

/// Root's own folder becomes the server's; the way to it has to be open already.
fn hand_over(root: &Path, account: &Account) -> Result<(), EmbeddedError> {
    let found = root.metadata().map_err(EmbeddedError::io("read", root))?;
    if found.uid() == 0 {
        account.adopt(root)?;
    }
    match account.blocked_by(root, ENTER) {
        None => Ok(()),
        Some(blocked_by) => Err(EmbeddedError::Unreachable {
            blocked_by,
            user: account.name.clone(),
            suggestion: suggestion(root),
        }),
    }
}

fn suggestion(root: &Path) -> PathBuf {
    let base = [Path::new("/var/lib"), Path::new("/opt")].into_iter().find(|base| base.is_dir());
    let base = base.map_or_else(env::temp_dir, Path::to_owned);
    base.join("seqline").join(root.file_name().unwrap_or_else(|| OsStr::new("data")))
}

fn names_in(root: &Path) -> Result<Vec<std::ffi::OsString>, EmbeddedError> {
    let unwritable = |source| EmbeddedError::Unwritable { folder: root.into(), source };
    let entries = fs::read_dir(root).map_err(unwritable)?;
    entries.map(|entry| Ok(entry.map_err(unwritable)?.file_name())).collect()
}

fn socket_name(port: u16) -> String {
    format!(".s.PGSQL.{port}")
}

/// Reads `postmaster.pid`: the process in the first line, the state in the eighth.
fn parse_pid_file(text: &str) -> Option<PidFile> {
    let mut lines = text.lines();
    let pid = lines.next()?.trim().parse().ok()?;
    let is_ready = lines.nth(6).is_some_and(|state| state.trim() == "ready");
    Some(PidFile { pid, is_ready })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pid_file_tells_when_the_server_is_ready() {
        let text = "4711\n/data/pgdata\n1760000000\n20001\n/data/socket\n127.0.0.1\n  12 3\nready   \n";
        let ready = parse_pid_file(text).unwrap();
        assert_eq!((ready.pid, ready.is_ready), (4711, true));
        assert!(!parse_pid_file(&text.replace("ready", "starting")).unwrap().is_ready);
        assert!(!parse_pid_file("4711\n/data").unwrap().is_ready);
        assert!(parse_pid_file("").is_none());
    }

    #[test]
    fn only_the_names_of_a_first_start_are_ours() {
        for name in ["pgdata.new-12", "postgres.log", "seqline.password", "seqline.password.new", "socket"] {
            assert!(is_ours(OsStr::new(name)), "{name}");
        }
        for name in ["PG_VERSION", "pgdata", "notes.txt", "base"] {
            assert!(!is_ours(OsStr::new(name)), "{name}");
        }
    }
}
