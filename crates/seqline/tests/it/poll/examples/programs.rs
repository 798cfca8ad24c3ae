//! The programs of the examples, as other processes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use seqline::embedded::PostgresBinaries;
use seqline_testkit::guide::{built, python_environment};
use seqline_testkit::{Role, TestDb};
use tokio::process::{Child, Command};

use super::DEADLINE;

/// A program that is about to be started.
pub(super) struct Program(Command);

impl Program {
    fn new(program: impl Into<OsString>, url: &str) -> Self {
        let mut command = Command::new(program.into());
        command.env("SEQLINE_DATABASE_URL", url).stdin(Stdio::null()).kill_on_drop(true);
        Self(command)
    }

    pub(super) fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.0.arg(arg.into());
        self
    }

    pub(super) fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    pub(super) fn start(mut self) -> Child {
        let piped = self.0.stdout(Stdio::null()).stderr(Stdio::piped());
        piped.spawn().unwrap_or_else(|error| panic!("{:?}: {error}", self.0))
    }

    async fn end(mut self) -> Output {
        let output = tokio::time::timeout(DEADLINE, self.0.output());
        output.await.expect("it ends").unwrap_or_else(|error| panic!("{:?}: {error}", self.0))
    }

    pub(super) async fn succeed(self) {
        let output = self.end().await;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// What it says.
    pub(super) async fn fail(self) -> String {
        let output = self.end().await;
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// Presses Ctrl-C, and sees the program end well.
pub(super) async fn interrupt(running: Child) {
    let pid = running.id().expect("it runs").to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().await.expect("kill runs");
    assert!(sent.success());
    let output = tokio::time::timeout(DEADLINE, running.wait_with_output()).await.expect("it ends").unwrap();
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// An example in Python, with the psycopg and the libpq of the development environment.
pub(super) fn python(db: &TestDb, name: &str) -> Program {
    let mut python = Program::new("python3", &db.url(Role::Consumer));
    python.0.envs(python_environment());
    python.arg(root().join(format!("examples/python/{name}.py")))
}

/// An example in Rust, which Cargo has built beside this test.
pub(super) fn rust(db: &TestDb, name: &str) -> Program {
    Program::new(built(name), &db.url(Role::App))
}

/// Runs a script as a person would, if psql was installed with the server, and else statement by statement.
pub(super) async fn psql(db: &TestDb, script: &str) {
    let psql = PostgresBinaries::find(None).expect("there is a server").dir().join("psql");
    if psql.exists() {
        let file = root().join("examples/sql/consume.sql");
        let url = db.url(Role::Consumer);
        let program = Program::new(psql, &url).arg("--no-psqlrc").arg("--set=ON_ERROR_STOP=1");
        program.arg("--file").arg(file).arg(url).succeed().await;
    } else {
        super::run(&mut db.connect(Role::Consumer).await, script).await;
    }
}
