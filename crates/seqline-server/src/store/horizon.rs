//! What keeps vacuum from removing the dead rows of this database, by the rule of PostgreSQL: one answer for the figure and for the doctor.
//!
//! - Sessions of this database that have a snapshot or a number of their own. Those of other databases do not count: PostgreSQL keeps a
//!   horizon for each. Nor does what runs VACUUM, with its helpers, or decodes for a logical slot: PostgreSQL leaves both out.
//! - Prepared transactions of this database.
//! - The `xmin` of replication slots, of all databases, and, for the system catalogs only, their `catalog_xmin`. That is a number with no
//!   time, so it has no age in seconds.
//! - A standby without a slot that says what it reads (`hot_standby_feedback`): its sender has a number too, and no time.

use sqlx::{PgConnection, Row};

use super::doctor::Session;

/// The transactions of the rule that have an age, as rows of a session or of the name of a prepared transaction.
macro_rules! holders {
    () => {
        "SELECT a.pid, NULL::text AS gid, a.application_name, a.state, a.query, a.xact_start AS began
         FROM pg_catalog.pg_stat_activity a
         WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND num_nonnulls(a.backend_xid, a.backend_xmin) > 0
             AND NOT EXISTS (SELECT FROM pg_catalog.pg_stat_progress_vacuum v WHERE v.pid IN (a.pid, a.leader_pid))
             AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.active_pid = a.pid)
         UNION ALL
         SELECT NULL, x.gid, NULL, NULL, NULL, x.prepared
         FROM pg_catalog.pg_prepared_xacts x WHERE x.database = current_database()"
    };
}

/// In seconds, of the oldest transaction; as an expression of SQL.
macro_rules! oldest_age {
    () => {
        concat!(
            "(SELECT extract(epoch FROM clock_timestamp() - min(h.began))::double precision FROM (",
            $crate::store::horizon::holders!(),
            ") h)"
        )
    };
}

pub(crate) use {holders, oldest_age};

/// What keeps vacuum from removing rows.
pub(crate) struct Horizon {
    /// The oldest transaction of this database that can be seen.
    pub(crate) oldest: Option<Session>,
    /// Sessions of others of which this role sees nothing.
    pub(crate) hidden: i64,
    /// The oldest prepared transaction: its name and age.
    pub(crate) prepared: Option<(String, f64)>,
    /// Replication slots that nobody uses and that keep rows.
    pub(crate) slots: Vec<String>,
    /// Those that keep rows of the system catalogs only.
    pub(crate) catalog_slots: Vec<String>,
}

pub(crate) async fn horizon(connection: &mut PgConnection) -> Result<Horizon, sqlx::Error> {
    let row = sqlx::query(concat!(
        "WITH holders AS MATERIALIZED (",
        holders!(),
        ")
         SELECT o.pid, o.application_name, o.state, o.query, extract(epoch FROM clock_timestamp() - o.began)::double precision,
                (SELECT count(*) FROM pg_stat_activity h
                 WHERE h.datname = current_database() AND h.query = '<insufficient privilege>'),
                p.gid, extract(epoch FROM clock_timestamp() - p.began)::double precision,
                ARRAY(SELECT s.slot_name::text FROM pg_replication_slots s WHERE NOT s.active AND s.xmin IS NOT NULL ORDER BY s.slot_name),
                ARRAY(SELECT s.slot_name::text FROM pg_replication_slots s
                      WHERE NOT s.active AND s.xmin IS NULL AND s.catalog_xmin IS NOT NULL ORDER BY s.slot_name)
         FROM (VALUES (1)) AS one (n)
         LEFT JOIN LATERAL (SELECT * FROM holders h WHERE h.gid IS NULL ORDER BY h.began LIMIT 1) o ON true
         LEFT JOIN LATERAL (SELECT * FROM holders h WHERE h.gid IS NOT NULL ORDER BY h.began LIMIT 1) p ON true"
    ))
    .persistent(false)
    .fetch_one(connection)
    .await?;
    let pid: Option<i32> = row.try_get(0)?;
    let oldest = Session {
        pid,
        application: row.try_get(1)?,
        state: row.try_get(2)?,
        query: row.try_get(3)?,
        age_seconds: row.try_get(4)?,
    };
    let prepared: (Option<String>, Option<f64>) = (row.try_get(6)?, row.try_get(7)?);
    Ok(Horizon {
        oldest: pid.map(|_| oldest),
        hidden: row.try_get(5)?,
        prepared: prepared.0.zip(prepared.1),
        slots: row.try_get(8)?,
        catalog_slots: row.try_get(9)?,
    })
}
