//! Makes sure that what a task needs is there, and fetches only what is not.
//!
//! Two tasks may start at the same time: a lock on `.dev/` lets one fetch while the other waits and then finds the
//! work done.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use anyhow::{Context, Result};

use crate::fetch;
use crate::pins::{Pin, Registry};
use crate::prerequisites::{self, Tool};
use crate::sources::{self, Source};
use crate::workspace::Workspace;

/// The `setup` task.
pub(crate) fn everything(workspace: &Workspace) -> Result<()> {
    let mut sources = vec![
        ("PostgreSQL", sources::postgresql(sources::DEFAULT_MAJOR)?),
        ("webhook payloads", sources::webhooks_examples()?),
        ("cargo-deny", sources::cargo_deny()),
    ];
    sources.extend(["psycopg", "what psycopg needs"].into_iter().zip(sources::psycopg()?));
    prepare(workspace, &sources.iter().map(|(_, source)| source).collect::<Vec<_>>())?;
    for (what, source) in &sources {
        eprintln!("{what}: {}", source.path(&workspace.dev()).display());
    }
    Ok(())
}

/// Installs the pinned packages among the sources of a task that compiles. All prerequisites are checked first.
pub(crate) fn prepare(workspace: &Workspace, sources: &[&Source]) -> Result<()> {
    let dev = workspace.dev();
    let absent = absent(sources, &dev);
    for pin in &absent {
        pin.archive()?;
    }
    let mut tools = vec![Tool::Compiler];
    tools.extend(absent.iter().flat_map(|pin| tools_to_fetch(pin)));
    let instead: Vec<_> = absent.iter().map(|pin| pin.instead).collect();
    prerequisites::demand(tools, &instead)?;

    if absent.is_empty() {
        return Ok(());
    }
    let _lock = lock(&dev)?;
    for pin in absent {
        // Another task may have fetched it while this one waited for the lock.
        if !fetch::is_installed(pin, &dev) {
            eprintln!("fetching {} into .dev/{}", pin.title(), pin.folder);
            fetch::install(pin, &dev)?;
        }
    }
    Ok(())
}

fn absent(sources: &[&Source], dev: &Path) -> Vec<&'static Pin> {
    let pins = sources.iter().filter_map(|source| match source {
        Source::Machine(_) => None,
        Source::Pinned(pin, _) => Some(*pin),
    });
    pins.filter(|pin| !fetch::is_installed(pin, dev)).collect()
}

/// Python unpacks both kinds of archives.
fn tools_to_fetch(pin: &Pin) -> Vec<Tool> {
    match pin.registry {
        Registry::Pip => vec![Tool::Python, Tool::Pip],
        Registry::Npm => vec![Tool::Python, Tool::Npm],
        // Cargo is what this program was started with.
        Registry::Cargo => vec![Tool::Python],
    }
}

/// Held until the file is dropped, also when this process is killed.
fn lock(dev: &Path) -> Result<File> {
    fs::create_dir_all(dev).with_context(|| format!("failed to create {}", dev.display()))?;
    let path = dev.join(".lock");
    let file = File::create(&path).with_context(|| format!("failed to create {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => eprintln!("waiting for another task that is fetching into .dev"),
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("failed to lock {}", path.display()));
        }
    }
    file.lock().with_context(|| format!("failed to lock {}", path.display()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::pins::{PGMQ, POSTGRESQL_18, WEBHOOKS_EXAMPLES};
    use crate::scratch::Scratch;

    #[test]
    fn what_the_machine_has_is_not_fetched() {
        let scratch = Scratch::new("absent");
        let machine = Source::Machine(PathBuf::from("/usr/lib/postgresql/18/bin"));
        let payloads = Source::Pinned(&WEBHOOKS_EXAMPLES, "api.github.com/index.json");
        let absent = absent(&[&machine, &payloads], scratch.path());
        assert_eq!(absent.iter().map(|pin| pin.folder).collect::<Vec<_>>(), ["webhooks-examples"]);
    }

    #[test]
    fn only_the_client_of_the_packages_registry_is_needed() {
        assert_eq!(tools_to_fetch(&POSTGRESQL_18), [Tool::Python, Tool::Pip]);
        assert_eq!(tools_to_fetch(&WEBHOOKS_EXAMPLES), [Tool::Python, Tool::Npm]);
        assert_eq!(tools_to_fetch(&PGMQ), [Tool::Python]);
    }
}
