//! Both sides of a connection, and what does not belong on it.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small
#![allow(clippy::disallowed_methods)] // connections are real, and so is the time that they take

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Instant;

use duewheel_core::engine::{Op, Reply, Reserve, WaiterId};
use duewheel_core::id::{SessionId, ShardId};
use duewheel_core::policy::Policy;
use duewheel_core::store::{Node, Secrets};
use duewheel_shard::clock::SystemClock;
use duewheel_shard::error::CallError;
use duewheel_shard::inbox::{Inbox, Submission, WhenBusy};
use duewheel_shard::shared::{DriverShared, EndOnPanic};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::*;
use crate::transport::wire::FrameLimits;

const LEASE: Duration = Duration::from_millis(800);
const HERE: ShardId = ShardId(1);
const AWAY: ShardId = ShardId(2);
const SECRET: [u8; 32] = [5; 32];

/// A node with one shard, whose inbox the test empties by hand.
struct Owner {
    inbox: Arc<Inbox>,
    shared: Arc<DriverShared>,
    put_back: Mutex<Vec<Op>>,
    nudges: AtomicUsize,
}

impl Host for Owner {
    fn inbox(&self, shard: ShardId) -> Result<Arc<Inbox>, Box<str>> {
        if shard == HERE { Ok(self.inbox.clone()) } else { Err("not here".into()) }
    }
    fn put_back(&self, _: ShardId, op: Op) {
        self.put_back.lock().unwrap().push(op);
    }
    fn nudged(&self) {
        self.nudges.fetch_add(1, Ordering::SeqCst);
    }
    fn end_on_panic(&self) -> EndOnPanic {
        EndOnPanic::new(&self.shared, &self.inbox, "a test")
    }
}

struct Pair {
    owner: Arc<Owner>,
    peer: Arc<Peer>,
    terms: TransportConfig,
    listening: AbortHandle,
    running: AbortHandle,
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.listening.abort();
        self.running.abort();
    }
}

mod handshake_slots;
mod trust;

fn limits() -> FrameLimits {
    FrameLimits { bytes: 1 << 20, parts: 1_000, body: 1 << 19 }
}

fn secrets(secret: &[u8; 32]) -> Secrets {
    Secrets { current: *secret, former: None }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}

fn terms(me: Node, secret: &[u8; 32]) -> TransportConfig {
    let link = Connector::Tls(PeerTls::generate().unwrap());
    let means = (clock(), Jitter::seeded(u64::from(me.number)));
    TransportConfig::new(me, link, &secrets(secret), SupportedVersions::default(), limits(), LEASE, means)
}

fn node(name: &str, number: u32, advertise: &str) -> Node {
    Node { name: name.into(), number, advertise: advertise.into() }
}

async fn owner(secret: &[u8; 32]) -> (Arc<Owner>, TransportConfig, Node, AbortHandle) {
    owner_by(|me| terms(me, secret)).await
}

async fn owner_by(
    terms: impl FnOnce(Node) -> TransportConfig,
) -> (Arc<Owner>, TransportConfig, Node, AbortHandle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let me = node("owner", 2, &listener.local_addr().unwrap().to_string());
    let terms = terms(me.clone());
    let level = duewheel_core::store::Level::Memory;
    let owner = Arc::new(Owner {
        inbox: Arc::new(Inbox::new(&Policy::default())),
        shared: Arc::new(DriverShared::new(level, Arc::new(SystemClock))),
        put_back: Mutex::default(),
        nudges: AtomicUsize::new(0),
    });
    let listening = tokio::spawn(listen(listener, terms.clone(), owner.clone())).abort_handle();
    (owner, terms, me, listening)
}

fn ask(to: Node, secret: &[u8; 32]) -> (Arc<Peer>, AbortHandle) {
    ask_by(to, terms(node("asker", 1, ""), secret))
}

fn ask_by(to: Node, terms: TransportConfig) -> (Arc<Peer>, AbortHandle) {
    let peer = Arc::new(Peer::new(to, terms, 1 << 20));
    let runs = peer.clone();
    (peer, tokio::spawn(async move { runs.run().await }).abort_handle())
}

/// Why a peer is not connected, once it has tried.
async fn refusal(peer: &Peer) -> String {
    let mut why = String::new();
    until("it is refused", || match peer.ask(HERE, WhenBusy::Refuse, &[Op::Stats]) {
        Err(NotSent::Away(reason)) if !reason.contains("is being connected to") => {
            why = reason.to_string();
            true
        }
        Ok(_) | Err(_) => false,
    })
    .await;
    assert!(!peer.is_up());
    why
}

