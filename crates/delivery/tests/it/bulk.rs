//! Jobs that change many messages, over a real wheel in memory, whose clock stands still.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use duewheel::core::engine::{Enqueue, InitialState, Op, Past, Reserved, When};
use duewheel::core::message::{DeadReason, State};
use duewheel::core::name::{Key, QueueName};
use duewheel::core::policy::{OnExpiry, QueueSettings};
use duewheel::core::store::{MemoryDisk, MemoryStore, Store};
use duewheel::core::time::WallMs;
use duewheel::{Duewheel, Policy, View, VirtualClock};
use duewheel_delivery::{
    BulkAction, BulkCounts, BulkError, BulkFilter, BulkJobs, BulkMove, BulkPhase, BulkRequest, BulkTenant,
    BulkView, BulkWorker, TARGET_URL_HEADER, UrlMoves, dead_reasons, filtered_page,
};
use duewheel_shard::client::Reserve;

const LONG: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(10);
const HOUR: u64 = 3_600_000;

pub struct Rig {
    pub wheel: Duewheel,
    pub clock: VirtualClock,
    pub jobs: BulkJobs,
}

pub fn queue() -> QueueName {
    QueueName::new("orders").unwrap()
}

fn prefix(text: &str) -> BulkFilter {
    BulkFilter { key_prefix: Some(text.into()), ..BulkFilter::default() }
}

pub fn request(filter: BulkFilter, action: BulkAction) -> BulkRequest {
    let (tenant, urls) = (BulkTenant::Common, UrlMoves::default());
    BulkRequest { tenant, queue: queue(), filter, action, rate: None, urls, expect: None, keep: None }
}

impl Rig {
    async fn new() -> Self {
        Rig::over(1).await
    }

    /// With several shards, as in a cluster.
    pub async fn over(shards: u32) -> Self {
        let clock = VirtualClock::at_2026();
        let memory = Duewheel::builder().in_memory().clock(clock.clone()).seed(1);
        let wheel = memory.shards(shards).open().await.unwrap();
        let jobs = BulkJobs::new(&wheel, &Policy::default()).unwrap();
        Rig { wheel, clock, jobs }
    }

    /// On a disk of its own, with one shard.
    pub async fn on(disk: &MemoryDisk) -> Self {
        let (clock, place) = (VirtualClock::at_2026(), disk.clone());
        let open = move |waker| Ok(Box::new(MemoryStore::open(&place, waker)) as Box<dyn Store>);
        let wheel = Duewheel::builder().store(open).clock(clock.clone()).seed(1).open().await.unwrap();
        let jobs = BulkJobs::new(&wheel, &Policy::default()).unwrap();
        Rig { wheel, clock, jobs }
    }

    fn now(&self) -> u64 {
        self.wheel.client().now().wall.0
    }

    /// Enqueues messages with the keys `PREFIX-0`, …, due an hour from now and later, by turns by both clocks.
    pub async fn put(&self, prefix: &str, n: u64) {
        let now = self.now();
        let message = |n: u64| {
            let ms = HOUR + n * 1_000;
            let when = match n % 2 {
                0 => When::After(ms),
                _ => When::At { due_at: WallMs(now + ms), past: Past::Refuse },
            };
            Enqueue {
                key: Key::new(&format!("{prefix}-{n}")).ok(),
                headers: vec![("kind".into(), ["odd", "even"][usize::from(n.is_multiple_of(2))].into())],
                when,
                ..Enqueue::new(queue(), b"body".to_vec())
            }
        };
        for some in (0..n).collect::<Vec<_>>().chunks(1_000) {
            let answers =
                self.wheel.client().ask_many(some.iter().map(|n| message(*n)).collect()).await.unwrap();
            for answer in answers {
                answer.unwrap().unwrap();
            }
        }
    }

    /// The messages of a queue by key.
    pub async fn all(&self, queue: &str) -> BTreeMap<String, View> {
        let queue = QueueName::new(queue).or_else(|_| QueueName::system(queue)).unwrap();
        let (mut all, mut after) = (BTreeMap::new(), None);
        loop {
            let page = self.wheel.client().list(queue.clone(), None, after.take(), 1_000).await.unwrap();
            for view in page.views {
                let key = view.message.key.as_ref().map_or(String::new(), |key| key.as_str().to_owned());
                assert!(all.insert(key, view).is_none(), "a key twice");
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return all,
            }
        }
    }

