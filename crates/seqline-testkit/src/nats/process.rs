//! A process and a folder that do not outlive the test, however that ends: each has a shell that lives as long as its standard input is
//! open, and then ends the process, or removes the folder.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::errno::Errno;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::wait::pause;

/// Starts `$0 -c $1`, its output in `$2`, and says its process id. Ends when that ends, and with the same status.
const SUPERVISED: &str = r#"exec 3<&0
"$0" -c "$1" </dev/null >>"$2" 2>&1 3<&- &
server=$!
echo $server
{ read -r _ <&3; kill -9 $server 2>/dev/null; } >/dev/null &
guard=$!
wait $server
status=$?
kill $guard 2>/dev/null
exit $status"#;

/// Removes `$0`. A process that is being ended may still write there, so it is tried for five seconds.
const REMOVED: &str = r#"read -r _
tries=0
while [ -e "$0" ] && [ $tries -lt 50 ]; do
    rm -rf "$0" 2>/dev/null || sleep 0.1
    tries=$((tries + 1))
done"#;

/// Between two looks whether it has ended.
const LOOK: Duration = Duration::from_millis(5);

/// Looks until a process that got a signal counts as one that does not end: 30 seconds.
const LOOKS: u32 = 6000;

/// A program that runs with a configuration, until it is dropped.
#[derive(Debug)]
pub(super) struct Process {
    shell: Child,
    pid: Pid,
}

impl Process {
    /// Starts it. That the program can be run at all shows later: [`ended`](Self::ended), and what it wrote.
    pub(super) fn start(program: &Path, config: &Path, log: &Path) -> anyhow::Result<Process> {
        let mut shell = shell(SUPERVISED)
            .args([program, config, log])
            .stdout(Stdio::piped())
            .spawn()
            .context("start a shell")?;
        let mut line = String::new();
        if let Some(stdout) = shell.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).context("read a process id")?;
        }
        let pid = line.trim().parse().with_context(|| format!("read a process id in \"{line}\""))?;
        Ok(Process { shell, pid: Pid::from_raw(pid) })
    }

    pub(super) fn id(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// How it has ended, if it has.
    pub(super) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.shell.try_wait().context("look after a shell")
    }

    /// The shell waits for it, so its id is nobody else's before it has ended.
    pub(super) fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        if self.ended()?.is_none() {
            match signal::kill(self.pid, signal) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => return Err(error).with_context(|| format!("send {signal}")),
            }
        }
        Ok(())
    }

    /// Waits until it is gone.
    pub(super) async fn gone(mut self) -> anyhow::Result<ExitStatus> {
        for _ in 0..LOOKS {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            pause(LOOK).await;
        }
        anyhow::bail!("process {} does not end", self.pid)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL ends one that is stopped, too.
        let _ = self.signal(Signal::SIGKILL);
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// A temporary folder.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    shell: Child,
}

impl Folder {
    pub(super) fn create() -> anyhow::Result<Folder> {
        let folder = tempfile::Builder::new().prefix("seqline-nats-").tempdir().context("make a folder")?;
        let shell = shell(REMOVED).arg(folder.path()).spawn().context("start a shell")?;
        // From here on the shell removes it.
        Ok(Folder { path: folder.keep(), shell })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

fn shell(script: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    // Some shells say it when a process was killed. What the process itself says is in its log.
    shell
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/");
    shell
}

/// Copies what is in a folder into one that is made for it.
pub(super) fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), &target)
                .with_context(|| format!("copy {}", entry.path().display()))?;
        }
    }
    Ok(())
}

/// Leaves a folder without anything in it, whether it was there or not.
pub(super) fn empty_folder(path: &Path) -> anyhow::Result<()> {
    if path.exists() {
        std::fs::remove_dir_all(path).with_context(|| format!("remove {}", path.display()))?;
    }
    std::fs::create_dir_all(path).with_context(|| format!("make {}", path.display()))?;
    ensure!(path.read_dir()?.next().is_none(), "{} is not empty", path.display());
    Ok(())
}