async fn pair() -> Pair {
    let (owner, terms, node, listening) = owner(&SECRET).await;
    let (peer, running) = ask(node, &SECRET);
    until("they are connected", || peer.is_up()).await;
    Pair { owner, peer, terms, listening, running }
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// What comes to the owner's shard next.
async fn next(owner: &Owner) -> Vec<Submission> {
    let mut all = Vec::new();
    until("something is asked", || {
        owner.inbox.take(&mut all);
        !all.is_empty()
    })
    .await;
    all
}

fn wait_op() -> Op {
    Op::Reserve(Reserve {
        waiter: WaiterId(77),
        queues: Vec::new(),
        max: 1,
        max_bytes: 1,
        wait_ms: 60_000,
        lease_ms: None,
        session: SessionId::NONE,
        max_of: Vec::new(),
        max_attempts: None,
        deadline_margin_ms: None,
    })
}

fn why(outcome: &PeerOutcome) -> String {
    match outcome {
        PeerOutcome::Answered(answers) => format!("answered {answers:?}"),
        PeerOutcome::NotMine(why) => format!("not mine: {why}"),
        PeerOutcome::NotKnown(why) => format!("not known: {why}"),
        PeerOutcome::NotSent(why) => format!("not sent: {why}"),
        PeerOutcome::Lost(why) => format!("lost: {why}"),
    }
}

#[tokio::test]
async fn pipelined_requests_get_their_own_answers() {
    let pair = pair().await;
    let asked: Vec<_> = (0..100_u64)
        .map(|n| pair.peer.ask(HERE, WhenBusy::Refuse, &[Op::CancelReserve { waiter: WaiterId(n) }]).unwrap())
        .collect();
    let mut came = Vec::new();
    while came.len() < 100 {
        came.extend(next(&pair.owner).await);
    }
    let order: Vec<_> = came.iter().map(|s| s.ops[0].clone()).collect();
    let sent: Vec<_> = (0..100).map(|n| Op::CancelReserve { waiter: WaiterId(n) }).collect();
    assert_eq!(order, sent, "in the order of asking");
    for (n, submission) in came.into_iter().enumerate().rev() {
        submission.answer.send(vec![Ok(Reply::Count((n as u64).into()))]).unwrap();
    }
    for (n, outcome) in asked.into_iter().enumerate() {
        let PeerOutcome::Answered(answers) = outcome.await.unwrap() else { panic!("no answer to {n}") };
        assert!(matches!(&answers[..], [Ok(Reply::Count(count))] if **count == n as u64), "{n}: {answers:?}");
    }
    assert_eq!(pair.peer.flying(), 0);
    until("nothing is open but the connection", || pair.terms.open() == 1).await;
    until("it is greeted", || pair.owner.nudges.load(Ordering::SeqCst) == 1).await;
    pair.peer.nudge();
    until("it is nudged", || pair.owner.nudges.load(Ordering::SeqCst) == 2).await;
}

#[tokio::test]
async fn request_for_absent_shard_is_refused() {
    let pair = pair().await;
    let outcome = pair.peer.ask(AWAY, WhenBusy::Refuse, &[Op::Stats]).unwrap().await.unwrap();
    assert_eq!(why(&outcome), "not mine: not here");
    // A shard that is being given up.
    let asked = pair.peer.ask(HERE, WhenBusy::Refuse, &[Op::Stats]).unwrap();
    let submission = next(&pair.owner).await.pop().unwrap();
    submission.answer.send(vec![Err(CallError::Draining)]).unwrap();
    assert!(matches!(asked.await.unwrap(), PeerOutcome::NotMine(_)));
    // One whose outcome is unknown is told as it is.
    let asked = pair.peer.ask(HERE, WhenBusy::Refuse, &[Op::Stats]).unwrap();
    drop(next(&pair.owner).await);
    let PeerOutcome::Answered(answers) = asked.await.unwrap() else { panic!("not answered") };
    assert_eq!(answers[0].as_ref().unwrap_err().outcome(), duewheel_shard::error::Outcome::Unknown);
}

#[tokio::test]
async fn unknown_operation_is_refused_without_disconnect() {
    let pair = pair().await;
    let asked = pair.peer.request(|id, limits| {
        let mut frame = wire::request(id, HERE, WhenBusy::Refuse, &[Op::Stats, Op::NextDue], limits)?;
        // The kind of the second operation, before its section.
        let kind = frame.len() - 2;
        frame[kind] = 0x7f;
        Ok(frame)
    });
    let outcome = asked.unwrap().await.unwrap();
    assert!(why(&outcome).starts_with("not known: node owner of version "), "{outcome:?}");
    let asked = pair.peer.ask(HERE, WhenBusy::Refuse, &[Op::Stats]).unwrap();
    let came = next(&pair.owner).await.pop().unwrap();
    assert_eq!(came.ops, [Op::Stats], "nothing of the first request");
    came.answer.send(vec![Ok(Reply::Done)]).unwrap();
    assert!(matches!(asked.await.unwrap(), PeerOutcome::Answered(_)));
    assert_eq!(pair.peer.lives(), 1);
}

#[tokio::test]
async fn undecodable_answer_fails_only_its_call() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let me = node("owner", 2, &listener.local_addr().unwrap().to_string());
    let terms = terms(me.clone(), &SECRET);
    let (peer, running) = ask(me, &SECRET);
    let (stream, _) = listener.accept().await.unwrap();
    let (stream, binding) = terms.link.accept(stream).await.unwrap();
    let (stream, ..) = server::introduce(stream, &binding, &terms).await.unwrap();
    until("they are connected", || peer.is_up()).await;
    let asked = peer.ask(HERE, WhenBusy::Refuse, &[Op::Stats, Op::Stats]).unwrap();
    let (from, mut to) = tokio::io::split(stream);
    let (mut frames, heard) = (FrameReader::new(from), LastReceived::now(&clock()));
    let id = loop {
        let bytes = frames.next(1_000, &heard).await.unwrap().unwrap();
        if let wire::PeerFrame::Request { id, .. } = wire::read(&bytes, limits()).unwrap() {
            break id;
        }
    };
    let mut frame = wire::answers(id, &[Ok(Reply::Done), Ok(Reply::Done)], limits()).unwrap();
    // The kind of the second answer, before its section.
    let kind = frame.len() - 2;
    frame[kind] = 0x7f;
    write(&mut to, &frame, &heard).await.unwrap();
    let PeerOutcome::Answered(answers) = asked.await.unwrap() else { panic!("not answered") };
    let [Ok(Reply::Done), Err(error)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(error.outcome(), duewheel_shard::error::Outcome::Unknown);
    assert!(error.to_string().contains("node owner is of a later version"), "{error}");
    assert!(peer.is_up());
    running.abort();
}

#[tokio::test]
async fn vanished_asker_ends_its_waits() {
    let pair = pair().await;
    drop(pair.peer.ask(HERE, WhenBusy::Refuse, &[wait_op()]).unwrap());
    let waiting = next(&pair.owner).await.pop().unwrap();
    assert!(!waiting.answer.is_closed());
    pair.running.abort();
    let cancel = next(&pair.owner).await.pop().unwrap();
    assert_eq!(cancel.ops, [Op::CancelReserve { waiter: WaiterId(77) }]);
    until("the driver sees that nobody waits", || waiting.answer.is_closed()).await;
    until("nothing is open", || pair.terms.open() == 0).await;
}

#[tokio::test]
async fn hanging_peer_leaves_outcome_unknown() {
    // A machine that accepts connections and says nothing more: its process is stopped.
    let (owner, _, mut node, listening) = owner(&SECRET).await;
    let (address, stopped, proxying) = proxy(node.advertise.to_string()).await;
    node.advertise = address.into();
    let (peer, running) = ask(node, &SECRET);
    until("they are connected", || peer.is_up()).await;
    let first = peer.ask(HERE, WhenBusy::Refuse, &[Op::Stats]).unwrap();
    let _not_answered = next(&owner).await;
    stopped.store(true, Ordering::SeqCst);
    let outcome = first.await.unwrap();
    assert!(why(&outcome).starts_with("lost: node owner: "), "{outcome:?}");
    until("the owner notices, too, and waits for nobody", || peer.flying() == 0).await;
    for task in [running, listening] {
        task.abort();
    }
    proxying.abort();
}

#[tokio::test]
async fn nobody_there_means_not_sent() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = gone.local_addr().unwrap().to_string();
    drop(gone);
    let (peer, running) = ask(node("owner", 2, &address), &SECRET);
    match peer.ask(HERE, WhenBusy::Refuse, &[Op::Stats]) {
        Ok(outcome) => assert!(matches!(outcome.await.unwrap(), PeerOutcome::NotSent(_))),
        Err(refused) => assert!(matches!(refused, NotSent::Away(_)), "{refused:?}"),
    }
    // It comes to be at that address later.
    let listener = TcpListener::bind(&address).await;
    if let Ok(listener) = listener {
        let (owner, _, _, _) = self::owner(&SECRET).await;
        let terms = terms(node("owner", 2, &address), &SECRET);
        let listening = tokio::spawn(listen(listener, terms, owner)).abort_handle();
        until("it is connected by itself", || peer.is_up()).await;
        listening.abort();
    }
    running.abort();
}

