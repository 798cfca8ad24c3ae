//! `seqline migrate`

use serde::Serialize;

use crate::cli::{DatabaseArgs, MigrateArgs};
use crate::failure::Failure;
use crate::{connect, output};

#[derive(Serialize)]
struct Outcome {
    from: i32,
    to: i32,
    partitions_created: i32,
}

pub(crate) async fn run(database: &DatabaseArgs, args: MigrateArgs) -> Result<(), Failure> {
    if args.print {
        return output::line(seqline::migrate::script(args.after).trim_end());
    }
    let mut connection = connect::connect(&connect::options(database)?).await?;
    let migrated = seqline::migrate::migrate(&mut connection).await?;
    if args.json {
        let seqline::migrate::Migrated { from, to, partitions_created } = migrated;
        return output::json(&Outcome { from, to, partitions_created });
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
    output::line(format!("{schema}, {partitions} created"))
}
