//! Times without end, clients that end among tasks, and batches of which a part is unsure.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use duewheel_client::{
    ApiCall, BlockingClient, Cancellation, DuewheelClient, ErrorCode, LeasedMessage, MessageRef, Nack,
    NewMessage, Options, Reserving,
};
use serde_json::{Value, json};

use crate::processes::{real, until};

#[test]
fn times_without_end_are_served() {
    let server = real();
    let options = Options::default().retry_for(Duration::MAX).timeout(Duration::MAX);
    let client = BlockingClient::new(&server.url, options).unwrap();
    client.enqueue("q", NewMessage::default().key("k")).unwrap();
    assert_eq!(client.get(&MessageRef::key("q", "k")).unwrap().key.as_deref(), Some("k"));
}

#[test]
fn client_may_end_within_a_runtime() {
    let client = BlockingClient::new("http://127.0.0.1:1", Options::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async move { drop(client) });
}

/// Reads a request, and answers it with lines; a `length` beyond them is one of an answer that is cut off.
fn answer(stream: TcpStream, lines: &str, length: usize) {
    answer_with(stream, "200 OK", lines, length);
}

fn answer_with(mut stream: TcpStream, status: &str, lines: &str, length: usize) {
    let mut request = BufReader::new(stream.try_clone().unwrap());
    let (mut line, mut body) = (String::new(), 0);
    while request.read_line(&mut line).unwrap() > 2 {
        if let Some(length) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            body = length.trim().parse().unwrap();
        }
        line.clear();
    }
    request.read_exact(&mut vec![0; body]).unwrap();
    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\n");
    write!(stream, "{head}content-length: {length}\r\n\r\n{lines}").unwrap();
}

/// Story: the answer about an item was lost, it was refused when it was sent again, and was reported as not applied.
#[test]
fn unsure_items_stay_unsure_to_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let full = |after: u64| {
        let start = r#"{"status": 429, "code": "overloaded", "outcome": "not_applied", "retry_after_ms": "#;
        format!("{start}{after}}}\n")
    };
    let first = format!("{{\"id\": \"1\"}}\n{}", full(1));
    let second = full(3_600_000).repeat(2);
    let results = std::thread::scope(|scope| {
        scope.spawn(|| {
            answer(listener.accept().unwrap().0, &first, first.len() + 100);
            answer(listener.accept().unwrap().0, &second, second.len());
        });
        let client = BlockingClient::new(&url, Options::default()).unwrap();
        client.enqueue_many("q", vec![NewMessage::default(); 3]).unwrap()
    });
    let unsure = results.iter().map(|result| result.as_ref().err().map(|error| error.may_be_applied));
    assert_eq!(unsure.collect::<Vec<_>>(), [None, Some(false), Some(true)]);
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Story: an attempt that began in the last moment had all its time, and a call of 30 s took a minute.
#[tokio::test(start_paused = true)]
async fn calls_end_within_their_time() {
    let (_silent, address) = listener();
    let [retried, limit] = [30, 20].map(Duration::from_secs);
    let options = Options::default().retry_for(retried).timeout(limit);
    let client = DuewheelClient::new(&format!("http://{address}"), options).unwrap();
    let begun = tokio::time::Instant::now();
    client.queue("q").await.unwrap_err();
    let took = begun.elapsed();
    assert!(took > limit && took <= retried + Duration::from_millis(10), "of the paused clock: {took:?}");
}

/// Story: a call whose connection was never there counted as one that may have been applied.
#[test]
fn calls_without_a_connection_are_unsent() {
    let (_silent, address) = listener();
    let once = Options::default().retry_for(Duration::ZERO).timeout(Duration::from_secs(2));
    let failed = |address: &str| {
        BlockingClient::new(address, once.clone()).unwrap().enqueue("q", NewMessage::default()).unwrap_err()
    };
    // The handshake of TLS has no answer; the request itself has none.
    for (scheme, may_be_applied) in [("https", false), ("http", true)] {
        let error = failed(&format!("{scheme}://{address}"));
        assert_eq!(
            (error.code.as_str(), error.may_be_applied),
            ("connection", may_be_applied),
            "{scheme}: {error}"
        );
    }
    for nowhere in ["http://127.0.0.1:1", "http://nowhere.invalid"] {
        let error = failed(nowhere);
        assert!(!error.may_be_applied && error.code.as_str() == "connection", "{nowhere}: {error}");
    }
}

