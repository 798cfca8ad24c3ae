//! Which events a principal may see: the decision for an event in hand.
//!
//! It gives the same answer as `seqline.visible_to` does in SQL for the same principal, grants and event. It knows nothing of principals
//! that are unknown or disabled: those have no [`Viewer`].

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::event::StoredEvent;

/// A principal receives events of a receive action: all of them, or with a scope those whose members are equal to each that is given.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Grant {
    /// The receive action of the events.
    pub action: String,
    /// The space that they are in; `None` for all.
    pub space_id: Option<String>,
    /// Their channel; `None` for all.
    pub channel_id: Option<String>,
    /// Their thread; `None` for all.
    pub thread_id: Option<String>,
}

impl Grant {
    /// A grant for all events of a receive action.
    pub fn of(action: impl Into<String>) -> Self {
        Self { action: action.into(), ..Self::default() }
    }

    /// Only for those of this space.
    #[must_use]
    pub fn space(self, id: impl Into<String>) -> Self {
        Self { space_id: Some(id.into()), ..self }
    }

    /// Only for those of this channel.
    #[must_use]
    pub fn channel(self, id: impl Into<String>) -> Self {
        Self { channel_id: Some(id.into()), ..self }
    }

    /// Only for those of this thread.
    #[must_use]
    pub fn thread(self, id: impl Into<String>) -> Self {
        Self { thread_id: Some(id.into()), ..self }
    }
}

/// The receive action that needs no grant.
const ANY: &str = "any";

/// What a part of a scope is that is not given. No id is empty.
const NOT_GIVEN: &str = "";

type Threads = HashSet<Box<str>>;
type Channels = HashMap<Box<str>, Threads>;
type Spaces = HashMap<Box<str>, Channels>;

/// A principal that is enabled, with what is granted to it: it says of an event whether it may see it.
///
/// ```
/// use seqline::access::{Grant, Viewer};
///
/// let alex = Viewer::new("alex", vec![Grant::of("message.read").space("shop-1").channel("support")]);
/// assert_eq!(alex.principal(), "alex");
/// ```
pub struct Viewer {
    principal: String,
    /// By action, space, channel and thread: each part of a scope is found by a look or two, however many grants there are.
    granted: HashMap<Box<str>, Spaces>,
    grants: usize,
}

impl Viewer {
    /// A principal with these grants.
    pub fn new(principal: impl Into<String>, grants: Vec<Grant>) -> Self {
        let part = |part: Option<String>| part.unwrap_or_default().into_boxed_str();
        let mut granted: HashMap<Box<str>, Spaces> = HashMap::new();
        let count = grants.len();
        for grant in grants {
            granted
                .entry(grant.action.into_boxed_str())
                .or_default()
                .entry(part(grant.space_id))
                .or_default()
                .entry(part(grant.channel_id))
                .or_default()
                .insert(part(grant.thread_id));
        }
        Self { principal: principal.into(), granted, grants: count }
    }

    /// Whose view it is.
    #[must_use]
    pub fn principal(&self) -> &str {
        &self.principal
    }

    /// How many grants it was made of.
    #[must_use]
    pub fn grants(&self) -> usize {
        self.grants
    }

    /// Whether the principal may see the event. One with an audience is for that principal alone, whatever is granted; one without is for
    /// everybody if its receive action is `any`, and otherwise for those to whom that action is granted in a scope that covers it.
    #[must_use]
    pub fn sees(&self, event: &StoredEvent) -> bool {
        if let Some(audience) = &event.audience_principal_id {
            return *audience == self.principal;
        }
        if event.receive_action == ANY {
            return true;
        }
        let Some(spaces) = self.granted.get(event.receive_action.as_str()) else { return false };
        covering(event.space_id.as_deref())
            .filter_map(|space| spaces.get(space))
            .flat_map(|channels| {
                covering(event.channel_id.as_deref()).filter_map(|channel| channels.get(channel))
            })
            .any(|threads| covering(event.thread_id.as_deref()).any(|thread| threads.contains(thread)))
    }
}

/// What a part of a grant's scope can be that covers this part of an event's.
fn covering(part: Option<&str>) -> impl Iterator<Item = &str> {
    [Some(NOT_GIVEN), part].into_iter().flatten()
}

/// Grants can be thousands: only how many they are.
impl fmt::Debug for Viewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Viewer").field("principal", &self.principal).field("grants", &self.grants).finish()
    }
}
