//! Times without end, clients that end among tasks, and batches of which a part is unsure.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use duewheel_client::{BlockingClient, MessageRef, NewMessage, Options};

use crate::processes::real;

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
fn answer(mut stream: TcpStream, lines: &str, length: usize) {
    let mut request = BufReader::new(stream.try_clone().unwrap());
    let (mut line, mut body) = (String::new(), 0);
    while request.read_line(&mut line).unwrap() > 2 {
        if let Some(length) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            body = length.trim().parse().unwrap();
        }
        line.clear();
    }
    request.read_exact(&mut vec![0; body]).unwrap();
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\n";
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
