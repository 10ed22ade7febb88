//! Greetings and the splitting of a stream into frames, for the fuzz target alone.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use duewheel_shard::clock::{Clock, SystemClock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::AsyncRead;

use super::handshake::{Hello, Proofs, Welcome};
use super::{FrameReader, LastReceived};
use crate::transport::wire::{LENGTH, greeting, read_greeting};

/// Reads the bytes as each part of a greeting, and writes each part again as it is sent, with its length.
pub fn greetings(bytes: &[u8]) -> [Option<Vec<u8>>; 3] {
    [again::<Hello>(bytes), again::<Proofs>(bytes), again::<Welcome>(bytes)]
}

fn again<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<Vec<u8>> {
    let part: T = read_greeting(bytes).ok()?;
    let written = greeting(&part).expect("what was read can be written");
    assert_eq!(read_greeting(&written[LENGTH..]).as_ref(), Ok(&part), "a greeting does not come back");
    Some(written)
}

/// The frames of a stream without their lengths, up to its end or the first frame that is refused. The stream must not
/// block.
pub fn cut(from: impl AsyncRead + Unpin, limit: usize) -> Vec<Bytes> {
    let (mut frames, heard) =
        (FrameReader::new(from), LastReceived::now(&(Arc::new(SystemClock) as Arc<dyn Clock>)));
    let mut all = Vec::new();
    loop {
        let next = pin!(frames.next(limit, &heard));
        match next.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(Some(frame))) => all.push(frame),
            Poll::Ready(Ok(None) | Err(_)) => return all,
            Poll::Pending => panic!("the stream waits"),
        }
    }
}
