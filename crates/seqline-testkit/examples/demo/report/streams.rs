//! What became of the log in a stream.

use std::collections::BTreeMap;

use super::{Evidence, Finding};

/// Whether the stream is the log.
pub(super) fn copied(evidence: &Evidence<'_>) -> Finding {
    let stream = &evidence.streams.stream;
    let mut faults = Vec::new();
    for at in 0..evidence.log.len().max(stream.len()) {
        let event = evidence.log.get(at).map(|event| (event.seq, event.id));
        let message = stream.get(at).and_then(Option::as_ref).map(|it| (it.position, it.event_id));
        if event != message {
            faults.push(format!("message {} is {message:?}, the log has {event:?}", at + 1));
            break;
        }
    }
    faults.extend(evidence.streams.incidents.iter().map(|kind| format!("the relay met {kind}")));
    let deeds = &evidence.streams.deeds;
    Finding {
        promise: "Each event is in the stream once, in the order of the log, whatever happens to the relay and the broker",
        observed: format!(
            "{} messages, {} events in the log; the relay killed {} times, the broker {}",
            stream.len(),
            evidence.log.len(),
            deeds.relays_killed,
            deeds.brokers_killed
        ),
        faults,
    }
}

/// Whether consumers of the stream did everything once.
pub(super) fn consumed(evidence: &Evidence<'_>) -> Finding {
    let mut found: BTreeMap<_, usize> = BTreeMap::new();
    for effect in &evidence.streams.effects {
        *found.entry((effect.seq, effect.event_id)).or_default() += 1;
    }
    let mut faults = Vec::new();
    for event in &evidence.log {
        match found.remove(&(event.seq, event.id)).unwrap_or_default() {
            1 => {}
            effects => {
                faults.push(format!("seq {} has {effects} effects of the stream, one is due", event.seq))
            }
        }
    }
    faults.extend(
        found.keys().map(|(seq, id)| format!("an effect of seq {seq}, {id}, which is not in the log")),
    );
    Finding {
        promise: "A consumer of the stream has each effect exactly once, however often the broker delivers",
        observed: format!(
            "{} effects of {} deliveries; consumers killed {} times, and {} times between a commit and its acknowledgement",
            evidence.streams.effects.len(),
            evidence.streams.deliveries,
            evidence.streams.deeds.consumers_killed,
            evidence.streams.deeds.consumers_died
        ),
        faults,
    }
}
