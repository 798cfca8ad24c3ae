//! The `test` task: everything that is tested, against a real PostgreSQL.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;

use crate::run::Steps;
use crate::workspace::Workspace;
use crate::{launch, setup, sources};

/// With the default major version all tests run. Another one can only change how the log behaves, so only the log's
/// own tests run.
pub(crate) fn test(workspace: &Workspace, major: u32, args: &[OsString]) -> Result<()> {
    let postgresql = sources::postgresql(major)?;
    let payloads = sources::webhooks_examples()?;
    setup::prepare(workspace, &[&postgresql, &payloads])?;
    let version = sources::postgresql_version(&postgresql.path(&workspace.dev()))?;
    let with_environment =
        |command: Command| launch::with_environment(command, workspace, &postgresql, Some(&payloads));

    let steps = Steps::start();
    if major == sources::DEFAULT_MAJOR {
        let build = workspace.cargo(["build", "--workspace", "--all-features", "--locked"]);
        steps.run("build", &mut with_environment(build))?;
        let test = workspace.cargo(["test", "--workspace", "--all-features", "--locked", "--"]);
        steps.run(&format!("all tests on PostgreSQL {version}"), with_environment(test).args(args))?;
    } else {
        let log = ["test", "--package", "seqline", "--all-features", "--locked", "--test", "it", "--"];
        let test = workspace.cargo(log);
        steps.run(&format!("the log's tests on PostgreSQL {version}"), with_environment(test).args(args))?;
    }
    steps.finish(&format!("test: all is well on PostgreSQL {version}"));
    Ok(())
}
