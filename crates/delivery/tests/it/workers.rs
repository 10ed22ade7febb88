//! Workers of one or two nodes over a wheel in memory, whose clock stands still.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duewheel::core::MessageId;
use duewheel::core::engine::{Op, Target};
use duewheel::core::name::{Key, QueueName};
use duewheel::core::policy::QueueSettings;
use duewheel::{Duewheel, View, VirtualClock};
use duewheel_delivery::{
    BookReport, DeliveryAttempt, PushTarget, PushWorkers, PushWorkersStart, RetrySettings, TargetBook,
    TargetEntry, TargetSettings, TargetStage, Tickets, deliveries,
};
use duewheel_shard::client::Reserve;

use crate::receiver::{Answer, Receiver, status};

const LONG: Duration = Duration::from_secs(60);

/// Polls until `done`, with a deadline.
async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A store, its targets, and what was reported.
struct Rig {
    wheel: Duewheel,
    clock: VirtualClock,
    book: TargetBook,
    targets: Mutex<BTreeMap<String, TargetEntry>>,
    revision: AtomicU64,
    reports: Arc<Reports>,
}

/// Keeps reports.
#[derive(Debug, Default)]
struct Reports {
    pauses: Mutex<Vec<(String, u64, String)>>,
    failures: AtomicU64,
}

impl BookReport for Reports {
    fn pause<'a>(
        &'a self,
        name: &'a str,
        revision: u64,
        reason: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>> {
        Box::pin(async move {
            if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
                return Err("the store is behind".into());
            }
            self.pauses.lock().unwrap().push((name.into(), revision, reason.into()));
            Ok(())
        })
    }
}

impl Rig {
    async fn new() -> Self {
        Rig::over(1).await
    }

    /// With several shards, as in a cluster.
    async fn over(shards: u32) -> Self {
        let clock = VirtualClock::at_2026();
        let memory = Duewheel::builder().in_memory().clock(clock.clone()).seed(1);
        let wheel = memory.shards(shards).open().await.unwrap();
        Rig {
            wheel,
            clock,
            book: TargetBook::new(),
            targets: Mutex::default(),
            revision: AtomicU64::new(1),
            reports: Arc::default(),
        }
    }

    /// Writes a target into the book.
    fn put(&self, name: &str, queues: &[&str], paused: Option<&str>, settings: &TargetSettings) {
        let revision = self.revision.fetch_add(1, Ordering::SeqCst);
        let entry = TargetEntry {
            name: name.into(),
            target: Arc::new(PushTarget::new(settings).unwrap()),
            queues: names(queues),
            paused: paused.map(Into::into),
            revision,
        };
        self.targets.lock().unwrap().insert(name.into(), entry);
        self.publish();
    }

    /// Lets a target have other queues.
    fn route(&self, name: &str, queues: &[&str]) {
        self.targets.lock().unwrap().get_mut(name).unwrap().queues = names(queues);
        self.publish();
    }

    fn remove(&self, name: &str) {
        self.targets.lock().unwrap().remove(name);
        self.publish();
    }

    fn publish(&self) {
        self.book.set(self.targets.lock().unwrap().values().cloned().collect());
    }

    fn node(&self) -> PushWorkers {
        self.node_of("s1")
    }

    /// A node that gives its store another name than others do, so that its requests can be told apart.
    fn node_of(&self, store: &str) -> PushWorkers {
        let start = PushWorkersStart {
            book: self.book.clone(),
            report: self.reports.clone(),
            store: store.into(),
            tracer: None,
        };
        PushWorkers::start(&self.wheel, start).unwrap()
    }

    /// A node with threads of its own, so that it can die.
    fn mortal(&self) -> (tokio::runtime::Runtime, PushWorkers) {
        let threads =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let inside = threads.enter();
        let node = self.node();
        drop(inside);
        (threads, node)
    }

    async fn enqueue(&self, queue: &str, n: usize) {
        for key in 0..n {
            let draft = self.wheel.queue(queue).body(key.to_string());
            draft.key(&key.to_string()).enqueue().await.unwrap();
        }
    }

