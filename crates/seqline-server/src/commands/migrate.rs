//! `seqline migrate`

use seqline::migrate::Migrated;
use serde::Serialize;
use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;

use super::configuration;
use crate::cli::{DatabaseArgs, MigrateArgs};
use crate::failure::Failure;
use crate::jobs::schema::JobsMigrated;
use crate::{connect, jobs, output};

#[derive(Serialize)]
struct Outcome {
    from: i32,
    to: i32,
    partitions_created: i32,
    jobs_schema: String,
    jobs_from: i64,
    jobs_to: i64,
}

pub(crate) async fn run(database: &DatabaseArgs, args: MigrateArgs) -> Result<(), Failure> {
    let jobs_schema = configuration(&args.config)?.jobs.schema;
    if args.print {
        output::line(seqline::migrate::script(args.after).trim_end())?;
        return output::line(jobs::schema::script(&jobs_schema)?.trim_end());
    }
    let options = connect::options(database)?;
    let connection = connect::connect(&options).await?;
    let (migrated, jobs) = both(connection, &options, &jobs_schema).await?;
    if args.json {
        let Migrated { from, to, partitions_created } = migrated;
        let JobsMigrated { from: jobs_from, to: jobs_to } = jobs;
        return output::json(&Outcome { from, to, partitions_created, jobs_schema, jobs_from, jobs_to });
    }
    let schema = match migrated.from {
        from if from == migrated.to => format!("schema is current (version {from})"),
        0 => format!("schema created (version {})", migrated.to),
        from => format!("schema updated (version {from} to {})", migrated.to),
    };
    let partitions = match migrated.partitions_created {
        1 => "1 partition".to_owned(),
        created => format!("{created} partitions"),
    };
    output::line(format!("{schema}, {partitions} created"))?;
    output::line(match jobs.from {
        from if from == jobs.to => format!("jobs schema {jobs_schema} is current (River version {from})"),
        0 => format!("jobs schema {jobs_schema} created (River version {})", jobs.to),
        from => format!("jobs schema {jobs_schema} updated (River version {from} to {})", jobs.to),
    })
}

/// The log and then River. A schema of the jobs that is not ours is refused before anything is changed.
pub(crate) async fn both(
    mut connection: PgConnection,
    options: &PgConnectOptions,
    jobs_schema: &str,
) -> Result<(Migrated, JobsMigrated), Failure> {
    jobs::schema::refuse_foreign(&mut connection, jobs_schema).await?;
    let migrated = seqline::migrate::migrate(&mut connection).await?;
    drop(connection);
    let jobs = jobs::schema::migrate(options, jobs_schema).await?;
    Ok((migrated, jobs))
}
