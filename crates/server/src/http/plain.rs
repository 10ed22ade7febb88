//! Plain HTTP at an HTTPS port: the client gets an answer that asks for `https://`.

use std::future::Future;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The first byte of every TLS connection: a handshake record.
const HANDSHAKE: u8 = 0x16;
const WORDS: &str = r#"{"type":"about:blank","title":"Bad Request","status":400,"code":"bad_request","detail":"this is an HTTPS port: say https:// instead of http://"}"#;
/// How long the client may take to read it.
const LINGER: Duration = Duration::from_millis(500);

/// Whether the client has begun with something other than TLS, within `time` and before `stopped` ends. Nothing is
/// consumed. Cancel safe.
pub(super) async fn is_plain(stream: &TcpStream, time: Duration, stopped: impl Future<Output = ()>) -> bool {
    let mut first = [0];
    let peeked = tokio::select! {
        peeked = tokio::time::timeout(time, stream.peek(&mut first)) => peeked,
        () = stopped => return false,
    };
    matches!(peeked, Ok(Ok(1))) && first[0] != HANDSHAKE && first[0].is_ascii_uppercase()
}

/// Answers such a client, and closes the connection.
pub(super) async fn answer(mut stream: TcpStream) {
    let talk = async {
        let head = format!(
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{WORDS}",
            WORDS.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing with unread bytes would reset the connection, and the answer would be lost.
        let mut unread = [0; 4_096];
        while stream.read(&mut unread).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = tokio::time::timeout(LINGER, talk).await;
}
