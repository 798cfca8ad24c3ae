//! One agent, over either transport, in the words that both have.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::agents::{Consumer, Delivery, WAITING, number};
use crate::api::{Answer, Client};
use crate::gateway::socket::{Closed, Next, Socket};
use crate::worker::Worker;

/// Where a consumer is asked for, and with which token.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) address: String,
    pub(super) token: String,
    /// The path of the consumer over REST, which ends with its name.
    pub(super) path: String,
}

impl Place {
    fn name(&self) -> &str {
        self.path.rsplit('/').next().expect("the path ends with the name")
    }

    fn consumer(&self) -> Consumer {
        Consumer { client: Client::new(&self.address).token(&self.token), path: self.path.clone() }
    }
}

/// What an agent is told when it has the consumer.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) acked: i64,
    pub(super) generation: i64,
    /// Up to where it may acknowledge without having been given anything.
    pub(super) position: Value,
    pub(super) resync: Option<Value>,
}

/// Why something was refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: String,
    /// At which member of what was sent.
    pub(super) pointer: Option<String>,
    /// In milliseconds.
    pub(super) retry_after: Option<u64>,
    /// Whether the agent has to begin again.
    pub(super) ended: bool,
}

/// An agent that has its consumer. Whatever it does, it is given no event that it has not asked for by then.
pub(super) trait Transport: Sized {
    /// The one that is not this.
    type Other: Transport;

    /// Takes the consumer. Somebody else that has it over the same transport goes on sharing it, where requests do.
    async fn begin(place: &Place) -> (Self, Begun);

    /// Why it does not get it.
    async fn refused(place: &Place) -> Refusal;

    /// The next so many events: their numbers, and whether each was given before.
    async fn events(&mut self, count: usize) -> Vec<(i64, bool)>;

    /// The next event, or why there is none for it any more.
    async fn next(&mut self) -> Result<(i64, bool), String>;

    /// Those that came by themselves, while it did something else.
    fn came(&mut self) -> Vec<(i64, bool)>;

    /// There is nothing for it.
    async fn is_quiet(&mut self);

    /// What it is answered to this acknowledgement, after which nothing is on its way that was not affected by it.
    async fn acknowledges(&mut self, ack: &str) -> Result<(), Refusal>;

    /// What it is told about events that it lost.
    async fn loses(&mut self) -> Value;

    /// Whether it was told that it has its whole backlog, where that is told.
    fn caught_up(&self) -> bool;

    /// Waits until it is told that it cannot go on, and why. An event that comes before that is one too many.
    async fn ended(&mut self) -> String;

    /// Waits until the server knows that this one waits for events, where that has to be asked for.
    async fn is_waiting(server: &Worker);

    /// What somebody else is told who asks for this consumer with this token, and acknowledges.
    async fn intrudes(place: &Place) -> String;

    /// What a person, an app, an operator and another agent are told who do that.
    const STRANGERS: [&str; 4];

    /// A small bound on how often it may acknowledge.
    const RARELY: [(&str, &str); 2];

    /// It has to be taken.
    async fn ack(&mut self, seq: i64) {
        let answer = self.acknowledges(&json!({ "seq": seq }).to_string()).await;
        answer.unwrap_or_else(|refusal| panic!("{seq} is not taken: {refusal:?}"));
    }

    async fn seqs(&mut self, count: usize) -> Vec<i64> {
        self.events(count).await.into_iter().map(|(seq, _)| seq).collect()
    }
}

/// An agent with a connection.
pub(super) struct Gateway {
    socket: Socket,
    came: VecDeque<(i64, bool)>,
    caught_up: bool,
}

impl Gateway {
    fn identify(place: &Place) -> Value {
        json!({ "token": place.token, "consumer": place.name() })
    }

    /// The next frame, unless it is one to keep.
    async fn hears(&mut self) -> Option<Next> {
        match self.socket.next().await {
            Next::Frame(frame) if frame["op"] == "event" => self.came.push_back(event(&frame["d"])),
            Next::Frame(frame) if frame["op"] == "catchup.complete" => self.caught_up = true,
            other => return Some(other),
        }
        None
    }

    /// The next frame that is none to keep.
    async fn hears_other(&mut self) -> Next {
        loop {
            if let Some(next) = self.hears().await {
                return next;
            }
        }
    }
}

impl Transport for Gateway {
    type Other = Rest;
    const STRANGERS: [&str; 4] = ["forbidden", "forbidden", "forbidden", "support has one of its own"];
    const RARELY: [(&str, &str); 2] = [("agent.acks_per_second", "1"), ("agent.acks_burst", "5")];

