//! `workers`: by handlers that wait for nothing, and by handlers that block.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use duewheel_client::{Ack, BlockingClient, Cancellation, MessageWorker, Nack, Options, WorkerEvent};
use serde_json::Value;

use crate::calls::{length, text, texts};
use crate::cases::cases;
use crate::processes::{Process, scripted, until};

/// What has happened to a handler.
#[derive(Default)]
struct Seen {
    begun: AtomicBool,
    cancelled: AtomicBool,
}

/// What a handler does at once; how long it sleeps otherwise, or `None` until it is cancelled.
fn act(how: &Value, seen: &Seen) -> Result<Option<Duration>, Nack> {
    seen.begun.store(true, Ordering::SeqCst);
    match text(how, "do") {
        "fail" => Err(io::Error::other(text(how, "message")).into()),
        "not_yet" => Err(Nack::not_yet(length(how, "delay_ms").unwrap())),
        "dead" => Err(Nack::dead_because(text(how, "reason"))),
        "sleep" => Ok(Some(length(how, "ms").unwrap())),
        "wait_cancelled" => Ok(None),
        _ => Ok(Some(Duration::ZERO)),
    }
}

fn end(how: &Value) -> Result<Ack, Nack> {
    match text(how, "do") {
        "result" => Ok(how["value"].clone().into()),
        "wait_cancelled" if how.get("message").is_some() => {
            Err(io::Error::other(text(how, "message")).into())
        }
        _ => Ok(().into()),
    }
}

async fn handle(how: Arc<Value>, seen: Arc<Seen>, token: Cancellation) -> Result<Ack, Nack> {
    match act(&how, &seen)? {
        Some(pause) => tokio::time::sleep(pause).await,
        None => {
            token.cancelled().await;
            seen.cancelled.store(true, Ordering::SeqCst);
        }
    }
    end(&how)
}

fn handle_blocking(how: &Value, seen: &Seen, token: &Cancellation) -> Result<Ack, Nack> {
    match act(how, seen)? {
        Some(pause) => std::thread::sleep(pause),
        None => {
            until("the token is cancelled", || token.is_cancelled());
            seen.cancelled.store(true, Ordering::SeqCst);
        }
    }
    end(how)
}

fn worker(client: &BlockingClient, options: &Value) -> MessageWorker {
    let concurrency = usize::try_from(options["concurrency"].as_u64().unwrap()).unwrap();
    let worker = client.worker(&texts(&options["queues"])).concurrency(concurrency);
    worker.lease(length(options, "lease_ms").unwrap())
}

/// Ends the worker, also when its case fails.
struct Ending<'a>(&'a Cancellation);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

