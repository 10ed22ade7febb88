//! A client of any system: records its requests and the answers, as the judge needs them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use duewheel_judge::history::{
    Answer, Call, Enqueue, Fault, Grant, Leases, MsgId, OpId, Payload, Proof, Recorder, Refusal, Tag, Target,
    What, When, body,
};

use super::{Ability, Asked, Heard, Peer, Reply, System};
use crate::http::Soundness;

/// The state that all clients of a run share.
#[derive(Debug)]
pub struct Run<'s> {
    /// The system under test.
    pub system: &'s dyn System,
    /// The history.
    pub recorder: Recorder,
    /// The address of each node, and the number of starts so far at that time. A system of one process has one node.
    nodes: Mutex<Vec<Option<(SocketAddr, u64)>>>,
    /// How many times as long as the usual ones the pauses of the clients are.
    pub(super) pace: u64,
    stage: AtomicU64,
    tags: AtomicU64,
    /// Answers that no client should ever get.
    complaints: Mutex<Vec<String>>,
}

/// The work of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Everything.
    Work,
    /// Reserving and acking.
    Drain,
    /// Nothing: the clients end.
    Stop,
}

impl<'s> Run<'s> {
    /// A run without events.
    pub fn new(system: &'s dyn System) -> Self {
        Run {
            system,
            pace: 1,
            recorder: Recorder::new(),
            nodes: Mutex::default(),
            stage: AtomicU64::new(0),
            tags: AtomicU64::new(0),
            complaints: Mutex::default(),
        }
    }

    /// The same with longer pauses of the clients.
    pub fn at_pace(self, pace: u64) -> Self {
        Run { pace, ..self }
    }

