//! The list of mutations of how events get their numbers fits the code that it is about.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use toml::de::DeTable;

const FIELDS: [&str; 6] = ["name", "file", "find", "replace", "test", "why"];

/// Each mutation with its fields, in that order.
fn mutations() -> Vec<[String; 6]> {
    let text = read("crates/seqline/tests/mutations.toml");
    let table = DeTable::parse(&text).unwrap();
    let list = table.get_ref()["mutation"].get_ref().as_array().unwrap();
    list.iter()
        .map(|mutation| {
            let table = mutation.get_ref().as_table().unwrap();
            assert_eq!(table.len(), FIELDS.len(), "{mutation:?}");
            FIELDS.map(|field| table[field].get_ref().as_str().unwrap().to_owned())
        })
        .collect()
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn each_changes_one_place_of_a_migration() {
    let mut names = BTreeSet::new();
    for [name, file, find, replace, _, why] in mutations() {
        assert!(file.starts_with("crates/seqline/migrations/"), "{name}: {file}");
        assert_eq!(read(&file).matches(&find).count(), 1, "{name}: how often its text is in {file}");
        assert_ne!(find, replace, "{name}");
        assert!(why.ends_with('.'), "{name}: {why}");
        assert!(names.insert(name.clone()), "{name} is there twice");
    }
    assert!(names.len() >= 15);
}

/// Nothing is broken by changing a function that a later migration replaces.
#[test]
fn each_changes_a_function_that_is_in_force() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let mut migrations: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| format!("crates/seqline/migrations/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    migrations.sort();
    for [name, file, find, ..] in mutations() {
        let text = read(&file);
        let (before, after) = text.split_once(&find).unwrap();
        // Inside of a body: its end is nearer than the next beginning.
        let body_ends = after.find("$$;").unwrap_or(usize::MAX);
        let next_begins = after.find("FUNCTION seqline.").unwrap_or(usize::MAX);
        let Some((_, function)) = before.rsplit_once("FUNCTION seqline.").filter(|_| body_ends < next_begins)
        else {
            continue;
        };
        let head = format!("FUNCTION seqline.{}(", function.split('(').next().unwrap());
        let later = migrations.iter().filter(|other| **other > file);
        let replaced: Vec<_> =
            later.filter(|other| read(other).contains(&format!("CREATE OR REPLACE {head}"))).collect();
        assert!(replaced.is_empty(), "{name}: {head} is replaced by {replaced:?}");
    }
}

#[test]
fn each_names_a_test_that_exists() {
    for [name, _, _, _, test, _] in mutations() {
        let (module, function) = test.rsplit_once("::").unwrap();
        let module = format!("crates/seqline/tests/it/{}", module.replace("::", "/"));
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let file = [format!("{module}.rs"), format!("{module}/mod.rs")]
            .into_iter()
            .find(|file| root.join(file).is_file())
            .unwrap_or_else(|| panic!("{name}: there is no {module}"));
        let declared = [format!("]\nasync fn {function}()"), format!("]\nfn {function}()")];
        assert!(declared.iter().any(|it| read(&file).contains(it)), "{name}: {file} has no test {function}");
    }
}
