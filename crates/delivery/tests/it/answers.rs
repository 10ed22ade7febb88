//! Answers of receivers as they are found in the wild: cut off, on connections that end, and with odd heads.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel_delivery::{PushClass, PushClient, PushOutcome, PushTarget, PushVerdict, TargetSettings};

use crate::receiver::{Answer, Receiver, request, status};

fn client(settings: &TargetSettings) -> PushClient {
    PushClient::new(Arc::new(PushTarget::new(settings).unwrap()))
}

async fn deliver(receiver: &Receiver, timeout_ms: u64) -> PushOutcome {
    let settings = TargetSettings { timeout_ms: Some(timeout_ms), ..receiver.target() };
    client(&settings).deliver(&request()).await
}

/// Story: a receiver promised 70 bytes, sent 18 and closed. Its 200 was no answer, so the message came again and again.
#[tokio::test]
async fn the_head_decides_although_the_body_is_cut() {
    let (closes, drips) = (20_000, 300);
    let last = |text: &str| Answer::Last(text.as_bytes().to_vec());
    let ended = "(cut: the connection ended early) ";
    for (answer, timeout_ms, verdict, code, says) in [
        (
            last("HTTP/1.1 200 OK\r\ncontent-length: 70\r\n\r\nthe order is taken"),
            closes,
            PushVerdict::Delivered,
            200,
            format!("{ended}the order is taken"),
        ),
        (
            last("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"),
            closes,
            PushVerdict::Delivered,
            200,
            format!("{ended}ok"),
        ),
        (
            last("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\nnone\r\n"),
            closes,
            PushVerdict::Delivered,
            200,
            "(cut: its body is not valid HTTP) ok".to_owned(),
        ),
        (
            Answer::Endless(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab".into(), b""),
            drips,
            PushVerdict::Delivered,
            200,
            "(cut: the time-out passed) ab".to_owned(),
        ),
        (
            last("HTTP/1.1 500 x\r\ncontent-length: 9\r\n\r\n"),
            closes,
            PushVerdict::Failed,
            500,
            ended.to_owned(),
        ),
        (
            last("HTTP/1.1 503 x\r\nretry-after: 7\r\ncontent-length: 9\r\n\r\n"),
            closes,
            PushVerdict::Slowed(Duration::from_secs(7)),
            503,
            ended.to_owned(),
        ),
        (
            last("HTTP/1.1 410 x\r\ncontent-length: 9\r\n\r\n"),
            closes,
            PushVerdict::Refused,
            410,
            ended.to_owned(),
        ),
    ] {
        let shown = format!("{answer:?}");
        let receiver = Receiver::new(move |_, _| answer.clone()).await;
        let outcome = deliver(&receiver, timeout_ms).await;
        assert_eq!((outcome.verdict, outcome.class), (verdict, PushClass::Status(code)), "{shown}");
        assert_eq!((outcome.answer, outcome.disable), (says, code == 410), "{shown}");
    }
}

#[tokio::test]
async fn a_cut_answer_ends_its_connection() {
    let bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab";
    let receiver = Receiver::new(|_, _| Answer::Bytes(bytes.to_vec())).await;
    let client = client(&TargetSettings { timeout_ms: Some(300), ..receiver.target() });
    for n in 1..=2 {
        assert_eq!(client.deliver(&request()).await.verdict, PushVerdict::Delivered);
        assert_eq!(receiver.connections(), n);
    }
}

/// Delivers a number of times, one after the other, to a receiver that answers 200 other than to these requests. Returns
/// the classes, and how many requests and connections there were.
async fn over_one(odd: &'static [(usize, Answer)], deliveries: usize) -> (Vec<String>, usize, usize) {
    let receiver = Receiver::new(move |number, _| {
        odd.iter().find(|(n, _)| *n == number).map_or_else(|| status(200, "", "ok"), |(_, odd)| odd.clone())
    })
    .await;
    let client = client(&receiver.target());
    let mut classes = Vec::new();
    for _ in 0..deliveries {
        classes.push(client.deliver(&request()).await.class.to_string());
    }
    let ids: HashSet<_> =
        receiver.requests().iter().map(|sent| sent.header("webhook-id").unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 1);
    (classes, receiver.requests().len(), receiver.connections())
}

/// Story: a stock receiver closed its idle connection while the next request was on its way to it. That was the only
/// attempt of a message, which the receiver never saw.
#[tokio::test]
async fn a_kept_connection_that_ends_costs_no_attempt() {
    let (ok, reset) = ("status_200", "connection_reset");
    let all = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    assert_eq!(over_one(const { &[(2, Answer::Close)] }, 3).await, (all(&[ok, ok, ok]), 4, 2));
    // A fresh one is not repeated, neither at the first try nor at the second.
    assert_eq!(over_one(const { &[(1, Answer::Close)] }, 1).await, (all(&[reset]), 1, 1));
    let twice = const { &[(2, Answer::Close), (3, Answer::Close)] };
    assert_eq!(over_one(twice, 2).await, (all(&[ok, reset]), 3, 2));
}

/// The receiver may have done its work: it has begun to answer.
#[tokio::test]
async fn an_answer_that_has_begun_is_not_repeated() {
    let receiver = Receiver::new(|number, _| match number {
        2 => Answer::Last(b"HTTP/1.1 2".to_vec()),
        _ => status(200, "", "ok"),
    })
    .await;
    let client = client(&receiver.target());
    client.deliver(&request()).await;
    assert_eq!(client.deliver(&request()).await.class, PushClass::ConnectionReset);
    assert_eq!(receiver.requests().len(), 2);
}

#[tokio::test]
async fn an_idle_connection_is_closed_in_time() {
    for header in ["", "Keep-Alive: timeout=1\r\n"] {
        let receiver = Receiver::new(move |_, _| status(200, header, "ok")).await;
        let client = client(&receiver.target());
        client.deliver(&request()).await;
        let deadline = Instant::now() + Duration::from_secs(60);
        while receiver.closed() == 0 {
            assert!(Instant::now() < deadline, "it stays open");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Story: each of these heads was no HTTP to us and a 200 to curl, node and Python.
#[tokio::test]
async fn odd_heads_are_read_and_their_connection_closed() {
    let many: String = (0..150).map(|n| format!("x-{n}: {n}\r\n")).collect();
    for odd in [
        "x-note: folded\r\n over two lines\r\n",
        "x-note : a space before the colon\r\n",
        "a line without one\r\n",
        "x note: a space in the name\r\n",
        &many,
    ] {
        let answer = format!("HTTP/1.1 503 x\r\n{odd}retry-after: 7\r\ncontent-length: 4\r\n\r\nbusy");
        let receiver = Receiver::new(move |_, _| Answer::Bytes(answer.clone().into_bytes())).await;
        let client = client(&receiver.target());
        for n in 1..=2 {
            let outcome = client.deliver(&request()).await;
            assert_eq!(outcome.verdict, PushVerdict::Slowed(Duration::from_secs(7)), "{odd}");
            assert_eq!((outcome.answer.as_str(), receiver.connections()), ("busy", n), "{odd}");
        }
    }
}

#[tokio::test]
async fn a_head_with_two_lengths_is_refused() {
    for (lines, class) in [
        ("content-length: 2\r\ncontent-length: 3\r\n", PushClass::BadAnswer),
        ("content-length : 2\r\ncontent-length: 3\r\n", PushClass::BadAnswer),
        ("content-length: 2\r\ntransfer-encoding: chunked\r\n", PushClass::BadAnswer),
        ("transfer-encoding : chunked\r\ncontent-length: 2\r\n", PushClass::BadAnswer),
        ("content-length: 2\r\ncontent-length: 2\r\n", PushClass::Status(200)),
    ] {
        let answer = format!("HTTP/1.1 200 x\r\n{lines}\r\n2\r\nok\r\n0\r\n\r\n");
        let receiver = Receiver::new(move |_, _| Answer::Last(answer.clone().into_bytes())).await;
        assert_eq!(deliver(&receiver, 20_000).await.class, class, "{lines}");
    }
}

#[tokio::test]
async fn an_early_hint_keeps_the_connection() {
    let bytes = b"HTTP/1.1 103 x\r\nlink: </a>\r\n\r\nHTTP/1.1 200 x\r\ncontent-length: 0\r\n\r\n";
    let receiver = Receiver::new(|_, _| Answer::Bytes(bytes.to_vec())).await;
    let client = client(&receiver.target());
    for _ in 0..2 {
        assert_eq!(client.deliver(&request()).await.verdict, PushVerdict::Delivered);
    }
    assert_eq!(receiver.connections(), 1);
}
