//! What the functions of the database refuse, as programs read it.

use seqline::DatabaseError;
use sqlx::postgres::PgDatabaseError;

/// A change that the database refuses by a rule. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The rule: `relay_unknown`, `dead_letter_unknown` and others.
    pub rule: String,
    /// The message of the database.
    pub message: String,
    /// What to do: a sentence.
    pub hint: Option<String>,
}

impl Refusal {
    /// Seqline's own SQL raises its refusals in its schema, under a constraint that begins with the name of the product.
    pub(crate) fn of(error: sqlx::Error) -> Result<Self, DatabaseError> {
        let refusal = error.as_database_error().and_then(|error| {
            let pg = error.try_downcast_ref::<PgDatabaseError>()?;
            let rule =
                pg.constraint().filter(|_| pg.schema() == Some("seqline"))?.strip_prefix("seqline_")?;
            Some(Self {
                rule: rule.to_owned(),
                message: pg.message().to_owned(),
                hint: pg.hint().map(str::to_owned),
            })
        });
        refusal.ok_or_else(|| error.into())
    }
}
