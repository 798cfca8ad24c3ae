//! The `test` task: everything that is tested, against a real PostgreSQL.

use std::env;
use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result};

use crate::run::Steps;
use crate::workspace::Workspace;
use crate::{launch, setup, sources};

/// Arguments of cargo for the log's own tests.
const LOG: [&str; 8] = ["test", "--package", "seqline", "--all-features", "--locked", "--test", "it", "--"];

/// With the default major version all tests run. Another one can only change how the log behaves, so only the log's
/// own tests run.
pub(crate) fn test(workspace: &Workspace, major: u32, args: &[OsString]) -> Result<()> {
    let postgresql = sources::postgresql(major)?;
    let payloads = sources::webhooks_examples()?;
    let psycopg = sources::psycopg()?;
    let pgbouncer = sources::pgbouncer()?;
    let needed = [&postgresql, &payloads, &pgbouncer].into_iter().chain(&psycopg);
    setup::prepare(workspace, &needed.collect::<Vec<_>>())?;
    let dev = workspace.dev();
    let version = sources::postgresql_version(&postgresql.path(&dev))?;
    let python_path = env::join_paths(psycopg.iter().map(|source| source.path(&dev)))
        .context("failed to put the folders of psycopg together")?;
    let with_environment = |command: Command| {
        let mut command = launch::with_environment(command, workspace, &postgresql, Some(&payloads));
        command.env("SEQLINE_PSYCOPG", &python_path);
        command.env("SEQLINE_PGBOUNCER_BIN", pgbouncer.path(&dev));
        command
    };

    let steps = Steps::start();
    if major == sources::DEFAULT_MAJOR {
        let build = workspace.cargo(["build", "--workspace", "--all-features", "--locked"]);
        steps.run("build", &mut with_environment(build))?;
        let test = workspace.cargo(["test", "--workspace", "--all-features", "--locked", "--"]);
        steps.run(&format!("all tests on PostgreSQL {version}"), with_environment(test).args(args))?;
        // The log and its consumers behave the same when numbers come after commit. What is no database's business does not run again, nor
        // what chooses by itself how events are numbered, nor what is about River or the schema.
        let mut again = with_environment(workspace.cargo(LOG));
        again.env("SEQLINE_TEST_SEQUENCING", "after_commit");
        for module in ["tidy", "readme", "sequencing", "committing", "durability", "jobs", "migrations"] {
            again.args(["--skip", &format!("{module}::")]);
        }
        steps.run("the log's tests, numbered after commit", again.args(args))?;
    } else {
        // The tests run the examples, which `--test` does not build.
        let examples =
            workspace.cargo(["build", "--package", "seqline", "--all-features", "--locked", "--examples"]);
        steps.run("build", &mut with_environment(examples))?;
        let test = workspace.cargo(LOG);
        steps.run(&format!("the log's tests on PostgreSQL {version}"), with_environment(test).args(args))?;
    }
    steps.finish(&format!("test: all is well on PostgreSQL {version}"));
    Ok(())
}
