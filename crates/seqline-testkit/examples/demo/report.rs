//! The proof: each promise and what was observed.

use std::collections::{BTreeMap, BTreeSet};

use seqline::StoredEvent;
use seqline_testkit::{Record, check};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::agents::Outcome;
use crate::chaos::Damage;
use crate::jobs::{self, Jobs};
use crate::payloads::Webhook;
use crate::streams as streams_of;
use crate::workers::{Effect, Kills};
use crate::writers::Work;

mod agents;
mod streams;

/// Faults of one kind that are shown; one is enough to fail.
const FAULTS_SHOWN: usize = 5;

/// Fewer kills in the middle of a round prove too little.
const KILLS_IN_A_ROUND_MIN: usize = 3;

pub(crate) struct Evidence<'a> {
    pub(crate) history: Vec<Record>,
    pub(crate) delivered: Vec<(i64, Uuid)>,
    pub(crate) log: Vec<StoredEvent>,
    pub(crate) accounts: BTreeMap<String, i64>,
    pub(crate) payloads: &'a [Webhook],
    pub(crate) work: Work,
    pub(crate) damage: Damage,
    pub(crate) kills: Kills,
    pub(crate) effects: Vec<Effect>,
    pub(crate) cursor: Option<i64>,
    pub(crate) jobs: Jobs,
    pub(crate) agents: Outcome,
    pub(crate) streams: streams_of::Outcome,
}

/// The whole log up to the head, page by page.
pub(crate) async fn read_log(connection: &mut PgConnection, head: i64) -> anyhow::Result<Vec<StoredEvent>> {
    let mut log = Vec::new();
    let mut after = 0;
    while after < head {
        log.extend(seqline::read::events_after(connection, after, 1_000).await?);
        after = log.last().map_or(head, |event: &StoredEvent| event.seq);
    }
    Ok(log)
}

struct Finding {
    promise: &'static str,
    observed: String,
    faults: Vec<String>,
}

/// Prints the table and says whether every promise was kept.
pub(crate) fn print(evidence: &Evidence<'_>) -> bool {
    let Evidence { work, damage, kills, agents, .. } = evidence;
    println!(
        "\n{} transactions committed, {} rolled back, {} failed, {} of unknown outcome, {} savepoints rolled back",
        work.committed, work.rolled_back, work.failed, work.unknown, work.savepoints_rolled_back
    );
    println!(
        "{} writer backends and {} tail backends terminated, {} server killed with SIGKILL and restarted",
        damage.writers_terminated, damage.tails_terminated, damage.servers_killed
    );
    println!(
        "{} times a worker killed with SIGKILL, {} of them in the middle of a round",
        kills.all, kills.in_a_round
    );
    println!(
        "{} times an agent killed with SIGKILL, {} of them with work that it had not acknowledged; its connection cut, its server killed, an instance paused, two replaced\n",
        agents.deeds.kills, agents.deeds.kills_in_the_middle
    );
    let mut of_agents = agents::Reading::of(evidence);
    let disturbance = disturbance(evidence, &of_agents);
    let findings = [
        history(evidence),
        delivery(evidence),
        atomicity(evidence),
        content(evidence),
        effects(evidence),
        jobs_inserted(evidence),
        jobs_done(evidence),
        agents::given(&mut of_agents, evidence),
        agents::given_again(&mut of_agents, evidence),
        agents::replaced(&mut of_agents, evidence),
        streams::copied(evidence),
        streams::consumed(evidence),
        disturbance,
    ];
    let mut kept = true;
    for finding in findings {
        let verdict = if finding.faults.is_empty() { "kept  " } else { "BROKEN" };
        println!("{verdict}  {}\n        {}", finding.promise, finding.observed);
        for fault in finding.faults.iter().take(FAULTS_SHOWN) {
            println!("        {fault}");
        }
        kept &= finding.faults.is_empty();
    }
    println!("\n{}", if kept { "All promises were kept." } else { "A promise was BROKEN." });
    kept
}

fn history(evidence: &Evidence<'_>) -> Finding {
    let log: Vec<(i64, Uuid)> = evidence.log.iter().map(|event| (event.seq, event.id)).collect();
    let promise = "Exactly the committed events are in the log, without a hole, and an event comes after all that were committed before its transaction began";
    match check(&evidence.history, &log, 1) {
        Ok(summary) => Finding {
            promise,
            observed: format!(
                "seq 1 to {}: {} committed transactions whole and in order, nothing of {} rolled back ones (savepoints included), {} of {} unknown ones had committed",
                summary.events,
                summary.committed,
                summary.rolled_back,
                summary.unknown_present,
                summary.unknown
            ),
            faults: Vec::new(),
        },
        Err(violations) => Finding {
            promise,
            observed: format!("{} violations", violations.len()),
            faults: violations.iter().map(ToString::to_string).collect(),
        },
    }
}