    async fn view(&self, queue: &str, key: &str) -> Option<Box<View>> {
        let target = Target::Key(QueueName::stored(queue).unwrap(), Key::new(key).unwrap());
        self.wheel.client().ask(Op::get(target)).await.unwrap()
    }

    /// Lets a queue keep done messages for so many ms.
    async fn keep_done(&self, queue: &str, ms: u64) {
        let settings = QueueSettings { keep_done_ms: Some(ms), ..QueueSettings::default() };
        let configure = Op::configure(QueueName::new(queue).unwrap(), settings);
        self.wheel.client().ask(configure).await.unwrap().unwrap();
    }

    /// The attempts of a message that are kept.
    async fn attempts(&self, id: MessageId) -> Vec<DeliveryAttempt> {
        let view = self.wheel.client().ask(Op::recall(Target::Id(id))).await.unwrap();
        view.map(|view| deliveries(&view)).unwrap_or_default()
    }

    /// How much longer the ticket of a target is held, in ms; 0 if it is not.
    async fn held_for(&self, target: &str) -> u64 {
        let until = self.view("#pushers", target).await.and_then(|view| view.lease_until);
        until.map_or(0, |until| until.0.saturating_sub(self.wheel.client().now().wall.0))
    }

    /// Lets four seconds pass, but not over the end of a ticket.
    async fn pass(&self, target: &str) {
        if self.held_for(target).await > 10_000 {
            self.clock.advance(Duration::from_secs(4));
        }
    }

    /// As many turns of wheel and runtime as something would need that must not happen.
    async fn turns(&self) {
        for _ in 0..200 {
            self.wheel.stats().await.unwrap();
        }
    }

    async fn left(&self) -> u64 {
        let counts = self.wheel.stats().await.unwrap().counts;
        counts.scheduled + counts.ready + counts.leased + counts.dead
    }
}

fn names(queues: &[&str]) -> Vec<QueueName> {
    queues.iter().map(|queue| QueueName::new(queue).unwrap()).collect()
}

fn delivered(node: &PushWorkers, target: &str) -> u64 {
    node.status(target).map_or(0, |status| status.counts.delivered)
}

fn hanging(receiver: &Receiver) -> TargetSettings {
    TargetSettings { timeout_ms: Some(900_000), ..receiver.target() }
}

