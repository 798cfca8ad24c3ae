//! Brokers that store together.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::json;

use super::options::Routes;
use super::{LOOK, NatsOptions, NatsServer, Refused, TRIES, free_place, free_port, prepared, probe};
use crate::server::must;
use crate::wait::eventually;

/// How long a cluster may take to choose who leads, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// Copies of a stream, at most.
const MOST_REPLICAS: usize = 3;

/// Brokers that know each other and store together. They are gone when it is dropped, or when the test ends in whatever way.
#[derive(Debug)]
pub struct NatsCluster {
    nodes: Vec<NatsServer>,
}

/// What a node says at `/jsz`.
#[derive(Deserialize)]
struct Jsz {
    meta_cluster: Option<Meta>,
}

#[derive(Deserialize)]
struct Meta {
    leader: Option<String>,
    #[serde(default)]
    replicas: Vec<Replica>,
}

#[derive(Deserialize)]
struct Replica {
    #[serde(default)]
    current: bool,
    #[serde(default)]
    offline: bool,
}

impl NatsCluster {
    /// Starts so many, and waits until streams with three replicas can be made.
    ///
    /// # Panics
    ///
    /// If they cannot be started; says what to do.
    pub async fn start(nodes: usize) -> NatsCluster {
        NatsCluster::with(nodes, NatsOptions::default()).await
    }

    /// The same with options, which are the same for all nodes.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub async fn with(nodes: usize, options: NatsOptions) -> NatsCluster {
        let cluster = must(launch(nodes, &options)).await;
        cluster.until_ready().await;
        cluster
    }

    /// Where clients connect: one for each node.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(NatsServer::url).collect()
    }

    /// All nodes, in the order of [`urls`](Self::urls).
    pub fn nodes(&self) -> &[NatsServer] {
        &self.nodes
    }

    /// One node.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub fn node(&self, index: usize) -> &NatsServer {
        &self.nodes[index]
    }

    /// One node, to kill, stop, pause or start again.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub fn node_mut(&mut self, index: usize) -> &mut NatsServer {
        &mut self.nodes[index]
    }

    /// The node of a name, such as the one that JetStream says leads a stream.
    pub fn named(&mut self, name: &str) -> Option<&mut NatsServer> {
        self.nodes.iter_mut().find(|node| node.name() == name)
    }

    /// Waits until the nodes that run agree on who leads, and streams with as many replicas as there are nodes that run, but no more than
    /// three, can be made. What is behind a login or TLS is not tried: then it is enough that all of them agree.
    ///
    /// # Panics
    ///
    /// If that takes long, as with a minority of the nodes.
    pub async fn until_ready(&self) {
        eventually(DEADLINE, "a cluster that can store", async || self.ready().await.is_ok()).await;
    }

    async fn ready(&self) -> anyhow::Result<()> {
        let running: Vec<_> = self.nodes.iter().filter(|node| node.process_id().is_some()).collect();
        let mut leaders = Vec::new();
        for node in &running {
            probe::monitored(node.monitor_addr(), "/healthz").await?;
            let text = probe::monitored(node.monitor_addr(), "/jsz").await?;
            let jsz: Jsz = serde_json::from_str(&text).context("read /jsz")?;
            let meta = jsz.meta_cluster.context("the node stores for itself")?;
            let leader = meta.leader.filter(|name| !name.is_empty()).context("nobody leads")?;
            if leader == node.name() {
                let current = meta.replicas.iter().filter(|it| it.current && !it.offline).count();
                ensure!(current + 1 >= running.len(), "a node is behind");
            }
            leaders.push(leader);
        }
        leaders.dedup();
        let [leader] = leaders.as_slice() else { bail!("the nodes disagree on who leads") };
        let leader = running.iter().find(|node| node.name() == leader).context("who leads does not run")?;
        let info = probe::info(leader.addr()).await?;
        if info.auth_required || info.tls_required {
            return Ok(());
        }
        try_to_store(leader, running.len().min(MOST_REPLICAS)).await
    }
}

/// Makes a stream and removes it: a leader knows only after a while how much room the others have.
async fn try_to_store(node: &NatsServer, replicas: usize) -> anyhow::Result<()> {
    const STREAM: &str = "seqline-testkit";
    let config = json!({
        "name": STREAM, "subjects": [STREAM], "num_replicas": replicas, "storage": "memory",
        "retention": "limits", "discard": "old", "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0
    });
    for (what, body) in [("CREATE", config), ("DELETE", json!({}))] {
        let subject = format!("$JS.API.STREAM.{what}.{STREAM}");
        let answer = probe::ask(node.addr(), &subject, body.to_string().as_bytes()).await?;
        ensure!(answer.get("error").is_none(), "{what}: {answer}");
    }
    Ok(())
}

async fn launch(nodes: usize, options: &NatsOptions) -> anyhow::Result<NatsCluster> {
    for _ in 1..TRIES {
        match launch_once(nodes, options).await {
            Ok(cluster) => return Ok(cluster),
            Err(Refused::PortInUse(_)) => crate::wait::pause(LOOK).await,
            Err(Refused::Other(error)) => return Err(error),
        }
    }
    launch_once(nodes, options).await.map_err(Refused::into_error)
}

async fn launch_once(nodes: usize, options: &NatsOptions) -> Result<NatsCluster, Refused> {
    let all = std::iter::repeat_with(free_port).take(nodes).collect::<anyhow::Result<Vec<u16>>>()?;
    let name = format!("seqline-{:016x}", fastrand::u64(..));
    let mut cluster = NatsCluster { nodes: Vec::new() };
    for &port in &all {
        let mut place = free_place()?;
        place.cluster = Some(Routes { name: name.clone(), port, all: all.clone() });
        cluster.nodes.push(prepared(options.clone(), place)?);
    }
    // All at once: none of them is ready to store without others.
    for node in &mut cluster.nodes {
        node.spawn()?;
    }
    for node in &mut cluster.nodes {
        node.until_ready().await?;
    }
    Ok(cluster)
}
