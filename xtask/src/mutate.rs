//! The `mutate` task: breaks how events get their numbers, in each of the ways that are listed, and sees the test that is named with it fail.
//!
//! All of it happens in a copy of the checkout below `target/mutants`, which has a target folder of its own, so that a mutation costs
//! one step of compiling and the checkout itself is never touched.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};
use toml::de::DeTable;

use crate::run;
use crate::test::Needed;
use crate::workspace::Workspace;
use crate::{setup, sources};

const LIST: &str = "crates/seqline/tests/mutations.toml";

/// It needs a schema and appends nothing: when it fails too, the migrations do not run, and the test that was named has proved nothing.
const CANARY: &str = "numbering::ends::an_empty_log_has_head_0_and_would_begin_at_1";

#[derive(Debug, PartialEq, Eq)]
struct Mutation {
    name: String,
    file: String,
    find: String,
    replace: String,
    test: String,
    why: String,
}

/// What came of one.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The test failed.
    Caught,
    /// The test passed.
    Survived,
    /// Something else failed, so it says nothing.
    Useless,
}

pub(crate) fn mutate(workspace: &Workspace, names: &[String]) -> Result<()> {
    let list = parse(&read(&workspace.root().join(LIST))?)?;
    let chosen = choose(&list, names)?;
    let needed = Needed::of(sources::DEFAULT_MAJOR)?;
    setup::prepare(workspace, &needed.sources().collect::<Vec<_>>())?;
    let copy = Copy::make(workspace)?;

    let tests: BTreeSet<&str> = chosen.iter().map(|mutation| mutation.test.as_str()).collect();
    eprintln!("\n==> as it is: {} tests", tests.len());
    let passed = copy.run(workspace, &needed, &tests)?;
    for test in tests {
        ensure!(passed.contains(test), "{test} fails without any mutation");
    }
    let mut not_caught = Vec::new();
    for (done, mutation) in chosen.iter().enumerate() {
        eprintln!("\n==> {} ({} of {}): {}", mutation.name, done + 1, chosen.len(), mutation.why);
        let outcome = copy.judge(workspace, &needed, mutation)?;
        match outcome {
            Outcome::Caught => println!("caught    {}  by {}", mutation.name, mutation.test),
            Outcome::Survived => println!("SURVIVED  {}  {} passes", mutation.name, mutation.test),
            Outcome::Useless => println!("USELESS   {}  {CANARY} fails too", mutation.name),
        }
        if outcome != Outcome::Caught {
            not_caught.push(mutation.name.as_str());
        }
    }
    ensure!(not_caught.is_empty(), "these were not caught: {}", not_caught.join(", "));
    println!("all {} were caught", chosen.len());
    Ok(())
}

fn parse(text: &str) -> Result<Vec<Mutation>> {
    let table = DeTable::parse(text).map_err(|error| anyhow!("{LIST} is not valid: {error}"))?;
    let list = table.get_ref().get("mutation").and_then(|list| list.get_ref().as_array());
    let list = list.with_context(|| format!("{LIST} has no mutations"))?;
    let mutations = list.iter().map(|mutation| {
        let text = |name: &str| {
            let value = mutation.get_ref().as_table().and_then(|table| table.get(name)?.get_ref().as_str());
            value.map(str::to_owned).with_context(|| format!("a mutation in {LIST} has no {name}"))
        };
        Ok(Mutation {
            name: text("name")?,
            file: text("file")?,
            find: text("find")?,
            replace: text("replace")?,
            test: text("test")?,
            why: text("why")?,
        })
    });
    mutations.collect()
}

/// Those with these names, or all of them.
fn choose<'a>(list: &'a [Mutation], names: &[String]) -> Result<Vec<&'a Mutation>> {
    if names.is_empty() {
        return Ok(list.iter().collect());
    }
    let named = names.iter().map(|name| {
        let found = list.iter().find(|mutation| mutation.name == *name);
        found.with_context(|| format!("there is no mutation {name} in {LIST}"))
    });
    named.collect()
}

impl Mutation {
    fn apply(&self, text: &str) -> Result<String> {
        let found = text.matches(&self.find).count();
        ensure!(found == 1, "{}: what is to be found is in {} {found} times", self.name, self.file);
        Ok(text.replace(&self.find, &self.replace))
    }
}

/// The copy of the checkout.
struct Copy {
    root: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Brings it up to date, whatever an earlier run has left. What is the same is not written: Cargo goes by times.
    fn make(workspace: &Workspace) -> Result<Self> {
        let folder = workspace.root().join("target/mutants");
        let copy = Self { root: folder.join("checkout"), target: folder.join("target") };
        let listing = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"];
        let listing = run::output(Command::new("git").args(listing).current_dir(workspace.root()))?;
        // A file that was deleted is listed until that is committed.
        let files: BTreeSet<&Path> =
            listing.split('\0').map(Path::new).filter(|file| workspace.root().join(file).is_file()).collect();
        for file in &files {
            copy.bring(&workspace.root().join(file), file)?;
        }
        for stale in below(&copy.root, &copy.root)?.iter().filter(|file| !files.contains(file.as_path())) {
            fs::remove_file(copy.root.join(stale))
                .with_context(|| format!("failed to remove {} from the copy", stale.display()))?;
        }
        Ok(copy)
    }

