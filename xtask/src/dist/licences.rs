//! What has to go with a binary: the licence of every package that was compiled into it, with the texts that the packages bring.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::run::output;
use crate::workspace::Workspace;

/// What cargo says of the packages.
#[derive(Deserialize)]
pub(super) struct Metadata {
    packages: Vec<Package>,
    resolve: Option<Resolve>,
    pub(super) target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    repository: Option<String>,
    /// Where it came from; none for our own.
    source: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// None for what is compiled in, else `dev` or `build`.
    kind: Option<String>,
}

pub(super) fn metadata(workspace: &Workspace, args: &[&str]) -> Result<Metadata> {
    let mut cargo = workspace.cargo(["metadata", "--locked", "--format-version", "1"]);
    serde_json::from_str(&output(cargo.args(args))?)
        .context("failed to understand what cargo says of packages")
}

/// The text about all of them.
pub(super) fn of(workspace: &Workspace, target: &str) -> Result<String> {
    let metadata = metadata(workspace, &["--filter-platform", target])?;
    let resolve = metadata.resolve.as_ref().context("cargo says nothing of dependencies")?;
    let server = metadata.packages.iter().find(|package| package.name == "seqline-server");
    let compiled_in = compiled_in(resolve, &server.context("there is no package seqline-server")?.id);
    let mut packages: Vec<&Package> = metadata
        .packages
        .iter()
        .filter(|package| package.source.is_some() && compiled_in.contains(package.id.as_str()))
        .collect();
    packages.sort_by_key(|package| (&package.name, &package.version));
    written(&packages)
}

/// Everything that a package needs to be what it is, and not only to be made or tested.
fn compiled_in<'a>(resolve: &'a Resolve, root: &'a str) -> BTreeSet<&'a str> {
    let nodes: HashMap<&str, &Node> = resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let mut found = BTreeSet::new();
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        if !found.insert(id) {
            continue;
        }
        let dependencies = nodes.get(id).map_or(&[][..], |node| &node.deps);
        let of_binary =
            |dependency: &&Dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none());
        open.extend(dependencies.iter().filter(of_binary).map(|dependency| dependency.pkg.as_str()));
    }
    found
}

fn written(packages: &[&Package]) -> Result<String> {
    let mut text = String::from(
        "The command seqline contains these packages, each under its own licence. Their source is in the public registry\nof Rust packages, under the same name and version.\n\n",
    );
    // The same text is of many packages.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages {
        let name = format!("{} {}", package.name, package.version);
        let licence = package.license.as_deref().unwrap_or("see its text below");
        let repository = package.repository.as_deref().unwrap_or_default();
        text.push_str(format!("{name}: {licence} {repository}").trim_end());
        text.push('\n');
        let folder = package.manifest_path.parent().context("a package has no folder")?;
        for file in texts_in(folder)? {
            texts.entry(file).or_default().push(name.clone());
        }
    }
    for (file, names) in texts {
        text.push_str(&format!("\n{0}\n{1}\n{0}\n\n{file}\n", "=".repeat(80), names.join(", ")));
    }
    Ok(text)
}

/// The texts that a package brings about its licences.
fn texts_in(folder: &Path) -> Result<Vec<String>> {
    const BEGINNINGS: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
    let entries =
        fs::read_dir(folder).with_context(|| format!("failed to look into {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        path.is_file() && BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
    });
    paths.sort();
    let read = |path: &PathBuf| {
        let text = fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&text).replace("\r\n", "\n").trim().to_owned())
    };
    paths.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn what_is_only_needed_to_build_or_test_is_not_in_the_binary() {
        let resolve: Resolve = serde_json::from_str(
            r#"{"nodes": [
                {"id": "root", "deps": [
                    {"pkg": "a", "dep_kinds": [{"kind": null}]},
                    {"pkg": "test", "dep_kinds": [{"kind": "dev"}]},
                    {"pkg": "make", "dep_kinds": [{"kind": "build"}]},
                    {"pkg": "both", "dep_kinds": [{"kind": "dev"}, {"kind": null}]}]},
                {"id": "a", "deps": [{"pkg": "b", "dep_kinds": [{"kind": null}]}, {"pkg": "root", "dep_kinds": [{"kind": null}]}]},
                {"id": "b", "deps": []}, {"id": "test", "deps": []}, {"id": "make", "deps": []}, {"id": "both", "deps": []}]}"#,
        )
        .unwrap();
        let found: Vec<&str> = compiled_in(&resolve, "root").into_iter().collect();
        assert_eq!(found, ["a", "b", "both", "root"]);
    }

    #[test]
    fn a_text_that_several_bring_is_there_once_with_all_their_names() {
        let scratch = Scratch::new("licences");
        let package = |name: &str, texts: &[(&str, &str)]| {
            let folder = scratch.path().join(name);
            fs::create_dir(&folder).unwrap();
            for (file, text) in texts {
                fs::write(folder.join(file), text).unwrap();
            }
            Package {
                id: name.to_owned(),
                name: name.to_owned(),
                version: "1.0.0".to_owned(),
                license: Some("MIT".to_owned()),
                repository: Some(format!("https://example.com/{name}")),
                source: None,
                manifest_path: folder.join("Cargo.toml"),
            }
        };
        let one = package("one", &[("LICENSE-MIT", "same\r\n"), ("README.md", "nothing")]);
        let two = package("two", &[("license", "same"), ("NOTICE.txt", "other")]);
        let text = written(&[&one, &two]).unwrap();
        assert!(
            text.contains(
                "\none 1.0.0: MIT https://example.com/one\ntwo 1.0.0: MIT https://example.com/two\n"
            ),
            "{text}"
        );
        assert_eq!((text.matches("\nsame\n").count(), text.matches("\nother\n").count()), (1, 1), "{text}");
        assert!(text.contains("\none 1.0.0, two 1.0.0\n") && !text.contains("nothing"), "{text}");
    }
}
