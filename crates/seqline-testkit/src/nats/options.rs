//! What a broker is started with.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// The variable that names the program.
const PROGRAM: &str = "SEQLINE_NATS_BIN";

/// The variable that names an older one.
const OLD_PROGRAM: &str = "SEQLINE_NATS_OLD_BIN";

/// The first version that is not old.
const FIRST: (u32, u32) = (2, 10);

/// What a broker is started with. What is not said is as production has it.
#[derive(Debug, Clone, Default)]
pub struct NatsOptions {
    program: Option<PathBuf>,
    lines: String,
    jetstream: String,
    without_jetstream: bool,
}

/// Where a broker listens and what it is called.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) port: u16,
    pub(super) monitor: u16,
    pub(super) cluster: Option<Routes>,
}

/// How the nodes of a cluster find each other.
#[derive(Debug, Clone)]
pub(super) struct Routes {
    pub(super) name: String,
    pub(super) port: u16,
    pub(super) all: Vec<u16>,
}

impl NatsOptions {
    /// A program older than 2.10: the one that `SEQLINE_NATS_OLD_BIN` names. None if it names none; a test that needs one says so then, and
    /// passes over.
    ///
    /// # Panics
    ///
    /// If what it names is no nats-server. A newer one counts as none: a release of Debian may have no older one.
    pub fn old() -> Option<NatsOptions> {
        let program = named(OLD_PROGRAM)?;
        match version(&program) {
            Ok(version) => (version < FIRST).then(|| NatsOptions::default().program(program)),
            Err(error) => panic!("{OLD_PROGRAM}: {error:#}"),
        }
    }

    /// The program, instead of the one that `SEQLINE_NATS_BIN` names or that is on the `PATH`.
    pub fn program(mut self, program: impl Into<PathBuf>) -> NatsOptions {
        self.program = Some(program.into());
        self
    }

    /// Further lines of its configuration, such as `max_payload: 1024`. Names and places that the kit gives are the kit's own.
    pub fn lines(mut self, lines: &str) -> NatsOptions {
        self.lines.push_str(lines);
        self.lines.push('\n');
        self
    }

    /// Further lines within its block `jetstream`, such as `max_file_store: 1MB`.
    pub fn jetstream(mut self, lines: &str) -> NatsOptions {
        self.jetstream.push_str(lines);
        self.jetstream.push('\n');
        self
    }

    /// Acknowledges only what was flushed to the disk, as a measurement of what is durable needs. From 2.10 on.
    pub fn durable(self) -> NatsOptions {
        self.jetstream("sync_interval: always")
    }

    /// Without JetStream: such a broker stores nothing.
    pub fn without_jetstream(mut self) -> NatsOptions {
        self.without_jetstream = true;
        self
    }

    pub(super) fn has_jetstream(&self) -> bool {
        !self.without_jetstream
    }

    pub(super) fn find_program(&self) -> anyhow::Result<PathBuf> {
        if let Some(program) = self.program.clone().or_else(|| named(PROGRAM)) {
            return Ok(program);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        match std::env::split_paths(&path).map(|folder| folder.join("nats-server")).find(|it| it.is_file()) {
            Some(program) => Ok(program),
            None => bail!(
                "found no nats-server on the PATH, and {PROGRAM} names none: run `cargo xtask setup` and set it to \
                 .dev/nats-server/bin/nats-server, or run the tests with `cargo xtask test`, which does both"
            ),
        }
    }

    /// The whole configuration.
    pub(super) fn config(&self, place: &Place, store: &Path) -> String {
        let Place { name, port, monitor, .. } = place;
        let mut text = format!(
            "server_name: \"{name}\"\nlisten: \"127.0.0.1:{port}\"\nhttp: \"127.0.0.1:{monitor}\"\n{}",
            self.lines
        );
        if self.has_jetstream() {
            let (store, lines) = (store.display(), &self.jetstream);
            let _ = write!(text, "jetstream {{\nstore_dir: \"{store}\"\n{lines}}}\n");
        }
        if let Some(Routes { name, port, all }) = &place.cluster {
            let routes: Vec<_> = all.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
            let routes = routes.join(", ");
            let _ = write!(
                text,
                "cluster {{\nname: \"{name}\"\nlisten: \"127.0.0.1:{port}\"\nroutes: [{routes}]\nno_advertise: true\n}}\n"
            );
        }
        text
    }
}

fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|program| !program.is_empty()).map(PathBuf::from)
}

fn version(program: &Path) -> anyhow::Result<(u32, u32)> {
    let output = Command::new(program).arg("--version").output();
    let output = output.with_context(|| format!("run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).with_context(|| format!("found no version in \"{}\"", text.trim()))
}

/// Reads `nats-server: v2.9.10`.
fn parse(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().split_once(": v")?.1.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(parse("nats-server: v2.9.10\n").unwrap() < FIRST);
        assert!(parse("nats-server: v2.10.0").unwrap() >= FIRST);
        assert_eq!(parse("something else"), None);
    }

    #[test]
    fn lines_go_where_they_belong() {
        let place = Place { name: "n1".into(), port: 1, monitor: 2, cluster: None };
        let options =
            NatsOptions::default().lines("max_payload: 1024").jetstream("max_file_store: 1MB").durable();
        assert_eq!(
            options.config(&place, Path::new("/store")),
            "server_name: \"n1\"\nlisten: \"127.0.0.1:1\"\nhttp: \"127.0.0.1:2\"\nmax_payload: 1024\n\
             jetstream {\nstore_dir: \"/store\"\nmax_file_store: 1MB\nsync_interval: always\n}\n"
        );
        let config = options.without_jetstream().config(&place, Path::new("/store"));
        assert!(!config.contains("jetstream"), "{config}");
    }
}
