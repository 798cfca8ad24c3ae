//! The clients for agents: what they need, and how they are checked and tested.
//!
//! Python runs its client as it is. The one in TypeScript is compiled in `target/clients/typescript`, which has links to the sources and to the
//! packages: node looks for those beside what it runs, and nothing is added to the sources.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::pins::{Archive, Entrance, Pin, Registry};
use crate::run::Steps;
use crate::sources::{self, Source};
use crate::workspace::Workspace;

const INSTEAD_OF_WEBSOCKETS: &str = "run `python3 -m pip install websockets` and set SEQLINE_WEBSOCKETS to the folder that holds `websockets`";
const INSTEAD_OF_NODE_MODULES: &str =
    "run `npm install` in clients/typescript, and set SEQLINE_NODE_MODULES to its folder node_modules";

/// WebSockets for Python, in Python only.
pub(crate) static WEBSOCKETS: Pin = Pin {
    folder: "python/websockets",
    registry: Registry::Pip,
    package: "websockets",
    version: "17.4",
    archives: &[Archive {
        platform: None,
        file: "websockets-17.4-py3-none-any.whl",
        sha256: "c6bd2c9781915592b209160d0f017d4c7c82ad53075e6b0c24d2a89299e7f9e9",
    }],
    entrance: Entrance { name: "websockets", target: "wheel/websockets" },
    programs: &[],
    script: None,
    instead: INSTEAD_OF_WEBSOCKETS,
};

/// Packages for node, each with the name under which programs find it: WebSockets, the compiler, and the types of both and of node.
pub(crate) static NODE_MODULES: [(&str, Pin); 5] = [
    ("ws", of_node("node/ws", "ws", "8.23.0", "package", &WS)),
    ("typescript", of_node("node/typescript", "typescript", "5.9.3", "package", &TYPESCRIPT)),
    ("@types/node", of_node("node/types-node", "@types/node", "20.19.43", "node v20.19", &TYPES_OF_NODE)),
    ("@types/ws", of_node("node/types-ws", "@types/ws", "8.18.2", "ws", &TYPES_OF_WS)),
    ("undici-types", of_node("node/undici-types", "undici-types", "6.21.0", "package", &UNDICI_TYPES)),
];

static WS: [Archive; 1] =
    archive("ws-8.23.0.tgz", "b8bd105a274ae9ca114f8c6ce4d9dbb0c764fe5118ba633c557e1703e297c587");
static TYPESCRIPT: [Archive; 1] =
    archive("typescript-5.9.3.tgz", "10e108c9cf7d5f2879053dff18515fb405abf2ccef63eaaf017d9c571687a1d3");
static TYPES_OF_NODE: [Archive; 1] =
    archive("types-node-20.19.43.tgz", "9963f2cb96d2b26dbf9cf86262c698815cbec9503af73c7ce75209d1d0658f3d");
static TYPES_OF_WS: [Archive; 1] =
    archive("types-ws-8.18.2.tgz", "9d774304de5397f58da47b31f68b69cf0ff84ef7b1087cf4fea27729f8db83fe");
static UNDICI_TYPES: [Archive; 1] =
    archive("undici-types-6.21.0.tgz", "cfa1a9a5e18988850e548f4f6b629c58da32dc32bebb116e58ea301e516fd16d");

const fn archive(file: &'static str, sha256: &'static str) -> [Archive; 1] {
    [Archive { platform: None, file, sha256 }]
}

/// `inside` is the folder in its tarball.
const fn of_node(
    folder: &'static str,
    package: &'static str,
    version: &'static str,
    inside: &'static str,
    archives: &'static [Archive],
) -> Pin {
    Pin {
        folder,
        registry: Registry::Npm,
        package,
        version,
        archives,
        entrance: Entrance { name: "module", target: inside },
        programs: &[],
        script: None,
        instead: INSTEAD_OF_NODE_MODULES,
    }
}