/// Story: one result that was too large left all the others unacked.
#[test]
fn a_bad_item_fails_alone() {
    let server = real();
    let client = BlockingClient::new(&server.url, Options::default()).unwrap();
    let of_window = NewMessage::default().dedupe_window(Duration::from_secs(60));
    let large = NewMessage::default().body("x".repeat(17 << 20));
    let news = vec![of_window.clone(), large, NewMessage::default(), NewMessage::default()];
    let accepted = client.enqueue_many("q", news).unwrap();
    assert!(accepted[0].as_ref().unwrap_err().detail.starts_with("dedupe_window: "), "{accepted:?}");
    assert_eq!(accepted[1].as_ref().unwrap_err().status, Some(413), "{accepted:?}");
    assert_eq!(accepted.iter().flatten().count(), 2);
    let refused = client.enqueue("q", of_window).unwrap_err();
    assert!(
        refused.code == ErrorCode::BadRequest && refused.detail.starts_with("dedupe_window: "),
        "{refused}"
    );

    let leased = client.reserve(&["q"], &Reserving::default().max(9)).unwrap().messages;
    let results = [Some(Value::from("x".repeat(17 << 10))), Some(json!({"sum": 1}))];
    let acked = client.ack_many(&leased, &results).unwrap();
    let refused = acked[0].as_ref().unwrap_err();
    assert!(refused.code == ErrorCode::BadRequest && refused.detail.contains("result"), "{refused}");
    assert_eq!(acked[1].as_ref().unwrap().result, "acked");
    assert_eq!(client.ack(&leased[0], None).unwrap().result, "acked");
}

/// Story: the rest of these addresses and paths was left out, and so was the id of an event.
#[test]
fn odd_addresses_and_ids_are_refused() {
    for odd in [
        "http://localhost:99999",
        "http://localhost:0",
        "http://localhost:",
        "http://localhost:7788#part",
        "http://localhost:7788/?a=b",
        "http://user@localhost:7788",
        "ftp://localhost",
        "localhost:7788",
    ] {
        let refused = BlockingClient::new(odd, Options::default()).unwrap_err();
        assert!(
            refused.code == ErrorCode::BadRequest && refused.detail.starts_with("url: "),
            "{odd}: {refused}"
        );
    }
    for fine in
        ["http://[::1]:7788", "http://[::1]", "https://wheel.example/under/", "http://127.0.0.1:65535"]
    {
        BlockingClient::new(fine, Options::default()).unwrap();
    }
    let refused = ApiCall::get("/v1/events").events(Some("17\n")).unwrap_err();
    assert!(refused.detail.starts_with("last-event-id: "), "{refused}");
    let client = BlockingClient::new("http://127.0.0.1:1", Options::default()).unwrap();
    for odd in ["v1/queues", "/v1/queues/a#b"] {
        let refused = client.call::<Value>(ApiCall::get(odd)).unwrap_err();
        assert!(refused.detail.starts_with("path: "), "{odd}: {refused}");
    }
}

/// Story: a worker that blocks had nothing to wait for SIGTERM with, which ended the process and its leases.
#[test]
fn blocking_workers_end_at_sigterm() {
    let server = real();
    let client = BlockingClient::new(&server.url, Options::default()).unwrap();
    client.enqueue("q", NewMessage::default().key("k")).unwrap();
    let stop = client.terminated().unwrap();
    let (handled, worker) = (Cancellation::default(), client.worker(&["q"]));
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            let handled = handled.clone();
            client.work(&worker, &stop, move |_, _| {
                handled.cancel();
                Ok::<_, Nack>(())
            })
        });
        until("the handler runs", || handled.is_cancelled());
        let id = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        until("the worker ends", || working.is_finished());
        working.join().unwrap().unwrap();
    });
    assert!(client.get(&MessageRef::key("q", "k")).is_err(), "it was acked");
}

/// Story: the server said to come again in an hour, and the lease of a minute was over by then.
#[test]
fn extends_outlast_no_lease() {
    let (listener, address) = listener();
    let busy =
        r#"{"status": 429, "code": "overloaded", "outcome": "not_applied", "retry_after_ms": 3600000}"#;
    let extended = r#"{"result": "extended"}"#;
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        answer_with(listener.accept().unwrap().0, "429 Too Many Requests", busy, busy.len());
        answer(listener.accept().unwrap().0, extended, extended.len());
        let many = [busy, extended].map(|result| format!(r#"{{"results": [{result}]}}"#));
        many.iter().for_each(|many| answer(listener.accept().unwrap().0, many, many.len()));
    });
    std::thread::spawn(move || {
        let client = BlockingClient::new(&format!("http://{address}"), Options::default()).unwrap();
        let message = json!({"id": "1", "lease_token": "000000010000000000000001", "lease_ms": 1_000});
        let message: LeasedMessage = serde_json::from_value(message).unwrap();
        sender.send(client.extend(&message, None).unwrap().result).unwrap();
        let many = client.extend_many(&[message], None).unwrap().remove(0);
        sender.send(many.unwrap().result).unwrap();
    });
    for _ in 0..2 {
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)).unwrap(), "extended");
    }
}
