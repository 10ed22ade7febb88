//! The answering side of connections: a listener, and the requests of other nodes for shards of this one.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duewheel_core::engine::{Op, Reply, Reserved, WaiterId};
use duewheel_core::id::ShardId;
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::{Answers, Inbox, Submission, WhenBusy};
use duewheel_shard::shared::EndOnPanic;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::client::hear_greeting;
use super::handshake::{
    EARLIER_MAGIC, HandshakeRole, HandshakeSlots, Hello, MAGIC, NodeIdentity, Proofs, Welcome,
};
use super::refusals::{RefusalReason, Refusals, RefusedPeer};
use super::tls::{self, Binding, PeerStream};
use super::{AcceptsRequests, Agreed, FrameReader, LastReceived, OpenGuard, TransportConfig};
use crate::forwarding::attempt::{moved, undo, waiters};
use crate::transport::wire::{self, MAX_GREETING, PeerFrame, PeerFrameHead};

/// The largest number of authenticated connections of nodes at a time. Unauthenticated ones have a limit of their own.
const MAX_CONNECTIONS: usize = 1_024;

/// The largest number of unanswered requests of one connection; more are refused as overload.
const MAX_FLYING: usize = 100_000;

/// The node behind a listener.
pub(crate) trait Host: Send + Sync + 'static {
    /// The inbox of a shard that this node owns, or the reason why it does not own it.
    fn inbox(&self, shard: ShardId) -> Result<Arc<Inbox>, Box<str>>;

    /// Applies `op`, which undoes an answer that did not reach the node that asked.
    fn put_back(&self, shard: ShardId, op: Op);

    /// Handles the message of another node that owners may have changed.
    fn nudged(&self);

    /// A guard for the calling task that ends the node if the task panics.
    fn end_on_panic(&self) -> EndOnPanic;
}

/// Answers other nodes until it is dropped; then all their connections end.
pub(crate) async fn listen(listener: TcpListener, terms: TransportConfig, host: Arc<dyn Host>) {
    let _end = host.end_on_panic();
    let slots = HandshakeSlots::default();
    let refusals = Arc::new(Refusals::default());
    let nodes = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            // Few connections have ended, and taking them here frees what they held.
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, from)) = accepted else {
            // Most likely too many files are open, which passes.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let mut place = slots.enter(from.ip());
        let (terms, host, nodes, refusals) = (terms.clone(), host.clone(), nodes.clone(), refusals.clone());
        connections.spawn(async move {
            let _end = host.end_on_panic();
            let greeted = tokio::select! {
                biased;
                greeted = timeout(terms.pace.greet, greet(stream, &terms)) => greeted,
                () = place.lost() => {
                    tracing::debug!(%from, "a connection at the nodes' port was closed for another one");
                    return;
                }
            };
            drop(place);
            let (stream, who, agreed) = match greeted {
                Ok(Ok(greeted)) => greeted,
                Ok(Err(refused)) => return refusals.say(from, terms.clock.running(), &refused),
                Err(_) => {
                    let why = "it did not identify itself in time";
                    let silent = RefusedPeer::unnamed(RefusalReason::Silent, why);
                    return refusals.say(from, terms.clock.running(), &silent);
                }
            };
            let Ok(_one) = nodes.try_acquire_owned() else {
                let why = "there are too many connections of nodes";
                let refused = RefusedPeer::named(RefusalReason::TooMany, &who.name, why);
                return refusals.say(from, terms.clock.running(), &refused);
            };
            let _open = OpenGuard::new(&terms);
            let ended = serve(stream, &terms, agreed, &host).await;
            tracing::debug!(node = %who.name, ?ended, "a node's connection ended");
        });
    }
}

