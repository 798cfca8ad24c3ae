//! The `test` task: everything that is tested, against a real PostgreSQL.

use std::env;
use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result};

use crate::brokers::Brokers;
use crate::clients::Clients;
use crate::run::Steps;
use crate::sources::Source;
use crate::workspace::Workspace;
use crate::{launch, setup, sources};

/// Arguments of cargo for the log's own tests.
const LOG: [&str; 8] = ["test", "--package", "seqline", "--all-features", "--locked", "--test", "it", "--"];

/// What runs once more behind a pooler in transaction mode.
const POOLED: [&str; 9] = [
    "append_rules::",
    "numbering::",
    "consumers::rounds",
    "consumers::parking",
    "consumers::lanes",
    "consumers::filters",
    "consumers::moves",
    "poll::rounds",
    "tail::",
];

/// What does not: tests that LISTEN through a pool or say statements of their own outside a transaction, and those that take long and are about
/// something else.
const NOT_POOLED: [&str; 4] = [
    "numbering::units",
    "append_rules::json::of_duplicate_keys",
    "append_rules::webhooks",
    "consumers::lanes::random",
];

/// What tests need beside the code.
pub(crate) struct Needed {
    postgresql: Source,
    payloads: Source,
    psycopg: Vec<Source>,
    pgbouncer: Source,
    brokers: Brokers,
    schemathesis: Option<Source>,
    /// Not to test the log alone.
    clients: Option<Clients>,
}

impl Needed {
    pub(crate) fn of(major: u32) -> Result<Self> {
        Ok(Self {
            postgresql: sources::postgresql(major)?,
            payloads: sources::webhooks_examples()?,
            psycopg: sources::psycopg()?,
            pgbouncer: sources::pgbouncer()?,
            brokers: Brokers::find()?,
            schemathesis: sources::schemathesis()?,
            clients: (major == sources::DEFAULT_MAJOR).then(Clients::new).transpose()?,
        })
    }

    pub(crate) fn sources(&self) -> impl Iterator<Item = &Source> {
        let one = [&self.postgresql, &self.payloads, &self.pgbouncer];
        let clients = self.clients.iter().flat_map(Clients::sources);
        let optional = self.brokers.sources().chain(&self.schemathesis);
        one.into_iter().chain(&self.psycopg).chain(optional).chain(clients)
    }

    /// Compiles what tests run beside what Cargo compiles.
    pub(crate) fn compile(&self, steps: &Steps, workspace: &Workspace) -> Result<()> {
        self.clients.iter().try_for_each(|clients| clients.compile(steps, workspace))
    }

    /// Tells a command where all of it is.
    pub(crate) fn tell(&self, command: Command, workspace: &Workspace) -> Result<Command> {
        let dev = workspace.dev();
        let mut command =
            launch::with_environment(command, workspace, &self.postgresql, Some(&self.payloads));
        let python_path = env::join_paths(self.psycopg.iter().map(|source| source.path(&dev)))
            .context("failed to put the folders of psycopg together")?;
        command.env("SEQLINE_PSYCOPG", python_path);
        command.env("SEQLINE_PGBOUNCER_BIN", self.pgbouncer.path(&dev));
        self.brokers.tell(&mut command, workspace);
        if let Some(schemathesis) = &self.schemathesis {
            command.env("SEQLINE_SCHEMATHESIS", schemathesis.path(&dev));
        }
        if let Some(clients) = &self.clients {
            clients.tell(&mut command, workspace);
        }
        Ok(command)
    }
}

/// With the default major version all tests run. Another one can only change how the log behaves, so only the log's
/// own tests run.
pub(crate) fn test(workspace: &Workspace, major: u32, args: &[OsString]) -> Result<()> {
    let needed = Needed::of(major)?;
    setup::prepare(workspace, &needed.sources().collect::<Vec<_>>())?;
    let version = sources::postgresql_version(&needed.postgresql.path(&workspace.dev()))?;
    let tell = |command: Command| needed.tell(command, workspace);

    let steps = Steps::start();
    if major == sources::DEFAULT_MAJOR {
        let build = workspace.cargo(["build", "--workspace", "--all-features", "--locked"]);
        steps.run("build", &mut tell(build)?)?;
        needed.compile(&steps, workspace)?;
        let test =
            workspace.cargo(["test", "--workspace", "--all-features", "--locked", "--no-fail-fast", "--"]);
        steps.run(&format!("all tests on PostgreSQL {version}"), tell(test)?.args(args))?;
        if args.is_empty() {
            needed.clients.iter().try_for_each(|clients| clients.test(&steps, workspace))?;
        }
        // The log and its consumers behave the same when numbers come after commit. What is no database's business does not run again, nor
        // what chooses by itself how events are numbered, nor what is about River or the schema.
        let mut again = tell(workspace.cargo(LOG))?;
        again.env("SEQLINE_TEST_SEQUENCING", "after_commit");
        for module in [
            "tidy",
            "mutations",
            "readme",
            "learn",
            "sequencing",
            "committing",
            "durability",
            "jobs",
            "migrations",
        ] {
            again.args(["--skip", &format!("{module}::")]);
        }
        steps.run("the log's tests, numbered after commit", again.args(args))?;
        if args.is_empty() {
            let mut pooled = tell(workspace.cargo(LOG))?;
            pooled.env("SEQLINE_TEST_POOLER", "transaction").args(POOLED);
            for test in NOT_POOLED {
                pooled.args(["--skip", test]);
            }
            steps.run("the log's tests behind a pooler", &mut pooled)?;
        }
    } else {
        // The tests run the examples, which `--test` does not build.
        let examples =
            workspace.cargo(["build", "--package", "seqline", "--all-features", "--locked", "--examples"]);
        steps.run("build", &mut tell(examples)?)?;
        let test = workspace.cargo(LOG);
        steps.run(&format!("the log's tests on PostgreSQL {version}"), tell(test)?.args(args))?;
    }
    steps.finish(&format!("test: all is well on PostgreSQL {version}"));
    Ok(())
}
