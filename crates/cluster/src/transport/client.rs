//! The asking side of a connection: requests of this node to one other node.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use duewheel_core::engine::{Op, Reply};
use duewheel_core::id::ShardId;
use duewheel_core::store::{ErrorKind, Node, StoreError};
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::{Answers, WhenBusy};
use duewheel_shard::random::RetryPause;
use tokio::io::AsyncWrite;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::handshake::{HandshakeRole, Hello, MAGIC, NodeIdentity, Welcome};
use super::tls::PeerStream;
use super::{Agreed, FrameReader, LastReceived, TransportConfig};
use crate::transport::wire::{self, FrameLimits, LENGTH, MAX_GREETING, PeerFrame, PeerFrameHead, WireError};

/// The number of bytes that are handed to the socket at a time: when the connection breaks, it is not known whether
/// these have been sent.
const BATCH: usize = 256 * 1024;
/// The reason of a request to a node that does not belong to the cluster any more.
const LEFT: &str = "the node has left the cluster";

/// Another node, as this one asks it. Requests are sent in the order in which they were asked.
#[derive(Debug)]
pub(crate) struct Peer {
    node: Node,
    terms: TransportConfig,
    max_queued: usize,
    state: Mutex<LinkState>,
    /// Woken when something is to be sent.
    wake: Notify,
}

#[derive(Debug, Default)]
struct LinkState {
    phase: LinkPhase,
    queue: VecDeque<(Option<u64>, Vec<u8>)>,
    queued: usize,
    /// Requests in flight, in the order of asking.
    flying: BTreeMap<u64, InFlight>,
    next: u64,
    /// The number of connections that were established so far.
    lives: u64,
}

#[derive(Clone, Debug, Default)]
enum LinkPhase {
    /// The connection is being made: requests wait until the limits of the other node are known.
    #[default]
    Connecting,
    Up(Agreed),
    /// The connection has failed, for this reason; the next attempt makes another one.
    Down(Box<str>),
    /// Requests in flight come to their end; nothing more is asked.
    Parting,
    /// The peer is closed for good.
    Closed,
}

#[derive(Debug)]
struct InFlight {
    to: oneshot::Sender<PeerOutcome>,
    sent: Sent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    No,
    /// At least a part was sent, or is about to be.
    Maybe,
}

/// The outcome of a request.
#[derive(Debug)]
pub(crate) enum PeerOutcome {
    /// The request was answered.
    Answered(Answers),
    /// The other node does not own the shard; nothing was applied.
    NotMine(Box<str>),
    /// The other node does not know an operation or a field of the request; nothing was applied.
    NotKnown(Box<str>),
    /// The request never left this node.
    NotSent(Box<str>),
    /// The request may have been applied.
    Lost(Box<str>),
}

/// Why a request was not sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotSent {
    /// Too many bytes wait to be sent.
    Overloaded,
    /// The node is not connected at the moment.
    Away(Box<str>),
    /// The request is larger than a frame that the other node accepts.
    TooLarge(FrameLimits),
}

impl Peer {
    /// Creates a peer without a connection; [`Peer::run`] connects.
    pub(crate) fn new(node: Node, terms: TransportConfig, max_queued: usize) -> Self {
        Peer { node, terms, max_queued, state: Mutex::default(), wake: Notify::new() }
    }