/// What the clients need beside what is in the checkout.
pub(crate) struct Clients {
    websockets: Source,
    node_modules: Vec<(&'static str, Source)>,
}

impl Clients {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { websockets: sources::websockets()?, node_modules: sources::node_modules()? })
    }

    pub(crate) fn sources(&self) -> impl Iterator<Item = &Source> {
        std::iter::once(&self.websockets).chain(self.node_modules.iter().map(|(_, source)| source))
    }

    /// Each with what it is, for who wants to know where it is.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, &Source)> {
        let node_modules = self.node_modules.iter().map(|(name, source)| (*name, source));
        std::iter::once(("websockets for Python", &self.websockets)).chain(node_modules)
    }

    /// Compiles the client in TypeScript, with its example and tests.
    pub(crate) fn compile(&self, steps: &Steps, workspace: &Workspace) -> Result<()> {
        let folder = compiled(workspace);
        self.lay_out(&folder, workspace)?;
        let mut compiler = Command::new("node");
        compiler.arg("node_modules/typescript/lib/tsc.js").args(["-p", ".", "--preserveSymlinks"]);
        steps.run("client in TypeScript", compiler.current_dir(&folder))
    }

    /// The tests of both clients, without a server. The one in TypeScript is compiled.
    pub(crate) fn test(&self, steps: &Steps, workspace: &Workspace) -> Result<()> {
        let mut python = Command::new("python3");
        python.args(["-m", "unittest", "tests.test_agent"]);
        python.env("PYTHONPATH", self.websockets.path(&workspace.dev())).env("PYTHONDONTWRITEBYTECODE", "1");
        steps.run(
            "tests of the client in Python",
            python.current_dir(workspace.root().join("clients/python")),
        )?;
        let mut node = Command::new("node");
        node.args(["--test", "--test-reporter", "dot", "dist/test/agent.test.js"]);
        steps.run("tests of the client in TypeScript", node.current_dir(compiled(workspace)))
    }

    /// Tells a command where the client in Python finds what it needs.
    pub(crate) fn tell(&self, command: &mut Command, workspace: &Workspace) {
        command.env("SEQLINE_WEBSOCKETS", self.websockets.path(&workspace.dev()));
    }

    fn lay_out(&self, folder: &Path, workspace: &Workspace) -> Result<()> {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("failed to clear {}", folder.display()))?;
        }
        let modules = folder.join("node_modules");
        let sources = workspace.root().join("clients/typescript");
        let of_checkout = ["package.json", "tsconfig.json", "src", "examples", "test"];
        let of_checkout = of_checkout.map(|name| (folder.join(name), sources.join(name)));
        let packages = self.node_modules.iter();
        let packages = packages.map(|(name, source)| (modules.join(name), source.path(&workspace.dev())));
        fs::create_dir_all(modules.join("@types"))
            .with_context(|| format!("failed to create {}", modules.display()))?;
        for (link, target) in of_checkout.into_iter().chain(packages) {
            symlink(target, &link).with_context(|| format!("failed to link {}", link.display()))?;
        }
        Ok(())
    }
}

fn compiled(workspace: &Workspace) -> PathBuf {
    workspace.root().join("target/clients/typescript")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn the_versions_are_those_that_the_package_asks_for() {
        let text = include_str!("../../clients/typescript/package.json");
        let package: serde_json::Value = serde_json::from_str(text).unwrap();
        for (name, version) in package["devDependencies"].as_object().unwrap() {
            let pinned = NODE_MODULES.iter().find(|(pinned, _)| pinned == name);
            assert_eq!(pinned.map(|(_, pin)| pin.version), version.as_str(), "{name}");
        }
    }

    #[test]
    fn the_client_is_laid_out_beside_its_packages() {
        let scratch = Scratch::new("clients");
        let machine = |name: &str| Source::Machine(scratch.path().join(name));
        let clients = Clients {
            websockets: machine("websockets"),
            node_modules: vec![("@types/ws", machine("types"))],
        };
        let folder = scratch.path().join("out");
        let workspace = Workspace::locate().unwrap();
        fs::create_dir_all(folder.join("left-over")).unwrap();
        fs::create_dir_all(scratch.path().join("types")).unwrap();

        clients.lay_out(&folder, &workspace).unwrap();

        assert!(folder.join("src/agent.ts").is_file());
        assert!(folder.join("node_modules/@types/ws").is_dir());
        assert!(!folder.join("left-over").exists());
        assert!(workspace.root().join("clients/typescript/src/agent.ts").is_file(), "only links are removed");
    }
}
