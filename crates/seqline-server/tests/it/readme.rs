//! What the README shows on the command line is what happens.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;

use seqline_testkit::{Role, TestDb};
use tokio::process::Command;

use crate::support::{let_measure, masked};

const README: &str = include_str!("../../../../README.md");
const CI: &str = include_str!("../../../../.ci/run");

/// Tasks of xtask that the README shows and `.ci/run` does not run, and the test that covers them.
const COVERED_ELSEWHERE: [(&str, &str); 1] =
    [("up", "up::embedded::it_is_used_through_the_ready_file_and_leaves_nothing_but_the_data")];

/// The commands of all console blocks, each with what it prints.
fn console() -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    for block in README.split("```console\n").skip(1) {
        let (block, _) = block.split_once("\n```").expect("a block ends");
        for line in block.lines() {
            match line.strip_prefix("$ ") {
                Some(command) => commands.push((command.to_owned(), String::new())),
                None => {
                    let (_, output) = commands.last_mut().expect("a block begins with a command");
                    output.push_str(line);
                    output.push('\n');
                }
            }
        }
    }
    commands
}

/// Runs a line of the README in a shell, with the program where an installation puts it.
async fn shell(line: &str, database_url: &str) -> String {
    let folder = Path::new(env!("CARGO_BIN_EXE_seqline")).parent().expect("it is in a folder");
    let path: OsString = [folder.as_os_str(), "/usr/bin".as_ref(), "/bin".as_ref()].join(":".as_ref());
    let mut shell = Command::new("sh");
    shell
        .args(["-c", line])
        .env_clear()
        .env("PATH", path)
        .env("SEQLINE_DATABASE_URL", database_url)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let_measure(&mut shell);
    let output = shell.output().await.expect("a shell can be started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{line}: {}, {stderr}", output.status);
    String::from_utf8(output.stdout).expect("the output is text")
}

#[tokio::test]
async fn the_commands_print_what_the_readme_says() {
    let db = TestDb::empty().await;
    let mut shown = 0;
    for (command, output) in console().iter().filter(|(command, _)| command.starts_with("seqline ")) {
        assert_eq!(masked(&shell(command, &db.url(Role::Admin)).await), masked(output), "{command}");
        shown += 1;
    }
    assert!(shown >= 3, "the README shows how to migrate, append and tail");
}

#[test]
fn every_development_task_of_the_readme_is_run_by_ci_or_covered_by_a_test() {
    let task = |line: &str| -> Option<String> {
        line.strip_prefix("cargo xtask ").and_then(|rest| rest.split(' ').next()).map(str::to_owned)
    };
    let run: Vec<String> = CI.lines().filter_map(task).collect();
    for (command, _) in console() {
        let Some(task) = task(&command) else { continue };
        let covered = COVERED_ELSEWHERE.iter().any(|(name, _)| *name == task);
        assert!(run.contains(&task) || covered, "nothing runs cargo xtask {task}");
    }
}

#[test]
fn a_command_of_the_readme_is_one_that_these_tests_know() {
    for (command, _) in console() {
        let known = ["seqline ", "cargo xtask ", "export SEQLINE_DATABASE_URL="];
        assert!(known.iter().any(|start| command.starts_with(start)), "{command}");
    }
}
