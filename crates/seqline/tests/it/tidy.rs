//! Rules of the repository that no compiler checks. Each test says in its failure what to do.

mod messages;
mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use self::source::{Source, sql_words};

/// Files longer than that are two files.
const LINES_MAX: usize = 600;

/// Modules that decide and do nothing: whoever wants to test or fuzz them needs no database and no clock.
const PURE: [&str; 42] = [
    "crates/seqline/src/access/token.rs",
    "crates/seqline/src/access/visibility.rs",
    "crates/seqline/src/agent/name.rs",
    "crates/seqline/src/backoff.rs",
    "crates/seqline/src/consumer/plan.rs",
    "crates/seqline/src/consumer/policy.rs",
    "crates/seqline/src/envelope.rs",
    "crates/seqline/src/event.rs",
    "crates/seqline/src/identity/compare.rs",
    "crates/seqline/src/identity/history.rs",
    "crates/seqline/src/job/args.rs",
    "crates/seqline/src/job/new_job.rs",
    "crates/seqline/src/job/unique.rs",
    "crates/seqline/src/limits.rs",
    "crates/seqline/src/payload.rs",
    "crates/seqline/src/sequencer/window.rs",
    "crates/seqline-nats/src/consumer/decide.rs",
    "crates/seqline-nats/src/consumer/filters.rs",
    "crates/seqline-nats/src/consumer/pace.rs",
    "crates/seqline-nats/src/relay/walk.rs",
    "crates/seqline-nats/src/relay/window.rs",
    "crates/seqline-nats/src/subject.rs",
    "crates/seqline-server/src/api/agents/window.rs",
    "crates/seqline-server/src/api/append/event.rs",
    "crates/seqline-server/src/api/append/queue.rs",
    "crates/seqline-server/src/api/position.rs",
    "crates/seqline-server/src/api/hub/page.rs",
    "crates/seqline-server/src/api/hub/ring.rs",
    "crates/seqline-server/src/api/permissions/cache.rs",
    "crates/seqline-server/src/commands/doctor/finding.rs",
    "crates/seqline-server/src/commands/import/convert.rs",
    "crates/seqline-server/src/config/checks.rs",
    "crates/seqline-server/src/config/load.rs",
    "crates/seqline-server/src/config/problem.rs",
    "crates/seqline-server/src/config/schema.rs",
    "crates/seqline-server/src/config/values.rs",
    "crates/seqline-server/src/config/keys.rs",
    "crates/seqline-server/src/config/kinds.rs",
    "crates/seqline-server/src/config/reference.rs",
    "crates/seqline-server/src/metrics/catalogue.rs",
    "crates/seqline-server/src/metrics/points.rs",
    "crates/seqline-server/src/ops/readiness.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file of the repository that is not ignored, by its path from the root, if it is text.
fn files() -> Vec<(String, String)> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root())
        .output()
        .expect("git lists the files of the repository");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).expect("names are UTF-8");
    let paths: BTreeSet<&str> = names.split('\0').filter(|name| !name.is_empty()).collect();
    // A file that was deleted is still listed until that is committed.
    paths
        .into_iter()
        .filter_map(|path| Some((path.to_owned(), fs::read_to_string(root().join(path)).ok()?)))
        .collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The code that ships: no tests, and not the kit that is there for tests.
fn shipped_sources() -> Vec<(String, Source)> {
    files()
        .into_iter()
        .filter(|(path, _)| {
            let mut parts = path.split('/');
            parts.next() == Some("crates")
                && parts.next().is_some_and(|name| name != "seqline-testkit")
                && parts.next() == Some("src")
                && path.ends_with(".rs")
                && !path.ends_with("/tests.rs")
        })
        .map(|(path, text)| (path, Source::parse(&text)))
        .collect()
}

fn migrations() -> Vec<(String, String)> {
    let found: Vec<_> = files()
        .into_iter()
        .filter(|(path, _)| path.ends_with(".sql") && path.contains("/migrations/"))
        .collect();
    assert!(!found.is_empty());
    found
}

fn assert_tidy(findings: &[String], rule: &str) {
    assert!(findings.is_empty(), "{rule}\n\n{}\n", findings.join("\n"));
}

