//! Pages of a guide that are run as they stand there: what readers type is typed, the files that they make are made, and what the page
//! says that they see is compared with what is seen.
//!
//! A page has blocks in three backticks. One of the language `console` has commands after `$ `, each with what it prints. A command that
//! goes on until somebody presses Ctrl-C has `^C` behind what it prints. Any other block whose paragraph before it ends with the name of a
//! file in backticks and a colon is that file.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use seqline::embedded::PostgresBinaries;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;
use uuid::Uuid;

/// How long a command may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// What a reader of a page does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Makes a file.
    File {
        /// Its name.
        name: String,
        /// What is in it.
        content: String,
    },
    /// Types a command.
    Command {
        /// The command.
        line: String,
        /// What it prints.
        prints: Vec<String>,
        /// Whether it is ended with Ctrl-C.
        interrupted: bool,
    },
}

/// What a reader of this page does, in order.
///
/// # Panics
///
/// When a block does not end, or a console begins with something else than a command.
#[must_use]
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut before = "";
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            before = if line.trim().is_empty() { before } else { line };
            continue;
        };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if language == "console" {
            steps.extend(commands(&block));
        } else if let Some(name) = file_name(before) {
            steps.push(Step::File { name: name.to_owned(), content: format!("{}\n", block.join("\n")) });
        }
        before = "";
    }
    steps
}

fn commands(block: &[&str]) -> Vec<Step> {
    let mut commands: Vec<Step> = Vec::new();
    for text in block {
        if let Some(line) = text.strip_prefix("$ ") {
            commands.push(Step::Command { line: line.to_owned(), prints: Vec::new(), interrupted: false });
            continue;
        }
        match commands.last_mut() {
            Some(Step::Command { interrupted, .. }) if *text == "^C" => *interrupted = true,
            Some(Step::Command { prints, .. }) => prints.push((*text).to_owned()),
            _ => panic!("a console begins with a command, not with: {text}"),
        }
    }
    commands
}

/// Of a paragraph that ends like this: ``Put this into `pay.py`:``.
fn file_name(paragraph: &str) -> Option<&str> {
    let name = paragraph.strip_suffix("`:")?.rsplit('`').next()?;
    name.contains('.').then_some(name)
}

/// A terminal in an empty folder.
#[derive(Debug)]
pub struct Terminal {
    folder: TempDir,
    /// Programs that were made up, found before all others.
    made_up: TempDir,
    environment: BTreeMap<OsString, OsString>,
    beside_others: bool,
}

impl Terminal {
    /// In which these programs are found, before those of the machine, and no database is set.
    ///
    /// # Panics
    ///
    /// When there is no room for a folder.
    #[must_use]
    pub fn new(programs: &Path) -> Self {
        let [folder, made_up] = [(), ()].map(|()| tempfile::tempdir().expect("a folder can be made"));
        let others = env::var_os("PATH").unwrap_or_default();
        let first = [made_up.path().to_owned(), programs.to_owned()];
        let path = env::join_paths(first.into_iter().chain(env::split_paths(&others)));
        let path = path.expect("paths have no colons");
        let environment = BTreeMap::from([("PATH".into(), path)]);
        Self { folder, made_up, environment, beside_others: false }
    }

