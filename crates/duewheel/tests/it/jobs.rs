//! Jobs with types of their own, their handlers, and what the library has for many messages and for dead ones.

use std::sync::{Arc, Mutex};

use duewheel::test::{assert_enqueued, find_enqueued, message, run_handler, wheel};
use duewheel::{
    Args, ChangeRefusal, EnqueueError, FromMessage, HOUR, HandlerError, HandlerOutcome, HandlerResult,
    IfExists, Job, MINUTE, Message, MessageState, Meta, QueueError, SECOND, State, Workers,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize, Job)]
#[job(queue = "close", key = "{shop}-{number}", delay = 2 * HOUR, max_attempts = 2, lease = 2 * MINUTE)]
#[job(backoff(SECOND, MINUTE), priority = 7, if_exists = IfExists::Replace)]
struct Close {
    shop: String,
    number: u64,
}

const GENERIC: &str = "generic";

/// Story: values with blocks did not compile, and a constant was no name of a queue.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(queue = GENERIC, priority = { const LOW: u32 = 2_048; LOW }, delay = if cfg!(test) { SECOND } else { HOUR })]
struct Wrapped<T: Serialize + for<'a> Deserialize<'a> + Send + Sync + 'static>(#[serde(bound = "")] T);

/// A second type for a queue.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(queue = "close")]
struct CloseToo;

type Seen = Arc<Mutex<Vec<String>>>;

struct Tenant(String);

impl<J: Job, S> FromMessage<J, S> for Tenant {
    fn from_message(message: &Message, _: &S) -> Result<Self, HandlerOutcome> {
        let reason = "no tenant".to_owned();
        message.header("tenant").map(|name| Tenant(name.into())).ok_or(HandlerOutcome::Dead { reason })
    }
}

fn order(number: u64) -> Close {
    Close { shop: "acme".into(), number }
}

async fn close(meta: Meta, State(seen): State<Seen>, Args(job): Args<Close>) -> HandlerResult {
    seen.lock().unwrap().push(format!("{} {} {}", job.number, meta.attempt(), meta.key().unwrap_or("-")));
    if job.number == 0 { Err("never".into()) } else { Ok(()) }
}

#[tokio::test]
async fn jobs_have_their_declared_options() {
    let wheel = wheel().await;
    let first = wheel.job(&order(1)).enqueue().await.unwrap();
    let view = assert_enqueued!(wheel, order(1), in 2 * HOUR);
    assert_eq!((view.priority, view.max_attempts, view.lease_ms), (7, 2, 120_000));
    assert_eq!(view.message.key.as_ref().map(|key| key.as_str()), Some("acme-1"));
    let second = wheel.job(&order(1)).delay(HOUR).enqueue().await.unwrap();
    assert_ne!(first.id, second.id, "replaced");
    assert_enqueued!(wheel, order(1), in HOUR);
    let there = find_enqueued(&wheel, &order(1), Some(MINUTE)).await.unwrap_err();
    assert!(there.contains("due in 60s") && there.contains("due in 3600s"), "{there}");
    wheel.job(&Wrapped(5_u8)).enqueue().await.unwrap();
    let view = assert_enqueued!(wheel, Wrapped(5_u8), in SECOND);
    assert_eq!((view.message.queue.as_str(), view.priority), (GENERIC, 2_048));
}

#[tokio::test]
async fn workers_run_jobs_with_extracted_arguments() {
    let wheel = wheel().await;
    let seen = Seen::default();
    Workers::new(&wheel, seen.clone())
        .on::<Close, _>(close)
        .on::<Wrapped<u8>, _>(|| async {})
        .start()
        .unwrap();
    for number in [0, 1] {
        wheel.job(&order(number)).enqueue().await.unwrap();
    }
    wheel.job(&Wrapped(5_u8)).enqueue().await.unwrap();
    wheel.queue("close").body("not a job").enqueue().await.unwrap();
    wheel.advance(3 * HOUR).await;
    let mut runs = seen.lock().unwrap().clone();
    runs.sort();
    assert_eq!(runs, ["0 1 acme-0", "0 2 acme-0", "1 1 acme-1"]);
    let dead = wheel.queue("close").dead().next(10).await.unwrap();
    assert_eq!(dead.len(), 2, "{dead:?}");
    assert!(dead[0].history[0].note.contains("the body is not a"), "{dead:?}");
    let again = Workers::new(&wheel, seen).on::<Close, _>(close).start();
    assert!(matches!(again, Err(HandlerError::Taken(_))));
}

/// The handler of the first type would make messages of the second dead.
#[tokio::test]
async fn two_types_of_one_queue_register_nothing() {
    let (wheel, seen) = (wheel().await, Seen::default());
    let workers = Workers::new(&wheel, seen.clone()).on::<Close, _>(close).on::<CloseToo, _>(async || ());
    assert!(matches!(workers.start(), Err(HandlerError::Taken(_))));
    Workers::new(&wheel, seen).on::<Close, _>(close).start().unwrap();
}