#[test]
fn sql_is_in_store_and_migrations_only() {
    const BEGINNINGS: [&str; 19] = [
        "ALTER",
        "BEGIN",
        "COMMENT ON",
        "COMMIT",
        "COPY",
        "CREATE",
        "DELETE",
        "DROP",
        "GRANT",
        "INSERT",
        "LISTEN",
        "LOCK",
        "NOTIFY",
        "REVOKE",
        "ROLLBACK",
        "SELECT",
        "SET",
        "TRUNCATE",
        "UPDATE",
    ];
    let is_sql = |text: &str| {
        let text = text.trim_start_matches("\\n").trim_start();
        BEGINNINGS.iter().any(|word| {
            text.strip_prefix(word)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    };
    let mut findings = Vec::new();
    for (path, source) in shipped_sources().iter().filter(|(path, _)| !path.contains("/src/store/")) {
        for literal in source.literals.iter().filter(|literal| is_sql(&literal.text)) {
            let beginning: String = literal.text.chars().take(60).collect();
            findings.push(format!("{path}:{}: {beginning}", literal.line));
        }
    }
    assert_tidy(&findings, "SQL text belongs into store/ or migrations/:");
}

#[test]
fn functions_of_store_run_a_statement_and_nothing_else() {
    const FOREIGN: [&str; 8] =
        [".begin(", ".commit(", ".rollback(", "PgPool", "sleep", "timeout(", "tracing::", "tokio::spawn"];
    let mut findings = Vec::new();
    for (path, source) in shipped_sources().iter().filter(|(path, _)| path.contains("/src/store/")) {
        findings.extend(
            FOREIGN.iter().filter(|word| source.code.contains(*word)).map(|word| format!("{path}: {word}")),
        );
    }
    assert_tidy(&findings, "store/ never begins, commits, waits, retries or logs; its caller does:");
}

#[test]
fn pure_modules_do_no_io_and_read_no_clock() {
    const FOREIGN: [&str; 13] = [
        "tokio",
        "sqlx",
        "axum",
        "async_nats",
        "std::fs",
        "std::net",
        "std::env",
        "Clock",
        "SystemTime",
        "Instant",
        "now_utc",
        "now_v7",
        "now(",
    ];
    let mut findings = Vec::new();
    for path in PURE {
        let code = Source::parse(&read(path)).code;
        findings
            .extend(FOREIGN.iter().filter(|word| code.contains(*word)).map(|word| format!("{path}: {word}")));
    }
    assert_tidy(&findings, "time, randomness and what was read come into these modules as arguments:");
}

#[test]
fn rust_files_are_short() {
    let long: Vec<String> = files()
        .iter()
        .filter(|(path, _)| path.ends_with(".rs"))
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    assert_tidy(&long, &format!("files have at most {LINES_MAX} lines; split these:"));
}

#[test]
fn the_architecture_names_every_crate_and_module() {
    let architecture = read("ARCHITECTURE.md");
    let mut names: Vec<String> = fs::read_dir(root().join("crates"))
        .expect("there are crates")
        .map(|entry| format!("crates/{}", entry.expect("it can be listed").file_name().to_string_lossy()))
        .collect();
    names.push("xtask".to_owned());
    let code = Source::parse(&read("crates/seqline/src/lib.rs")).code;
    let modules = code.lines().filter_map(|line| {
        let line = line.trim();
        line.strip_prefix("pub ").unwrap_or(line).strip_prefix("mod ")?.strip_suffix(';')
    });
    names.extend(modules.map(str::to_owned));
    assert!(names.len() > 10, "{names:?}");
    let missing: Vec<String> =
        names.into_iter().filter(|name| !architecture.contains(&format!("`{name}`"))).collect();
    assert_tidy(&missing, "ARCHITECTURE.md does not name these:");
}

#[test]
fn nothing_is_left_for_later() {
    // Put together here, so that this file does not find itself.
    let marks = [
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["todo", "!("].concat(),
        ["unimplemented", "!("].concat(),
    ];
    let mut findings = Vec::new();
    for (path, text) in files() {
        for (number, line) in text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark)) {
                findings.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert_tidy(&findings, "finish these, or write down elsewhere what is to come:");
}

#[test]
fn dashes_are_hyphens() {
    let mut findings = Vec::new();
    for (path, text) in files() {
        for (number, line) in text.lines().enumerate() {
            if line.contains(['\u{2012}', '\u{2013}', '\u{2014}', '\u{2015}']) {
                findings.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert_tidy(&findings, "write a plain hyphen here:");
}

#[test]
fn nothing_sets_the_search_path_of_a_connection() {
    const PINNED: &str = "SET search_path = pg_catalog, pg_temp";
    let mut findings = Vec::new();
    for (path, source) in shipped_sources() {
        let set = source.literals.iter().filter(|literal| literal.text.contains("search_path"));
        findings.extend(set.map(|literal| format!("{path}:{}: {}", literal.line, literal.text)));
    }
    for (path, text) in migrations() {
        for (number, line) in text.lines().enumerate() {
            let code = line.find("--").map_or(line, |comment| &line[..comment]).trim();
            if code.contains("search_path") && code != PINNED {
                findings.push(format!("{path}:{}: {code}", number + 1));
            }
        }
    }
    assert_tidy(
        &findings,
        &format!(
            "we run inside the application's transaction; a function may say `{PINNED}`, nothing else may:"
        ),
    );
}

#[test]
fn every_object_of_the_product_is_named_with_its_schema() {
    const BEFORE_A_NAME: [&str; 9] =
        ["FROM", "JOIN", "INTO", "UPDATE", "TABLE", "REFERENCES", "FUNCTION", "TYPE", "ONLY"];
    let mut statements: Vec<(String, String)> = migrations();
    let mut objects = BTreeSet::new();
    for (_, text) in &statements {
        let words = sql_words(text);
        for pair in words.windows(2) {
            if let ("TABLE" | "FUNCTION" | "TYPE" | "VIEW" | "EXISTS", Some(name)) =
                (pair[0].as_str(), pair[1].strip_prefix("seqline."))
            {
                objects.insert(name.to_owned());
            }
        }
    }
    assert!(objects.contains("event_log") && objects.contains("append") && objects.contains("event_draft"));
    for (path, source) in shipped_sources().into_iter().filter(|(path, _)| path.contains("/src/store/")) {
        let at = |line: usize| format!("{path}:{line}");
        statements.extend(source.literals.into_iter().map(|literal| (at(literal.line), literal.text)));
    }
    let mut findings = Vec::new();
    for (place, sql) in &statements {
        let words = sql_words(sql);
        for (at, _) in words.iter().enumerate().filter(|(_, word)| objects.contains(*word)) {
            let named = at > 0 && BEFORE_A_NAME.contains(&words[at - 1].as_str());
            let called = words.get(at + 1).is_some_and(|next| next == "(");
            if named || called {
                let around = &words[at.saturating_sub(3)..words.len().min(at + 3)];
                findings.push(format!("{place}: {}", around.join(" ")));
            }
        }
    }
    assert_tidy(&findings, "these need the schema in front, whatever the search path is:");
}

#[test]
fn migrations_that_were_released_are_never_edited() {
    const LIST: &str = "crates/seqline/tests/it/migrations.sha256";
    let hash =
        |text: &String| Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let found: String = migrations().iter().map(|(path, text)| format!("{}  {path}\n", hash(text))).collect();
    assert!(
        found == read(LIST),
        "A database that has applied a migration refuses a program with another one of that number.\n\
         If one of these was released, take the edit back and write a new migration.\n\
         If none was, record them from the root of the repository:\n\n\
         sha256sum $(git ls-files -co --exclude-standard '*/migrations/*.sql' | sort) > {LIST}\n\n{found}"
    );
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut dead = Vec::new();
    for (path, text) in files().into_iter().filter(|(path, _)| path.ends_with(".md")) {
        let folder = Path::new(&path).parent().expect("a file is in a folder").to_owned();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for target in targets.filter(|target| !target.is_empty() && !target.contains("://")) {
            if !root().join(&folder).join(target).exists() {
                dead.push(format!("{path}: {target}"));
            }
        }
    }
    assert!(dead.is_empty(), "these links lead nowhere:\n{}", dead.join("\n"));
}