fn delivery(evidence: &Evidence<'_>) -> Finding {
    let log: Vec<(i64, Uuid)> = evidence.log.iter().map(|event| (event.seq, event.id)).collect();
    let mut faults = Vec::new();
    if let Some(at) =
        (0..log.len().max(evidence.delivered.len())).find(|at| log.get(*at) != evidence.delivered.get(*at))
    {
        faults.push(format!(
            "delivery {} is {:?}, the log has {:?}",
            at + 1,
            evidence.delivered.get(at),
            log.get(at)
        ));
    }
    Finding {
        promise: "The tail delivers each event once, in order, whatever happens to its connection",
        observed: format!("{} delivered, {} in the log", evidence.delivered.len(), log.len()),
        faults,
    }
}

fn atomicity(evidence: &Evidence<'_>) -> Finding {
    let mut counted: BTreeMap<String, i64> = evidence.accounts.keys().map(|id| (id.clone(), 0)).collect();
    for event in &evidence.log {
        *counted.entry(event.resource_id.clone().unwrap_or_default()).or_default() += 1;
    }
    let unknown = counted.keys().filter(|id| !evidence.accounts.contains_key(*id));
    let unknown = unknown
        .map(|id| format!("the log has events of account {id}, which does not exist"))
        .collect::<Vec<_>>();
    let faults = evidence
        .accounts
        .iter()
        .filter(|(id, events)| counted.get(*id) != Some(events))
        .map(|(id, events)| format!("account {id} counts {events} events, the log has {:?}", counted.get(id)))
        .chain(unknown)
        .collect();
    Finding {
        promise: "Business rows and events commit together or not at all",
        observed: format!("{} accounts count their own events as the log does", evidence.accounts.len()),
        faults,
    }
}

fn content(evidence: &Evidence<'_>) -> Finding {
    let stripped: Vec<Value> =
        evidence.payloads.iter().map(|webhook| without_nulls(&webhook.original)).collect();
    let mut seen = vec![false; stripped.len()];
    let mut faults = Vec::new();
    for event in &evidence.log {
        let which =
            event.client_msg_id.as_deref().and_then(|id| id.parse::<usize>().ok()).unwrap_or(usize::MAX);
        let stored: Value = event.payload.deserialize().unwrap_or_default();
        match stripped.get(which) {
            Some(expected)
                if *expected == stored && evidence.payloads[which].event_type == event.event_type =>
            {
                seen[which] = true;
            }
            _ => faults.push(format!("seq {} differs from the payload it was made from", event.seq)),
        }
    }
    Finding {
        promise: "What is read is what was appended",
        observed: format!(
            "{} events equal their source, {} of {} real payloads occur",
            evidence.log.len() - faults.len(),
            seen.iter().filter(|seen| **seen).count(),
            seen.len()
        ),
        faults,
    }
}

fn effects(evidence: &Evidence<'_>) -> Finding {
    let head = evidence.log.last().map_or(0, |event| event.seq);
    let mut by_seq: BTreeMap<i64, Vec<(i32, i64)>> = (1..=head).map(|seq| (seq, Vec::new())).collect();
    let mut faults = Vec::new();
    for effect in &evidence.effects {
        match by_seq.get_mut(&effect.seq) {
            Some(rows) => rows.push((effect.part, effect.worker)),
            None => faults.push(format!("an effect of seq {}, which is not in the log", effect.seq)),
        }
    }
    for (seq, rows) in &by_seq {
        // One round wrote both, so one worker did.
        if !matches!(rows[..], [(1, first), (2, second)] if first == second) {
            let workers: BTreeSet<i64> = rows.iter().map(|(_, worker)| *worker).collect();
            faults.push(format!(
                "seq {seq} has {} effects by {} workers, two by one are due",
                rows.len(),
                workers.len()
            ));
        }
    }
    if evidence.cursor != Some(head) {
        faults.push(format!("the cursor is at {:?}, the head at {head}", evidence.cursor));
    }
    let workers: BTreeSet<i64> = evidence.effects.iter().map(|effect| effect.worker).collect();
    Finding {
        promise: "Each event has its effects exactly once, whichever worker is killed while it handles it",
        observed: format!(
            "{} effects of {} events by {} worker processes, {} rounds killed in the middle, the cursor at the head",
            evidence.effects.len(),
            by_seq.len(),
            workers.len(),
            evidence.kills.in_a_round
        ),
        faults,
    }
}