    /// The node at the other end.
    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// Whether it can be asked at this moment.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state().phase, LinkPhase::Up(_))
    }

    /// The number of connections that were established so far.
    #[cfg(test)]
    pub(crate) fn lives(&self) -> u64 {
        self.state().lives
    }

    /// The protocol version of the present connection.
    #[cfg(test)]
    pub(crate) fn version(&self) -> Option<u32> {
        self.up(&self.state()).ok().map(|agreed| agreed.version)
    }

    /// Sends a request. Its outcome always arrives; dropping the receiver does not withdraw the request.
    ///
    /// # Errors
    /// See [`NotSent`]; nothing was sent.
    pub(crate) fn ask(
        &self,
        shard: ShardId,
        patience: WhenBusy,
        ops: &[Op],
    ) -> Result<oneshot::Receiver<PeerOutcome>, NotSent> {
        self.request(|id, limits| wire::request(id, shard, patience, ops, limits))
    }

    /// Sends the frame that `frame` makes for an id and the limits of the other node.
    pub(super) fn request(
        &self,
        frame: impl FnOnce(u64, FrameLimits) -> Result<Vec<u8>, WireError>,
    ) -> Result<oneshot::Receiver<PeerOutcome>, NotSent> {
        let (id, life, limits) = {
            let mut state = self.state();
            let agreed = self.up(&state)?;
            if state.queued >= self.max_queued {
                return Err(NotSent::Overloaded);
            }
            state.next += 1;
            (state.next, state.lives, agreed.limits)
        };
        let frame = frame(id, limits).map_err(|_| NotSent::TooLarge(limits))?;
        let (to, outcome) = oneshot::channel();
        let mut state = self.state();
        self.up(&state)?;
        if state.lives != life {
            // The limits may be different on this connection.
            return Err(NotSent::Away("the node has connected again".into()));
        }
        state.queued += frame.len();
        state.queue.push_back((Some(id), frame));
        state.flying.insert(id, InFlight { to, sent: Sent::No });
        drop(state);
        self.wake.notify_one();
        Ok(outcome)
    }

    fn up(&self, state: &LinkState) -> Result<Agreed, NotSent> {
        match &state.phase {
            LinkPhase::Up(agreed) => Ok(*agreed),
            LinkPhase::Connecting => {
                Err(NotSent::Away(format!("node {} is being connected to", self.node.name).into()))
            }
            LinkPhase::Down(why) => Err(NotSent::Away(why.clone())),
            LinkPhase::Parting | LinkPhase::Closed => Err(NotSent::Away(LEFT.into())),
        }
    }

    /// Tells the other node that owners may have changed, if there is a connection.
    pub(crate) fn nudge(&self) {
        self.send(&PeerFrameHead::Nudge);
    }

    /// Sends no further requests, and ends when those in flight are answered or the connection breaks.
    pub(crate) fn part(&self) {
        let mut state = self.state();
        if !matches!(state.phase, LinkPhase::Closed) {
            state.phase = LinkPhase::Parting;
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Closes the peer: requests that were not sent were not applied, the outcome of others is unknown.
    pub(crate) fn close(&self, why: &str) {
        self.fail(LinkPhase::Closed, why);
        self.wake.notify_one();
    }

    /// The number of requests without an outcome.
    pub(crate) fn flying(&self) -> usize {
        self.state().flying.len()
    }

    /// Connects, and reconnects after each end of the connection, until the peer is closed.
    pub(crate) async fn run(&self) {
        let pace = self.terms.pace;
        let mut pause = RetryPause::new(pace.pause, pace.longest_pause, &self.terms.jitter);
        loop {
            let ended = match timeout(pace.greet, self.connect()).await {
                Ok(Ok((stream, agreed))) => {
                    if !self.turn(LinkPhase::Up(agreed)) {
                        self.fail(LinkPhase::Closed, LEFT);
                        return;
                    }
                    let version = agreed.version;
                    tracing::debug!(node = %self.node.name, version, "connected to a node");
                    // The other node may not know yet that this node has joined.
                    self.nudge();
                    pause.reset();
                    self.talk(stream, agreed).await
                }
                Ok(Err(error)) => error,
                Err(_) => io::Error::new(io::ErrorKind::TimedOut, "no answer to the greeting in time"),
            };
            let why = format!("node {}: {ended}", self.node.name);
            tracing::debug!(%why, "no connection to a node");
            if self.fail(LinkPhase::Down(why.as_str().into()), &why) {
                return;
            }
            tokio::time::sleep(pause.take()).await;
            if !self.turn(LinkPhase::Connecting) {
                return;
            }
        }
    }

    /// Changes the phase, unless the peer is closed for good.
    fn turn(&self, phase: LinkPhase) -> bool {
        let mut state = self.state();
        let open = !matches!(state.phase, LinkPhase::Parting | LinkPhase::Closed);
        if open {
            state.lives += u64::from(matches!(phase, LinkPhase::Up(_)));
            state.phase = phase;
        }
        open
    }

    /// Establishes a connection on which both nodes have authenticated each other.
    async fn connect(&self) -> io::Result<(PeerStream, Agreed)> {
        let terms = &self.terms;
        let (mut stream, binding) = terms.link.connect(&self.node.advertise).await?;
        let hello = Hello {
            magic: MAGIC,
            versions: terms.speaks,
            takes: terms.limits,
            from: NodeIdentity::from(&terms.me),
            to: NodeIdentity::from(&self.node),
        };
        let keyring = terms.secrets.borrow().clone();
        let hello = wire::greeting(&hello).map_err(io::Error::other)?;
        let said = &hello[LENGTH..];
        let proofs = wire::greeting(&keyring.prove_all(&binding, said)).map_err(io::Error::other)?;
        let heard = LastReceived::now(&terms.clock);
        super::write(&mut stream, &[&*hello, &*proofs].concat(), &heard).await?;
        // The owner sends nothing more before it is asked, so this read cannot consume the beginning of a frame.
        let mut frames = FrameReader::new(&mut stream);
        let agreed = match hear_greeting(&mut frames, &heard).await? {
            Welcome::Come { version, takes, proof } => {
                let Some(by) = keyring.check(&[proof], HandshakeRole::Owner, &binding, said) else {
                    return Err(io::Error::other("it does not know the cluster's secret"));
                };
                if !(terms.speaks.lowest..=terms.speaks.highest).contains(&version) {
                    return Err(io::Error::other("it chose a version that this node has not offered"));
                }
                Agreed { version, limits: terms.limits.and(takes), by }
            }
            Welcome::Stranger => {
                return Err(io::Error::other("it knows another secret of the cluster than this node"));
            }
            Welcome::OtherVersions(theirs) => {
                let mine = terms.speaks;
                let text = format!("it speaks {theirs} of the nodes' protocol, this one {mine}");
                return Err(io::Error::other(text));
            }
            Welcome::OtherNode(who) => {
                let text = format!("node {} ({}) is at its address", who.name, who.number);
                return Err(io::Error::other(text));
            }
        };
        drop(frames);
        Ok((stream, agreed))
    }

    /// Sends and receives until the connection breaks; returns the reason.
    async fn talk(&self, stream: PeerStream, agreed: Agreed) -> io::Error {
        let heard = LastReceived::now(&self.terms.clock);
        let (from, to) = tokio::io::split(stream);
        let ended = tokio::select! {
            // All three run until one of them ends, so their order determines only which reason is returned.
            biased;
            ended = self.hear(FrameReader::new(from), &heard) => ended,
            ended = self.speak(to, &heard) => ended,
            ended = self.keep_alive(&heard) => ended,
            ended = self.outlive(agreed) => ended,
        };
        match ended {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => error,
            Err(_) | Ok(()) => io::Error::other("it closed the connection"),
        }
    }

    /// Ends when the secret that authenticated the connection has been invalid for as long as an owner has to say Bye.
    async fn outlive(&self, agreed: Agreed) -> io::Result<()> {
        self.terms.forgotten(agreed.by).await;
        tokio::time::sleep(self.terms.pace.silence * 4).await;
        Err(io::Error::other("the cluster's secret was replaced"))
    }

    async fn hear(
        &self,
        mut frames: FrameReader<impl tokio::io::AsyncRead + Unpin>,
        heard: &LastReceived,
    ) -> io::Result<()> {
        let limits = self.terms.limits;
        while let Some(bytes) = frames.next(limits.bytes, heard).await? {
            let (id, outcome) = match wire::read(&bytes, limits).map_err(io::Error::other)? {
                PeerFrame::Answers { id, answers } => {
                    let answers = answers.into_iter().map(|answer| answer.unwrap_or_else(|| self.unread()));
                    (id, PeerOutcome::Answered(answers.collect()))
                }
                PeerFrame::NotMine { id, why } => (id, PeerOutcome::NotMine(why)),
                PeerFrame::NotKnown { id, why } => (id, PeerOutcome::NotKnown(why)),
                PeerFrame::Pong => continue,
                PeerFrame::Bye => {
                    self.nothing_applied();
                    return Ok(());
                }
                PeerFrame::Request { .. } | PeerFrame::Ping | PeerFrame::Nudge => {
                    return Err(io::Error::other("it sent a frame that only the asking node sends"));
                }
            };
            let flying = self.state().flying.remove(&id);
            match flying {
                // If the receiver has been dropped, the code that made the request returns its grants.
                Some(flying) => {
                    drop(flying.to.send(outcome));
                }
                None => return Err(io::Error::other("it answered a request that was not made")),
            }
            if self.is_done() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The error in place of an answer that this build cannot read.
    fn unread(&self) -> Result<Reply, CallError> {
        let name = &self.node.name;
        let why = format_args!("node {name} is of a later version, and this node cannot read its answer");
        let error = StoreError::new(ErrorKind::Unavailable, why);
        Err(CallError::Store { error, outcome: Outcome::Unknown })
    }

    async fn speak(&self, mut to: impl AsyncWrite + Unpin, heard: &LastReceived) -> io::Result<()> {
        loop {
            let batch = self.take_batch();
            if batch.is_empty() {
                if self.is_done() {
                    return Ok(());
                }
                self.wake.notified().await;
            } else {
                super::write(&mut to, &batch, heard).await?;
            }
        }
    }

    async fn keep_alive(&self, heard: &LastReceived) -> io::Result<()> {
        loop {
            tokio::time::sleep(self.terms.pace.ping).await;
            if heard.since() >= self.terms.pace.silence {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it hangs"));
            }
            self.send(&PeerFrameHead::Ping);
        }
    }

    /// Takes what is sent next; from then on it may have arrived.
    fn take_batch(&self) -> Vec<u8> {
        let mut state = self.state();
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && let Some((id, frame)) = state.queue.pop_front()
        {
            state.queued -= frame.len();
            if let Some(flying) = id.and_then(|id| state.flying.get_mut(&id)) {
                flying.sent = Sent::Maybe;
            }
            if batch.is_empty() { batch = frame } else { batch.extend(frame) }
        }
        batch
    }

    /// Sends a frame that needs no answer, if there is a connection, ahead of everything that waits.
    fn send(&self, head: &PeerFrameHead) {
        let mut state = self.state();
        if let LinkPhase::Up(_) = state.phase
            && let Ok(frame) = wire::plain(head)
        {
            state.queued += frame.len();
            state.queue.push_front((None, frame));
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Handles Bye: the other node has answered all requests that it received, and received no others.
    fn nothing_applied(&self) {
        for flying in self.state().flying.values_mut() {
            flying.sent = Sent::No;
        }
    }

    /// Whether nothing is left to be done for this peer.
    fn is_done(&self) -> bool {
        let state = self.state();
        match state.phase {
            LinkPhase::Closed => true,
            LinkPhase::Parting => state.flying.is_empty(),
            LinkPhase::Connecting | LinkPhase::Up(_) | LinkPhase::Down(_) => false,
        }
    }

    /// Ends all requests in flight. Returns whether the peer is closed for good.
    fn fail(&self, phase: LinkPhase, why: &str) -> bool {
        let mut state = self.state();
        let closed = matches!(state.phase, LinkPhase::Parting | LinkPhase::Closed);
        state.phase = if closed { LinkPhase::Closed } else { phase };
        state.queue.clear();
        state.queued = 0;
        let flying = std::mem::take(&mut state.flying);
        drop(state);
        for flying in flying.into_values() {
            let outcome = match flying.sent {
                Sent::No => PeerOutcome::NotSent(why.into()),
                Sent::Maybe => PeerOutcome::Lost(why.into()),
            };
            // The caller may have gone.
            let _ = flying.to.send(outcome);
        }
        closed
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) async fn hear_greeting<T: serde::de::DeserializeOwned>(
    frames: &mut FrameReader<impl tokio::io::AsyncRead + Unpin>,
    heard: &LastReceived,
) -> io::Result<T> {
    match frames.next(MAX_GREETING, heard).await? {
        Some(bytes) => wire::read_greeting(&bytes).map_err(io::Error::other),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
