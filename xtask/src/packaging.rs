//! The files of `packaging/`, checked as far as a machine without a running systemd and without containers allows: a unit that systemd's own tool
//! verifies, files that can be parsed and say what they must, and a build context in which nothing is missing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use yaml_rust2::{Yaml, YamlLoader};

use crate::run::output;
use crate::scratch::Scratch;
use crate::workspace::Workspace;

const UNIT: &str = "packaging/systemd/seqline.service";
const CONTAINERFILE: &str = "packaging/container/Containerfile";
const COMPOSE: &str = "packaging/compose.yaml";

fn read(path: &str) -> String {
    let path = Workspace::locate().unwrap().root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether this machine has a program.
fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    if !has("systemd-analyze") {
        return eprintln!("this machine has no systemd-analyze: the unit is not verified");
    }
    let scratch = Scratch::new("unit");
    // The command is not installed here, and a unit without its program is wrong.
    let program = scratch.path().join("seqline");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let unit = scratch.path().join("seqline.service");
    let text = read(UNIT).replace("/usr/local/bin/seqline", &program.to_string_lossy());
    fs::write(&unit, text).unwrap();
    let said = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output().unwrap();
    assert!(said.status.success() && said.stderr.is_empty(), "{}", String::from_utf8_lossy(&said.stderr));
    // 0 is least exposed and 10 most; a service without any of it has 9.6.
    let mut security = Command::new("systemd-analyze");
    output(security.args(["security", "--offline=true", "--threshold=15"]).arg(&unit)).unwrap();
}

#[test]
fn the_unit_keeps_the_url_secret_and_gives_the_server_time_to_stop() {
    let unit = read(UNIT);
    let settings: Vec<&str> = unit.lines().filter(|line| !line.starts_with('#')).collect();
    for setting in [
        "Type=exec",
        "DynamicUser=yes",
        "EnvironmentFile=/etc/seqline/env",
        "ExecStart=/usr/local/bin/seqline serve",
        "RestartPreventExitStatus=2 4",
        "TimeoutStopSec=45s",
    ] {
        assert!(settings.contains(&setting), "{setting}");
    }
    assert!(!settings.iter().any(|line| line.contains("database-url") || line.starts_with("Environment=")));
    let example = read("packaging/systemd/env.example");
    assert!(example.lines().any(|line| line.starts_with("SEQLINE_DATABASE_URL=postgres://")), "{example}");
}

/// Instructions with their arguments, lines that go on put together.
fn instructions(text: &str) -> Vec<(String, String)> {
    let text = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n");
    let text = text.replace("\\\n", " ");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let (name, rest) = line.split_once(char::is_whitespace).unwrap_or_else(|| panic!("{line}"));
            (name.to_owned(), rest.split_whitespace().collect::<Vec<_>>().join(" "))
        })
        .collect()
}

