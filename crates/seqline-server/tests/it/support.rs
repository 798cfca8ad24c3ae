//! Running the program, and looking at what it did.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use seqline::{NewEvent, Payload};
use seqline_testkit::{Role, TestDb, eventually};
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use uuid::Uuid;

/// How long anything may take on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A call of the program. Nothing of the environment of the test gets through, so no database of the machine can be meant.
pub(crate) struct Seqline {
    command: Command,
    stdin: Option<Vec<u8>>,
}

/// The program with these arguments.
pub(crate) fn seqline<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Seqline {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seqline"));
    // Servers of several tests run at the same time.
    command
        .args(args)
        .env_clear()
        .env("SEQLINE_OPS__LISTEN", "127.0.0.1:0")
        .env("SEQLINE_API__LISTEN", "127.0.0.1:0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let_measure(&mut command);
    Seqline { command, stdin: None }
}

/// Another program, with these arguments. Of the environment of the test it has what programs are found by.
pub(crate) fn program<A: AsRef<OsStr>>(name: &str, args: impl IntoIterator<Item = A>) -> Seqline {
    let mut command = Command::new(name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.args(args).env_clear().env("PATH", path);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    Seqline { command, stdin: None }
}

/// Lets a program without the environment of the test know where to write what it ran, if it was built to: else it does so where it stands.
pub(crate) fn let_measure(command: &mut Command) {
    const FILE: &str = "LLVM_PROFILE_FILE";
    if let Some(file) = std::env::var_os(FILE) {
        command.env(FILE, file);
    }
}

/// The program on a database.
pub(crate) fn on<A: AsRef<OsStr>>(db: &TestDb, role: Role, args: impl IntoIterator<Item = A>) -> Seqline {
    seqline(args).env("SEQLINE_DATABASE_URL", db.url(role))
}

impl Seqline {
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Without a variable that all have.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn current_dir(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// What comes in on standard input, which then ends. Without it nothing comes in.
    pub(crate) fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Runs it to its end.
    pub(crate) async fn run(self) -> Outcome {
        self.start().end().await
    }

    /// Runs it to its end, which has to be a good one, and returns its data.
    pub(crate) async fn ok(self) -> String {
        self.run().await.ok()
    }

    /// Runs it to its end, which has to be this exit code and one sentence, without data. Returns the sentence.
    pub(crate) async fn refused(self, code: i32) -> String {
        let outcome = self.run().await;
        assert_eq!(outcome.stdout, "", "data of a command that failed: {outcome:?}");
        outcome.sentence(code)
    }

    /// Starts it with its standard input closed.
    pub(crate) fn start(mut self) -> Running {
        let Some(bytes) = self.stdin.take() else {
            self.command.stdin(Stdio::null());
            return Running::new(self.command);
        };
        let (running, mut stdin) = self.start_with_stdin();
        // On a task of its own: the program may read slowly, or not at all.
        tokio::spawn(async move {
            let _ = stdin.write_all(&bytes).await;
        });
        running
    }

    /// Starts it with an open standard input.
    pub(crate) fn start_with_stdin(mut self) -> (Running, ChildStdin) {
        self.command.stdin(Stdio::piped());
        let mut running = Running::new(self.command);
        let stdin = running.child.stdin.take().expect("standard input is a pipe");
        (running, stdin)
    }
}

/// The program while it runs. Dropping it kills it.
pub(crate) struct Running {
    child: Child,
    stdout: Option<Lines<BufReader<ChildStdout>>>,
    stderr: Option<BufReader<ChildStderr>>,
}

impl Running {
    fn new(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the program starts");
        let stdout = child.stdout.take().expect("standard output is a pipe");
        let stderr = child.stderr.take().expect("standard error is a pipe");
        Self { child, stdout: Some(BufReader::new(stdout).lines()), stderr: Some(BufReader::new(stderr)) }
    }

    /// The next line of data.
    pub(crate) async fn line(&mut self) -> String {
        let lines = self.stdout.as_mut().expect("standard output is still read");
        let line = tokio::time::timeout(DEADLINE, lines.next_line()).await.expect("a line comes in time");
        line.expect("the output can be read").expect("the output has not ended")
    }

    /// What it says until a line with this text.
    pub(crate) async fn talk_until(&mut self, text: &str) -> String {
        let mut talk = String::new();
        let stderr = self.stderr.as_mut().expect("the talk is read here");
        let reading = async {
            while !talk.contains(text) {
                let read = stderr.read_line(&mut talk).await.expect("the talk is text");
                assert_ne!(read, 0, "it ended after saying {talk}");
            }
        };
        let in_time = tokio::time::timeout(DEADLINE, reading).await.is_ok();
        assert!(in_time, "it does not say {text:?}, but: {talk}");
        talk
    }

    /// Gives away what it says, for somebody who reads all the time.
    pub(crate) fn take_stderr(&mut self) -> BufReader<ChildStderr> {
        self.stderr.take().expect("the talk is read by nobody else")
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the program can be waited for").is_some()
    }

    /// Reads no more of the data, as `head -n 1` does.
    pub(crate) fn close_stdout(&mut self) {
        self.stdout = None;
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().and_then(|pid| pid.try_into().ok()).expect("it runs")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("the program can be signalled");
    }

    /// Waits for its end and returns what it had still to say.
    pub(crate) async fn end(mut self) -> Outcome {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        let rest = async {
            if let Some(lines) = &mut self.stdout {
                lines.get_mut().read_to_string(&mut stdout).await.expect("the data is text");
            }
        };
        let talk = async {
            if let Some(talk) = &mut self.stderr {
                talk.read_to_string(&mut stderr).await.expect("the talk is text");
            }
        };
        let (status, (), ()) =
            tokio::time::timeout(DEADLINE, async { tokio::join!(self.child.wait(), rest, talk) })
                .await
                .expect("the program ends in time");
        assert!(!stderr.contains(PLANTED), "what an event says is in the talk: {stderr}");
        Outcome { status: status.expect("the program was waited for"), stdout, stderr }
    }
}

/// How the program ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The data of a good end without a word.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code(), Some(0), "{self:?}");
        assert_eq!(self.stderr, "", "talk of a command that went well");
        self.stdout
    }

    /// The one sentence of an end with this code.
    #[track_caller]
    pub(crate) fn sentence(&self, code: i32) -> String {
        assert_eq!(self.code(), Some(code), "{self:?}");
        let message = self.stderr.strip_prefix("seqline: ").unwrap_or_else(|| panic!("{self:?}"));
        let message = message.strip_suffix('\n').expect("the message ends its line");
        assert!(!message.contains('\n'), "more than one line: {message}");
        message.to_owned()
    }
}

/// What is in the payload of every event of these tests, and may be in no log and no message of any of them.
pub(crate) const PLANTED: &str = "planted-hunter2";

/// A valid event of type `test.happened` whose payload is `{"n": n}` and what is planted.
pub(crate) fn event(n: i64) -> NewEvent {
    let payload = format!("{{\"n\": {n}, \"planted\": \"{PLANTED}\"}}");
    let payload = Payload::from_json(&payload).expect("the payload is an object");
    NewEvent::builder("test.happened", "test", "any").payload(payload).build().expect("the event is valid")
}

/// Appends events with these payload numbers in one transaction.
pub(crate) async fn append(pool: &PgPool, numbers: impl IntoIterator<Item = i64>) {
    let events: Vec<NewEvent> = numbers.into_iter().map(event).collect();
    let mut tx = seqline::begin(pool).await.expect("a transaction begins");
    seqline::append(&mut tx, &events).await.expect("the events are appended");
    seqline::commit(tx).await.expect("the transaction commits");
}

/// The member `n` of the payloads, in the order of the log.
pub(crate) async fn numbers(db: &TestDb) -> Vec<i64> {
    sqlx::query_scalar("SELECT (payload ->> 'n')::bigint FROM seqline.event_log ORDER BY seq")
        .fetch_all(&mut db.connect(Role::Admin).await)
        .await
        .expect("the log can be read")
}

/// The schema of the jobs, if nobody says otherwise.
pub(crate) const JOBS_SCHEMA: &str = "seqline_jobs";

/// A database that was migrated by the program, with everything that a worker needs.
pub(crate) async fn server_db() -> TestDb {
    with_jobs(TestDb::new().await).await
}

/// The same of a migrated log.
pub(crate) async fn with_jobs(db: TestDb) -> TestDb {
    let migrated = seqline_server::jobs::schema::migrate(&db.options(Role::Admin), JOBS_SCHEMA).await;
    migrated.expect("the jobs can be migrated");
    db
}

/// Runs SQL as the superuser.
pub(crate) async fn as_admin(db: &TestDb, sql: &str) {
    run_sql(&mut db.connect(Role::Admin).await, sql).await;
}

pub(crate) async fn run_sql(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.expect("the SQL of the test runs");
}

/// Replaces the partitions of an empty log by small ones.
pub(crate) async fn small_partitions(db: &TestDb, size: i64, ahead: i32) {
    as_admin(
        db,
        &format!(
            "DO $$ DECLARE p record; BEGIN
                 FOR p IN SELECT name FROM seqline.event_log_partitions() LOOP
                     EXECUTE format('DROP TABLE seqline.%I', p.name);
                 END LOOP;
             END $$;
             UPDATE seqline.settings SET event_log_partition_size = {size}, event_log_partitions_ahead = {ahead};
             SELECT seqline.sync_event_log_ensure_partitions({size}, {ahead}, 0)"
        ),
    )
    .await;
}

/// The sessions of the program in a database. Those of the test itself have other roles, as long as it keeps to that.
pub(crate) struct Sessions<'a> {
    db: &'a TestDb,
    role: Role,
}

