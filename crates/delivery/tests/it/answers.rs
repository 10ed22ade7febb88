//! Answers of receivers as they are found in the wild: cut off, on connections that end, and with odd heads.

use std::sync::Arc;
use std::time::Duration;

use duewheel_delivery::{PushClass, PushClient, PushOutcome, PushTarget, PushVerdict, TargetSettings};

use crate::receiver::{Answer, Receiver, request};

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