/// Authenticates the node at the other end.
async fn greet(
    stream: TcpStream,
    terms: &TransportConfig,
) -> Result<(PeerStream, NodeIdentity, Agreed), RefusedPeer> {
    stream.set_nodelay(true)?;
    let mut first = [0];
    stream.peek(&mut first).await?;
    if first != [tls::FIRST_BYTE] {
        return Err(RefusedPeer::unnamed(RefusalReason::WithoutTls, "it does not speak TLS"));
    }
    let accepted = terms.link.accept(stream).await;
    let (stream, binding) =
        accepted.map_err(|error| RefusedPeer::unnamed(RefusalReason::Handshake, error))?;
    introduce(stream, &binding, terms).await
}

/// Answers the node at the other end of a simulated connection until it ends.
#[cfg(any(test, feature = "testing"))]
pub(crate) async fn answer(
    stream: PeerStream,
    terms: &TransportConfig,
    host: &Arc<dyn Host>,
) -> io::Result<()> {
    let _end = host.end_on_panic();
    let greeting = introduce(stream, &super::tls::SIMULATED, terms);
    let (stream, _, agreed) = timeout(terms.pace.greet, greeting).await?.map_err(|refused| refused.why)?;
    let _open = OpenGuard::new(terms);
    serve(stream, terms, agreed, host).await
}

/// Runs the handshake, in which both sides prove that they know the secret.
pub(super) async fn introduce(
    mut stream: PeerStream,
    binding: &Binding,
    terms: &TransportConfig,
) -> Result<(PeerStream, NodeIdentity, Agreed), RefusedPeer> {
    let heard = LastReceived::now(&terms.clock);
    // The other node waits for an answer after its second message, so this read cannot consume the beginning of a
    // frame.
    let mut frames = FrameReader::new(&mut stream);
    let said = frames.next(MAX_GREETING, &heard).await?;
    let said = said.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    let hello: Hello = wire::read_greeting(&said).map_err(io::Error::other)?;
    if hello.magic != MAGIC && hello.magic != EARLIER_MAGIC {
        return Err(io::Error::other("it does not speak the nodes' protocol").into());
    }
    let Proofs(proofs) = hear_greeting(&mut frames, &heard).await?;
    drop(frames);
    if hello.magic == EARLIER_MAGIC {
        send_greeting(&mut stream, &Welcome::OtherVersions(terms.speaks)).await?;
        let why = "it is a node of a build before 0.1.0: stop all nodes of that build, export and import";
        return Err(RefusedPeer::named(RefusalReason::EarlierVersion, &hello.from.name, why));
    }
    let keyring = terms.secrets.borrow().clone();
    let Some(by) = keyring.check(&proofs, HandshakeRole::Asker, binding, &said) else {
        send_greeting(&mut stream, &Welcome::Stranger).await?;
        let why = "it does not know the cluster's secret";
        return Err(RefusedPeer::named(RefusalReason::Secret, &hello.from.name, why));
    };
    let me = NodeIdentity::from(&terms.me);
    if hello.to != me {
        send_greeting(&mut stream, &Welcome::OtherNode(me)).await?;
        let text = format!("node {} looks for {} ({})", hello.from.name, hello.to.name, hello.to.number);
        return Err(RefusedPeer::named(RefusalReason::OtherNode, &hello.from.name, text));
    }
    let Some(version) = terms.speaks.common(hello.versions) else {
        let (name, theirs, mine) = (&hello.from.name, hello.versions, terms.speaks);
        send_greeting(&mut stream, &Welcome::OtherVersions(mine)).await?;
        let why = format!("node {name} speaks {theirs} of the nodes' protocol, this one {mine}");
        return Err(RefusedPeer::named(RefusalReason::OtherVersions, name, why));
    };
    let proof = keyring.prove(by, binding, &said);
    let proof = proof.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let come = Welcome::Come { version, takes: terms.limits, proof };
    send_greeting(&mut stream, &come).await?;
    let limits = terms.limits.and(hello.takes);
    Ok((stream, hello.from, Agreed { version, limits, by }))
}

