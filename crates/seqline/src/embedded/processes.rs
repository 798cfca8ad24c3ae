//! Looking at processes of the operating system.

/// One process, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Process {
    pid: i32,
    parent: i32,
    name: String,
    /// Ended, but not yet collected by its parent: it holds nothing any more.
    zombie: bool,
}

/// Whether a process runs.
pub(super) fn is_alive(pid: i32) -> bool {
    look_up(pid).is_some_and(|process| !process.zombie)
}

/// Whether a process runs and is a PostgreSQL server: process ids are used again.
pub(super) fn is_postgres(pid: i32) -> bool {
    look_up(pid).is_some_and(|process| !process.zombie && process.name == "postgres")
}

/// The running processes that a process has started.
pub(super) fn children(parent: i32) -> Vec<i32> {
    all().into_iter().filter(|process| process.parent == parent && !process.zombie).map(|it| it.pid).collect()
}

#[cfg(target_os = "linux")]
fn look_up(pid: i32) -> Option<Process> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

#[cfg(target_os = "linux")]
fn all() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| look_up(entry.file_name().to_str()?.parse().ok()?)).collect()
}

#[cfg(not(target_os = "linux"))]
fn look_up(pid: i32) -> Option<Process> {
    all().into_iter().find(|process| process.pid == pid)
}

#[cfg(not(target_os = "linux"))]
fn all() -> Vec<Process> {
    let listed = std::process::Command::new("ps").args(["-A", "-o", "pid=,ppid=,stat=,comm="]).output();
    let Ok(listed) = listed else { return Vec::new() };
    String::from_utf8_lossy(&listed.stdout).lines().filter_map(parse_ps).collect()
}

/// Reads `/proc/<pid>/stat`: `4711 (name) S 4700 ..`, where the name may hold blanks and parentheses.
#[cfg(any(test, target_os = "linux"))]
fn parse_stat(text: &str) -> Option<Process> {
    let (pid, rest) = text.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let mut rest = rest.split(' ');
    let zombie = matches!(rest.next()?, "Z" | "X");
    Some(Process { pid: pid.parse().ok()?, parent: rest.next()?.parse().ok()?, name: name.into(), zombie })
}

/// Reads a line of `ps -o pid=,ppid=,stat=,comm=`, where the last column may be a path.
#[cfg(any(test, not(target_os = "linux")))]
fn parse_ps(line: &str) -> Option<Process> {
    let mut columns = line.split_whitespace();
    let pid = columns.next()?.parse().ok()?;
    let parent = columns.next()?.parse().ok()?;
    let zombie = columns.next()?.starts_with('Z');
    let name = columns.collect::<Vec<_>>().join(" ");
    let name = name.rsplit('/').next()?.to_owned();
    Some(Process { pid, parent, name, zombie })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, name: &str, zombie: bool) -> Process {
        Process { pid, parent, name: name.into(), zombie }
    }

    #[test]
    fn the_stat_file_is_read_whatever_the_name() {
        assert_eq!(parse_stat("12 (postgres) S 3 12 0"), Some(process(12, 3, "postgres", false)));
        assert_eq!(parse_stat("12 (a) b (c)) Z 3 12 0"), Some(process(12, 3, "a) b (c)", true)));
        assert_eq!(parse_stat("12 postgres"), None);
    }

    #[test]
    fn a_line_of_ps_is_read() {
        assert_eq!(parse_ps("  12     3 Ss   /opt/pg/bin/postgres"), Some(process(12, 3, "postgres", false)));
        assert_eq!(parse_ps("  12     3 Z    (postgres)"), Some(process(12, 3, "(postgres)", true)));
        assert_eq!(parse_ps("pid"), None);
    }

    #[test]
    fn this_process_is_alive_and_no_postgres() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(is_alive(own));
        assert!(!is_postgres(own));
    }
}
