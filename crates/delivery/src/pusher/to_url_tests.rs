//! Messages with URLs of their own, sent to a receiver on loopback that goes by several names.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duewheel::core::engine::Op;
use duewheel::core::message::State;
use duewheel::{Duewheel, View, VirtualClock};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::{PushJob, Pusher, PusherParts};
use crate::breaker::BreakerStage;
use crate::client::PushClient;
use crate::connect::Resolver;
use crate::message_url::{MessageUrl, TARGET_URL_HEADER};
use crate::networks::Networks;
use crate::origins::UrlContext;
use crate::target::{NetworkSettings, PushTarget, RetrySettings, TargetSettings};

const LOCAL: &str = "127.0.0.1/32";
/// The status that stands for no answer.
const HANGS: u16 = 0;
const LONG: Duration = Duration::from_secs(60);

/// All names are this machine's.
struct AllHere;

impl Resolver for AllHere {
    fn resolve(&self, _: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> {
        Box::pin(async { Ok(vec![Ipv4Addr::LOCALHOST.into()]) })
    }
}

/// Keeps the heads of requests, in lower case, and answers with the status that a function says for a head.
struct Listener {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

type StatusOf = dyn Fn(&str) -> u16 + Send + Sync;

impl Listener {
    async fn new(status: impl Fn(&str) -> u16 + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let it = Listener { address: listener.local_addr().unwrap(), heads: Arc::default() };
        let (heads, status): (_, Arc<StatusOf>) = (it.heads.clone(), Arc::new(status));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, heads.clone(), status.clone()));
            }
        });
        it
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    /// The heads of requests to this name.
    fn to(&self, name: &str) -> Vec<String> {
        let host = format!("host: {}", self.host(name));
        self.heads().into_iter().filter(|head| head.contains(&host)).collect()
    }

    fn host(&self, name: &str) -> String {
        format!("{name}.example:{}", self.address.port())
    }

    fn url(&self, name: &str, path: &str) -> String {
        format!("http://{}/{path}", self.host(name))
    }

    /// A target that leads here, with a header and a secret, whose messages fail once and then wait for an hour.
    fn target(&self) -> TargetSettings {
        TargetSettings {
            headers: [("x-shop".to_owned(), "hunter2".to_owned())].into(),
            secrets: vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()],
            networks: Some(NetworkSettings::One(LOCAL.into())),
            retry: Some(RetrySettings { delays: Some(vec!["1h".into()]), ..RetrySettings::default() }),
            ..TargetSettings::new(self.url("shop", "hook"))
        }
    }
}

