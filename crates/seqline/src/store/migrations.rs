//! The migrations, and the scripts that are made of them.

use sha2::{Digest, Sha256};

const ROLES: &str = include_str!("../../migrations/0000_roles.sql");
const SCHEMA: &str = include_str!("../../migrations/0000_schema.sql");

pub(crate) struct Migration {
    pub(crate) version: i32,
    name: &'static str,
    sql: &'static str,
}

pub(crate) const MIGRATIONS: [Migration; 33] = [
    Migration { version: 1, name: "tables", sql: include_str!("../../migrations/0001_tables.sql") },
    Migration { version: 2, name: "read", sql: include_str!("../../migrations/0002_read.sql") },
    Migration { version: 3, name: "append", sql: include_str!("../../migrations/0003_append.sql") },
    Migration { version: 4, name: "numbering", sql: include_str!("../../migrations/0004_numbering.sql") },
    Migration { version: 5, name: "partitions", sql: include_str!("../../migrations/0005_partitions.sql") },
    Migration { version: 6, name: "grants", sql: include_str!("../../migrations/0006_grants.sql") },
    Migration { version: 7, name: "import", sql: include_str!("../../migrations/0007_import.sql") },
    Migration { version: 8, name: "consumers", sql: include_str!("../../migrations/0008_consumers.sql") },
    Migration { version: 9, name: "poll", sql: include_str!("../../migrations/0009_poll.sql") },
    Migration {
        version: 10,
        name: "periodic_tasks",
        sql: include_str!("../../migrations/0010_periodic_tasks.sql"),
    },
    Migration { version: 11, name: "filters", sql: include_str!("../../migrations/0011_filters.sql") },
    Migration { version: 12, name: "operating", sql: include_str!("../../migrations/0012_operating.sql") },
    Migration { version: 13, name: "lanes", sql: include_str!("../../migrations/0013_lanes.sql") },
    Migration { version: 14, name: "parking", sql: include_str!("../../migrations/0014_parking.sql") },
    Migration { version: 15, name: "commands", sql: include_str!("../../migrations/0015_commands.sql") },
    Migration {
        version: 16,
        name: "retention_hold",
        sql: include_str!("../../migrations/0016_retention_hold.sql"),
    },
    Migration { version: 17, name: "poll_lanes", sql: include_str!("../../migrations/0017_poll_lanes.sql") },
    Migration { version: 18, name: "sequencing", sql: include_str!("../../migrations/0018_sequencing.sql") },
    Migration {
        version: 19,
        name: "append_staged",
        sql: include_str!("../../migrations/0019_append_staged.sql"),
    },
    Migration {
        version: 20,
        name: "number_staged",
        sql: include_str!("../../migrations/0020_number_staged.sql"),
    },
    Migration { version: 21, name: "sequencer", sql: include_str!("../../migrations/0021_sequencer.sql") },
    Migration {
        version: 22,
        name: "poll_durable",
        sql: include_str!("../../migrations/0022_poll_durable.sql"),
    },
    Migration { version: 23, name: "read_only", sql: include_str!("../../migrations/0023_read_only.sql") },
    Migration { version: 24, name: "epoch", sql: include_str!("../../migrations/0024_epoch.sql") },
    Migration { version: 25, name: "principals", sql: include_str!("../../migrations/0025_principals.sql") },
    Migration { version: 26, name: "redaction", sql: include_str!("../../migrations/0026_redaction.sql") },
    Migration {
        version: 27,
        name: "idempotency",
        sql: include_str!("../../migrations/0027_idempotency.sql"),
    },
    Migration { version: 28, name: "audit", sql: include_str!("../../migrations/0028_audit.sql") },
    Migration {
        version: 29,
        name: "agent_consumers",
        sql: include_str!("../../migrations/0029_agent_consumers.sql"),
    },
    Migration {
        version: 30,
        name: "delete_agent_consumer",
        sql: include_str!("../../migrations/0030_delete_agent_consumer.sql"),
    },
    Migration { version: 31, name: "relay", sql: include_str!("../../migrations/0031_relay.sql") },
    Migration {
        version: 32,
        name: "stream_consumers",
        sql: include_str!("../../migrations/0032_stream_consumers.sql"),
    },
    Migration {
        version: 33,
        name: "agents_epoch",
        sql: include_str!("../../migrations/0033_agents_epoch.sql"),
    },
];

impl Migration {
    pub(crate) fn checksum(&self) -> String {
        Sha256::digest(self.sql).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Everything after `version` as one transaction. Its text is read with PostgreSQL's own string rules, whatever the
/// session has set.
pub(crate) fn transaction(version: i32) -> String {
    let mut sql = String::from("BEGIN;\nSET LOCAL standard_conforming_strings = on;\n");
    if version == 0 {
        sql.push_str(ROLES);
        sql.push_str(SCHEMA);
    }
    sql.push_str("SET LOCAL ROLE seqline_owner;\n");
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > version) {
        sql.push_str(&format!(
            "\n-- Migration {version} ({name})\n{sql}\nINSERT INTO seqline.schema_version (version, name, checksum) VALUES ({version}, '{name}', '{checksum}');\n",
            version = migration.version,
            name = migration.name,
            sql = migration.sql,
            checksum = migration.checksum(),
        ));
    }
    sql.push_str("COMMIT;\n");
    sql
}

/// The same for psql, and then the partitions.
pub(crate) fn psql_script(version: i32) -> String {
    format!(
        "\\set ON_ERROR_STOP on\n{}
BEGIN;
SET LOCAL ROLE seqline_owner;
SELECT seqline.sync_event_log_ensure_partitions(event_log_partition_size, event_log_partitions_ahead, seqline.head())
FROM seqline.settings;
COMMIT;
",
        transaction(version)
    )
}

/// What somebody with more rights has to run so that `user` can migrate `database`. From PostgreSQL 16 on a member can be kept
/// from inheriting the owner's rights.
pub(crate) fn request(user: &str, database: &str, without_inheriting: bool) -> String {
    let (user, database) = (quote(user), quote(database));
    let option = if without_inheriting { " WITH INHERIT FALSE, SET TRUE" } else { "" };
    format!(
        "{ROLES}\nGRANT seqline_owner TO {user}{option};\nGRANT CREATE ON DATABASE {database} TO {user};\n"
    )
}

/// An SQL identifier.
fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_sql_identifiers() {
        assert_eq!(quote("a\"b"), "\"a\"\"b\"");
    }
}
