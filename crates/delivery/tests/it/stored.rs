//! Targets in a store, and the service that follows them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use duewheel::core::name::QueueName;
use duewheel::{Duewheel, Policy};
use duewheel_delivery::{
    RetrySettings, SealKeys, Sealing, TargetError, TargetService, TargetSettings, TargetStage, TargetState,
    TargetView, Targets, TestedTarget,
};

use crate::receiver::{Receiver, status};

const LONG: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(10);

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn everybody(_: &TargetView) -> bool {
    true
}

struct Store {
    wheel: Duewheel,
    targets: Targets,
}

impl Store {
    async fn new() -> Self {
        Store::over(1, Sealing::Open).await
    }

    async fn over(shards: u32, sealing: Sealing) -> Self {
        let wheel = Duewheel::builder().in_memory().shards(shards).open().await.unwrap();
        let targets = Targets::new(&wheel, &Policy::default(), sealing).unwrap();
        Store { wheel, targets }
    }

    fn service(&self) -> TargetService {
        TargetService::start(&self.wheel, &self.targets)
    }

    async fn choose(&self, name: &str, target: Option<&str>) -> Result<(), TargetError> {
        self.targets.choose(&queue(name), target, &everybody).await
    }

    async fn state(&self, service: &TargetService, name: &str) -> TargetState {
        let view = self.targets.get(name).await.unwrap();
        let seen = service.status(name).map(|status| TargetState {
            stage: status.stage,
            reason: status.reason,
            since: Some(status.since),
        });
        TargetState::of(&view, seen)
    }
}

/// Edits on one handle, as by another node, take effect without a restart: another URL, another queue, none.
#[tokio::test(flavor = "multi_thread")]
async fn service_follows_edits_of_other_nodes() {
    let store = Store::over(3, Sealing::Open).await;
    let service = store.service();
    let first = Receiver::new(|_, _| status(200, "", "")).await;
    let second = Receiver::new(|_, _| status(200, "", "")).await;
    store.targets.put("shop", &first.target()).await.unwrap();
    store.choose("orders", Some("shop")).await.unwrap();
    store.wheel.queue("orders").body("1").enqueue().await.unwrap();
    until("the first has it", async || first.requests().len() == 1).await;
    let id = first.requests()[0].header("webhook-id").unwrap().to_owned();
    assert!(id.starts_with(&format!("dw_{}_", store.targets.store_id().await.unwrap())), "{id}");
    store.targets.put("shop", &second.target()).await.unwrap();
    until("the second has one", async || {
        store.wheel.queue("orders").body("2").enqueue().await.unwrap();
        !second.requests().is_empty()
    })
    .await;
    store.choose("orders", None).await.unwrap();
    store.choose("sms", Some("shop")).await.unwrap();
    store.wheel.queue("sms").body("3").enqueue().await.unwrap();
    until("the other queue is delivered", async || second.requests().iter().any(|got| got.body == b"3"))
        .await;
    assert_eq!(store.targets.target_of(&queue("orders")).await.unwrap(), None);
    assert_eq!(store.targets.get("shop").await.unwrap().queues, [queue("sms")]);
    service.stop(STOP).await;
}

