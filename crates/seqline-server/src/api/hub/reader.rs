//! The one way in which events reach somebody over HTTP, whether by pages, by waiting or as a stream.
//!
//! A reader fills pages from its position on, with what it may see by the permissions of that moment. What the hub holds comes from
//! memory; the rest is read from the database, a step of the log at a time and a few readers at a time, up to the position of the hub: so
//! whatever is handed out is durable, and what comes after a page is in one of the two. A page says up to where the log was looked
//! at, so that a reader whose events are rare goes on from there.
//!
//! The order of the three looks matters. First the position of the hub, then what the credential gives, then the events: permissions are at
//! least as new as all events up to that position, because the tail shows each batch to the cache of permissions first.

use std::ops::ControlFlow;
use std::sync::Arc;

use seqline::access::Access;
use seqline::read::VisiblePage;
use seqline::{DatabaseError, ReadError, read};
use tokio::sync::Semaphore;

use super::Hub;
use super::page::Page;
use super::rendered::Rendered;
use super::ring::Looked;
use crate::api::database::Database;
use crate::api::permissions::Permissions;
use crate::api::problem::{Resync, ResyncReason};
use crate::api::query::{After, Selection};
use crate::api::{Code, Credential, Position, Problem};
use crate::limits::{API_FIRST_READ_EVENTS, HUB_LOOK_EVENTS_MAX};

/// Why a page could not be filled.
#[derive(Debug)]
pub(crate) enum PageRefused {
    /// What the reader is to be told.
    Told(Problem),
    /// The database did not answer. Not logged yet: those who ask again all the time would fill the log.
    Database(DatabaseError),
}

impl From<Problem> for PageRefused {
    fn from(problem: Problem) -> Self {
        Self::Told(problem)
    }
}

impl From<DatabaseError> for PageRefused {
    fn from(error: DatabaseError) -> Self {
        Self::Database(error)
    }
}

impl From<PageRefused> for Problem {
    fn from(refused: PageRefused) -> Self {
        match refused {
            PageRefused::Told(problem) => problem,
            PageRefused::Database(error) => error.into(),
        }
    }
}

impl PageRefused {
    /// Whether the same may succeed in a while.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Told(problem) => problem.code() == Code::Unavailable,
            Self::Database(error) => error.is_retryable(),
        }
    }
}

/// See the [module](self). Clones share everything.
#[derive(Clone)]
pub(crate) struct Reader {
    pub(crate) hub: Hub,
    pub(crate) permissions: Permissions,
    pub(crate) database: Database,
    /// Those who may read from the database at once.
    pub(crate) places: Arc<Semaphore>,
    /// How many events one read from the database looks at.
    pub(crate) scan: u32,
    /// How far behind the head a reader may be; any distance if there is no such number.
    pub(crate) behind_max: Option<i64>,
}

impl Reader {
    /// The number after which a reader at this place reads.
    pub(crate) async fn begin(&self, after: After) -> Result<i64, PageRefused> {
        match after {
            After::Head => Ok(self.hub.position()),
            After::Oldest => Ok(self.oldest().await?),
            After::At(Position { epoch, seq }) if epoch == self.hub.epoch() => Ok(seq),
            After::At(_) => Err(self.resync(ResyncReason::EpochChanged, None).await),
        }
    }

    /// What the credential gives now.
    pub(crate) async fn access(&self, credential: &Credential) -> Result<Arc<Access>, PageRefused> {
        let access = self.permissions.of(credential).await?;
        access.ok_or_else(|| {
            let detail = "the token has expired or was revoked, or its principal was disabled";
            Problem::new(Code::Unauthenticated, detail).into()
        })
    }