async fn send_greeting(to: &mut (impl AsyncWrite + Unpin), part: &impl serde::Serialize) -> io::Result<()> {
    to.write_all(&wire::greeting(part).map_err(io::Error::other)?).await?;
    to.flush().await
}

/// The answers of one connection that wait to be sent.
#[derive(Debug)]
struct ConnectionAnswers {
    state: Mutex<AnswerQueue>,
    wake: Notify,
    /// Notified when some of them were sent.
    sent: Notify,
    flying: AtomicUsize,
    agreed: Agreed,
    /// Ends the waits of reserves, so that the connection can end.
    waits_end: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct AnswerQueue {
    queue: VecDeque<QueuedAnswer>,
    bytes: usize,
    closed: Closed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Closed {
    #[default]
    No,
    Yes,
}

/// An answer that is ready to be sent, and the operations that undo it.
#[derive(Debug)]
struct QueuedAnswer {
    frame: Vec<u8>,
    shard: ShardId,
    undo: Vec<Op>,
    _open: Option<OpenGuard>,
}

impl ConnectionAnswers {
    fn new(agreed: Agreed) -> Arc<Self> {
        Arc::new(ConnectionAnswers {
            state: Mutex::default(),
            wake: Notify::new(),
            sent: Notify::new(),
            flying: AtomicUsize::new(0),
            agreed,
            waits_end: watch::Sender::new(false),
        })
    }

    /// Adds an answer; returns it when the connection has ended.
    fn push(&self, answer: QueuedAnswer) -> Result<(), QueuedAnswer> {
        let mut out = self.out();
        if out.closed == Closed::Yes {
            return Err(answer);
        }
        out.bytes += answer.frame.len();
        out.queue.push_back(answer);
        drop(out);
        self.wake.notify_one();
        Ok(())
    }

    fn say(&self, head: &PeerFrameHead) {
        self.send(wire::plain(head));
    }

    /// Sends a frame that needs no undoing. A connection that has ended needs no answer.
    fn send(&self, frame: Result<Vec<u8>, wire::WireError>) {
        if let Ok(frame) = frame {
            let _ = self.push(QueuedAnswer { frame, shard: ShardId(0), undo: Vec::new(), _open: None });
        }
    }

    /// Sends answers that need no undoing.
    fn answers(&self, id: u64, answers: &Answers) {
        self.send(wire::answers(id, answers, self.agreed.limits));
    }

    fn out(&self) -> MutexGuard<'_, AnswerQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers until the connection ends; then nothing waits for it any more, and grants that were not sent are returned.
async fn serve(
    stream: PeerStream,
    terms: &TransportConfig,
    agreed: Agreed,
    host: &Arc<dyn Host>,
) -> io::Result<()> {
    let line = ConnectionAnswers::new(agreed);
    // The guard works even if the task is ended from outside.
    let _closing = CloseOnDrop { line: line.clone(), host: host.clone() };
    let (gone, is_gone) = watch::channel(());
    let heard = LastReceived::now(&terms.clock);
    let (from, to) = tokio::io::split(stream);
    let ended = tokio::select! {
        // All three run until one of them ends, so their order determines only which reason is returned.
        biased;
        ended = hear(FrameReader::new(from), &heard, terms, host, &line, &is_gone) => ended,
        ended = speak(to, &line, &heard) => ended,
        ended = watch_silence(&heard, terms) => ended,
    };
    drop(gone);
    ended
}

struct CloseOnDrop {
    line: Arc<ConnectionAnswers>,
    host: Arc<dyn Host>,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        let unsent = {
            let mut out = self.line.out();
            out.closed = Closed::Yes;
            std::mem::take(&mut out.queue)
        };
        for answer in unsent {
            put_back(&self.host, answer);
        }
    }
}

fn put_back(host: &Arc<dyn Host>, answer: QueuedAnswer) {
    for op in answer.undo {
        host.put_back(answer.shard, op);
    }
}

async fn hear(
    mut frames: FrameReader<impl tokio::io::AsyncRead + Unpin>,
    heard: &LastReceived,
    terms: &TransportConfig,
    host: &Arc<dyn Host>,
    line: &Arc<ConnectionAnswers>,
    is_gone: &watch::Receiver<()>,
) -> io::Result<()> {
    let limits = terms.limits;
    let mut ends = terms.ends.subscribe();
    let mut forgotten = std::pin::pin!(terms.forgotten(line.agreed.by));
    loop {
        let bytes = tokio::select! {
            // Requests that keep coming do not prevent this node from ending.
            biased;
            // The sender is part of `terms`.
            Ok(_) = ends.wait_for(|ends| *ends == AcceptsRequests::Yes) => break,
            () = &mut forgotten => {
                line.waits_end.send_replace(true);
                break;
            }
            bytes = frames.next(limits.bytes, heard) => bytes?,
        };
        let Some(bytes) = bytes else { return Ok(()) };
        match wire::read(&bytes, limits).map_err(io::Error::other)? {
            PeerFrame::Request { id, shard, patience, ops: Some(ops) } => {
                drop(bytes);
                let request = ServedRequest {
                    id,
                    shard,
                    waiters: waiters(&ops),
                    parts: ops.len(),
                    open: Some(OpenGuard::new(terms)),
                };
                take_in(request, ops, patience, host, line, is_gone);
            }
            PeerFrame::Request { id, ops: None, .. } => line.say(&not_known(id, terms)),
            PeerFrame::Ping => line.say(&PeerFrameHead::Pong),
            PeerFrame::Nudge => host.nudged(),
            PeerFrame::Answers { .. }
            | PeerFrame::NotMine { .. }
            | PeerFrame::NotKnown { .. }
            | PeerFrame::Pong
            | PeerFrame::Bye => {
                return Err(io::Error::other("it sent a frame that only the owner of a shard sends"));
            }
        }
        // No requests are read from a peer that does not read its answers.
        while line.out().bytes > limits.bytes {
            line.sent.notified().await;
        }
    }
    while line.flying.load(Ordering::SeqCst) > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    line.say(&PeerFrameHead::Bye);
    // The other node closes the connection when it has read Bye. Closing it here would lose answers in flight.
    while frames.next(limits.bytes, heard).await?.is_some() {}
    Ok(())
}

/// A request whose operations have been submitted.
#[derive(Debug)]
struct ServedRequest {
    id: u64,
    shard: ShardId,
    waiters: Vec<WaiterId>,
    parts: usize,
    open: Option<OpenGuard>,
}

fn take_in(
    request: ServedRequest,
    ops: Vec<Op>,
    patience: WhenBusy,
    host: &Arc<dyn Host>,
    line: &Arc<ConnectionAnswers>,
    is_gone: &watch::Receiver<()>,
) {
    let (id, parts) = (request.id, request.parts);
    let inbox = match host.inbox(request.shard) {
        Ok(inbox) => inbox,
        Err(why) => return line.say(&not_mine(id, &why)),
    };
    let overloaded = || {
        let refusals: Answers = (0..parts).map(|_| Err(CallError::Overloaded)).collect();
        line.answers(id, &refusals);
    };
    if line.flying.load(Ordering::Relaxed) >= MAX_FLYING {
        return overloaded();
    }
    let (answer, answers) = oneshot::channel();
    match inbox.offer(Submission { ops, answer, patience, has_waited: false }) {
        Ok(()) => {}
        Err((CallError::Overloaded, _)) => return overloaded(),
        Err((error, _)) => return line.say(&not_mine(id, &error.to_string())),
    }
    line.flying.fetch_add(1, Ordering::SeqCst);
    let (line, host, is_gone) = (line.clone(), host.clone(), is_gone.clone());
    tokio::spawn(async move {
        let _end = host.end_on_panic();
        follow(request, answers, inbox, &line, &host, is_gone).await;
        line.flying.fetch_sub(1, Ordering::SeqCst);
    });
}

/// Waits for the answers to a request and sends them.
async fn follow(
    mut request: ServedRequest,
    mut answers: oneshot::Receiver<Answers>,
    inbox: Arc<Inbox>,
    line: &ConnectionAnswers,
    host: &Arc<dyn Host>,
    mut is_gone: watch::Receiver<()>,
) {
    let shard = request.shard;
    let mut waits_end = line.waits_end.subscribe();
    let mut ended = false;
    let answered = loop {
        tokio::select! {
            biased;
            answered = &mut answers => break Some(answered),
            _ = is_gone.changed() => break None,
            // The sender is part of `line`. The answer comes as always: empty, or with what was granted before.
            Ok(_) = waits_end.wait_for(|end| *end), if !request.waiters.is_empty() => {
                ended = true;
                end_waits(std::mem::take(&mut request.waiters), &inbox);
            }
        }
    };
    let Some(answered) = answered else {
        end_waits(request.waiters, &inbox);
        // The driver takes back grants whose receiver is gone; those that it has sent are here.
        answers.close();
        if let Ok(late) = answers.try_recv() {
            undo(&late).into_iter().for_each(|op| host.put_back(shard, op));
        }
        return;
    };
    let answers = answered.unwrap_or_else(|_| {
        (0..request.parts).map(|_| Err(CallError::Lost("the driver ended before it answered"))).collect()
    });
    if let Some(why) = moved(&answers) {
        return line.say(&not_mine(request.id, &why.to_string()));
    }
    if ended && answers.iter().all(is_nothing) {
        // The wait goes on over the next connection.
        return line.say(&not_mine(request.id, "the cluster's secret was replaced"));
    }
    let undo = undo(&answers);
    let answer = match wire::answers(request.id, &answers, line.agreed.limits) {
        Ok(frame) => QueuedAnswer { frame, shard, undo, _open: request.open.take() },
        Err(error) => {
            tracing::error!(%error, "an answer to another node cannot be sent");
            undo.into_iter().for_each(|op| host.put_back(shard, op));
            return refuse(&request, &error.to_string(), line);
        }
    };
    if let Err(answer) = line.push(answer) {
        put_back(host, answer);
    }
}

/// Ends these waits at a shard.
fn end_waits(waiters: Vec<WaiterId>, inbox: &Inbox) {
    for waiter in waiters {
        let (answer, _) = oneshot::channel();
        let ops = vec![Op::CancelReserve { waiter }];
        // Refused only by a shard that ends, and its waits with it.
        let _ = inbox.put(Submission { ops, answer, patience: WhenBusy::Refuse, has_waited: false });
    }
}

/// Answers that the outcome is unknown: what was asked may have been applied.
fn refuse(request: &ServedRequest, why: &str, line: &ConnectionAnswers) {
    let error = duewheel_core::store::StoreError::new(duewheel_core::store::ErrorKind::Unavailable, why);
    let refusal = CallError::Store { error, outcome: Outcome::Unknown };
    let refusals: Answers = (0..request.parts).map(|_| Err(refusal.clone())).collect();
    line.answers(request.id, &refusals);
}

/// Whether a reserve got no message.
fn is_nothing(answer: &Result<Reply, CallError>) -> bool {
    matches!(answer, Ok(Reply::Reserve(Reserved::Grants(grants))) if grants.is_empty())
}

fn not_mine(id: u64, why: &str) -> PeerFrameHead {
    PeerFrameHead::NotMine { id, why: short(why) }
}

fn not_known(id: u64, terms: &TransportConfig) -> PeerFrameHead {
    let (name, version) = (&terms.me.name, env!("CARGO_PKG_VERSION"));
    let why = format!("node {name} of version {version} does not know this kind of request: upgrade it");
    PeerFrameHead::NotKnown { id, why: short(&why) }
}

/// A text that fits into a frame of a head alone.
fn short(why: &str) -> Box<str> {
    why.chars().take(200).collect()
}

async fn speak(
    mut to: impl AsyncWrite + Unpin,
    line: &ConnectionAnswers,
    heard: &LastReceived,
) -> io::Result<()> {
    loop {
        let next = line.out().queue.pop_front();
        match next {
            None => line.wake.notified().await,
            Some(answer) => {
                super::write(&mut to, &answer.frame, heard).await?;
                line.out().bytes -= answer.frame.len();
                line.sent.notify_one();
            }
        }
    }
}

async fn watch_silence(heard: &LastReceived, terms: &TransportConfig) -> io::Result<()> {
    loop {
        tokio::time::sleep(terms.pace.ping).await;
        if heard.since() >= terms.pace.silence {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it hangs"));
        }
    }
}

#[cfg(test)]
mod tests {
    use duewheel_core::id::{Epoch, LeaseToken, MessageId};
    use duewheel_core::policy::Policy;
    use duewheel_core::store::Level;

    use super::*;
    use duewheel_shard::clock::SystemClock;
    use duewheel_shard::shared::DriverShared;

    struct Nowhere(Mutex<Vec<(ShardId, Op)>>);

    impl Host for Nowhere {
        fn inbox(&self, _: ShardId) -> Result<Arc<Inbox>, Box<str>> {
            Err("nowhere".into())
        }
        fn put_back(&self, shard: ShardId, op: Op) {
            self.0.lock().unwrap().push((shard, op));
        }
        fn nudged(&self) {}
        fn end_on_panic(&self) -> EndOnPanic {
            let shared = Arc::new(DriverShared::new(Level::Memory, Arc::new(SystemClock)));
            EndOnPanic::new(&shared, &Arc::new(Inbox::new(&Policy::default())), "a test")
        }
    }

    fn line() -> Arc<ConnectionAnswers> {
        let limits = wire::FrameLimits { bytes: 1 << 20, parts: 10, body: 1 << 10 };
        let by = super::super::handshake::KeyId::of_a_test();
        ConnectionAnswers::new(Agreed { version: 1, limits, by })
    }

    fn undelivered(id: u64) -> Op {
        Op::Undelivered { leases: vec![(MessageId(id), LeaseToken { epoch: Epoch(1), counter: id })] }
    }

    fn answer(id: u64) -> QueuedAnswer {
        QueuedAnswer { frame: vec![0; 10], shard: ShardId(3), undo: vec![undelivered(id)], _open: None }
    }

    #[test]
    fn unsent_grants_return_on_disconnect() {
        let nowhere = Arc::new(Nowhere(Mutex::default()));
        let (line, host) = (line(), nowhere.clone() as Arc<dyn Host>);
        let closing = CloseOnDrop { line: line.clone(), host: host.clone() };
        line.push(answer(1)).unwrap();
        line.push(answer(2)).unwrap();
        drop(closing);
        put_back(&host, line.push(answer(3)).expect_err("the connection is gone"));
        let all: Vec<_> = (1..4).map(|id| (ShardId(3), undelivered(id))).collect();
        assert_eq!(*nowhere.0.lock().unwrap(), all);
    }

    #[tokio::test]
    async fn answers_to_stalled_reader_are_bounded() {
        let line = line();
        for id in 0..10 {
            line.push(answer(id)).unwrap();
        }
        assert_eq!(line.out().bytes, 100, "counted until they are sent");
        let (mut near, far) = tokio::io::duplex(15);
        let heard = LastReceived::now(&(Arc::new(SystemClock) as Arc<dyn duewheel_shard::clock::Clock>));
        let mut read = [0; 40];
        tokio::select! {
            ended = speak(far, &line, &heard) => panic!("{ended:?}"),
            read = tokio::io::AsyncReadExt::read_exact(&mut near, &mut read) => assert_eq!(read.unwrap(), 40),
        }
        let left = line.out().bytes;
        assert!((40..=60).contains(&left), "{left} bytes wait, as the socket takes no more");
    }
}