    fn bring(&self, from: &Path, file: &Path) -> Result<()> {
        let to = self.root.join(file);
        let content = fs::read(from).with_context(|| format!("failed to read {}", from.display()))?;
        if fs::read(&to).is_ok_and(|there| there == content) {
            return Ok(());
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
        }
        fs::write(&to, content).with_context(|| format!("failed to write {}", to.display()))
    }

    fn judge(&self, workspace: &Workspace, needed: &Needed, mutation: &Mutation) -> Result<Outcome> {
        let file = self.root.join(&mutation.file);
        let text = read(&file)?;
        let write = |text: &str| {
            fs::write(&file, text).with_context(|| format!("failed to write {}", file.display()))
        };
        write(&mutation.apply(&text)?)?;
        let passed = self.run(workspace, needed, &BTreeSet::from([mutation.test.as_str(), CANARY]));
        write(&text)?;
        Ok(outcome(&passed?, &mutation.test))
    }

    /// Runs these tests and says which of them passed.
    fn run(
        &self,
        workspace: &Workspace,
        needed: &Needed,
        tests: &BTreeSet<&str>,
    ) -> Result<BTreeSet<String>> {
        let cargo = |arguments: &[&str]| {
            let mut cargo = Command::new("cargo");
            cargo.args(["test", "--package", "seqline", "--all-features", "--locked", "--test", "it"]);
            cargo.args(arguments).current_dir(&self.root);
            // Nobody looks at these programs with a debugger, and they are linked again for each mutation.
            cargo.env("CARGO_TARGET_DIR", &self.target).env("CARGO_PROFILE_DEV_DEBUG", "0");
            needed.tell(cargo, workspace)
        };
        run::run(&mut cargo(&["--no-run", "--quiet"])?)?;
        let mut command = cargo(&["--quiet", "--", "--exact"])?;
        // One after the other, each with a line of its own.
        let output = command.args(tests).args(["--test-threads", "1", "--format", "pretty"]).output();
        let output = output.context("failed to start cargo")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let passed = passed(&text);
        let known = tests.iter().filter(|test| text.contains(&format!("test {test} ..."))).count();
        if known < tests.len() {
            bail!("not all of these tests ran: {tests:?}\n{text}{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(passed)
    }
}

/// The tests that passed, by what the test program printed.
fn passed(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... ok"));
    lines.map(str::to_owned).collect()
}

fn outcome(passed: &BTreeSet<String>, test: &str) -> Outcome {
    if !passed.contains(CANARY) {
        Outcome::Useless
    } else if passed.contains(test) {
        Outcome::Survived
    } else {
        Outcome::Caught
    }
}

/// All files in a folder and those below it, by their paths from `root`.
fn below(folder: &Path, root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(below(&path, root)?);
        } else if let Ok(path) = path.strip_prefix(root) {
            found.push(path.to_owned());
        }
    }
    Ok(found)
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "\
[[mutation]]
name = \"hole\"
file = \"it.sql\"
find = \"head + 1\"
replace = \"head + 2\"
test = \"numbering::it\"
why = \"Numbers are gapless.\"
";

    #[test]
    fn a_mutation_is_chosen_by_its_name() {
        let list = parse(ONE).unwrap();
        assert_eq!(choose(&list, &[]).unwrap(), [&list[0]]);
        assert_eq!(choose(&list, &["hole".into()]).unwrap(), [&list[0]]);
        let error = choose(&list, &["hale".into()]).unwrap_err().to_string();
        assert!(error.starts_with("there is no mutation hale"), "{error}");
    }

    #[test]
    fn a_mutation_without_a_reason_is_refused() {
        let error = parse(&ONE.replace("why", "because")).unwrap_err().to_string();
        assert!(error.ends_with("has no why"), "{error}");
    }

    #[test]
    fn a_mutation_changes_one_place() {
        let mutation = parse(ONE).unwrap().remove(0);
        assert_eq!(mutation.apply("SELECT head + 1;").unwrap(), "SELECT head + 2;");
        let error = mutation.apply("head + 1, head + 1").unwrap_err().to_string();
        assert_eq!(error, "hole: what is to be found is in it.sql 2 times");
    }

    #[test]
    fn only_a_test_that_fails_beside_one_that_passes_has_caught_it() {
        let judge = |text: &str| outcome(&passed(text), "numbering::it");
        let canary = format!("test {CANARY} ... ok\n");
        assert_eq!(judge(&format!("{canary}test numbering::it ... FAILED\n")), Outcome::Caught);
        assert_eq!(judge(&format!("{canary}test numbering::it ... ok\n")), Outcome::Survived);
        assert_eq!(judge("test numbering::it ... FAILED\n"), Outcome::Useless);
    }
}
