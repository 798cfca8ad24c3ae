//! Makes sure that what a task needs is there, and fetches only what is not.
//!
//! Two tasks may start at the same time: a lock on `.dev/` lets one fetch while the other waits and then finds the
//! work done.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use anyhow::{Context, Result};

use crate::brokers::Brokers;
use crate::clients::Clients;
use crate::debian::Package;
use crate::fetch;
use crate::pins::{Pin, Registry};
use crate::prerequisites::{self, Tool};
use crate::python::{Environment, SCHEMATHESIS};
use crate::run::Steps;
use crate::sources::{self, Source};
use crate::workspace::Workspace;

/// The `setup` task.
pub(crate) fn everything(workspace: &Workspace) -> Result<()> {
    let mut sources = vec![
        ("PostgreSQL", sources::postgresql(sources::DEFAULT_MAJOR)?),
        ("webhook payloads", sources::webhooks_examples()?),
        ("cargo-deny", sources::cargo_deny()),
        ("promtool", sources::promtool()?),
        ("PgBouncer", sources::pgbouncer()?),
    ];
    sources.extend(["psycopg", "what psycopg needs"].into_iter().zip(sources::psycopg()?));
    match sources::schemathesis()? {
        Some(source) => sources.push(("Schemathesis", source)),
        None => eprintln!("Schemathesis: left out, {}", SCHEMATHESIS.not_here()),
    }
    let brokers = Brokers::find()?;
    if let Some(reason) = brokers.left_out() {
        eprintln!("older nats-server: left out, {reason}");
    }
    let clients = Clients::new()?;
    let all = sources.iter().map(|(_, source)| source).chain(brokers.sources()).chain(clients.sources());
    prepare(workspace, &all.collect::<Vec<_>>())?;
    clients.compile(&Steps::start(), workspace)?;
    let named = sources.iter().map(|(what, source)| (*what, source));
    for (what, source) in named.chain(brokers.named()).chain(clients.named()) {
        eprintln!("{what}: {}", source.path(&workspace.dev()).display());
    }
    Ok(())
}

/// Installs the packages among the sources of a task that compiles. All prerequisites are checked first.
pub(crate) fn prepare(workspace: &Workspace, sources: &[&Source]) -> Result<()> {
    let dev = workspace.dev();
    let absent = absent(sources, &dev);
    for pin in &absent {
        pin.archive()?;
    }
    let of_debian = absent_of_debian(sources, &dev);
    for package in &of_debian {
        package.ensure_fetchable()?;
    }
    let mut tools = vec![Tool::Compiler];
    tools.extend(absent.iter().flat_map(|pin| tools_to_fetch(pin)));
    let in_python = absent_in_python(sources, &dev);
    tools.extend(in_python.iter().map(|_| Tool::Pip));
    let mut instead: Vec<_> = absent.iter().map(|pin| pin.instead).collect();
    instead.extend(in_python.iter().map(|environment| environment.instead));
    prerequisites::demand(tools, &instead)?;

    if absent.is_empty() && of_debian.is_empty() && in_python.is_empty() {
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
    for package in of_debian {
        if !package.is_installed(&dev) {
            eprintln!("fetching {} of Debian into .dev/{}", package.name, package.folder);
            package.install(&dev)?;
        }
    }
    for environment in in_python {
        if !environment.is_installed(&dev) {
            eprintln!("installing {} into .dev/{}", environment.name, environment.folder);
            environment.install(&dev)?;
        }
    }
    Ok(())
}

fn absent(sources: &[&Source], dev: &Path) -> Vec<&'static Pin> {
    let pins = sources.iter().filter_map(|source| match source {
        Source::Machine(_) | Source::Debian(_) | Source::Python(_) => None,
        Source::Pinned(pin, _) => Some(*pin),
    });
    pins.filter(|pin| !fetch::is_installed(pin, dev)).collect()
}

fn absent_of_debian(sources: &[&Source], dev: &Path) -> Vec<&'static Package> {
    let packages = sources.iter().filter_map(|source| match source {
        Source::Machine(_) | Source::Pinned(..) | Source::Python(_) => None,
        Source::Debian(package) => Some(*package),
    });
    packages.filter(|package| !package.is_installed(dev)).collect()
}

fn absent_in_python(sources: &[&Source], dev: &Path) -> Vec<&'static Environment> {
    let environments = sources.iter().filter_map(|source| match source {
        Source::Machine(_) | Source::Pinned(..) | Source::Debian(_) => None,
        Source::Python(environment) => Some(*environment),
    });
    environments.filter(|environment| !environment.is_installed(dev)).collect()
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
    use crate::debian::PROMTOOL;
    use crate::pins::{PGMQ, POSTGRESQL_18, WEBHOOKS_EXAMPLES};
    use crate::scratch::Scratch;

    #[test]
    fn what_the_machine_has_is_not_fetched() {
        let scratch = Scratch::new("absent");
        let machine = Source::Machine(PathBuf::from("/usr/lib/postgresql/18/bin"));
        let payloads = Source::Pinned(&WEBHOOKS_EXAMPLES, "api.github.com/index.json");
        let debian = Source::Debian(&PROMTOOL);
        let python = Source::Python(&SCHEMATHESIS);
        let all = [&machine, &payloads, &debian, &python];
        let pins = absent(&all, scratch.path());
        assert_eq!(pins.iter().map(|pin| pin.folder).collect::<Vec<_>>(), ["webhooks-examples"]);
        let of_debian = absent_of_debian(&all, scratch.path());
        assert_eq!(of_debian.iter().map(|package| package.name).collect::<Vec<_>>(), ["prometheus"]);
        let in_python = absent_in_python(&all, scratch.path());
        assert_eq!(in_python.iter().map(|it| it.name).collect::<Vec<_>>(), ["schemathesis"]);
    }

    #[test]
    fn only_the_client_of_the_packages_registry_is_needed() {
        assert_eq!(tools_to_fetch(&POSTGRESQL_18), [Tool::Python, Tool::Pip]);
        assert_eq!(tools_to_fetch(&WEBHOOKS_EXAMPLES), [Tool::Python, Tool::Npm]);
        assert_eq!(tools_to_fetch(&PGMQ), [Tool::Python]);
    }
}