async fn answer(stream: TcpStream, heads: Arc<Mutex<Vec<String>>>, status: Arc<StatusOf>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        let status = status(&head);
        heads.lock().unwrap().push(head);
        if status == HANGS {
            return std::future::pending().await;
        }
        let text = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n");
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A pusher of the queue `q` whose messages may go to URLs in these networks.
fn start(wheel: &Duewheel, settings: &TargetSettings, urls: &str) -> Pusher {
    let target = Arc::new(PushTarget::new(settings).unwrap());
    let client = PushClient::with_resolver(target, Arc::new(AllHere));
    let job = PushJob::new(client, vec![duewheel::core::name::QueueName::new("q").unwrap()]);
    let urls = Arc::new(UrlContext::with_networks(Networks::from_words(&[urls]).unwrap()));
    let parts = PusherParts { urls, ..PusherParts::default() };
    let pusher = Pusher::start_job(wheel, "s1", job, parts).unwrap();
    pusher.open_until(super::EngineMs(u64::MAX));
    pusher
}

async fn virtual_wheel() -> (Duewheel, VirtualClock) {
    let clock = VirtualClock::at_2026();
    let wheel = Duewheel::builder().in_memory().clock(clock.clone()).seed(1).open().await.unwrap();
    (wheel, clock)
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Puts a message with a URL, whose key is its body.
async fn put(wheel: &Duewheel, key: &str, url: &str) {
    let url = MessageUrl::new(url).unwrap();
    let (name, value) = url.header();
    wheel.queue("q").body(key.to_owned()).key(key).header(name, value).enqueue().await.unwrap();
}

async fn view(wheel: &Duewheel, key: &str) -> Option<View> {
    wheel.queue("q").get_key(key).await.unwrap()
}

async fn notes(wheel: &Duewheel, key: &str) -> Vec<String> {
    let view = view(wheel, key).await;
    view.map(|view| view.history.iter().map(|past| past.note.to_string()).collect()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_own_origin_gets_target_headers() {
    let receiver = Listener::new(|_| 200).await;
    let (wheel, _clock) = virtual_wheel().await;
    let pusher = start(&wheel, &receiver.target(), LOCAL);
    wheel.queue("q").body("plain").header("a", "b").enqueue().await.unwrap();
    put(&wheel, "own", &receiver.url("shop", "other?token=1")).await;
    put(&wheel, "foreign", &receiver.url("customer", "c?token=2")).await;
    until("all are delivered", async || pusher.counts().delivered == 3).await;
    let heads = receiver.heads();
    let of = |start: &str| heads.iter().find(|head| head.starts_with(start)).expect(start);
    for (start, is_own) in
        [("post /hook ", true), ("post /other?token=1 ", true), ("post /c?token=2 ", false)]
    {
        let head = of(start);
        assert_eq!(head.contains("\r\nx-shop: hunter2\r\n"), is_own, "{head}");
        assert_eq!(head.contains("\r\nwebhook-signature: v1,"), is_own, "{head}");
        assert!(head.contains("\r\nwebhook-id: dw_s1_") && !head.contains(TARGET_URL_HEADER), "{head}");
    }
    assert!(of("post /hook ").contains("\r\nduewheel-h-a: b\r\n"));
    assert_eq!((receiver.to("shop").len(), receiver.to("customer").len()), (2, 1));
    pusher.stop(LONG).await;
}

/// The target may reach this machine, and URLs of messages may not.
#[tokio::test(flavor = "multi_thread")]
async fn message_urls_reach_only_public_addresses() {
    let receiver = Listener::new(|_| 200).await;
    for networks in [LOCAL, "any"] {
        let (wheel, _clock) = virtual_wheel().await;
        let networks = Some(NetworkSettings::One(networks.into()));
        let pusher = start(&wheel, &TargetSettings { networks, ..receiver.target() }, "public");
        for (key, name) in [("own", "shop"), ("foreign", "customer")] {
            put(&wheel, key, &receiver.url(name, "private")).await;
        }
        wheel.queue("q").body("plain").enqueue().await.unwrap();
        until("all have ended", async || pusher.counts().failed == 2 && pusher.counts().delivered == 1).await;
        for key in ["own", "foreign"] {
            until("it is noted", async || notes(&wheel, key).await == ["address_refused"]).await;
        }
        pusher.stop(LONG).await;
    }
    assert!(receiver.heads().iter().all(|head| head.starts_with("post /hook ")));
}

/// A customer that is away costs neither the target nor other customers anything, and messages that wait no attempts.
#[tokio::test(flavor = "multi_thread")]
async fn each_message_origin_has_own_breaker() {
    let receiver = Listener::new(|head| if head.contains("host: away.") { 500 } else { 200 }).await;
    let (wheel, clock) = virtual_wheel().await;
    let pusher = start(&wheel, &receiver.target(), LOCAL);
    for n in 0..3 {
        put(&wheel, &format!("opens-{n}"), &receiver.url("away", "c")).await;
    }
    until("they have failed", async || pusher.counts().failed == 3).await;
    for n in 0..20 {
        put(&wheel, &format!("waits-{n}"), &receiver.url("away", "c")).await;
    }
    until("they wait", async || pusher.counts().forgiven == 20).await;
    put(&wheel, "other", &receiver.url("customer", "c")).await;
    wheel.queue("q").body("plain").enqueue().await.unwrap();
    until("others are delivered", async || pusher.counts().delivered == 2).await;
    assert_eq!((receiver.to("away").len(), pusher.stage()), (3, BreakerStage::Closed));
    assert_eq!(notes(&wheel, "waits-0").await, ["origin_waits"]);
    let waits = view(&wheel, "waits-0").await.unwrap();
    assert_eq!((waits.state, waits.attempt, waits.forgiven), (State::Scheduled, 1, 1));
    assert!((4_000..=8_000).contains(&waits.due_in_ms), "until the first probe: {}", waits.due_in_ms);
    // One of them is the probe, which uses up an attempt.
    clock.advance(Duration::from_secs(8));
    until("a probe is sent", async || receiver.to("away").len() == 4).await;
    until("all are settled", async || wheel.stats().await.unwrap().counts.leased == 0).await;
    until("it is counted", async || pusher.counts().failed == 4).await;
    assert_eq!(pusher.stage(), BreakerStage::Closed);
    pusher.stop(LONG).await;
}

/// Lets time pass until so many messages are dead, whenever all of them are settled, so that no lease runs out.
async fn pass_until_dead(wheel: &Duewheel, clock: &VirtualClock, dead: u64) {
    until("they are dead", async || {
        let counts = wheel.stats().await.unwrap().counts;
        if counts.ready + counts.leased == 0 {
            clock.advance(Duration::from_secs(360));
        }
        counts.dead == dead
    })
    .await;
}

/// Story: once several messages of an origin that is gone for good had opened its breaker, none of them ever died: no
/// probe used up an attempt, and all others waited, each with a durable write for each wait.
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_gone_origin_die() {
    let receiver = Listener::new(|_| 500).await;
    let (wheel, clock) = virtual_wheel().await;
    let settings = TargetSettings { max_attempts: Some(3), ..receiver.target() };
    let pusher = start(&wheel, &settings, LOCAL);
    for n in 0..4 {
        put(&wheel, &format!("k-{n}"), &receiver.url("gone", "c")).await;
    }
    pass_until_dead(&wheel, &clock, 4).await;
    assert_eq!(receiver.to("gone").len(), 12, "three attempts of each");
    pusher.stop(LONG).await;
}

/// Story: a probe every five minutes is too few for many messages, or for more that come all the time.
#[tokio::test(flavor = "multi_thread")]
async fn waits_count_after_five_days() {
    let receiver = Listener::new(|_| 500).await;
    let (wheel, clock) = virtual_wheel().await;
    let pusher = start(&wheel, &receiver.target(), LOCAL);
    for n in 0..3 {
        put(&wheel, &format!("k-{n}"), &receiver.url("gone", "c")).await;
    }
    until("they have failed", async || pusher.counts().failed == 3).await;
    clock.advance(Duration::from_secs(5 * 86_400));
    until("it has failed ten times", async || {
        let counts = wheel.stats().await.unwrap().counts;
        let (settled, sent) = (counts.ready + counts.leased == 0, receiver.to("gone").len());
        if settled && sent < 10 {
            clock.advance(Duration::from_secs(360));
        }
        settled && sent >= 10
    })
    .await;
    put(&wheel, "late", &receiver.url("gone", "c")).await;
    until("it has waited", async || notes(&wheel, "late").await == ["origin_waits"]).await;
    let late = view(&wheel, "late").await.unwrap();
    assert_eq!((late.state, late.attempt, late.forgiven), (State::Scheduled, 1, 0));
    pass_until_dead(&wheel, &clock, 4).await;
    pusher.stop(LONG).await;
}

/// Story: messages for ten customers that hang took all places of a target, whose own messages waited for the time-out.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_origins_use_no_target_slot() {
    let receiver = Listener::new(|head| if head.contains("host: hangs") { HANGS } else { 200 }).await;
    for concurrency in [1, 10] {
        let (wheel, _clock) = virtual_wheel().await;
        let limits = (Some(concurrency), Some(900_000));
        let settings = TargetSettings { concurrency: limits.0, timeout_ms: limits.1, ..receiver.target() };
        let before = receiver.heads().len();
        for n in 0..12 {
            put(&wheel, &format!("hangs-{n}"), &receiver.url(&format!("hangs{n}"), "c")).await;
        }
        let pusher = start(&wheel, &settings, LOCAL);
        until("all hang", async || receiver.heads().len() == before + 12).await;
        for n in 0..5 {
            wheel.queue("q").body(n.to_string()).enqueue().await.unwrap();
        }
        until("the target's own are delivered", async || pusher.counts().delivered == 5).await;
        assert_eq!(pusher.in_flight(), 12);
        pusher.stop(Duration::from_millis(1)).await;
    }
}

/// Story: while the target was away, messages with URLs of their own did not take the place of its probe, so as many were
/// sent at a time as if its breaker were closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn open_breaker_sends_message_urls_serially() {
    let (busy, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let seen = most.clone();
    let receiver = Listener::new(move |head| {
        if head.contains("host: shop.") {
            return 500;
        }
        seen.fetch_max(busy.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        tokio::task::block_in_place(|| std::thread::sleep(Duration::from_millis(30)));
        busy.fetch_sub(1, Ordering::SeqCst);
        200
    })
    .await;
    let (wheel, clock) = virtual_wheel().await;
    let pusher = start(&wheel, &receiver.target(), LOCAL);
    for _ in 0..3 {
        wheel.queue("q").body("plain").enqueue().await.unwrap();
    }
    until("they have failed", async || pusher.counts().failed == 3).await;
    assert!(matches!(pusher.stage(), BreakerStage::Open { .. }));
    for n in 0..20 {
        put(&wheel, &format!("k-{n}"), &receiver.url(&format!("c{n}"), "c")).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(pusher.counts().delivered, 0, "all messages of the queue wait");
    clock.advance(Duration::from_secs(8));
    until("they are delivered", async || pusher.counts().delivered == 20).await;
    assert_eq!(most.load(Ordering::SeqCst), 1, "at a time");
    // A probe is not held up.
    wheel.queue("q").body("plain").enqueue().await.unwrap();
    until("the target is probed", async || receiver.to("shop").len() == 4).await;
    pusher.stop(LONG).await;
}

/// 410 pauses a target. Nobody could resume a URL: its message is dead.
#[tokio::test(flavor = "multi_thread")]
async fn gone_url_makes_only_message_dead() {
    let receiver = Listener::new(|head| if head.contains("host: gone.") { 410 } else { 200 }).await;
    let (wheel, _clock) = virtual_wheel().await;
    let pusher = start(&wheel, &receiver.target(), LOCAL);
    put(&wheel, "gone", &receiver.url("gone", "c")).await;
    until("it is dead", async || pusher.counts().dead == 1).await;
    wheel.queue("q").body("not a URL").key("bad").header(TARGET_URL_HEADER, "me").enqueue().await.unwrap();
    until("it is dead", async || pusher.counts().dead == 2).await;
    assert_eq!(
        (notes(&wheel, "gone").await, notes(&wheel, "bad").await),
        (vec!["status_410".to_owned()], vec!["bad_target_url".to_owned()])
    );
    wheel.queue("q").body("plain").enqueue().await.unwrap();
    until("the target goes on", async || pusher.counts().delivered == 1).await;
    assert_eq!(pusher.stage(), BreakerStage::Closed);
    pusher.stop(LONG).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_and_redrive_keep_message_url() {
    let receiver =
        Listener::new(|head| if head.contains("duewheel-attempt: 1\r\n") { 410 } else { 200 }).await;
    let folder = tempfile::tempdir().unwrap();
    let wheel = Duewheel::open(folder.path()).await.unwrap();
    put(&wheel, "k", &receiver.url("customer", "c")).await;
    wheel.shutdown(LONG).await.unwrap();
    let wheel = Duewheel::open(folder.path()).await.unwrap();
    let pusher = start(&wheel, &receiver.target(), LOCAL);
    until("it is dead", async || pusher.counts().dead == 1).await;
    let id = view(&wheel, "k").await.expect("dead").message.id;
    wheel.client().ask(Op::redrive(id)).await.unwrap().unwrap();
    until("it is delivered", async || pusher.counts().delivered == 1).await;
    let ids: Vec<_> = receiver.to("customer");
    assert_eq!((ids.len(), receiver.heads().len()), (2, 2));
    pusher.stop(LONG).await;
    wheel.shutdown(LONG).await.unwrap();
}