/// 410 is recorded, survives the service, and ends with a resume.
#[tokio::test(flavor = "multi_thread")]
async fn gone_target_pause_is_recorded() {
    let store = Store::new().await;
    let gone = std::sync::Arc::new(AtomicBool::new(true));
    let told = gone.clone();
    let receiver = Receiver::new(move |_, _| match told.load(Ordering::SeqCst) {
        true => status(410, "", ""),
        false => status(200, "", ""),
    })
    .await;
    store.targets.put("shop", &receiver.target()).await.unwrap();
    store.choose("orders", Some("shop")).await.unwrap();
    store.wheel.queue("orders").body("1").enqueue().await.unwrap();
    let service = store.service();
    until("it is paused", async || store.targets.get("shop").await.unwrap().paused.is_some()).await;
    let state = store.state(&service, "shop").await;
    assert_eq!(state.stage, TargetStage::Paused);
    assert!(state.reason.unwrap().contains("410"));
    service.stop(STOP).await;
    gone.store(false, Ordering::SeqCst);
    let service = store.service();
    // Settings that are put anew do not resume it.
    store.targets.put("shop", &receiver.target()).await.unwrap();
    assert!(store.targets.get("shop").await.unwrap().paused.is_some());
    assert_eq!(receiver.requests().len(), 1, "nothing was sent meanwhile");
    store.targets.resume("shop").await.unwrap();
    service.refresh();
    until("it is delivered", async || receiver.requests().len() == 2).await;
    service.stop(STOP).await;
}

/// The breaker of a target that is away is seen by who asks, wherever they ask.
#[tokio::test(flavor = "multi_thread")]
async fn open_breaker_is_recorded_in_store() {
    let store = Store::new().await;
    let receiver = Receiver::new(|_, _| status(500, "", "")).await;
    let retry = Some(RetrySettings { min_ms: Some(1), max_ms: Some(1), ..RetrySettings::default() });
    let settings = TargetSettings { retry, max_attempts: Some(100), ..receiver.target() };
    store.targets.put("shop", &settings).await.unwrap();
    store.choose("orders", Some("shop")).await.unwrap();
    for body in ["1", "2"] {
        store.wheel.queue("orders").body(body).enqueue().await.unwrap();
    }
    let service = store.service();
    until("another node knows", async || {
        let seen = store.targets.seen("shop").await.unwrap();
        seen.is_some_and(|seen| {
            seen.stage == TargetStage::Open && seen.reason.as_deref() == Some("status_500")
        })
    })
    .await;
    assert_eq!(store.targets.all_seen().await.unwrap().len(), 1);
    assert_eq!(store.state(&service, "shop").await.stage, TargetStage::Open);
    service.stop(STOP).await;
}

#[tokio::test]
async fn invalid_target_choices_are_refused() {
    let store = Store::new().await;
    let settings = TargetSettings {
        queues: Some(vec!["shop/".into()]),
        ..TargetSettings::new("https://example.com/hook?token=swordfish")
    };
    let view = store.targets.put("shop", &settings).await.unwrap();
    assert_eq!(view.shown.unwrap().url, "https://example.com/hook?…");
    assert!(matches!(store.choose("orders", Some("shop")).await, Err(TargetError::NotForQueue(_))));
    assert!(matches!(store.choose("orders", Some("shp")).await, Err(TargetError::NotFound)));
    let nobody = |_: &TargetView| false;
    let chosen = store.targets.choose(&queue("shop/a"), Some("shop"), &nobody).await;
    assert!(matches!(chosen, Err(TargetError::NotFound)));
    store.choose("shop/a", Some("shop")).await.unwrap();
    let refused = store.targets.remove("shop").await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "queues are delivered to the target, and need another one or none first: shop/a"
    );
    let narrower = TargetSettings { queues: Some(vec!["shop/b".into()]), ..settings.clone() };
    assert!(matches!(store.targets.put("shop", &narrower).await, Err(TargetError::InUse(_))));
    store.choose("shop/a", None).await.unwrap();
    store.targets.remove("shop").await.unwrap();
    assert!(matches!(store.targets.get("shop").await, Err(TargetError::NotFound)));
    assert!(matches!(store.targets.pause("shop", Some("x")).await, Err(TargetError::NotFound)));
    for bad in ["", "a b", "#x", &"x".repeat(129)] {
        let error = store.targets.put(bad, &settings).await.unwrap_err().to_string();
        assert!(error.starts_with("name: "), "{bad}: {error}");
    }
}