    /// Takes the next step of the log into a page, from where that stands, and returns the head: when the page has reached it, there is
    /// nothing more for now.
    pub(crate) async fn fill(
        &self,
        page: &mut Page,
        credential: &Credential,
        selection: &Selection,
    ) -> Result<i64, PageRefused> {
        let head = self.hub.position();
        let access = self.access(credential).await?;
        if page.position > head {
            // Somebody else, whose tail is in front of this one, may have given it out.
            self.refuse_beyond_the_log(page.position).await?;
            return Ok(page.position);
        }
        let after = page.position;
        let see = |event: &Arc<Rendered>| {
            let wanted = access.viewer.sees(event.event()) && selection.matches(event.event());
            if wanted && page.push(event.clone()).is_err() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        match self.hub.look(after, head, HUB_LOOK_EVENTS_MAX, see) {
            Looked::UpTo(position) => page.position = position,
            Looked::NotHeld => self.fill_from_database(page, head, &access, selection).await?,
        }
        Ok(head)
    }

    async fn fill_from_database(
        &self,
        page: &mut Page,
        head: i64,
        access: &Access,
        selection: &Selection,
    ) -> Result<(), PageRefused> {
        // A history costs what it holds, however long the log is.
        let behind_max = self.behind_max.filter(|_| selection.resource.is_none());
        if behind_max.is_some_and(|behind_max| head - page.position > behind_max) {
            let (epoch, reason) = (self.hub.epoch(), ResyncReason::TooFarBehind);
            return Err(Problem::resync(Resync { reason, epoch, oldest: None, head }).into());
        }
        let limit = u32::try_from(page.room(API_FIRST_READ_EVENTS)).unwrap_or(u32::MAX).max(1);
        // No further than the hub is: so far everything is durable.
        let scan = u32::try_from(head - page.position).map_or(self.scan, |left| left.min(self.scan));
        let (principal, after) = (access.principal.as_str(), page.position);
        let read = self.read(async |connection| {
            let found = match &selection.resource {
                None => {
                    read::visible_after(connection, principal, after, &selection.filter, limit, scan).await
                }
                Some(resource) => {
                    let (kind, id) = (&resource.kind, &resource.id);
                    read::history_after(connection, principal, kind, id, after, limit).await
                }
            };
            // What is refused is an answer: the connection is as good as before.
            match found {
                Err(ReadError::Database(error)) => Err(error),
                found => Ok(found),
            }
        });
        let found: VisiblePage = match read.await? {
            Ok(found) => found,
            Err(ReadError::Expired { min_retained, .. }) => {
                return Err(self.resync(ResyncReason::Retention, Some(min_retained - 1)).await);
            }
            // The position is one that this log had. It is being restored, and somebody else finds that out.
            Err(ReadError::AheadOfHead { .. }) => {
                return Err(Problem::unavailable("the log has become shorter").into());
            }
            Err(error) => return Err(Problem::internal("log", &error).into()),
        };
        for event in found.events {
            let seq = event.seq;
            // A history is read to its end, which may be beyond what is durable.
            let wanted = seq <= head && selection.matches(&event);
            if wanted && page.push(Rendered::new(self.hub.epoch(), event)).is_err() {
                page.position = seq - 1;
                return Ok(());
            }
        }
        page.position = found.position.min(head);
        Ok(())
    }

    /// The number before the oldest event that is there.
    async fn oldest(&self) -> Result<i64, DatabaseError> {
        let first: Result<i64, DatabaseError> =
            self.read(async |connection| read::min_retained(connection).await).await;
        Ok(first? - 1)
    }

    async fn refuse_beyond_the_log(&self, seq: i64) -> Result<(), PageRefused> {
        let head: Result<i64, DatabaseError> =
            self.read(async |connection| read::head(connection).await).await;
        let head = head?;
        if seq <= head {
            return Ok(());
        }
        Err(self.resync(ResyncReason::CursorAhead, None).await)
    }

    /// Tells a reader that it has to start anew, and where it can.
    async fn resync(&self, reason: ResyncReason, oldest: Option<i64>) -> PageRefused {
        let oldest = match oldest {
            Some(oldest) => Ok(oldest),
            None => self.oldest().await,
        };
        match oldest {
            Ok(oldest) => {
                let (epoch, head) = (self.hub.epoch(), self.hub.position());
                Problem::resync(Resync { reason, epoch, oldest: Some(oldest), head }).into()
            }
            Err(error) => error.into(),
        }
    }

    /// A question about the log, when it is one's turn.
    async fn read<T, E: From<sqlx::Error> + From<DatabaseError>>(
        &self,
        question: impl AsyncFnOnce(&mut sqlx::PgConnection) -> Result<T, E>,
    ) -> Result<T, E> {
        // In a place of its own: what waits in memory, most of the time, is small.
        let asked = Box::pin(async {
            // Nobody closes it.
            let _place = self.places.acquire().await;
            self.database.ask(question).await
        });
        // Whoever has waited for a place all the time is not to begin to wait then.
        self.database.in_time(asked).await
    }
}

#[cfg(test)]
pub(crate) mod tests;