    async fn begin(place: &Place) -> (Self, Begun) {
        let (socket, ready) = Socket::identified(&place.address, &Self::identify(place)).await;
        let begun = Begun {
            acked: number(&ready["acked"]),
            generation: ready["generation"].as_i64().unwrap(),
            position: ready["head"].clone(),
            resync: ready.get("resync").cloned(),
        };
        (Self { socket, came: VecDeque::new(), caught_up: false }, begun)
    }

    async fn refused(place: &Place) -> Refusal {
        let (frames, _) = Socket::refused(&place.address, "identify", &Self::identify(place)).await;
        assert_eq!((frames.len(), &frames[0]["op"]), (1, &json!("error")), "{frames:?}");
        Refusal { ended: true, ..Refusal::said(&frames[0]["d"], &frames[0]["d"]["retry_after_ms"]) }
    }

    async fn events(&mut self, count: usize) -> Vec<(i64, bool)> {
        while self.came.len() < count {
            if let Some(other) = self.hears().await {
                panic!("after {:?}: {other:?}", self.came);
            }
        }
        self.came.drain(..count).collect()
    }

    async fn next(&mut self) -> Result<(i64, bool), String> {
        loop {
            if let Some(event) = self.came.pop_front() {
                return Ok(event);
            }
            match self.hears().await {
                None => {}
                Some(Next::Closed(closed)) => return Err(Refusal::closed(&closed).code),
                Some(other) => panic!("no event: {other:?}"),
            }
        }
    }

    fn came(&mut self) -> Vec<(i64, bool)> {
        self.came.drain(..).collect()
    }

    async fn is_quiet(&mut self) {
        let answer = self.acknowledges_with("heartbeat", "{}").await;
        assert!(answer.is_ok() && self.came.is_empty(), "{answer:?} {:?}", self.came);
    }

    async fn acknowledges(&mut self, ack: &str) -> Result<(), Refusal> {
        self.acknowledges_with("ack", ack).await
    }

    async fn loses(&mut self) -> Value {
        match self.hears_other().await {
            Next::Frame(frame) if frame["op"] == "resync_required" => frame["d"].clone(),
            other => panic!("nothing is lost: {other:?}"),
        }
    }

    fn caught_up(&self) -> bool {
        self.caught_up
    }

    async fn ended(&mut self) -> String {
        loop {
            let heard = self.hears().await;
            assert!(self.came.is_empty(), "it is given {:?}", self.came);
            match heard {
                None => {}
                Some(Next::Closed(closed)) => return Refusal::closed(&closed).code,
                Some(other) => panic!("it does not end: {other:?}"),
            }
        }
    }

    async fn is_waiting(_server: &Worker) {}

    async fn intrudes(place: &Place) -> String {
        let (socket, ready) = Socket::identified(&place.address, &Self::identify(place)).await;
        let mut somebody = Self { socket, came: VecDeque::new(), caught_up: false };
        match (somebody.acknowledges("{\"seq\": 0}").await, ready.get("consumer")) {
            (Ok(()), Some(_)) => format!("{} has one of its own", ready["principal"].as_str().unwrap()),
            (Err(refusal), None) => refusal.code,
            other => panic!("{other:?}"),
        }
    }
}

impl Gateway {
    /// Sends a frame and a heartbeat: before the answer to that comes what is said about the frame.
    async fn acknowledges_with(&mut self, op: &str, d: &str) -> Result<(), Refusal> {
        self.socket.send_text(&format!("{{\"op\": \"{op}\", \"d\": {d}}}")).await;
        self.socket.send("heartbeat", &json!({})).await;
        let mut answer = Ok(());
        let mut beats = if op == "heartbeat" { 2 } else { 1 };
        while beats > 0 {
            match self.hears_other().await {
                Next::Frame(frame) if frame["op"] == "heartbeat.ack" => beats -= 1,
                Next::Frame(frame) if frame["op"] == "error" && answer.is_ok() => {
                    answer = Err(Refusal::said(&frame["d"], &frame["d"]["retry_after_ms"]));
                }
                Next::Closed(closed) => return Err(Refusal::closed(&closed)),
                other => panic!("no answer: {other:?}"),
            }
        }
        answer
    }
}

/// An agent that asks.
pub(super) struct Rest {
    consumer: Consumer,
    generation: i64,
    came: VecDeque<(i64, bool)>,
    /// Why it was refused first, if it was.
    refused: Option<Value>,
    resync: Option<Value>,
}

impl Rest {
    /// Asks as the one who has the consumer.
    async fn ask(&self, query: &str) -> Answer {
        self.consumer.ask(&format!("generation={}&{query}", self.generation)).await
    }
}