fn jobs_inserted(evidence: &Evidence<'_>) -> Finding {
    let mut found: BTreeMap<(i64, Uuid, &str), usize> = BTreeMap::new();
    let mut faults = Vec::new();
    for job in &evidence.jobs.all {
        match job.event {
            Some((seq, id)) if job.seq == Some(seq) => *found.entry((seq, id, &job.kind)).or_default() += 1,
            event => {
                faults.push(format!("a job {} of seq {:?} names {event:?} as its event", job.kind, job.seq))
            }
        }
    }
    for event in &evidence.log {
        for kind in jobs::KINDS {
            match found.remove(&(event.seq, event.id, kind)).unwrap_or_default() {
                1 => {}
                number => faults.push(format!("seq {} has {number} jobs {kind}, one is due", event.seq)),
            }
        }
    }
    let others = found.keys().map(|(seq, id, kind)| format!("a job {kind} of seq {seq}, {id}, is not due"));
    faults.extend(others);
    Finding {
        promise: "Each event has its jobs exactly once, and there are no others",
        observed: format!(
            "{} jobs name {} events by number and id, {} are due for each",
            evidence.jobs.all.len(),
            evidence.log.len(),
            jobs::KINDS.len()
        ),
        faults,
    }
}

fn jobs_done(evidence: &Evidence<'_>) -> Finding {
    let Jobs { all, probes, runs, clients, rescues } = &evidence.jobs;
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for job in all {
        *states.entry(&job.state).or_default() += 1;
    }
    let done = states.remove("completed").unwrap_or_default();
    let mut faults: Vec<_> = states.iter().map(|(state, jobs)| format!("{jobs} jobs are {state}")).collect();
    let mut of_events: BTreeSet<(i64, Uuid, &str)> =
        evidence.log.iter().flat_map(|event| jobs::KINDS.map(|kind| (event.seq, event.id, kind))).collect();
    for (seq, id, kind) in probes {
        if !of_events.remove(&(*seq, *id, kind)) {
            faults.push(format!("a job {kind} of seq {seq}, {id}, has run and is not due"));
        }
    }
    faults.extend(of_events.iter().map(|(seq, _, kind)| format!("the job {kind} of seq {seq} has not run")));
    let repeated = runs - i64::try_from(probes.len()).unwrap_or(i64::MAX);
    Finding {
        promise: "Each job is run at least once, whichever worker is killed while it runs, and what it does under a key is done once",
        observed: format!(
            "{done} of {} jobs completed, claimed by {clients} clients of River; {repeated} runs were repetitions, {rescues} rescues of what killed workers left",
            all.len()
        ),
        faults,
    }
}

/// A demonstration in which nothing happened would prove nothing.
fn disturbance(evidence: &Evidence<'_>, of_agents: &agents::Reading) -> Finding {
    let Evidence { work, damage, kills, jobs, agents, streams, .. } = evidence;
    let faults = [
        (work.committed > 0, "nothing was committed"),
        (work.rolled_back > 0, "nothing was rolled back"),
        (work.savepoints_rolled_back > 0, "no savepoint was rolled back"),
        (damage.writers_terminated > 0, "no writer was terminated"),
        (damage.tails_terminated > 0, "no tail was terminated"),
        (damage.servers_killed > 0, "no server was killed"),
        (kills.in_a_round >= KILLS_IN_A_ROUND_MIN, "hardly a worker was killed in the middle of a round"),
        (jobs.rescues > 0, "no job was left by a killed worker and rescued"),
        (agents.deeds.kills_in_the_middle > 0, "no agent was killed with work that it had not acknowledged"),
        (of_agents.has_marked(), "nothing was given to an agent again because it was late"),
        (
            agents.deeds.late.as_ref().is_some_and(|late| late.seq > late.before),
            "no agent acknowledged something after it was replaced",
        ),
        (streams.deeds.relays_killed > 0, "no relay was killed"),
        (streams.deeds.brokers_killed > 0, "no broker was killed"),
        (
            streams.deeds.consumers_died > 0,
            "no consumer of the stream died between a commit and its acknowledgement",
        ),
        (
            streams.deliveries > streams.stream.len() as u64,
            "nothing was delivered again because a consumer of the stream was killed",
        ),
    ]
    .into_iter()
    .filter(|(happened, _)| !happened)
    .map(|(_, fault)| fault.to_owned())
    .collect();
    Finding {
        promise: "All of that was put to the test",
        observed: format!(
            "{} disturbances, {} transactions failed because of them",
            damage.writers_terminated
                + damage.tails_terminated
                + damage.servers_killed
                + i64::try_from(kills.all).unwrap_or(i64::MAX),
            work.failed + work.unknown
        ),
        faults,
    }
}

/// Written a second time on purpose: the proof must not use what it proves.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => members
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), without_nulls(value)))
            .collect(),
        Value::Array(elements) => {
            elements.iter().filter(|value| !value.is_null()).map(without_nulls).collect()
        }
        other => other.clone(),
    }
}