fn run_case(server: &Process, case: &Value, is_blocking: bool) {
    let name = text(case, "name");
    let client = BlockingClient::new(&format!("{}/{name}", server.url), Options::default()).unwrap();
    let worker = worker(&client, &case["worker"]);
    let (how, seen) = (Arc::new(case["handler"].clone()), Arc::new(Seen::default()));
    let stop = Cancellation::default();
    std::thread::scope(|scope| {
        let ending = Ending(&stop);
        let working = scope.spawn(|| {
            let (how, seen) = (how.clone(), seen.clone());
            if is_blocking {
                return client.work(&worker, &stop, move |_, token| handle_blocking(&how, &seen, token));
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(worker.run(&stop, move |_, token| handle(how.clone(), seen.clone(), token)))
        });
        if case["stop"] == "while_running" {
            until("the handler begins", || seen.begun.load(Ordering::SeqCst));
        } else {
            let waits = text(&how, "do") == "wait_cancelled";
            until(name, || server.verdict(name).1 && (!waits || seen.cancelled.load(Ordering::SeqCst)));
        }
        drop(ending);
        working.join().unwrap().unwrap();
    });
    let (failures, _) = server.verdict(name);
    assert!(failures.is_empty(), "{name}: {failures:#?}");
}

fn run_all(is_blocking: bool) {
    let (server, cases) = (scripted(), cases("workers"));
    std::thread::scope(|scope| {
        let server = &server;
        cases.iter().for_each(|case| drop(scope.spawn(move || run_case(server, case, is_blocking))));
    });
}

#[test]
fn async_handlers_on_the_scripted_server() {
    run_all(false);
}

#[test]
fn blocking_handlers_on_the_scripted_server() {
    run_all(true);
}

/// A message that makes its handler panic comes again, and its worker lives on.
#[test]
fn panics_and_drains_give_messages_back() {
    let server = crate::processes::real();
    let client = BlockingClient::new(&server.url, Options::default()).unwrap();
    for body in ["panic", "stay", "later"] {
        client.enqueue(body, duewheel_client::NewMessage::default().body(body).key(body)).unwrap();
    }
    let stop = Cancellation::default();
    let worker = client.worker(&["panic", "stay", "later"]).concurrency(3).drain(Duration::from_millis(10));
    let view = |name: &str| client.get(&duewheel_client::MessageRef::key(name, name)).unwrap();
    std::thread::scope(|scope| {
        let ending = Ending(&stop);
        let working = scope.spawn(|| {
            client.work(&worker, &stop, |message, token| {
                if message.body.as_deref() == Some("panic") {
                    panic!("of the handler");
                }
                until("the drain ends", || token.is_cancelled());
                Err::<(), _>(match message.body.as_deref() {
                    Some("later") => Nack::not_yet(Duration::from_secs(3600)).reason("of the handler"),
                    _ => io::Error::other("cut off").into(),
                })
            })
        });
        until("the panic is nacked", || !view("panic").history.is_empty());
        until("the others run", || view("stay").attempt == 1 && view("later").attempt == 1);
        drop(ending);
        working.join().unwrap().unwrap();
    });
    assert_eq!(view("panic").history[0].note.as_deref(), Some("panic: of the handler"));
    let stay = view("stay");
    assert_eq!((stay.forgiven, stay.history[0].note.as_deref()), (1, Some("the worker stops")));
    assert_eq!(view("later").history[0].note.as_deref(), Some("of the handler"));
}

/// Story: with two places the first empty answer ended the worker, and what a handler enqueued last was left.
#[test]
fn until_empty_waits_for_running_handlers() {
    let server = crate::processes::real();
    let client = BlockingClient::new(&server.url, Options::default()).unwrap();
    client.enqueue("q", duewheel_client::NewMessage::default().body("first")).unwrap();
    let (worker, done) = (client.worker(&["q"]).concurrency(2).until_empty(), Arc::new(AtomicUsize::new(0)));
    let (own, handled) = (client.clone(), done.clone());
    client
        .work(&worker, &Cancellation::default(), move |message, _| {
            if message.body.as_deref() == Some("first") {
                std::thread::sleep(Duration::from_millis(500));
                own.enqueue("q", duewheel_client::NewMessage::default().body("second"))?;
            }
            handled.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Nack>(())
        })
        .unwrap();
    assert_eq!(done.load(Ordering::SeqCst), 2);
}

/// Story: a worker with more places than a server grants at once asked for all of them, and ended with the refusal.
#[test]
fn worker_has_more_places_than_one_reserve() {
    let server = crate::processes::real();
    let client = BlockingClient::new(&server.url, Options::default()).unwrap();
    client.enqueue("q", duewheel_client::NewMessage::default().body("x")).unwrap();
    let (worker, done) =
        (client.worker(&["q"]).concurrency(usize::MAX).until_empty(), Arc::new(AtomicUsize::new(0)));
    let handled = done.clone();
    let ended = client.work(&worker, &Cancellation::default(), move |_, _| {
        handled.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Nack>(())
    });
    ended.unwrap();
    assert_eq!(done.load(Ordering::SeqCst), 1);
}

/// Messages that are granted at the moment of the stop come again at once, and nothing has used up an attempt.
#[test]
fn messages_behind_the_stop_are_given_back() {
    let server = crate::processes::real();
    let client = BlockingClient::new(&server.url, Options::default()).unwrap();
    for key in ["a", "b"] {
        client.enqueue("q", duewheel_client::NewMessage::default().key(key)).unwrap();
    }
    let (stop, ended) = (Cancellation::default(), Arc::new(AtomicUsize::new(0)));
    let (signal, count) = (stop.clone(), ended.clone());
    let worker = client.worker(&["q"]).concurrency(2).observe(move |event| match event {
        WorkerEvent::Leased(_) => signal.cancel(),
        WorkerEvent::Ended(_) => drop(count.fetch_add(1, Ordering::SeqCst)),
        _ => {}
    });
    client.work(&worker, &stop, |_, _| -> Result<(), Nack> { panic!("no handler begins") }).unwrap();
    assert_eq!(ended.load(Ordering::SeqCst), 2);
    for key in ["a", "b"] {
        let view = client.get(&duewheel_client::MessageRef::key("q", key)).unwrap();
        assert_eq!((view.forgiven, view.history[0].note.as_deref()), (1, Some("the worker stops")));
    }
}

/// Story: a panic in front of the future of a handler ended its worker.
#[test]
fn panic_before_the_future_is_nacked() {
    let server = crate::processes::real();
    let client = BlockingClient::new(&server.url, Options::default()).unwrap();
    client.enqueue("q", duewheel_client::NewMessage::default().key("k")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let worker = client.worker(&["q"]).limit(1);
    let ended = runtime.block_on(worker.run(&Cancellation::default(), |message, _| {
        assert_ne!(message.key.as_deref(), Some("k"), "of the handler");
        async { Ok::<_, Nack>(()) }
    }));
    ended.unwrap();
    // With it go its connections, which nothing would serve any more.
    drop(runtime);
    let view = client.get(&duewheel_client::MessageRef::key("q", "k")).unwrap();
    assert!(view.history[0].note.as_deref().is_some_and(|note| note.contains("of the handler")), "{view:?}");
}