impl<'a> Sessions<'a> {
    pub(crate) fn of(db: &'a TestDb, role: Role) -> Self {
        Self { db, role }
    }

    /// Waits until at least this many of them fulfil a condition.
    pub(crate) async fn reach(&self, count: i64, condition: &str) {
        self.until(condition, |found| found >= count).await;
    }

    /// Waits until all have ended.
    pub(crate) async fn end(&self) {
        self.until("true", |found| found == 0).await;
    }

    async fn until(&self, condition: &str, enough: impl Fn(i64) -> bool) {
        let what = format!("enough sessions where {condition}");
        eventually(DEADLINE, &what, async || enough(self.count(condition).await)).await;
    }

    pub(crate) async fn count(&self, condition: &str) -> i64 {
        let sql = format!("SELECT count(*) {} AND {condition}", self.rows());
        let count = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&self.db.admin()).await;
        count.expect("sessions can be counted")
    }

    pub(crate) async fn terminate(&self) {
        as_admin(self.db, &format!("SELECT pg_terminate_backend(pid) {}", self.rows())).await;
    }

    fn rows(&self) -> String {
        let login = self.role.login();
        format!("FROM pg_stat_activity WHERE datname = current_database() AND usename = '{login}'")
    }
}

/// A session that waits in its COMMIT for the right to number events.
pub(crate) const WAITS_TO_NUMBER: &str = "wait_event_type = 'Lock' AND wait_event = 'relation'";

/// Ids and times replaced, so that texts can be compared.
pub(crate) fn masked(text: &str) -> String {
    let mask = |word: &str| {
        let core = word.trim_matches(|c| "(),".contains(c));
        if Uuid::try_parse(core).is_ok() {
            word.replace(core, "[id]")
        } else if OffsetDateTime::parse(core, &Rfc3339).is_ok() {
            word.replace(core, "[time]")
        } else {
            word.to_owned()
        }
    };
    let lines = text.lines().map(|line| line.split(' ').map(mask).collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n")
}

/// A port on which nobody listens.
pub(crate) fn closed_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port can be had");
    listener.local_addr().expect("it has an address").port()
}