    /// Lets messages die.
    pub async fn kill(&self, n: usize) {
        self.kill_with(n, "").await;
    }

    /// Lets messages die with this note.
    async fn kill_with(&self, n: usize, note: &str) {
        let client = self.wheel.client();
        let demand = Reserve { max: n, ..Reserve::new(queue()) };
        let Reserved::Grants(grants) = client.reserve(demand).await.unwrap() else { panic!("no grants") };
        assert_eq!(grants.len(), n);
        for grant in grants {
            let bury = Op::Bury {
                id: grant.message.id,
                proof: duewheel::core::engine::Proof::Token(grant.token),
                priority: None,
                note: note.into(),
            };
            client.call(bury).await.unwrap();
        }
    }

    /// Runs the worker until a job has ended.
    pub async fn run(&self, id: &str) -> BulkView {
        let worker = BulkWorker::start(&self.jobs);
        let view = self.ended(id).await;
        worker.stop(STOP).await;
        assert!(self.all("#job-parts").await.is_empty(), "parts are left");
        view
    }

    pub async fn ended(&self, id: &str) -> BulkView {
        let deadline = Instant::now() + LONG;
        loop {
            let view = self.jobs.get(id).await.unwrap();
            if view.ended_ms.is_some() {
                return view;
            }
            assert!(Instant::now() < deadline, "{view:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn job_changes_only_matching_messages() {
    let rig = Rig::new().await;
    rig.put("order", 30).await;
    rig.put("sms", 10).await;
    // Ten orders are due, and a consumer has two of them.
    rig.clock.advance(Duration::from_millis(HOUR + 4_500));
    let demand = Reserve { max: 2, ..Reserve::new(queue()) };
    let Reserved::Grants(leased) = rig.wheel.client().reserve(demand).await.unwrap() else {
        panic!("no grants")
    };
    assert_eq!(leased.len(), 2);
    let orders =
        leased.iter().filter(|g| g.message.key.as_ref().unwrap().as_str().starts_with("order")).count();
    let filter = BulkFilter { headers: [("kind".into(), "even".into())].into(), ..prefix("order-") };
    let request = request(filter, BulkAction::Cancel);
    let count = rig.jobs.count(&request).await.unwrap();
    assert_eq!(count.matched + count.leased, 15);
    assert!(count.leased <= orders as u64);
    let job = rig.jobs.begin(request).await.unwrap();
    assert_eq!((job.phase, job.counts), (BulkPhase::Waiting, BulkCounts::default()));
    // Accepted after it began: left alone.
    rig.clock.advance(Duration::from_millis(1));
    let late = Enqueue {
        key: Key::new("order-late").ok(),
        headers: vec![("kind".into(), "even".into())],
        when: When::After(HOUR),
        ..Enqueue::new(queue(), b"late".to_vec())
    };
    rig.wheel.client().ask(late).await.unwrap().unwrap();
    let ended = rig.run(&job.id).await;
    assert_eq!(ended.phase, BulkPhase::Done);
    let BulkCounts { matched, done, leased, changed, refused } = ended.counts;
    assert_eq!((matched, done, leased, changed, refused), (count.matched, count.matched, count.leased, 0, 0));
    let left = rig.all("orders").await;
    assert!(left.contains_key("order-late"));
    assert_eq!(left.len() as u64, 41 - done);
    let even = |view: &&View| &*view.message.headers[0].1 == "even" && view.state != State::Leased;
    assert!(left.iter().all(|(key, view)| !key.starts_with("order-") || key == "order-late" || !even(&view)));
    assert_eq!(rig.jobs.list().await.unwrap(), [ended]);
    // It is kept for a week.
    let worker = BulkWorker::start(&rig.jobs);
    rig.clock.advance(Duration::from_secs(7 * 86_400 + 60));
    let deadline = Instant::now() + LONG;
    while !matches!(rig.jobs.get(&job.id).await, Err(BulkError::NotFound)) {
        assert!(Instant::now() < deadline, "it is kept");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    worker.stop(STOP).await;
}

/// Story: the instants were kept, so messages of a queue with `expires_in` were dropped.
#[tokio::test]
async fn messages_shifted_into_the_past_keep_their_order() {
    let rig = Rig::new().await;
    let client = rig.wheel.client();
    let expires = QueueSettings {
        expires_in_ms: Some(HOUR),
        on_expiry: Some(OnExpiry::Drop),
        ..QueueSettings::default()
    };
    client.call(Op::Configure { queue: queue(), settings: expires }).await.unwrap();
    // Later ids are due earlier, and some together.
    let put = (0..40u64).map(|n| Enqueue {
        key: Key::new(&format!("{n:02}")).ok(),
        when: When::After(HOUR - n / 2 * 1_000),
        ..Enqueue::new(queue(), b"body".to_vec())
    });
    let ids: Vec<_> = client.ask_many(put.collect()).await.unwrap();
    let ids: Vec<_> = ids.into_iter().map(|answer| answer.unwrap().unwrap().id).collect();
    let request = request(BulkFilter::default(), BulkAction::Postpone(BulkMove::Shift(-24 * HOUR as i64)));
    let job = rig.jobs.begin(request).await.unwrap();
    let now = rig.now();
    assert_eq!(rig.run(&job.id).await.counts.done, 40);
    rig.clock.advance(Duration::from_millis(40));
    let demand = Reserve { max: 40, ..Reserve::new(queue()) };
    let Reserved::Grants(grants) = client.reserve(demand).await.unwrap() else { panic!("no grants") };
    let mut former: Vec<usize> = (0..40).collect();
    former.sort_by_key(|n| (40 - n / 2, *n));
    let former: Vec<_> = former.into_iter().map(|n| ids[n]).collect();
    assert_eq!(grants.iter().map(|grant| grant.message.id).collect::<Vec<_>>(), former);
    assert!(grants.iter().all(|grant| (now..now + 40).contains(&grant.due_at.0) && !grant.late));
}

/// Messages are moved ahead, to where the walk comes later; and the node that works on the job dies in the middle, again and
/// again, without a chance to write how far it was. Returns how often it died.
async fn each_message_is_moved_once(shards: u32, messages: u64) -> u64 {
    let rig = Rig::over(shards).await;
    rig.put("order", messages).await;
    let before = rig.all("orders").await;
    // Far enough that no instant has passed, however often the node dies.
    let far = 30 * 86_400_000;
    let shift = BulkAction::Postpone(BulkMove::Shift(far as i64));
    let job = rig.jobs.begin(request(BulkFilter::default(), shift)).await.unwrap();
    let mut deaths = 0;
    for n in 0.. {
        let node =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let worker = {
            let _inside = node.enter();
            BulkWorker::start(&rig.jobs)
        };
        // Short lives, so that some end in the middle of each step; slowly longer ones, so that the job comes to its end.
        tokio::time::sleep(Duration::from_millis(1 + n * 3 % 14 + n / 16)).await;
        // It ends at its next await, and is waited for: on a busy machine it would write on beside the next one.
        tokio::task::spawn_blocking(move || node.shutdown_timeout(LONG)).await.unwrap();
        drop(worker);
        if rig.jobs.get(&job.id).await.unwrap().ended_ms.is_some() {
            break;
        }
        deaths += 1;
        // What the dead node held is free.
        rig.clock.advance(Duration::from_secs(31));
    }
    let ended = rig.run(&job.id).await;
    let after = rig.all("orders").await;
    for (key, view) in &before {
        assert_eq!(after[key].due_at.0, view.due_at.0 + far, "{key}, after {deaths} deaths");
    }
    assert_eq!(ended.counts, BulkCounts { matched: messages, done: messages, ..BulkCounts::default() });
    deaths
}

#[tokio::test(flavor = "multi_thread")]
async fn node_deaths_move_each_message_once() {
    for shards in [1, 4] {
        // A worker may be through before it is to die: where sleeps take long, because others use the machine.
        let mut deaths = 0;
        for messages in [9_000, 27_000, 81_000] {
            deaths = each_message_is_moved_once(shards, messages).await;
            if deaths > 2 {
                break;
            }
        }
        assert!(deaths > 2, "the worker was too fast for this test: {deaths}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_job_stops_and_cleans_up() {
    let rig = Rig::new().await;
    rig.put("order", 5_000).await;
    let slow = BulkRequest { rate: Some(50), ..request(BulkFilter::default(), BulkAction::Fire) };
    let job = rig.jobs.begin(slow).await.unwrap();
    let worker = BulkWorker::start(&rig.jobs);
    let deadline = Instant::now() + LONG;
    while rig.jobs.get(&job.id).await.unwrap().counts.done == 0 {
        assert!(Instant::now() < deadline, "it does not begin");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let cancelled = rig.jobs.cancel(&job.id).await.unwrap();
    assert_eq!(cancelled.phase, BulkPhase::Cancelled);
    // The worker learns of it with its next write, and removes the parts.
    while !rig.all("#job-parts").await.is_empty() {
        assert!(Instant::now() < deadline, "parts are left");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    worker.stop(STOP).await;
    let ready = rig.all("orders").await.values().filter(|view| view.state == State::Ready).count();
    assert!(ready > 0 && ready < 1_000, "{ready}");
    assert_eq!(rig.jobs.cancel(&job.id).await.unwrap().phase, BulkPhase::Cancelled);
}

/// The clock stands still, so a job that was not handed over would never be worked on again.
#[tokio::test(flavor = "multi_thread")]
async fn stopped_worker_hands_jobs_over() {
    let rig = Rig::new().await;
    rig.put("order", 300).await;
    let slow = BulkRequest { rate: Some(100), ..request(BulkFilter::default(), BulkAction::Cancel) };
    let job = rig.jobs.begin(slow).await.unwrap();
    let worker = BulkWorker::start(&rig.jobs);
    let deadline = Instant::now() + LONG;
    while rig.jobs.get(&job.id).await.unwrap().counts.done == 0 {
        assert!(Instant::now() < deadline, "it does not begin");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    worker.stop(STOP).await;
    let stopped = rig.jobs.get(&job.id).await.unwrap();
    assert!(stopped.ended_ms.is_none(), "the worker was too fast for this test: {stopped:?}");
    assert_eq!(
        rig.run(&job.id).await.counts,
        BulkCounts { matched: 300, done: 300, ..BulkCounts::default() }
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_per_tenant_are_limited() {
    let rig = Rig::new().await;
    let fire = || request(BulkFilter::default(), BulkAction::Fire);
    let first = rig.jobs.begin(fire()).await.unwrap();
    for _ in 1..1_000 {
        rig.jobs.begin(fire()).await.unwrap();
    }
    let other = |name: &str| BulkRequest { tenant: BulkTenant::Token(name.into()), ..fire() };
    let others = rig.jobs.begin(other("shop")).await.unwrap();
    rig.jobs.cancel(&others.id).await.unwrap();
    assert!(matches!(rig.jobs.begin(fire()).await, Err(BulkError::TooMany(1_000))));
    rig.jobs.cancel(&first.id).await.unwrap();
    let last = rig.jobs.begin(fire()).await.unwrap();
    assert!(matches!(rig.jobs.get(&first.id).await, Err(BulkError::NotFound)));
    rig.jobs.get(&last.id).await.unwrap();
    rig.jobs.get(&others.id).await.unwrap();
}

/// Story: each request for a job at the limit read the records of all jobs, and a hundred such requests a second made
/// everything else slow.
#[tokio::test(flavor = "multi_thread")]
async fn refused_jobs_read_no_records() {
    let rig = Rig::over(3).await;
    let fire = || request(BulkFilter::default(), BulkAction::Fire);
    for _ in 0..1_000 {
        rig.jobs.begin(fire()).await.unwrap();
    }
    let (begun, scans) = (Instant::now(), rig.jobs.scans());
    for _ in 0..100 {
        assert!(matches!(rig.jobs.begin(fire()).await, Err(BulkError::TooMany(1_000))));
    }
    // The index is read anew at most once a second.
    assert!(rig.jobs.scans() - scans <= 2 + begun.elapsed().as_secs(), "{}", rig.jobs.scans() - scans);
}

/// Story: a tenant at its limit cancelled a running job and began another at once. The new one replaced the cancelled one
/// before a worker had cleaned up: the parts stayed for ever, and the job whose turn it was slept for an hour.
#[tokio::test(flavor = "multi_thread")]
async fn replaced_job_gives_its_turn_on() {
    let rig = Rig::new().await;
    rig.put("order", 100).await;
    let mut jobs = Vec::new();
    for _ in 0..1_000 {
        jobs.push(rig.jobs.begin(slow("shop")).await.unwrap().id);
        rig.clock.advance(Duration::from_millis(1));
    }
    let worker = BulkWorker::start(&rig.jobs);
    rig.at_work(&jobs[..4]).await;
    // The fifth has seen that it must wait, and sleeps.
    let deadline = Instant::now() + LONG;
    let sleeps = async || rig.all("#jobs").await[&jobs[4]].state == State::Scheduled;
    while !sleeps().await {
        assert!(Instant::now() < deadline, "it does not wait");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    worker.stop(STOP).await;
    let has_parts = async || rig.all("#job-parts").await.keys().any(|name| name.starts_with(&jobs[0]));
    assert!(has_parts().await);
    rig.jobs.cancel(&jobs[0]).await.unwrap();
    rig.jobs.begin(slow("shop")).await.unwrap();
    assert!(matches!(rig.jobs.get(&jobs[0]).await, Err(BulkError::NotFound)));
    assert!(!has_parts().await, "nobody would remove them");
    let worker = BulkWorker::start(&rig.jobs);
    rig.at_work(&jobs[4..5]).await;
    worker.stop(STOP).await;
}

/// Two nodes, each with an index of its own: a job that one has created and one that the other has ended count at once.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_agree_on_turns_of_jobs() {
    let rig = Rig::over(3).await;
    rig.put("order", 1_000).await;
    let other = BulkJobs::new(&rig.wheel, &Policy::default()).unwrap();
    let workers = [BulkWorker::start(&rig.jobs), BulkWorker::start(&other)];
    let nodes = [&rig.jobs, &other];
    let mut jobs = Vec::new();
    for n in 0..12 {
        rig.clock.advance(Duration::from_millis(1));
        jobs.push(nodes[n % 2].begin(slow("shop")).await.unwrap().id);
    }
    for n in 0..12 {
        let deadline = Instant::now() + LONG;
        loop {
            let mut begun = Vec::new();
            for (n, id) in jobs.iter().enumerate() {
                if !matches!(rig.jobs.get(id).await.unwrap().phase, BulkPhase::Waiting | BulkPhase::Cancelled)
                {
                    begun.push(n);
                }
            }
            assert!(begun.iter().all(|job| (n..n + 4).contains(job)), "{begun:?} at {n}");
            if begun.len() == 4.min(12 - n) {
                break;
            }
            assert!(Instant::now() < deadline, "{begun:?} at {n}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        nodes[n / 2 % 2].cancel(&jobs[n]).await.unwrap();
    }
    for worker in workers {
        worker.stop(STOP).await;
    }
}

/// A job of this tenant that changes one message a second, once it has begun.
fn slow(tenant: &str) -> BulkRequest {
    let tenant = BulkTenant::Token(tenant.into());
    BulkRequest { tenant, rate: Some(1), ..request(BulkFilter::default(), BulkAction::Fire) }
}

impl Rig {
    /// Waits until these jobs have come to some message.
    async fn at_work(&self, ids: &[String]) {
        let deadline = Instant::now() + LONG;
        for id in ids {
            let is_at_work = |BulkCounts { done, changed, .. }| done + changed > 0;
            while !is_at_work(self.jobs.get(id).await.unwrap().counts) {
                assert!(Instant::now() < deadline, "{id} does not begin");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }
}

/// Story: sixteen jobs with a low rate held all places of a node, and no other tenant's job began before one ended.
#[tokio::test(flavor = "multi_thread")]
async fn slow_jobs_hold_no_worker_slots() {
    let rig = Rig::new().await;
    rig.put("order", 1_000).await;
    let worker = BulkWorker::start(&rig.jobs);
    let mut all = Vec::new();
    for n in 0..20 {
        let job = rig.jobs.begin(slow(["a", "b", "c", "d", "e"][n / 4])).await.unwrap();
        all.push(job.id);
    }
    rig.at_work(&all).await;
    let other = rig.jobs.begin(request(prefix("none-"), BulkAction::Cancel)).await.unwrap();
    rig.ended(&other.id).await;
    worker.stop(STOP).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_jobs_take_turns_in_order() {
    let rig = Rig::new().await;
    rig.put("order", 1_000).await;
    let mut all = Vec::new();
    for _ in 0..6 {
        all.push(rig.jobs.begin(slow("a")).await.unwrap().id);
        // By the ms in which it has begun.
        rig.clock.advance(Duration::from_millis(1));
    }
    let worker = BulkWorker::start(&rig.jobs);
    rig.at_work(&all[..4]).await;
    let other = rig.jobs.begin(BulkRequest { rate: None, ..slow("b") }).await.unwrap();
    rig.ended(&other.id).await;
    for id in &all[4..] {
        assert_eq!(rig.jobs.get(id).await.unwrap().phase, BulkPhase::Waiting);
    }
    rig.jobs.cancel(&all[2]).await.unwrap();
    rig.at_work(&all[4..5]).await;
    assert_eq!(rig.jobs.get(&all[5]).await.unwrap().phase, BulkPhase::Waiting);
    worker.stop(STOP).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_redrives_later_or_elsewhere() {
    let rig = Rig::new().await;
    rig.put("order", 12).await;
    rig.clock.advance(Duration::from_millis(2 * HOUR));
    rig.kill(12).await;
    let redrive = |delay_ms, to_queue: Option<&str>| BulkAction::Redrive {
        delay_ms,
        to_queue: to_queue.map(str::to_owned),
    };
    // Cancel and postpone do not touch the dead, unless a cancel asks for them.
    assert_eq!(rig.jobs.count(&request(BulkFilter::default(), BulkAction::Cancel)).await.unwrap().matched, 0);
    let dead = BulkFilter { state: Some(State::Dead), ..BulkFilter::default() };
    assert_eq!(rig.jobs.count(&request(dead.clone(), BulkAction::Cancel)).await.unwrap().matched, 12);
    let later = rig.jobs.begin(request(prefix("order-1"), redrive(Some(HOUR), None))).await.unwrap();
    let ended = rig.run(&later.id).await;
    assert_eq!(ended.counts, BulkCounts { matched: 3, done: 3, ..BulkCounts::default() });
    let all = rig.all("orders").await;
    for key in ["order-1", "order-10", "order-11"] {
        assert_eq!((all[key].state, all[key].due_in_ms), (State::Scheduled, HOUR), "{key}");
    }
    // The key of one is taken where it is to go.
    let other = QueueName::new("again").unwrap();
    let taken = Enqueue { key: Key::new("order-5").ok(), ..Enqueue::new(other, b"other".to_vec()) };
    rig.wheel.client().ask(taken).await.unwrap().unwrap();
    let job = rig.jobs.begin(request(BulkFilter::default(), redrive(None, Some("again")))).await.unwrap();
    let ended = rig.run(&job.id).await;
    assert_eq!(ended.counts, BulkCounts { matched: 9, done: 8, refused: 1, ..BulkCounts::default() });
    let (left, again) = (rig.all("orders").await, rig.all("again").await);
    assert_eq!(left["order-5"].state, State::Dead);
    assert_eq!((left.len(), again.len()), (4, 9));
    assert_eq!(&again["order-5"].message.body[..], b"other");
    let moved = &again["order-2"];
    assert_eq!((&moved.message.body[..], moved.attempt), (&b"body"[..], 0));
    assert_eq!(moved.message.headers, vec![("kind".into(), "even".into())]);
}

/// Story: a job moved messages with URLs for callers that may not send any, and into queues from which nobody sends
/// them.
#[tokio::test(flavor = "multi_thread")]
async fn moving_url_messages_needs_permission() {
    let rig = Rig::new().await;
    for (key, url) in [("with", Some("https://customer.example/")), ("without", None)] {
        let url = url.map(|url| (TARGET_URL_HEADER.into(), url.into()));
        let dead = Enqueue {
            key: Key::new(key).ok(),
            headers: url.into_iter().collect(),
            begins: InitialState::Dead,
            ..Enqueue::new(queue(), b"body".to_vec())
        };
        rig.wheel.client().ask(dead).await.unwrap().unwrap();
    }
    let redrive = || BulkAction::Redrive { delay_ms: None, to_queue: Some("again".into()) };
    let run = async |urls| {
        let job = rig.jobs.begin(BulkRequest { urls, ..request(BulkFilter::default(), redrive()) });
        rig.run(&job.await.unwrap().id).await.counts
    };
    let refused = run(UrlMoves::Refused).await;
    assert_eq!(refused, BulkCounts { matched: 2, done: 1, refused: 1, ..BulkCounts::default() });
    assert_eq!(rig.all("orders").await.into_keys().collect::<Vec<_>>(), ["with"]);
    let moved = run(UrlMoves::Allowed).await;
    assert_eq!(moved, BulkCounts { matched: 1, done: 1, ..BulkCounts::default() });
    assert_eq!(rig.all("again").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_messages_are_filtered_by_reason() {
    for shards in [1, 3] {
        dead_by_reason(Rig::over(shards).await).await;
    }
}

async fn dead_by_reason(rig: Rig) {
    rig.put("order", 2_500).await;
    rig.clock.advance(Duration::from_millis(2 * HOUR));
    for (n, note) in [(700, "status_500"), (900, "timeout"), (3, "")] {
        for part in [n / 2, n - n / 2] {
            rig.kill_with(part, note).await;
        }
    }
    // One that began dead has had no attempt.
    let buried = Enqueue { begins: InitialState::Dead, ..Enqueue::new(queue(), b"lost".to_vec()) };
    rig.wheel.client().ask(buried).await.unwrap().unwrap();
    let page = dead_reasons(rig.wheel.client(), &queue(), &BulkFilter::default(), None, 1_000).await.unwrap();
    let counts = page.reasons.iter().map(|one| (one.reason, &*one.note, one.messages));
    let buried = DeadReason::Buried;
    let expected = [(buried, "timeout", 900), (buried, "status_500", 700), (buried, "", 4)];
    assert_eq!(counts.collect::<Vec<_>>(), expected);
    assert_eq!((page.counted, page.next.is_none()), (1_604, true));
    let dead = |reason, note: Option<&str>| BulkFilter {
        dead_reason: reason,
        dead_note: note.map(str::to_owned),
        ..BulkFilter::default()
    };
    let orders = queue();
    let list = async |filter: BulkFilter| {
        let (mut views, mut after) = (Vec::new(), None);
        loop {
            let page = filtered_page(rig.wheel.client(), &orders, &filter, after.take(), (1_000, 1 << 20));
            let page = page.await.unwrap();
            views.extend(page.views);
            match page.next {
                Some(next) => after = Some(next),
                None => return views,
            }
        }
    };
    assert_eq!(list(dead(Some(buried), Some("status_500"))).await.len(), 700);
    assert!(list(dead(Some(DeadReason::MaxAttempts), None)).await.is_empty());
    let noted = |part: &str| BulkFilter { note: Some(part.into()), ..BulkFilter::default() };
    for (part, messages) in [("STATUS", 700), ("t", 1_600), ("time", 900), ("", 4), ("status_501", 0)] {
        assert_eq!(list(noted(part)).await.len(), messages, "{part}");
    }
    let page = dead_reasons(rig.wheel.client(), &orders, &noted("500"), None, 1_000).await.unwrap();
    assert_eq!((page.counted, page.reasons.len()), (700, 1));
    let redrive = || BulkAction::Redrive { delay_ms: None, to_queue: None };
    let again = request(dead(None, Some("timeout")), redrive());
    assert_eq!(rig.jobs.count(&again).await.unwrap().matched, 900);
    let ended = rig.run(&rig.jobs.begin(again).await.unwrap().id).await;
    assert_eq!(ended.counts, BulkCounts { matched: 900, done: 900, ..BulkCounts::default() });
    // A cancel whose filter has a reason asks for dead ones; those that are alive stay.
    let gone = request(dead(Some(buried), Some("")), BulkAction::Cancel);
    let ended = rig.run(&rig.jobs.begin(gone).await.unwrap().id).await;
    assert_eq!(ended.counts, BulkCounts { matched: 4, done: 4, ..BulkCounts::default() });
    let page = dead_reasons(rig.wheel.client(), &queue(), &BulkFilter::default(), None, 1_000).await.unwrap();
    assert_eq!((page.counted, &*page.reasons[0].note), (700, "status_500"));
    let alive = list(BulkFilter { state: Some(State::Ready), ..BulkFilter::default() }).await;
    assert!(!alive.is_empty());
}

/// Consumers that give each message a reason of its own make pages shorter, not answers longer.
#[tokio::test(flavor = "multi_thread")]
async fn counts_by_reason_come_in_pages() {
    let rig = Rig::new().await;
    rig.put("order", 2_500).await;
    rig.clock.advance(Duration::from_millis(2 * HOUR));
    for n in 0..2_500 {
        rig.kill_with(1, &format!("line {n}")).await;
    }
    let (mut pages, mut counted, mut after) = (0, 0, None);
    loop {
        let page = dead_reasons(rig.wheel.client(), &queue(), &BulkFilter::default(), after.take(), 500)
            .await
            .unwrap();
        assert!(page.reasons.len() <= 1_000 && page.reasons.len() as u64 == page.counted);
        (pages, counted) = (pages + 1, counted + page.counted);
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!((pages, counted), (3, 2_500));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_job_is_refused_by_field() {
    let rig = Rig::new().await;
    let state = |state| BulkFilter { state: Some(state), ..BulkFilter::default() };
    let redrive = BulkAction::Redrive { delay_ms: None, to_queue: Some("orders".into()) };
    let far = BulkAction::Postpone(BulkMove::Delay(u64::MAX));
    let back = BulkAction::Postpone(BulkMove::Shift(i64::MIN));
    let cases = [
        (request(state(State::Leased), BulkAction::Cancel), "state"),
        (request(state(State::Dead), BulkAction::Fire), "state"),
        (request(state(State::Ready), redrive.clone()), "state"),
        (request(BulkFilter::default(), redrive), "to_queue"),
        (
            request(
                BulkFilter { dead_reason: Some(DeadReason::Buried), ..state(State::Ready) },
                BulkAction::Cancel,
            ),
            "dead_reason",
        ),
        (
            request(BulkFilter { dead_note: Some("x".into()), ..BulkFilter::default() }, BulkAction::Fire),
            "dead_note",
        ),
        (request(BulkFilter { note: Some("x".into()), ..BulkFilter::default() }, BulkAction::Fire), "note"),
        (request(prefix(""), BulkAction::Cancel), "key_prefix"),
        (request(BulkFilter::default(), far), "delay_ms"),
        (request(BulkFilter::default(), back), "shift_ms"),
        (BulkRequest { rate: Some(0), ..request(BulkFilter::default(), BulkAction::Fire) }, "rate"),
        (BulkRequest { keep: Some(STOP), ..request(BulkFilter::default(), BulkAction::Fire) }, "keep_ms"),
        (
            BulkRequest {
                keep: Some(Duration::from_secs(367 * 86_400)),
                ..request(BulkFilter::default(), BulkAction::Cancel)
            },
            "keep_ms",
        ),
        (request(BulkFilter::default(), BulkAction::Restore { act: "#".into() }), "act"),
        (request(prefix("a"), BulkAction::Restore { act: "a".into() }), "filter"),
    ];
    for (request, field) in cases {
        for error in [rig.jobs.count(&request).await.unwrap_err(), rig.jobs.begin(request).await.unwrap_err()]
        {
            assert!(matches!(&error, BulkError::Bad(bad) if bad.field == field), "{field}: {error:?}");
        }
    }
    assert_eq!(rig.jobs.list().await.unwrap(), []);
}

/// Pages of a filtered list, against a look at all messages.
#[tokio::test(flavor = "multi_thread")]
async fn filtered_list_matches_full_scan() {
    for shards in [1, 3] {
        filtered_lists(Rig::over(shards).await).await;
    }
}

async fn filtered_lists(rig: Rig) {
    rig.put("order", 500).await;
    rig.clock.advance(Duration::from_millis(HOUR + 20_000));
    rig.kill(5).await;
    let (now, orders) = (rig.now(), queue());
    let all = rig.all("orders").await;
    let filters = [
        BulkFilter::default(),
        BulkFilter { due_from: Some(now + 100_000), due_to: Some(now + 100_001), ..BulkFilter::default() },
        BulkFilter { due_from: Some(now - 9_000), due_to: Some(now + 50_000), ..prefix("order-2") },
        BulkFilter { due_to: Some(now), state: Some(State::Ready), ..BulkFilter::default() },
        BulkFilter { due_from: Some(now), state: Some(State::Scheduled), ..prefix("order-4") },
        BulkFilter { state: Some(State::Dead), due_from: Some(0), ..BulkFilter::default() },
        BulkFilter { headers: [("KIND".into(), "odd".into())].into(), ..BulkFilter::default() },
    ];
    for filter in filters {
        for limit in [1, 7, 1_000] {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page =
                    filtered_page(rig.wheel.client(), &orders, &filter, after.take(), (limit, 1 << 20));
                let page = page.await.unwrap();
                assert!(page.views.len() <= limit);
                found.extend(page.views);
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
            let expected = all.values().filter(|view| filter.matches(view)).count();
            assert_eq!(found.len(), expected, "{filter:?}, {limit} a page");
            assert!(found.iter().all(|view| filter.matches(view)));
            let is_dead = filter.state == Some(State::Dead);
            assert!(is_dead || found.is_sorted_by_key(|view| view.due_at), "{filter:?}");
        }
    }
}
