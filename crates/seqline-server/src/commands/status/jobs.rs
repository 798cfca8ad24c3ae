//! The server's own jobs in `seqline status`.

use seqline::DatabaseError;
use serde::Serialize;
use sqlx::PgConnection;

use crate::failure::Failure;
use crate::jobs::schema::schema_name;
use crate::output::grouped;
use crate::store;

/// How many jobs there are that are not done.
#[derive(Serialize)]
pub(super) struct Counts {
    schema: String,
    waiting: i64,
    running: i64,
    discarded: i64,
}

/// What is seen of them.
pub(super) enum Seen {
    Counts(Counts),
    /// There is no such schema.
    Missing(String),
    /// Only some roles may look.
    Hidden,
}

pub(super) async fn jobs(connection: &mut PgConnection, schema: String) -> Result<Seen, Failure> {
    let counted = store::jobs::counts(connection, &schema_name(&schema)?).await.map_err(DatabaseError::from);
    match counted {
        Ok((waiting, running, discarded)) => Ok(Seen::Counts(Counts { schema, waiting, running, discarded })),
        Err(error) => match error.sqlstate() {
            Some("42501") => Ok(Seen::Hidden),
            Some("42P01" | "3F000") => Ok(Seen::Missing(schema)),
            _ => Err(error.into()),
        },
    }
}

impl Seen {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Counts(Counts { waiting, running, discarded, .. }) => {
                let hint = if *discarded > 0 { " (seqline jobs list --state discarded)" } else { "" };
                let [waiting, running, discarded] =
                    [waiting, running, discarded].map(|count| grouped(*count));
                format!("{waiting} waiting, {running} running, {discarded} discarded{hint}")
            }
            Self::Missing(schema) => format!("no schema {schema}: run seqline migrate"),
            Self::Hidden => "not for this role to see".to_owned(),
        }
    }

    pub(super) fn counts(self) -> Option<Counts> {
        match self {
            Self::Counts(counts) => Some(counts),
            Self::Missing(_) | Self::Hidden => None,
        }
    }
}
