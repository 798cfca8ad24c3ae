//! What the program says about itself, and about command lines that it does not understand.

use insta::assert_snapshot;

use crate::support::seqline;

#[tokio::test]
async fn help_is_given_for_every_command() {
    for command in [
        "",
        "up",
        "migrate",
        "append",
        "import",
        "tail",
        "status",
        "settings",
        "settings sequencing",
        "settings notification",
        "settings staged-transactions-max",
        "partitions",
        "partitions ensure",
        "partitions maintain",
        "consumers",
        "consumers list",
        "consumers show",
        "consumers pause",
        "consumers resume",
        "consumers rewind",
        "consumers skip",
        "consumers retire",
        "consumers lanes",
        "consumers replay",
        "consumers acknowledge",
        "parked",
        "parked list",
        "parked show",
        "parked retry",
        "parked discard",
        "jobs",
        "jobs list",
        "jobs show",
        "jobs retry",
        "jobs discard",
        "redact",
        "redact event",
        "redact resource",
        "principals",
        "principals create",
        "principals list",
        "principals show",
        "principals rights",
        "principals disable",
        "principals enable",
        "principals delete",
        "tokens",
        "tokens create",
        "tokens list",
        "tokens revoke",
        "grants",
        "grants add",
        "grants list",
        "grants remove",
        "agents",
        "agents consumers",
        "agents consumers list",
        "agents consumers show",
        "agents consumers reset",
        "agents consumers release",
        "agents consumers delete",
        "stream",
        "stream info",
        "stream forget",
        "stream walk",
        "relay",
        "relay status",
        "relay pause",
        "relay resume",
        "relay rewind",
        "relay delete",
        "relay acknowledge",
        "dead-letters",
        "dead-letters list",
        "dead-letters show",
        "dead-letters replay",
        "dead-letters discard",
        "audit",
        "restore",
        "restore finalize",
        "doctor",
        "serve",
        "healthcheck",
        "config",
        "config check",
        "config reference",
        "config schema",
    ] {
        let help = seqline(command.split_whitespace()).arg("--help").ok().await;
        assert!(help.is_ascii(), "{help}");
        assert_snapshot!(format!("help {command}").trim().replace(' ', "-"), help);
    }
}

#[tokio::test]
async fn the_version_is_that_of_the_package() {
    assert_eq!(seqline(["--version"]).ok().await, concat!("seqline ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[tokio::test]
async fn a_command_line_that_is_not_understood_ends_with_2_and_prints_no_data() {
    for line in [
        "",
        "nonsense",
        "append",
        "tail --after -1",
        "tail --after 3 --last 3",
        "tail --poll-interval soon",
        "migrate --after 3",
        "append order.created --id 17",
        "append order.created --actor-id alex",
        "import -",
        "stream",
        "stream walk --limit 0",
        "stream walk --pause 6s",
        "stream walk --from middle",
        "relay rewind",
        "relay rewind --to -1",
        "relay rewind --to 1 --yes",
        "relay delete --yes",
        "relay acknowledge --yes",
        "dead-letters show",
        "dead-letters list --limit 0",
        "dead-letters discard mail",
        "dead-letters discard mail 1 --all",
        "dead-letters discard mail 1 --yes",
        "import - --type order.created",
        "import - --type order.created --type-pointer /type --resource-kind order",
        "import - --type order.created --type-prefix order. --resource-kind order",
        "import - --type order.created --resource-kind order --writers 0",
        "import - --type order.created --resource-kind order --writers 65",
        "import - --type order.created --resource-kind order --batch 0",
        "partitions maintain --retention -1d",
        "settings sequencing",
        "settings sequencing sometimes",
        "settings sequencing AT_COMMIT",
        "settings notification on",
        "settings staged-transactions-max",
        "settings staged-transactions-max 0",
        "settings staged-transactions-max -1",
        "settings staged-transactions-max 1000000001",
        "settings staged-transactions-max many",
        "settings event_payload_max_bytes 17",
        "up --port 70000",
        "consumers",
        "consumers pause",
        "consumers show",
        "consumers rewind recorder",
        "consumers rewind recorder --to yesterday",
        "consumers rewind recorder --to 2026-11-30",
        "consumers skip recorder",
        "consumers skip recorder --seq 3 --yes",
        "consumers lanes recorder",
        "consumers lanes recorder --to 0",
        "consumers lanes recorder --to 65",
        "consumers lanes recorder --to 2 --key user",
        "consumers lanes recorder --to 2 --wait 6m",
        "consumers replay recorder --from 1 --to 2",
        "consumers replay recorder --into again --from 1",
        "parked",
        "parked list --limit 0",
        "parked list --limit 1001",
        "parked show recorder",
        "parked discard recorder",
        "parked discard recorder --all --seq 3",
        "parked discard recorder --all --yes",
        "jobs",
        "jobs list --state done",
        "jobs list --limit 0",
        "jobs list --limit 1001",
        "jobs show",
        "jobs retry all",
        "redact",
        "redact event 17",
        "redact event 018f0000-0000-7000-8000-000000000001 --yes",
        "redact resource order",
        "redact resource order 17 --yes",
        "principals",
        "principals create alex",
        "principals create alex --kind robot",
        "principals create alex --kind user --rights read",
        "principals rights alex",
        "principals list --limit 0",
        "tokens",
        "tokens create",
        "tokens create alex --expires-in soon",
        "tokens revoke 17",
        "tokens list --limit 1001",
        "grants",
        "grants add alex",
        "grants remove alex --yes",
        "agents",
        "agents consumers",
        "agents consumers list --after billing",
        "agents consumers show billing",
        "agents consumers reset billing invoices",
        "agents consumers reset billing invoices --to -1",
        "audit --limit 0",
        "audit --limit 1001",
        "audit --before now",
        "restore",
        "restore finalize",
        "restore finalize --consumers all",
        "restore finalize --consumers keep --yes",
        "doctor --quick",
        "serve --role king",
        "config",
        "healthcheck --address localhost:80",
        "serve --role worker --config",
    ] {
        let outcome = seqline(line.split_whitespace()).run().await;
        assert_eq!(outcome.code(), Some(2), "{line}: {outcome:?}");
        assert_eq!(outcome.stdout, "", "{line}");
        assert!(outcome.stderr.contains("--help") || outcome.stderr.contains("Usage"), "{line}: {outcome:?}");
    }
}

#[tokio::test]
async fn an_import_without_type_and_kind_is_told_the_plain_options() {
    let outcome = seqline(["import", "-"]).run().await;
    assert_eq!(outcome.code(), Some(2), "{outcome:?}");
    for option in ["--type <TYPE>", "--resource-kind <KIND>"] {
        assert!(outcome.stderr.contains(option), "{outcome:?}");
    }
}

#[tokio::test]
async fn no_help_shows_a_url_of_the_environment() {
    for command in ["tail", "serve", "status", "doctor"] {
        let help = seqline([command, "--help"])
            .env("SEQLINE_LISTEN_URL", "postgres://alex:hunter2@example.com/db")
            .env("SEQLINE_DATABASE_URL", "postgres://alex:hunter2@example.com/db");
        assert!(!help.ok().await.contains("hunter2"), "{command}");
    }
}