fn ids(receiver: &Receiver) -> Vec<String> {
    receiver.requests().iter().map(|request| request.header("webhook-id").unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn ticket_moves_when_holder_dies() {
    let receiver =
        Receiver::new(|number, _| if number == 2 { Answer::Hang } else { status(200, "", "") }).await;
    let rig = Rig::over(4).await;
    rig.put("t", &["q"], None, &TargetSettings { timeout_ms: Some(5_000), ..receiver.target() });
    let (threads, dying) = rig.mortal();
    rig.enqueue("q", 1).await;
    until("the first is delivered", async || delivered(&dying, "t") == 1).await;
    let other = rig.node();
    rig.turns().await;
    assert_eq!(other.status("t"), None, "another node has the ticket");
    rig.enqueue("q", 1).await;
    until("it is under way", async || receiver.requests().len() == 2).await;
    until("it was renewed", async || rig.held_for("t").await == 15_000).await;
    threads.shutdown_background();
    drop(dying);

    rig.clock.advance(Duration::from_secs(14));
    rig.turns().await;
    assert_eq!(other.status("t"), None, "the lease of the ticket lasts");
    rig.clock.advance(Duration::from_secs(2));
    until("the other node has it", async || other.status("t").is_some()).await;
    until("what was under way is delivered again", async || delivered(&other, "t") == 1).await;
    let ids = ids(&receiver);
    assert_eq!(ids.len(), 3);
    assert_eq!(ids[1], ids[2], "the same webhook-id");
    assert_eq!(receiver.requests()[2].header("duewheel-attempt"), Some("2"), "the attempt is counted");
    assert_eq!(rig.left().await, 0);
}

/// A target is pushed to by one node at a time, and goes to another without a loss or a repetition.
/// Its ticket lives as long as the target.
#[tokio::test(flavor = "multi_thread")]
async fn target_is_taken_after_many_crashes() {
    let rig = Rig::new().await;
    for _ in 0..20 {
        let tickets = Tickets::new(rig.wheel.client(), "#tickets").unwrap();
        tickets.lay_out(&["t"]).await;
        rig.clock.advance(Duration::from_secs(1));
        let granted = tokio::time::timeout(LONG, tickets.free()).await.expect("it is free").unwrap();
        assert_eq!(granted.len(), 1);
        // A restart ends the session as well, and gives nothing back.
        tickets.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_node_hands_targets_over() {
    let receiver = Receiver::new(|_, _| status(200, "", "")).await;
    let rig = Rig::over(4).await;
    rig.put("t", &["q"], None, &TargetSettings { concurrency: Some(1), ..receiver.target() });
    let (first, second) = (rig.node(), rig.node());
    let holds = |node: &PushWorkers| usize::from(node.status("t").is_some());
    until("one has the ticket", async || holds(&first) + holds(&second) == 1).await;
    let (holder, other) = if holds(&first) == 1 { (first, second) } else { (second, first) };
    rig.enqueue("q", 100).await;
    until("some are delivered", async || delivered(&holder, "t") >= 10).await;
    assert_eq!(holds(&other), 0);
    holder.stop(LONG).await;
    until("the rest is delivered", async || rig.left().await == 0).await;
    until("it is counted", async || holds(&other) == 1).await;
    let ids = ids(&receiver);
    assert_eq!((ids.len(), ids.iter().collect::<HashSet<_>>().len()), (100, 100));
}

/// A node is suspended while it holds a ticket, longer than the lease. It begins nothing when it goes on, although it
/// could not read that another node has the ticket.
#[tokio::test(flavor = "multi_thread")]
async fn suspended_node_begins_no_push() {
    let receiver = Receiver::new(|_, _| status(200, "", "")).await;
    let rig = Rig::new().await;
    rig.put("t", &["q"], None, &receiver.target());
    let (threads, suspended) = rig.mortal();
    rig.enqueue("q", 1).await;
    until("it pushes", async || delivered(&suspended, "t") == 1).await;
    until("it was renewed", async || rig.held_for("t").await == 15_000).await;
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    let (tell, stands_still) = tokio::sync::oneshot::channel();
    // The one thread of the node is busy.
    threads.spawn(async move {
        tell.send(()).unwrap();
        // An error says that it may go on.
        assert!(waits.recv().is_err());
    });
    stands_still.await.unwrap();
    let other = rig.node_of("s2");
    for seconds in [6, 10] {
        rig.clock.advance(Duration::from_secs(seconds));
        rig.turns().await;
    }
    until("another node has the ticket", async || other.status("t").is_some()).await;
    drop(go_on);
    rig.enqueue("q", 50).await;
    until("all are delivered", async || rig.left().await == 0).await;
    until("it knows that it has no ticket", async || suspended.status("t").is_none()).await;
    let later = ids(&receiver).split_off(1);
    assert_eq!(later.len(), 50);
    assert!(later.iter().all(|id| id.starts_with("dw_s2_")), "{later:?}");
    threads.shutdown_background();
}

#[tokio::test(flavor = "multi_thread")]
async fn target_edit_loses_no_message() {
    let (slow, open) = Receiver::held().await;
    let fast = Receiver::new(|_, _| status(200, "", "")).await;
    let rig = Rig::new().await;
    rig.put("t", &["q"], None, &TargetSettings { concurrency: Some(2), ..hanging(&slow) });
    let node = rig.node();
    rig.enqueue("q", 20).await;
    until("two are under way", async || slow.connections() == 2).await;
    rig.put("t", &["q"], None, &TargetSettings { concurrency: Some(3), ..hanging(&fast) });
    until("the rest goes elsewhere", async || delivered(&node, "t") == 18).await;
    assert_eq!(fast.requests().len(), 18);
    until("they are settled", async || node.status("t").unwrap().in_flight == 2).await;
    open.send_replace(true);
    until("those under way end", async || delivered(&node, "t") == 20).await;
    assert_eq!((slow.requests().len(), fast.requests().len(), rig.left().await), (2, 18, 0));
    assert_eq!(node.restarts(), 0);
}

/// Story: a queue more or less ended the `Retry-After` of its target, whose other messages all went out at once.
#[tokio::test(flavor = "multi_thread")]
async fn other_queues_leave_target_slowed() {
    let well = Arc::new(AtomicBool::new(false));
    let is_well = well.clone();
    let receiver = Receiver::new(move |_, _| match is_well.load(Ordering::SeqCst) {
        true => status(200, "", ""),
        false => status(503, "retry-after: 60\r\n", ""),
    })
    .await;
    let rig = Rig::new().await;
    rig.put("t", &["q", "left"], None, &receiver.target());
    let node = rig.node();
    rig.enqueue("q", 1).await;
    let is_slowed = || node.status("t").is_some_and(|status| status.stage == TargetStage::Slowed);
    until("it is slowed", async || is_slowed()).await;
    rig.route("t", &["q", "r"]);
    rig.enqueue("left", 5).await;
    rig.enqueue("r", 5).await;
    rig.turns().await;
    assert!(is_slowed() && receiver.requests().len() == 1);
    well.store(true, Ordering::SeqCst);
    until("all of its queues are delivered", async || {
        rig.pass("t").await;
        delivered(&node, "t") == 6
    })
    .await;
    assert!(rig.left().await == 5 && rig.view("left", "0").await.is_some(), "those that it has lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_or_removed_target_is_released() {
    let receiver = Receiver::new(|_, _| status(200, "", "")).await;
    let rig = Rig::new().await;
    let node = rig.node();
    rig.put("t", &["q"], None, &receiver.target());
    until("it is pushed to", async || node.status("t").is_some()).await;
    for removed in [false, true] {
        match removed {
            true => rig.remove("t"),
            false => rig.put("t", &["q"], Some("by hand"), &receiver.target()),
        }
        until("it is let go", async || rig.view("#pushers", "t").await.is_none()).await;
        let before = receiver.requests().len();
        rig.enqueue("q", 3).await;
        rig.turns().await;
        let counts = rig.wheel.stats().await.unwrap().counts;
        assert_eq!((counts.ready, counts.leased, receiver.requests().len()), (3, 0, before));
        until("its status is gone", async || node.status("t").is_none()).await;
        rig.put("t", &["q"], None, &receiver.target());
        until("it is delivered again", async || rig.left().await == 0).await;
        assert_eq!(receiver.requests().len(), before + 3);
    }
}

/// 410 is reported until the record says so; messages wait meanwhile, and lose no attempt.
#[tokio::test(flavor = "multi_thread")]
async fn target_refusing_everything_is_reported() {
    let gone = Arc::new(AtomicBool::new(true));
    let is_gone = gone.clone();
    let receiver =
        Receiver::new(move |_, _| status(if is_gone.load(Ordering::SeqCst) { 410 } else { 200 }, "", ""))
            .await;
    let rig = Rig::new().await;
    rig.reports.failures.store(1, Ordering::SeqCst);
    let settings = TargetSettings { max_attempts: Some(1), concurrency: Some(1), ..receiver.target() };
    rig.put("t", &["q"], None, &settings);
    let node = rig.node();
    rig.enqueue("q", 3).await;
    until("it is shown", async || node.status("t").is_some_and(|s| s.stage == TargetStage::Paused)).await;
    let reason = "the target takes no more messages: status_410";
    assert_eq!(node.status("t").unwrap().reason.as_deref(), Some(reason));
    // Story: one more queue lost a pause that was not recorded yet.
    rig.route("t", &["q", "r"]);
    until("it is reported", async || {
        rig.pass("t").await;
        !rig.reports.pauses.lock().unwrap().is_empty()
    })
    .await;
    rig.turns().await;
    assert_eq!(*rig.reports.pauses.lock().unwrap(), [("t".to_owned(), 1, reason.to_owned())]);
    assert_eq!(receiver.requests().len(), 1);
    rig.put("t", &["q"], Some(reason), &settings);
    until("it is let go", async || rig.view("#pushers", "t").await.is_none()).await;
    gone.store(false, Ordering::SeqCst);
    rig.put("t", &["q"], None, &settings);
    until("all are delivered", async || {
        rig.pass("t").await;
        rig.left().await == 0
    })
    .await;
    assert_eq!(receiver.requests().len(), 4);
}

/// A target that never answers takes as many messages as it has hands, and no other target waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_target_does_not_starve_others() {
    let hangs = Receiver::new(|_, _| Answer::Hang).await;
    let healthy = Receiver::new(|_, _| status(200, "", "")).await;
    let rig = Rig::new().await;
    rig.put("hangs", &["slow"], None, &TargetSettings { concurrency: Some(4), ..hanging(&hangs) });
    for n in 0..10 {
        rig.put(&format!("t{n}"), &[&format!("q{n}")], None, &healthy.target());
    }
    let queue = QueueName::new("slow").unwrap();
    for _ in 0..10 {
        let many = (0..1_000)
            .map(|_| duewheel::core::engine::Enqueue::new(queue.clone(), &b"x"[..]))
            .collect::<Vec<_>>();
        assert!(rig.wheel.client().ask_many(many).await.unwrap().iter().all(|answer| answer.is_ok()));
    }
    let node = rig.node();
    for n in 0..10 {
        rig.enqueue(&format!("q{n}"), 20).await;
    }
    until("the others have all", async || (0..10).all(|n| delivered(&node, &format!("t{n}")) == 20)).await;
    until("it has as many as it takes", async || hangs.requests().len() == 4).await;
    let info = rig.wheel.queue("slow").info().await.unwrap().unwrap();
    assert_eq!((info.counts.leased, info.counts.ready), (4, 9_996));
    assert_eq!((healthy.requests().len(), delivered(&node, "hangs")), (200, 0));
    node.stop(Duration::from_millis(1)).await;
    until("what hangs is released", async || rig.wheel.stats().await.unwrap().counts.leased == 0).await;
    assert_eq!(rig.held_for("hangs").await, 0, "its ticket, too");
}

/// Who reserves first gets a message.
#[tokio::test(flavor = "multi_thread")]
async fn queue_serves_pulls_and_pushes_together() {
    let receiver = Receiver::new(|_, _| status(200, "", "")).await;
    let rig = Rig::new().await;
    rig.put("t", &["q"], None, &TargetSettings { concurrency: Some(1), ..receiver.target() });
    let node = rig.node();
    until("it is pushed to", async || node.status("t").is_some()).await;
    let client = rig.wheel.client().clone();
    let pulling = tokio::spawn(async move {
        let mut pulled = Vec::new();
        let queue = QueueName::new("q").unwrap();
        while let Ok(duewheel::core::engine::Reserved::Grants(grants)) =
            client.reserve(Reserve { wait_ms: 60_000, ..Reserve::new(queue.clone()) }).await
            && let Some(grant) = grants.first()
        {
            client.ask(Op::ack(grant.message.id, grant.token)).await.unwrap().unwrap();
            if &*grant.message.body == b"end" {
                break;
            }
            pulled.push(grant.message.body.clone());
        }
        pulled
    });
    rig.enqueue("q", 300).await;
    until("all are taken", async || rig.left().await == 0).await;
    let pushed: HashSet<Vec<u8>> = receiver.requests().into_iter().map(|request| request.body).collect();
    // One for each that may be waiting for it.
    until("the other consumer has ended", async || {
        if !pulling.is_finished() && rig.left().await == 0 {
            rig.wheel.queue("q").body("end").enqueue().await.unwrap();
        }
        pulling.is_finished()
    })
    .await;
    let pulled = pulling.await.unwrap();
    assert!(pulled.iter().all(|body| !pushed.contains(&body[..])));
    assert_eq!(pulled.len() + pushed.len(), 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn last_ten_attempts_are_kept() {
    let fails = Arc::new(AtomicBool::new(true));
    let failing = fails.clone();
    let receiver = Receiver::new(move |_, received| match &received.body[..] {
        b"0" if failing.load(Ordering::SeqCst) => status(500, "", "no\u{202e} such \u{1b}[31morder"),
        _ => status(200, "", "thanks"),
    })
    .await;
    let rig = Rig::over(4).await;
    let retry = RetrySettings { delays: Some(vec!["1s".into()]), ..RetrySettings::default() };
    let settings = TargetSettings { retry: Some(retry), max_attempts: Some(100), ..receiver.target() };
    rig.put("t", &["q"], None, &settings);
    let node = rig.node();
    // The queue keeps done messages, so that the success is there to be read.
    rig.keep_done("q", 3 * 86_400_000).await;
    // A success, so that the breaker stays closed.
    let fine = rig.wheel.queue("q").body("fine").enqueue().await.unwrap().id;
    until("it is delivered", async || delivered(&node, "t") == 1).await;
    let id = rig.wheel.queue("q").body("0").key("0").enqueue().await.unwrap().id;
    until("it has failed twelve times", async || {
        rig.pass("t").await;
        node.status("t").is_some_and(|status| status.counts.failed >= 12)
    })
    .await;
    assert_eq!(rig.attempts(id).await.len(), 10);
    fails.store(false, Ordering::SeqCst);
    until("it is delivered", async || {
        rig.pass("t").await;
        delivered(&node, "t") == 2
    })
    .await;
    let kept = rig.attempts(id).await;
    assert_eq!(kept.len(), 10);
    assert!(kept.is_sorted_by_key(|attempt| attempt.at_ms));
    assert_eq!((kept[8].class.as_str(), kept[8].status), ("status_500", Some(500)));
    assert_eq!(kept[8].answer, "no\u{fffd} such \u{fffd}[31morder");
    assert_eq!((kept[9].status, kept[9].answer.as_str()), (Some(200), "thanks"));
    let of_fine = rig.attempts(fine).await;
    assert_eq!((of_fine.len(), of_fine[0].status, of_fine[0].answer.as_str()), (1, Some(200), "thanks"));
    // The target has the attempts of both, newest first, from the first success on.
    until("it has the last one", async || node.attempts("t").first().is_some_and(|last| last.id == id)).await;
    let latest = node.attempts("t");
    assert_eq!((latest[0].id, latest[0].attempt.status), (id, Some(200)));
    assert_eq!((latest[1].attempt.status, latest[1].number + 1), (Some(500), latest[0].number));
    let first = latest.last().unwrap();
    assert_eq!((first.id, first.number, &first.attempt.answer[..]), (fine, 1, "thanks"));
    assert_eq!(latest.len() as u64, 2 + node.status("t").unwrap().counts.failed);
    rig.remove("t");
    until("a target that is removed has none", async || node.attempts("t").is_empty()).await;
    // They go with the message.
    rig.clock.advance(Duration::from_secs(2 * 86_400));
    assert_eq!((rig.attempts(id).await.len(), rig.attempts(fine).await.len()), (10, 1));
    rig.clock.advance(Duration::from_secs(86_400));
    until("both are gone", async || rig.attempts(id).await.len() + rig.attempts(fine).await.len() == 0).await;
    node.stop(LONG).await;
}

/// Story: an answer that asked for another time was taken for a success that ends its message, and not kept.
#[tokio::test(flavor = "multi_thread")]
async fn first_snoozed_attempt_is_kept() {
    let receiver = Receiver::new(|_, _| status(200, "duewheel-snooze: 1h\r\n", "later")).await;
    let rig = Rig::new().await;
    rig.put("t", &["q"], None, &receiver.target());
    let node = rig.node();
    let id = rig.wheel.queue("q").body("0").enqueue().await.unwrap().id;
    until("it is kept", async || rig.attempts(id).await.len() == 1).await;
    let kept = rig.attempts(id).await;
    assert_eq!((&*kept[0].class, &*kept[0].answer), ("status_200", "later"));
    node.stop(LONG).await;
}

/// The attempts of a message are settled with it, so they are there when it is, and stay over what others do with it.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_of_waiting_message_are_kept() {
    // The longest answers: each byte takes two in JSON.
    let receiver = Receiver::new(|_, received| match &received.body[..] {
        b"0" => status(500, "", &"\"".repeat(1_024)),
        _ => status(200, "", ""),
    })
    .await;
    let rig = Rig::new().await;
    let retry = RetrySettings { delays: Some(vec!["30d".into()]), ..RetrySettings::default() };
    rig.put("t", &["q"], None, &TargetSettings { retry: Some(retry), ..receiver.target() });
    let node = rig.node();
    // A success, so that the breaker stays closed.
    rig.wheel.queue("q").body("fine").enqueue().await.unwrap();
    until("it is delivered", async || delivered(&node, "t") == 1).await;
    let id = rig.wheel.queue("q").body("0").key("0").enqueue().await.unwrap().id;
    for n in 1..=9 {
        until("it has failed", async || node.status("t").is_some_and(|t| t.counts.failed == n)).await;
        let kept = rig.attempts(id).await;
        assert_eq!((kept.len() as u64, kept.last().unwrap().answer.len()), (n, 1_024));
        rig.wheel.client().ask(Op::fire(Target::Id(id))).await.unwrap().unwrap();
    }
    until("it is dead", async || node.status("t").is_some_and(|t| t.counts.dead == 1)).await;
    assert_eq!(rig.attempts(id).await.len(), 10);
    rig.clock.advance(Duration::from_secs(3 * 86_400));
    assert_eq!(rig.attempts(id).await.len(), 10);
    rig.wheel.client().ask(Op::cancel(Target::Id(id))).await.unwrap().unwrap();
    assert!(rig.attempts(id).await.is_empty());
    node.stop(LONG).await;
}

/// Kill in the middle: each message comes at least once, always under the same id.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_push_repeats_under_same_id() {
    let receiver = Receiver::new(|number, _| match number % 7 {
        0 => Answer::Hang,
        _ => status(200, "", ""),
    })
    .await;
    let rig = Rig::new().await;
    let settings = TargetSettings {
        concurrency: Some(20),
        timeout_ms: Some(3_600),
        max_attempts: Some(100),
        ..receiver.target()
    };
    rig.put("t", &["q"], None, &settings);
    let (threads, dying) = rig.mortal();
    rig.enqueue("q", 200).await;
    until("some are delivered", async || receiver.requests().len() >= 60).await;
    threads.shutdown_background();
    drop(dying);
    let other = rig.node();
    until("all is done", async || {
        // Over the leases of the dead node, and over delays after a time-out.
        if rig.held_for("t").await == 0 || rig.held_for("t").await > 10_000 || other.status("t").is_none() {
            rig.clock.advance(Duration::from_secs(4));
        }
        rig.left().await == 0
    })
    .await;
    let mut of: HashMap<Vec<u8>, HashSet<String>> = HashMap::new();
    for request in receiver.requests() {
        of.entry(request.body.clone()).or_default().insert(request.header("webhook-id").unwrap().to_owned());
    }
    assert_eq!(of.len(), 200, "each at least once");
    assert!(of.values().all(|ids| ids.len() == 1));
    assert!(receiver.requests().len() > 200, "the fault has happened");
    other.stop(LONG).await;
}