#[tokio::test]
async fn mismatched_secret_or_node_is_refused() {
    let (_owner, _, me, listening) = owner(&SECRET).await;
    let mut other_life = me.clone();
    other_life.number = 3;
    let mut other_name = me.clone();
    other_name.name = "somebody".into();
    for (node, secret, said) in [
        (me.clone(), [6; 32], "another secret of the cluster"),
        (other_life, SECRET, "node owner (2) is at its address"),
        (other_name, SECRET, "node owner (2) is at its address"),
    ] {
        let (peer, running) = ask(node, &secret);
        let why = refusal(&peer).await;
        assert!(why.contains(said), "{why}");
        running.abort();
    }
    listening.abort();
}

/// Passes bytes on between whoever comes to it and an address, until it is told to stop; then both connections stay,
/// and nothing goes through.
async fn proxy(to: String) -> (String, Arc<AtomicBool>, AbortHandle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stopped = Arc::new(AtomicBool::new(false));
    let hangs = stopped.clone();
    let proxying = tokio::spawn(async move {
        let (mut a, _) = listener.accept().await.unwrap();
        let mut b = TcpStream::connect(to).await.unwrap();
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut a, &mut b) => {}
            () = async { while !hangs.load(Ordering::SeqCst) { tokio::time::sleep(Duration::from_millis(1)).await } } => {}
        }
        std::future::pending::<()>().await;
    });
    (address, stopped, proxying.abort_handle())
}