#[test]
fn the_image_runs_the_command_as_nobody_in_particular_and_is_asked_whether_it_is_well() {
    const KNOWN: [&str; 10] = [
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "USER",
        "EXPOSE",
        "HEALTHCHECK",
        "STOPSIGNAL",
        "ENTRYPOINT",
        "CMD",
    ];
    let instructions = instructions(&read(CONTAINERFILE));
    assert!(instructions.iter().all(|(name, _)| KNOWN.contains(&name.as_str())), "{instructions:?}");
    let of = |name: &str| -> Vec<&str> {
        instructions.iter().filter(|(known, _)| known == name).map(|(_, rest)| rest.as_str()).collect()
    };
    let images = of("FROM");
    let [build, run] = images[..] else { panic!("two stages: {images:?}") };
    assert_eq!((build, run), ("rust:1.95-bookworm AS build", "debian:bookworm-slim"));
    assert_eq!((of("USER"), of("EXPOSE")), (vec!["65532:65532"], vec!["8090"]));
    let last_stage = instructions.iter().rposition(|(name, _)| name == "FROM").unwrap();
    assert!(instructions.iter().rposition(|(name, _)| name == "USER").unwrap() > last_stage);
    assert_eq!((of("ENTRYPOINT"), of("CMD")), (vec![r#"["/usr/local/bin/seqline"]"#], vec![r#"["serve"]"#]));
    let [health] = of("HEALTHCHECK")[..] else { panic!("one health check") };
    let command = health.split_once(" CMD ").unwrap().1;
    let words: Vec<String> = serde_json::from_str(command).unwrap();
    assert_eq!(words[..2], ["/usr/local/bin/seqline", "healthcheck"]);
    // The compiler of the image is the one that the checkout asks for.
    let toolchain = read("rust-toolchain.toml");
    assert!(toolchain.contains("channel = \"1.95."), "{toolchain}");
}

/// Copies what the ignore file of the image lets through, and asks cargo whether the workspace is whole.
#[test]
fn what_the_image_is_built_from_is_a_whole_workspace() {
    let workspace = Workspace::locate().unwrap();
    let ignore = read("packaging/container/Containerfile.dockerignore");
    let lines: Vec<&str> = ignore.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    assert_eq!(lines[0], "*", "nothing is let through that is not named");
    let scratch = Scratch::new("context");
    for line in &lines[1..] {
        let name = line.strip_prefix('!').unwrap();
        let mut copy = Command::new("cp");
        output(copy.arg("--recursive").arg(workspace.root().join(name)).arg(scratch.path())).unwrap();
    }
    for (name, rest) in instructions(&read(CONTAINERFILE)) {
        let copied = if name == "COPY" && !rest.starts_with("--from") { rest.as_str() } else { continue };
        let from: Vec<&str> = copied.split(' ').collect();
        for file in &from[..from.len() - 1] {
            assert!(scratch.path().join(file).exists(), "{file}");
        }
    }
    let mut metadata = Command::new("cargo");
    metadata.current_dir(scratch.path()).args(["metadata", "--locked", "--offline", "--format-version=1"]);
    let said = output(metadata.env("CARGO_TARGET_DIR", scratch.path().join("target"))).unwrap();
    assert!(said.contains("\"name\":\"seqline-server\""));
}

fn compose() -> Yaml {
    let mut documents = YamlLoader::load_from_str(&read(COMPOSE)).unwrap();
    assert_eq!(documents.len(), 1);
    documents.remove(0)
}

fn keys(yaml: &Yaml) -> Vec<&str> {
    let map = yaml.as_hash().unwrap_or_else(|| panic!("{yaml:?}"));
    map.keys().map(|key| key.as_str().unwrap()).collect()
}

#[test]
fn the_compose_file_starts_a_database_its_schema_and_a_server_in_this_order() {
    const KNOWN: [&str; 14] = [
        "image",
        "build",
        "command",
        "environment",
        "volumes",
        "healthcheck",
        "depends_on",
        "ports",
        "restart",
        "stop_grace_period",
        "read_only",
        "cap_drop",
        "security_opt",
        "profiles",
    ];
    let compose = compose();
    let services = &compose["services"];
    for (name, service) in services.as_hash().unwrap() {
        assert!(keys(service).iter().all(|key| KNOWN.contains(key)), "{name:?}: {:?}", keys(service));
        let image = service["image"].as_str().unwrap();
        assert!(["postgres:18", "seqline"].contains(&image), "{image}");
        if let Some(build) = service["build"].as_hash() {
            assert_eq!(build.len(), 2);
            let root = Workspace::locate().unwrap().root().join("packaging");
            let context = root.join(service["build"]["context"].as_str().unwrap());
            let file = context.join(service["build"]["dockerfile"].as_str().unwrap());
            assert!(file.exists(), "{}", file.display());
        }
    }
    let waits = |service: &str, other: &str| services[service]["depends_on"][other]["condition"].as_str();
    assert_eq!(waits("migrate", "postgres"), Some("service_healthy"));
    assert_eq!(waits("login", "migrate"), Some("service_completed_successfully"));
    assert_eq!(waits("server", "login"), Some("service_completed_successfully"));
    assert_eq!(services["migrate"]["command"][0].as_str(), Some("migrate"));
    assert_eq!(services["server"]["command"][0].as_str(), Some("serve"));
    let mounted = services["login"]["volumes"][0].as_str().unwrap().split(':').next().unwrap();
    assert!(Workspace::locate().unwrap().root().join("packaging").join(mounted).exists(), "{mounted}");
    let volumes = services["postgres"]["volumes"][0].as_str().unwrap();
    assert_eq!(keys(&compose["volumes"]), [volumes.split(':').next().unwrap()]);
}

#[test]
fn no_password_is_in_the_files_and_the_server_is_no_superuser() {
    let services = compose()["services"].clone();
    for (name, service) in services.as_hash().unwrap() {
        for (variable, value) in service["environment"].as_hash().unwrap() {
            let (variable, value) = (variable.as_str().unwrap(), value.as_str().unwrap());
            if variable.contains("PASSWORD") || variable.contains("URL") {
                assert!(value.contains("_PASSWORD"), "{name:?} {variable}: {value}");
            }
        }
    }
    let url = services["server"]["environment"]["SEQLINE_DATABASE_URL"].as_str().unwrap();
    assert!(url.starts_with("postgres://seqline_server:${SEQLINE_PASSWORD}@"), "{url}");
    let login = read("packaging/container/login.sql");
    assert!(login.contains("GRANT seqline_app") && !login.to_lowercase().contains("superuser"), "{login}");
}

/// Inside, at every address of the container, since nobody gets in otherwise; outside, at the machine alone, because it has no TLS.
#[test]
fn the_api_is_reached_from_this_machine_and_from_no_other() {
    let server = compose()["services"]["server"].clone();
    assert_eq!(server["environment"]["SEQLINE_API__LISTEN"].as_str(), Some("0.0.0.0:8090"));
    let ports = server["ports"].as_vec().unwrap();
    assert_eq!(ports.iter().map(|port| port.as_str().unwrap()).collect::<Vec<_>>(), ["127.0.0.1:8090:8090"]);
}

/// Names of images, as is customary, and no registry or host of anybody.
#[test]
fn no_host_is_named() {
    for file in [UNIT, CONTAINERFILE, COMPOSE, "packaging/container/login.sql"] {
        let text = read(file);
        let is_host =
            |word: &str| word.contains(".io/") || word.contains(".com/") || word.contains("://www.");
        assert!(!text.split_whitespace().any(is_host), "{file}");
    }
}