    /// The same with a program that is this script of a shell, for one that a test cannot run as it is.
    ///
    /// # Panics
    ///
    /// When there is no room for it.
    #[must_use]
    pub fn program(self, name: &str, script: &str) -> Self {
        let file = self.made_up.path().join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("the program can be written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("it can be made executable");
        self
    }

    /// The same with a variable.
    #[must_use]
    pub fn set(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    /// The same on a server with what other pages have made: what a page shows is among what is seen, with other numbers.
    #[must_use]
    pub fn beside_others(mut self) -> Self {
        self.beside_others = true;
        self
    }

    /// The same, with this example of the package `seqline` for whatever cargo is told to run: it would build what is built already.
    ///
    /// # Panics
    ///
    /// When the example is not built.
    #[must_use]
    pub fn cargo_runs(self, example: &str) -> Self {
        let example = built(example);
        let script =
            format!("while [ \"$1\" != -- ]; do shift; done; shift; exec '{}' \"$@\"", example.display());
        self.program("cargo", &script)
    }

    /// Does one step, and compares what is seen with what the page says.
    ///
    /// # Panics
    ///
    /// When a command fails, takes too long, or prints something else than the page says.
    pub async fn does(&mut self, step: &Step) {
        match step {
            Step::File { name, content } => {
                fs::write(self.folder.path().join(name), content).expect("the file can be written");
            }
            Step::Command { line, prints, interrupted: false } => self.runs(line, prints).await,
            Step::Command { line, prints, interrupted: true } => self.interrupts(line, prints).await,
        }
    }

    async fn runs(&mut self, line: &str, prints: &[String]) {
        let exported = line.strip_prefix("export ").and_then(|rest| rest.split_once('='));
        // What is exported is there for the commands that follow.
        let typed = match exported {
            Some((name, _)) => format!("{line}; printf %s \"${name}\""),
            None => line.to_owned(),
        };
        let output = tokio::time::timeout(DEADLINE, self.shell(&typed).output()).await;
        let output = output.unwrap_or_else(|_| panic!("takes too long: {line}")).expect("a shell starts");
        let [said, talk] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success(), "{line}\n{said}{talk}");
        match exported {
            Some((name, _)) => {
                assert!(!said.is_empty(), "{line}: {talk}");
                self.environment.insert(name.into(), OsStr::new(said.as_ref()).to_owned());
            }
            None => self.compares(line, said.trim_end(), prints, &talk),
        }
    }

    async fn interrupts(&self, line: &str, prints: &[String]) {
        let mut command = self.shell(line);
        // Ctrl-C is for everything that the line has started.
        let mut child = command.process_group(0).spawn().expect("a shell starts");
        let group = Pid::from_raw(child.id().expect("it runs").try_into().expect("a process id is small"));
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut seen = Vec::new();
        let reading = async {
            while seen.len() < prints.len() {
                match lines.next_line().await.expect("it can be read") {
                    Some(line) => seen.push(line),
                    None => break,
                }
            }
        };
        let in_time = tokio::time::timeout(DEADLINE, reading).await.is_ok();
        let ended = killpg(group, Signal::SIGINT);
        let mut talk = String::new();
        let waited = {
            let mut ending = Box::pin(async {
                let read = child.stderr.take().expect("it is piped").read_to_string(&mut talk).await;
                drop(read);
                child.wait().await
            });
            match tokio::time::timeout(DEADLINE, &mut ending).await {
                // Python drops an interrupt that comes while it runs a finalizer, and somebody at a terminal types it again.
                Err(_) if line.starts_with("python3 ") => {
                    let _ = killpg(group, Signal::SIGINT);
                    tokio::time::timeout(DEADLINE, ending).await
                }
                waited => waited,
            }
        };
        assert!(in_time, "{line}\nprinted {seen:#?}\n{talk}");
        assert!(ended.is_ok() && waited.is_ok(), "does not end: {line}\n{talk}");
        self.compares(line, &seen.join("\n"), prints, &talk);
    }

    fn compares(&self, line: &str, seen: &str, prints: &[String], talk: &str) {
        if self.beside_others {
            let seen: Vec<String> = seen.lines().map(without_numbers).collect();
            for said in prints {
                assert!(
                    seen.contains(&without_numbers(said)),
                    "{line}\ndoes not say {said}: {seen:#?}\n{talk}"
                );
            }
        } else {
            assert_eq!(masked(seen), masked(&prints.join("\n")), "{line}\n{talk}");
        }
    }

    fn shell(&self, line: &str) -> Command {
        // What started the tests may ignore Ctrl-C, and a shell that begins so does to its end. A terminal begins anew.
        let mut shell = Command::new("env");
        shell
            .args(["--default-signal=INT", "sh", "-c", line])
            .current_dir(self.folder.path())
            .env_remove("DATABASE_URL")
            .env_remove("SEQLINE_DATABASE_URL")
            .envs(&self.environment)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        shell
    }
}

/// What differs each time, replaced: ids, times, and when to come again.
fn masked(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match different(rest) {
            Some((mask, length)) => {
                masked.push_str(mask);
                length
            }
            None => {
                masked.push(first);
                first.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    masked
}

/// A line as it is on every server: without what differs each time, without numbers, and however wide its columns are.
fn without_numbers(line: &str) -> String {
    let mut numbers = false;
    let mut text = String::with_capacity(line.len());
    for word in masked(line).split_whitespace() {
        for c in word.chars() {
            if !(c.is_ascii_digit() && numbers) {
                text.push(if c.is_ascii_digit() { '0' } else { c });
            }
            numbers = c.is_ascii_digit();
        }
        numbers = false;
        text.push(' ');
    }
    text
}

/// What stands for the beginning of a text that differs each time, and how long that is.
fn different(text: &str) -> Option<(&'static str, usize)> {
    const RETRY: &str = "retry: ";
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    if text.get(..36).is_some_and(|id| id.contains('-') && Uuid::try_parse(id).is_ok()) {
        return Some(("[id]", 36));
    }
    if let Some(rest) = text.strip_prefix(RETRY) {
        return Some(("retry: [ms]", RETRY.len() + digits(rest)));
    }
    // 2026-11-30T08:00:00.123456Z
    let shape = |(position, byte): (usize, u8)| match position {
        4 | 7 => byte == b'-',
        10 => byte == b'T',
        13 | 16 => byte == b':',
        _ => byte.is_ascii_digit(),
    };
    let time = text.as_bytes().get(..19)?;
    if !time.iter().copied().enumerate().all(shape) {
        return None;
    }
    let fraction = text[19..].strip_prefix('.').map_or(0, |rest| 1 + digits(rest));
    text[19 + fraction..].starts_with('Z').then_some(("[time]", 20 + fraction))
}

/// With what a program in Python finds psycopg, and psycopg the library of PostgreSQL.
///
/// # Panics
///
/// When they are not there: that is a failure, not a reason to skip.
#[must_use]
pub fn python_environment() -> [(&'static str, OsString); 3] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // psycopg in Python only loads libpq, from the system or from what is named here. PostgreSQL brings one.
    let beside = |bin: &Path| bin.join("../lib");
    let libraries = [
        beside(PostgresBinaries::find(None).expect("there is a server").dir()),
        beside(&root.join(".dev/postgresql-18/bin")),
    ];
    let brought = libraries.into_iter().filter(|folder| folder.join("libpq.so").exists());
    let brought = env::join_paths(brought).expect("paths have no colons");
    [("PYTHONPATH", psycopg(&root)), ("PYTHONDONTWRITEBYTECODE", "1".into()), ("LD_LIBRARY_PATH", brought)]
}

/// An example of the package `seqline`, which is built with all tests.
///
/// # Panics
///
/// When it is missing, or older than its source.
#[must_use]
pub fn built(example: &str) -> PathBuf {
    let this = env::current_exe().expect("a test knows where it is");
    let program = this.ancestors().nth(2).expect("it is in deps/").join("examples").join(example);
    let changed = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../seqline/examples/{example}.rs"));
    assert!(
        changed(&program) >= changed(&source),
        "run `cargo build -p seqline --all-features --example {example}`: {} is missing or older than its source",
        program.display()
    );
    program
}

/// The folders of psycopg and what it needs.
fn psycopg(root: &Path) -> OsString {
    if let Some(folders) = env::var_os("SEQLINE_PSYCOPG").filter(|folders| !folders.is_empty()) {
        return folders;
    }
    let folders =
        ["psycopg", "typing-extensions"].map(|name| root.join(".dev/python").join(name).join("wheel"));
    assert!(
        folders.iter().all(|folder: &PathBuf| folder.is_dir()),
        "run `cargo xtask setup`, or set SEQLINE_PSYCOPG to the folder that holds `psycopg`"
    );
    env::join_paths(folders).expect("paths have no colons")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# A page

Put this into `pay.py`:

```python
print(1)

print(2)
```

Something else, which nobody runs:

```toml
a = 1
```

```console
$ python3 pay.py
1
2
$ sleep 100
^C
```
";

    #[test]
    fn a_page_is_files_and_commands() {
        let command = |line: &str, prints: &[&str], interrupted| Step::Command {
            line: line.to_owned(),
            prints: prints.iter().map(|line| (*line).to_owned()).collect(),
            interrupted,
        };
        assert_eq!(
            steps(PAGE),
            [
                Step::File { name: "pay.py".to_owned(), content: "print(1)\n\nprint(2)\n".to_owned() },
                command("python3 pay.py", &["1", "2"], false),
                command("sleep 100", &[], true),
            ]
        );
    }

    #[test]
    fn what_differs_each_time_is_not_compared() {
        let text = "{\"id\":\"01a22829-3440-70d1-831a-ff66c934a49a\",\"at\":\"2026-11-30T08:00:00.12Z\"} retry: 2417";
        assert_eq!(masked(text), "{\"id\":\"[id]\",\"at\":\"[time]\"} retry: [ms]");
        for same in ["2026-11-30", "retry later", "\u{e4}\u{e4}", "01a22829-3440-70d1-831a", "12:30"] {
            assert_eq!(masked(same), same);
        }
    }

    #[tokio::test]
    async fn a_terminal_keeps_files_and_what_is_exported() {
        let mut terminal = Terminal::new(Path::new("/nowhere"));
        for step in steps(
            "Into `a.txt`:\n\n```text\nhello\n```\n\n```console\n$ export WHO=\"$(cat a.txt)\"\n$ echo $WHO\nhello\n$ echo one; exec sleep 100\none\n^C\n```\n",
        ) {
            terminal.does(&step).await;
        }
    }

    #[tokio::test]
    async fn beside_others_what_a_page_shows_is_among_what_is_seen_with_other_numbers() {
        let mut terminal = Terminal::new(Path::new("/nowhere")).beside_others();
        for step in steps("```console\n$ printf 'a   71 x\\nb 812  y\\n'\nb  1 y\n```\n") {
            terminal.does(&step).await;
        }
    }

    #[tokio::test]
    #[should_panic(expected = "does not say b 1 x")]
    async fn beside_others_what_a_page_shows_is_missed_all_the_same() {
        let mut terminal = Terminal::new(Path::new("/nowhere")).beside_others();
        for step in steps("```console\n$ printf 'a 1 x\\nb 1 y\\n'\nb 1 x\n```\n") {
            terminal.does(&step).await;
        }
    }

    #[tokio::test]
    #[should_panic(expected = "left: \"two\"")]
    async fn something_else_than_the_page_says_fails() {
        let mut terminal = Terminal::new(Path::new("/nowhere"));
        for step in steps("```console\n$ echo two\none\n```\n") {
            terminal.does(&step).await;
        }
    }
}