#[tokio::test]
async fn garbage_at_the_port_harms_nobody() {
    let pair = pair().await;
    let address = pair.peer.node().advertise.to_string();
    let flood = vec![0xff; 100_000];
    let large = [u32::MAX.to_le_bytes().as_slice(), b"x"].concat();
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0; 64], &flood, &large, b""] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        // It may have closed already.
        let _ = stream.write_all(garbage).await;
        let _ = stream.shutdown().await;
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said).await;
        assert!(said.is_empty(), "a stranger is told nothing: {said:?}");
    }
    // One that says nothing is closed after a while, and others are served meanwhile.
    let mut silent = TcpStream::connect(&address).await.unwrap();
    let outcome = pair.peer.ask(AWAY, WhenBusy::Refuse, &[Op::Stats]).unwrap().await.unwrap();
    assert!(matches!(outcome, PeerOutcome::NotMine(_)));
    assert_eq!(silent.read(&mut [0; 8]).await.unwrap(), 0);
    assert!(pair.owner.shared.bug().is_none());
}

#[tokio::test]
async fn send_buffer_of_peer_is_bounded() {
    // The way to the owner takes nothing any more, so that everything waits.
    let (_owner, _, mut to, listening) = owner(&SECRET).await;
    let (address, stopped, proxying) = proxy(to.advertise.to_string()).await;
    to.advertise = address.into();
    let (peer, running) = ask(to, &SECRET);
    until("they are connected", || peer.is_up()).await;
    stopped.store(true, Ordering::SeqCst);
    let queue = duewheel_core::QueueName::new("q").unwrap();
    let body = vec![0; 100_000];
    let op = Op::Enqueue(Box::new(duewheel_core::engine::Enqueue::new(queue, body)));
    let mut asked = Vec::new();
    let refused = loop {
        match peer.ask(HERE, WhenBusy::Refuse, std::slice::from_ref(&op)) {
            Ok(outcome) => asked.push(outcome),
            Err(refused) => break refused,
        }
        assert!(asked.len() < 10_000, "no end of it");
        tokio::task::yield_now().await;
    };
    assert_eq!(refused, NotSent::Overloaded);
    peer.close("the test is over");
    let mut sent = Vec::new();
    for outcome in asked {
        sent.push(match outcome.await.unwrap() {
            PeerOutcome::NotSent(_) => false,
            PeerOutcome::Lost(_) => true,
            other => panic!("{other:?}"),
        });
    }
    assert!(sent.is_sorted_by(|a, b| a >= b) && sent.last() == Some(&false), "what waited was not sent");
    assert!(matches!(peer.ask(HERE, WhenBusy::Refuse, &[op]), Err(NotSent::Away(_))), "closed for good");
    for task in [running, listening, proxying] {
        task.abort();
    }
}