    /// The present work of the clients.
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::SeqCst) {
            0 => Stage::Work,
            1 => Stage::Drain,
            _ => Stage::Stop,
        }
    }

    /// Sets the work of the clients.
    pub fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u64, Ordering::SeqCst);
    }

    /// Sets the address to which the clients connect.
    pub fn set_address(&self, address: Option<(SocketAddr, u64)>) {
        *lock(&self.nodes) = vec![address];
    }

    /// Sets the address of a node of a cluster; `None`: the node is gone, and its clients use the next one.
    pub fn set_node(&self, node: usize, address: Option<(SocketAddr, u64)>) {
        let mut nodes = lock(&self.nodes);
        if nodes.len() <= node {
            nodes.resize(node + 1, None);
        }
        nodes[node] = address;
    }

    /// The address for the client with this number: its own node, or the next one that exists.
    pub(super) fn address_for(&self, number: u32) -> Option<(SocketAddr, u64)> {
        let nodes = lock(&self.nodes);
        let (after, before) = nodes.split_at(usize::try_from(number).ok()? % nodes.len().max(1));
        before.iter().chain(after).find_map(|node| *node)
    }

    /// A tag that no other request of the run has.
    pub fn tag(&self) -> Tag {
        Tag(self.tags.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Records a fault.
    pub fn fault(&self, fault: Fault) {
        self.recorder.note(self.recorder.stamp(), 0, What::Fault(fault));
    }

    /// Records the beginning of a phase.
    pub fn phase(&self, name: &str) {
        self.recorder.note(self.recorder.stamp(), 0, What::Phase(name.to_owned()));
    }

    /// Records an error that the history does not show.
    pub fn complain(&self, what: String) {
        let mut all = lock(&self.complaints);
        if all.len() < 20 {
            all.push(what);
        }
    }

    /// All complaints.
    pub fn complaints(&self) -> Vec<String> {
        lock(&self.complaints).clone()
    }

    /// Records the content of a queue.
    ///
    /// # Errors
    /// The queue cannot be listed.
    pub fn dump(&self, queue: &str, known: &[MsgId]) -> Result<(), String> {
        let mut client = Client::new(self, 0);
        let peer = client.peer()?;
        let rows = peer.list(queue, known)?;
        let totals = peer.totals(queue)?;
        let at = self.recorder.stamp();
        self.recorder.note(at, 0, What::Dump { queue: queue.to_owned(), rows });
        if let Some(totals) = totals {
            self.recorder.note(at, 0, What::Totals { queue: queue.to_owned(), totals });
        }
        Ok(())
    }

    /// Waits until queues hold at most this number of messages that are not dead.
    ///
    /// # Errors
    /// They hold more, and the number has not fallen for that time; or they cannot be queried.
    pub fn until_left(&self, queues: &[&str], most: u64, patience: Duration) -> Result<(), String> {
        let mut client = Client::new(self, 0);
        let (mut least, mut deadline) = (u64::MAX, Instant::now() + patience);
        loop {
            let mut left = 0;
            for queue in queues {
                left += client.peer()?.waiting(queue)?;
            }
            if left <= most {
                return Ok(());
            }
            if left < least {
                (least, deadline) = (left, Instant::now() + patience);
            }
            if Instant::now() > deadline {
                return Err(format!("{left} messages are left, and no fewer after {} s", patience.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The outcome of an operation; `None`: unknown.
pub type Outcome = Option<Result<Answer, Refusal>>;

/// A message to be enqueued: its fields in the history, and its bytes.
#[derive(Clone, Debug)]
pub struct Message {
    /// The request in the history.
    pub call: Enqueue,
    /// The body.
    pub bytes: Vec<u8>,
}

impl Message {
    /// A plain message with a short body.
    pub fn new(run: &Run<'_>, queue: &str, when: When) -> Self {
        let tag = run.tag();
        let bytes = body(tag, 60).into_bytes();
        let call = Enqueue {
            queue: queue.to_owned(),
            key: None,
            body: Payload::of(tag, &bytes),
            when,
            if_exists: duewheel_judge::history::IfExists::Reject,
            dedupe_id: None,
            max_attempts: None,
            lease_ms: None,
            spread_ms: 0,
            expiry: None,
        };
        Message { call, bytes }
    }
}

/// A client of its own connection.
#[derive(Debug)]
pub struct Client<'r> {
    /// The state shared with the other clients.
    pub run: &'r Run<'r>,
    number: u32,
    peer: Option<(Box<dyn Peer>, (SocketAddr, u64))>,
    /// The grants of the last reserve.
    last: Crop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crop {
    Nothing,
    Something,
}

impl<'r> Client<'r> {
    /// Not connected yet.
    pub fn new(run: &'r Run<'r>, number: u32) -> Self {
        Client { run, number, peer: None, last: Crop::Nothing }
    }

    /// Whether the system can do this.
    pub fn can(&self, ability: Ability) -> bool {
        self.run.system.can(ability)
    }

    /// Connects if necessary. An invocation is recorded only when the connection is open: it then belongs to that
    /// process and can have no effect in a later one.
    pub fn connect(&mut self) -> bool {
        let Some(at) = self.run.address_for(self.number) else {
            self.hang_up();
            return false;
        };
        let usable =
            |(p, a): &(Box<dyn Peer>, (SocketAddr, u64))| *a == at && p.soundness() == Soundness::Open;
        if !self.peer.as_ref().is_some_and(usable) {
            self.hang_up();
            self.peer = self.run.system.connect(at.0, at.1).ok().map(|p| (p, at));
        }
        self.peer.is_some()
    }

    /// Closes the connection. Leases may end with it, so that is recorded first.
    pub fn hang_up(&mut self) {
        if let Some(peer) = self.peer.take() {
            if self.run.system.rules().leases == Leases::OfConnections {
                self.run.recorder.note(self.run.recorder.stamp(), self.number, What::Closing);
            }
            drop(peer);
        }
    }

    /// Requests several operations of one kind.
    pub fn ask(&mut self, asked: Vec<Asked>) -> Vec<Outcome> {
        let count = asked.len();
        if count == 0 || !self.connect() {
            return vec![None; count];
        }
        let Some((peer, _)) = &mut self.peer else { return vec![None; count] };
        let ops = self.run.recorder.invoke(self.number, asked.iter().map(|a| a.call.clone()).collect());
        let replies = peer.ask(&asked, &self.run.recorder);
        if replies.len() != count {
            self.run.complain(format!("{} replies to {count} questions", replies.len()));
        }
        let outcomes: Vec<Outcome> = ops.into_iter().zip(replies).map(|(op, r)| self.note(op, r)).collect();
        outcomes.into_iter().chain(std::iter::repeat(None)).take(count).collect()
    }

    fn note(&self, op: OpId, reply: Reply) -> Outcome {
        let (what, outcome) = match reply.heard {
            Heard::Done(answer) => (What::Ok { op, answer: answer.clone() }, Some(Ok(answer))),
            Heard::Refused(refusal) => (What::Fail { op, refusal: refusal.clone() }, Some(Err(refusal))),
            Heard::Unknown(why) => (What::Info { op, why }, None),
            Heard::Absurd(why) => {
                self.run.complain(why.clone());
                (What::Info { op, why }, None)
            }
        };
        self.run.recorder.note(reply.at, self.number, what);
        outcome
    }

    /// Requests one operation.
    pub fn one(&mut self, asked: impl Into<Asked>) -> Outcome {
        self.ask(vec![asked.into()]).pop().flatten()
    }

    /// Enqueues one message.
    pub fn enqueue(&mut self, message: &Message) -> Outcome {
        self.enqueue_all(std::slice::from_ref(message)).pop().flatten()
    }

    /// Enqueues messages of one queue together.
    pub fn enqueue_all(&mut self, messages: &[Message]) -> Vec<Outcome> {
        let asked =
            messages.iter().map(|m| Asked { call: Call::Enqueue(m.call.clone()), bytes: m.bytes.clone() });
        self.ask(asked.collect())
    }

    /// Cancels a message.
    pub fn cancel(&mut self, target: Target) -> Outcome {
        self.one(Call::Cancel(target))
    }

    /// Reserves messages. A system that grants one at a time is asked several times at once, unless the last reserve
    /// got nothing. A wait is rounded down to the system's unit; if that is zero and no message arrives, the client
    /// waits for a moment instead.
    pub fn reserve(&mut self, queue: &str, max: u64, wait_ms: u64, lease_ms: Option<u64>) -> Vec<Grant> {
        let unit = self.run.system.unit_ms();
        let wait = if self.can(Ability::Wait) { wait_ms / unit * unit } else { 0 };
        let lease_ms = lease_ms.filter(|_| self.can(Ability::LeaseLength));
        let (calls, each) = match self.last {
            _ if self.can(Ability::ReserveMany) => (1, max),
            Crop::Nothing => (1, 1),
            Crop::Something => (max, 1),
        };
        let calls = (0..calls).map(|n| {
            let wait_ms = if n == 0 { wait } else { 0 };
            Asked::from(Call::Reserve { queue: queue.to_owned(), max: each, wait_ms, lease_ms })
        });
        let outcomes = self.ask(calls.collect());
        let mut grants = Vec::new();
        for outcome in outcomes {
            if let Some(Ok(Answer::Grants(some))) = outcome {
                grants.extend(some);
            }
        }
        self.last = if grants.is_empty() { Crop::Nothing } else { Crop::Something };
        if grants.is_empty() && (wait < wait_ms || !self.can(Ability::Wait) || unit > 1) {
            std::thread::sleep(Duration::from_millis(wait_ms.clamp(1, 5)));
        }
        grants
    }

    /// Settles, if this client can show the proof.
    fn settle(&mut self, proof: &Proof, call: Call) -> Outcome {
        // Recorded before the check that the connection still is the one that took the lease.
        if !self.connect() || !self.holds(proof) {
            return None;
        }
        self.one(call)
    }

    /// Whether this client can show the proof.
    pub fn holds(&self, proof: &Proof) -> bool {
        self.peer.as_ref().is_some_and(|(peer, _)| peer.may_settle(proof))
    }

    /// Acks a message.
    pub fn ack(&mut self, proof: Proof) -> Outcome {
        self.settle(&proof.clone(), Call::Ack(proof))
    }

    /// Acks several messages.
    pub fn ack_all(&mut self, mut proofs: Vec<Proof>) -> Vec<Outcome> {
        if !self.connect() {
            return vec![None; proofs.len()];
        }
        proofs.retain(|p| self.holds(p));
        self.ask(proofs.into_iter().map(|p| Asked::from(Call::Ack(p))).collect())
    }

    /// Nacks a message.
    pub fn nack(&mut self, proof: Proof, delay_ms: Option<u64>) -> Outcome {
        self.settle(&proof.clone(), Call::Nack { proof, delay_ms })
    }

    /// Extends a lease. A system whose leases have one length extends by that.
    pub fn extend(&mut self, proof: Proof, lease_ms: u64) -> Outcome {
        let usual = self.run.system.rules().lease_ms;
        let lease_ms = if self.can(Ability::LeaseLength) { lease_ms } else { usual };
        self.settle(&proof.clone(), Call::Extend { proof, lease_ms })
    }

    /// The connection itself, for requests that are not operations of the history.
    pub fn peer(&mut self) -> Result<&mut dyn Peer, String> {
        if !self.connect() {
            return Err("not connected".to_owned());
        }
        match &mut self.peer {
            Some((peer, _)) => Ok(&mut **peer),
            None => Err("not connected".to_owned()),
        }
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        self.hang_up();
    }
}