impl Transport for Rest {
    type Other = Gateway;
    const STRANGERS: [&str; 4] = ["not_found", "not_found", "forbidden", "not_found"];
    const RARELY: [(&str, &str); 2] = [("api.requests_per_second", "1"), ("api.requests_burst", "5")];

    async fn begin(place: &Place) -> (Self, Begun) {
        let consumer = place.consumer();
        let mut answer = consumer.ask("").await;
        // Somebody else came while it was answered.
        while answer.status == 409 {
            answer = consumer.ask("").await;
        }
        let refused = (answer.status == 410).then(|| answer.problem(410, "resync_required"));
        if refused.is_some() {
            answer = consumer.ask("").await;
        }
        let given = answer.ok(200);
        let begun = Begun {
            acked: number(&given["acked"]),
            generation: given["generation"].as_i64().unwrap(),
            position: given["next"].clone(),
            resync: given.get("resync").cloned(),
        };
        let came = Delivery(given).events().into();
        let resync = begun.resync.clone();
        (Self { consumer, generation: begun.generation, came, refused, resync }, begun)
    }

    async fn refused(place: &Place) -> Refusal {
        let answer = place.consumer().ask("").await;
        Refusal { ended: true, ..Refusal::answered(&answer) }
    }

    async fn events(&mut self, count: usize) -> Vec<(i64, bool)> {
        while self.came.len() < count {
            let limit = count - self.came.len();
            let given = Delivery(self.ask(&format!("wait=30&limit={limit}")).await.ok(200)).events();
            assert!(!given.is_empty(), "nothing comes after {:?}", self.came);
            self.came.extend(given);
        }
        self.came.drain(..count).collect()
    }

    async fn next(&mut self) -> Result<(i64, bool), String> {
        loop {
            if let Some(event) = self.came.pop_front() {
                return Ok(event);
            }
            let answer = self.ask("wait=30&limit=1").await;
            if answer.status >= 400 {
                return Err(Refusal::answered(&answer).code);
            }
            self.came.extend(Delivery(answer.json()).events());
        }
    }

    fn came(&mut self) -> Vec<(i64, bool)> {
        self.came.drain(..).collect()
    }

    async fn is_quiet(&mut self) {
        let given = self.ask("").await.ok(200);
        assert_eq!((Delivery(given).events(), self.came.len()), (vec![], 0));
    }

    async fn acknowledges(&mut self, ack: &str) -> Result<(), Refusal> {
        let path = format!("{}/ack", self.consumer.path);
        let answer = self.consumer.client.post_text(&path, ack).await;
        if answer.status == 200 { Ok(()) } else { Err(Refusal::answered(&answer)) }
    }

    async fn loses(&mut self) -> Value {
        let (refused, resync) = (self.refused.take().expect("it was refused"), self.resync.clone().unwrap());
        assert_eq!((&refused["reason"], &refused["head"]), (&resync["reason"], &resync["position"]));
        resync
    }

    fn caught_up(&self) -> bool {
        false
    }

    async fn ended(&mut self) -> String {
        assert!(self.came.is_empty(), "it was given {:?}", self.came);
        let answer = self.ask("wait=30").await;
        assert!(answer.status >= 400, "{answer:?}");
        Refusal::answered(&answer).code
    }

    async fn is_waiting(server: &Worker) {
        server.shows(WAITING, 1.0).await;
    }

    async fn intrudes(place: &Place) -> String {
        let somebody = place.consumer();
        let answers = [
            somebody.ask("").await,
            somebody.client.get(&somebody.path).await,
            somebody.ack(&json!({ "seq": 0 })).await,
        ];
        let [first, others @ ..] = answers.map(|answer| Refusal::answered(&answer).code);
        assert!(others.iter().all(|other| *other == first), "{first} {others:?}");
        first
    }
}

/// The number of an event, and whether it was given before.
fn event(event: &Value) -> (i64, bool) {
    (event["seq"].as_i64().unwrap(), event["redelivered"] == true)
}

impl Refusal {
    fn said(problem: &Value, retry_after: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Self {
            code: text(&problem["code"]).expect("a refusal has a code"),
            pointer: text(&problem["errors"][0]["pointer"]),
            retry_after: retry_after.as_u64(),
            ended: false,
        }
    }

    fn answered(answer: &Answer) -> Self {
        let seconds: Option<u64> = answer.header("retry-after").parse().ok();
        Self::said(&answer.json(), &json!(seconds.map(|seconds| seconds * 1000)))
    }

    fn closed(closed: &Closed) -> Self {
        let code = closed.reason["reason"].as_str().expect("a close has a reason").to_owned();
        Self { code, pointer: None, retry_after: None, ended: true }
    }
}