#[tokio::test]
async fn handlers_run_without_a_wheel() {
    async fn of_tenant(Tenant(name): Tenant, meta: Meta) -> HandlerResult {
        assert!(meta.wheel().is_err() && meta.lateness() == MINUTE && meta.is_late() == (name == "late"));
        Ok(())
    }
    let with = message(&order(1)).header("tenant", "acme").lateness(MINUTE);
    assert_eq!(run_handler(of_tenant, (), with).await, HandlerOutcome::Ack);
    let reason = "no tenant".to_owned();
    assert_eq!(run_handler(of_tenant, (), message(&order(1))).await, HandlerOutcome::Dead { reason });
    assert_eq!(message(&order(3)).attempt(4).build().json::<Close>().unwrap(), order(3));
}

#[tokio::test]
async fn many_messages_enqueue_in_order() {
    let wheel = wheel().await;
    let queue = wheel.queue("many");
    let drafts = (0..1_300).map(|n| match n {
        700 => queue.message(&n).key(""),
        701 => queue.message(&n).key("key-3"),
        _ => queue.message(&n).delay(n * SECOND).key(&format!("key-{n}")),
    });
    let results = wheel.enqueue_many(drafts).await;
    assert!(matches!(results[700], Err(EnqueueError::Key(_))), "{:?}", results[700]);
    assert!(matches!(results[701], Err(EnqueueError::Refused(_))), "{:?}", results[701]);
    assert_eq!((results.len(), results.iter().flatten().count()), (1_300, 1_298));
    let mut pages = queue.list(Some(MessageState::Scheduled));
    let mut listed = Vec::new();
    loop {
        let page = pages.next(500).await.unwrap();
        if page.is_empty() {
            break;
        }
        listed.extend(page.into_iter().map(|view| view.message.id));
    }
    let expected: Vec<_> = results.into_iter().flatten().map(|receipt| receipt.id).skip(1).collect();
    assert_eq!(listed, expected, "in due order; the first is ready");
}

/// Story: `enqueue_many` took the drafts of another wheel for its own.
#[tokio::test]
async fn drafts_of_another_wheel_are_refused() {
    let (here, there) = (wheel().await, wheel().await);
    let drafts = [here.queue("q").body("ours"), there.queue("q").body("theirs")];
    let results = here.enqueue_many(drafts).await;
    assert!(results[0].is_ok(), "{:?}", results[0]);
    assert_eq!(results[1].as_ref().unwrap_err().to_string(), "the message is of another wheel");
    let ours = here.queue("q").reserve(9, SECOND).await.unwrap();
    assert_eq!((ours.len(), ours[0].body().as_ref()), (1, &b"ours"[..]));
    assert!(there.queue("q").info().await.unwrap().is_none());
}

/// Story: a window of an id that was forgotten did nothing, and a repeated enqueue made a second message.
#[tokio::test]
async fn dedupe_window_needs_an_id() {
    let wheel = wheel().await;
    let draft = || wheel.queue("q").body("x").dedupe_window(HOUR);
    let many = wheel.enqueue_many([draft(), draft().dedupe_id("a")]).await;
    let refused = [draft().enqueue().await, many[0].clone()];
    for refused in refused {
        assert_eq!(refused.unwrap_err().to_string(), "dedupe_window needs a dedupe_id");
    }
    assert_eq!(many[1].as_ref().unwrap().id, draft().dedupe_id("a").enqueue().await.unwrap().id);
}

#[tokio::test]
async fn dead_messages_redrive_once() {
    let wheel = wheel().await;
    let queue = wheel.queue("pay");
    for n in 0..3 {
        queue.message(&n).enqueue().await.unwrap();
    }
    for message in queue.reserve(3, SECOND).await.unwrap() {
        queue.dead_letter(&message, "no account").await.unwrap();
    }
    let first = queue.dead().next(1).await.unwrap().remove(0).message.id;
    assert_eq!(queue.get_id(first).await.unwrap().unwrap().state, MessageState::Dead);
    assert_eq!(queue.redrive_id(first).await.unwrap().what.state, MessageState::Ready);
    let refused = queue.redrive_id(first).await.unwrap_err();
    assert!(matches!(refused, QueueError::Refused(ChangeRefusal::NotDead)), "{refused}");
    assert_eq!((queue.redrive(1).await.unwrap(), queue.redrive(u64::MAX).await.unwrap()), (1, 1));
    let later = queue.message(&9).delay(HOUR).enqueue().await.unwrap().id;
    queue.fire_id(later).await.unwrap();
    assert_eq!(queue.reserve(9, SECOND).await.unwrap().len(), 4);
}