#[tokio::test]
async fn number_of_targets_is_limited() {
    let store = Store::new().await;
    let settings = TargetSettings::new("https://example.com/hook");
    for n in 0..1_000 {
        store.targets.put(&format!("t{n}"), &settings).await.unwrap();
    }
    let refused = store.targets.put("one-more", &settings).await.map(drop).unwrap_err();
    assert!(matches!(refused, TargetError::TooMany(1_000, _)), "{refused}");
    store.targets.put("t7", &settings).await.unwrap();
    store.targets.remove("t0").await.unwrap();
    store.targets.put("one-more", &settings).await.unwrap();
}

/// A key that is gone stops its targets and no others; a target may be put anew.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_target_blocks_no_other() {
    let keys = |byte: u8| Sealing::Keys(SealKeys::parse(&STANDARD.encode([byte; 32])).unwrap());
    let store = Store::over(1, keys(1)).await;
    let receiver = Receiver::new(|_, _| status(200, "", "")).await;
    store.targets.put("old", &receiver.target()).await.unwrap();
    store.choose("a", Some("old")).await.unwrap();
    let targets = Targets::new(&store.wheel, &Policy::default(), keys(2)).unwrap();
    targets.put("new", &receiver.target()).await.unwrap();
    store.choose("b", Some("new")).await.unwrap();
    let service = TargetService::start(&store.wheel, &targets);
    store.wheel.queue("a").body("a").enqueue().await.unwrap();
    store.wheel.queue("b").body("b").enqueue().await.unwrap();
    until("the other one is delivered", async || receiver.requests().iter().any(|got| got.body == b"b"))
        .await;
    let all = targets.list(None, 10).await.unwrap();
    let errors: Vec<_> = all.iter().map(|view| (view.name.as_str(), view.error.as_deref())).collect();
    assert_eq!(errors, [("new", None), ("old", Some("no key of --secrets-key opens it"))]);
    assert!(matches!(targets.open("old").await, Err(TargetError::Unreadable(_))));
    assert!(receiver.requests().iter().all(|got| got.body != b"a"), "nothing was sent by an old key");
    targets.put("old", &receiver.target()).await.unwrap();
    until("it is delivered", async || receiver.requests().iter().any(|got| got.body == b"a")).await;
    service.stop(STOP).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_is_one_signed_request() {
    let store = Store::new().await;
    let receiver = Receiver::new(|_, _| status(503, "", "not today")).await;
    let settings = TargetSettings {
        secrets: vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()],
        ..receiver.target()
    };
    store.targets.put("shop", &settings).await.unwrap();
    let TestedTarget { outcome, webhook_id: id, .. } = store.targets.test("shop").await.unwrap();
    assert_eq!((outcome.class.to_string().as_str(), outcome.answer.as_str()), ("status_503", "not today"));
    let got = &receiver.requests()[0];
    assert_eq!(got.header("webhook-id"), Some(id.as_str()));
    assert!(got.header("webhook-signature").unwrap().starts_with("v1,"));
    assert_eq!(got.body, br#"{"type":"duewheel.test"}"#);
}

/// Story: receivers that know a `webhook-id` leave its message out. After a restore the same message can go on in
/// another way than at its original.
#[tokio::test(flavor = "multi_thread")]
async fn restored_store_has_another_id() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let id = async |folder: &str| {
        let wheel = Duewheel::builder().data(at(folder)).open().await.unwrap();
        let targets = Targets::new(&wheel, &Policy::default(), Sealing::Open).unwrap();
        let id = targets.store_id().await.unwrap();
        assert_eq!(targets.store_id().await.unwrap(), id);
        wheel.shutdown(STOP).await.unwrap();
        id
    };
    let original = id("a").await;
    assert_eq!(id("a").await, original, "a restart is no restore");
    duewheel::restore(at("a"), at("b")).unwrap();
    assert_ne!(id("b").await, original);
    duewheel::salvage(at("a"), at("c")).unwrap();
    assert_ne!(id("c").await, original);
}
