//! Running one server process, under a supervisor that outlives us just long enough to stop it.
//!
//! The supervisor is a small shell script. Its standard input is a pipe of which this process holds the other
//! end and never writes to: when this process ends, for whatever reason, the kernel closes the pipe, and the
//! script stops PostgreSQL. Both are in a process group of their own, so that Ctrl-C in a terminal reaches
//! this process alone, which then stops the server in its own order.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::account::Account;
use super::folder::DataFolder;
use super::server::{Durability, ServerConfig};
use super::{EmbeddedError, PostgresBinaries};

/// Arguments: the log, a folder to remove at the end or nothing, and then the server's own command line.
/// Fast shutdown first; after 10 s immediate shutdown, after 10 more the end.
const SUPERVISOR: &str = r#"
log=$1 scratch=$2
shift 2
umask 077
exec 3<&0 </dev/null >>"$log" 2>&1
"$@" 3<&- &
server=$!
(
    while read -r line; do :; done <&3
    for signal in INT QUIT KILL; do
        kill -$signal $server 2>/dev/null || exit
        count=0
        while [ $count -lt 100 ] && kill -0 $server 2>/dev/null; do
            sleep 0.1
            count=$((count + 1))
        done
    done
) &
watcher=$!
exec 3<&-
wait $server
status=$?
kill $watcher 2>/dev/null
[ -z "$scratch" ] || rm -rf -- "$scratch"
exit $status
"#;

/// Argument: the data folder. Waits for our end, then for the server's, and removes everything.
const JANITOR: &str = r#"
while read -r line; do :; done
count=0
while [ $count -lt 400 ] && pid=$(head -n 1 "$1/pgdata/postmaster.pid" 2>/dev/null) && kill -0 "$pid" 2>/dev/null; do
    sleep 0.1
    count=$((count + 1))
done
rm -rf -- "$1"
"#;

/// What every server gets, before the settings of the caller.
const DEFAULTS: [(&str, &str); 6] = [
    ("log_destination", "stderr"),
    ("logging_collector", "off"),
    ("log_line_prefix", "%m [%p] "),
    ("lc_messages", "C"),
    // A failing statement and the row that failed hold what the user stores.
    ("log_min_error_statement", "panic"),
    ("log_error_verbosity", "terse"),
];

/// Starts the supervisor, which starts the server. The caller waits until it answers.
pub(super) fn spawn(
    folder: &DataFolder,
    binaries: &PostgresBinaries,
    config: &ServerConfig,
    port: u16,
) -> Result<Child, EmbeddedError> {
    let (socket, temporary) = folder.socket(port)?;
    let scratch = if temporary { socket.as_os_str() } else { OsStr::new("") };
    let mut command = shell(SUPERVISOR);
    command.arg(folder.log()).arg(scratch);
    command.arg(binaries.program("postgres")).arg("-D").arg(folder.cluster());
    for (name, value) in DEFAULTS {
        command.arg("-c").arg(format!("{name}={value}"));
    }
    for (name, value) in &config.settings {
        command.arg("-c").arg(format!("{name}={value}"));
    }
    for (name, value) in durability_settings(config.durability) {
        command.arg("-c").arg(format!("{name}={value}"));
    }
    // Last, because the last one counts and this module's promises rest on these.
    command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_permissions=0700"]);
    command.arg("-c").arg(format!("port={port}"));
    command.arg("-c").arg(socket_setting(&socket));
    as_server_user(&mut command, folder.account());
    command.spawn().map_err(EmbeddedError::io("start the supervisor of", folder.root()))
}

/// A process that removes the data folder once we and the server have ended. It runs as ourselves.
pub(super) fn spawn_janitor(folder: &Path) -> Result<Child, EmbeddedError> {
    let mut command = shell(JANITOR);
    command.arg(folder).current_dir("/");
    command.spawn().map_err(EmbeddedError::io("start the remover of", folder))
}

/// Lets go of a supervisor or janitor, which then does its work.
pub(super) fn let_go(mut child: Child) {
    drop(child.stdin.take());
    // Somebody has to collect it when it ends; if no thread can be had, the end of this process does.
    let _ = std::thread::Builder::new().name("seqline-postgres-end".into()).spawn(move || child.wait());
}

/// Gives a program of PostgreSQL its user and a surrounding that does not depend on ours.
pub(super) fn as_server_user(command: &mut Command, account: Option<&Account>) {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"PG") {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C").env("TZ", "UTC");
    // PostgreSQL takes a leftover lock file for valid if some process has the number in it, but for three that
    // it knows cannot be servers: itself, its parent, and this one. In containers numbers repeat at once.
    command.env("PG_GRANDPARENT_PID", std::process::id().to_string());
    // Our working directory may be closed to the server's user.
    command.current_dir("/").process_group(0).stdin(Stdio::piped());
    if let Some(account) = account {
        account.apply(command);
    }
}

/// An option with a path, which need not be text.
pub(super) fn option_with_path(option: &str, path: &Path) -> OsString {
    let mut whole = OsString::from(option);
    whole.push(path);
    whole
}

/// Whether a supervisor has ended.
pub(super) fn has_ended(child: &mut Child) -> bool {
    // An error means that somebody else has collected it already.
    !matches!(child.try_wait(), Ok(None))
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, "seqline-postgres"]);
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn durability_settings(durability: Durability) -> [(&'static str, &'static str); 3] {
    let value = match durability {
        Durability::Durable => "on",
        Durability::Fast => "off",
    };
    [("fsync", value), ("synchronous_commit", value), ("full_page_writes", value)]
}

/// The setting is a list, so a folder with a comma in its name needs quotes.
fn socket_setting(socket: &Path) -> OsString {
    let mut setting = OsString::from("unix_socket_directories=\"");
    setting.push(quoted(socket.as_os_str()));
    setting.push("\"");
    setting
}

fn quoted(text: &OsStr) -> OsString {
    match text.to_str() {
        Some(text) => text.replace('"', "\"\"").into(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_folder_with_a_comma_stays_one_folder() {
        assert_eq!(
            socket_setting(Path::new("/data, \"mine\"/socket")),
            OsString::from("unix_socket_directories=\"/data, \"\"mine\"\"/socket\"")
        );
    }
}
