//! Enqueue requests in the form of each system.

use std::io::Write;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duewheel_bench::instant::instant;
use duewheel_judge::rng::scatter;

use crate::redis::homemade::{Homemade, push_message};
use crate::redis::line::{Speech, find};

/// A body begins with the instant at which it is due, in ms, and its number.
pub(crate) const DUE_DIGITS: usize = 13;
pub(crate) const NUMBER_DIGITS: usize = 12;
const HOUR_MS: u64 = 3_600_000;
/// The number of different ends of bodies.
const ENDS: usize = 64;

/// When messages are due.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    /// Some time within an hour.
    WithinHour,
    /// After this number of milliseconds.
    After(u64),
    /// Evenly from an instant on: the number of messages and the time.
    Spread { start_ms: u64, span_ms: u64, total: u64 },
}

impl Due {
    /// The instant of the message of this number.
    fn at(self, number: u64, now_ms: u64) -> u64 {
        match self {
            // At least a second, which is the shortest delay of beanstalkd's protocol.
            Due::WithinHour => now_ms + 1_000 + scatter(number) % (HOUR_MS - 1_000),
            Due::After(delay_ms) => now_ms + delay_ms,
            Due::Spread { start_ms, span_ms, total } => start_ms + number * span_ms / total,
        }
    }
}

/// The way messages are sent.
#[derive(Clone, Debug)]
pub(crate) enum SendMethod {
    /// A script call for this number of messages.
    Homemade(Homemade, usize),
    /// A put for each.
    Beanstalk,
    /// A request for each.
    Http,
    /// A request for this number of messages, with or without keys.
    Ndjson(usize, Keys),
}

/// Whether messages have keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// None.
    None,
    /// Each its own.
    Own,
}

impl SendMethod {
    pub(crate) fn speech(&self) -> Speech {
        match self {
            SendMethod::Homemade(..) => Speech::Redis,
            SendMethod::Beanstalk => Speech::Beanstalk,
            SendMethod::Http | SendMethod::Ndjson(..) => Speech::Http,
        }
    }

    /// Messages of a request.
    pub(crate) fn per_request(&self) -> u64 {
        match self {
            SendMethod::Homemade(_, n) | SendMethod::Ndjson(n, _) => *n as u64,
            SendMethod::Beanstalk | SendMethod::Http => 1,
        }
    }

    /// Whether this number of requests was answered successfully; the replies must be complete.
    pub(crate) fn accepts(&self, requests: u64, replies: &[u8]) -> bool {
        match self {
            SendMethod::Homemade(_, n) => {
                let reply = format!(":{n}\r\n");
                let mut parts = replies.chunks(reply.len());
                parts.all(|part| part == reply.as_bytes())
                    && replies.len() as u64 == requests * reply.len() as u64
            }
            SendMethod::Beanstalk => true,
            SendMethod::Http => find(replies, b"\"created\":true").is_some(),
            SendMethod::Ndjson(n, _) => {
                let results = replies.windows(14).filter(|w| w == b"\"created\":true").count();
                results as u64 == requests * *n as u64
            }
        }
    }
}

/// Makes requests.
#[derive(Debug)]
pub(crate) struct Producer {
    pub(crate) way: SendMethod,
    due: Due,
    path: String,
    ends: Vec<Vec<u8>>,
    words: Words,
}

/// Id, instant and body of each message.
#[derive(Debug, Default)]
struct Words {
    id: Vec<u8>,
    due: Vec<u8>,
    body: Vec<u8>,
    lines: Vec<u8>,
}

impl Producer {
    /// For a queue, with bodies of so many bytes.
    pub(crate) fn new(way: SendMethod, due: Due, queue: &str, body: usize) -> Self {
        let rest = body.saturating_sub(DUE_DIGITS + NUMBER_DIGITS);
        let letter = |n: usize| b'a' + u8::try_from(scatter(n as u64) % 26).unwrap_or(0);
        let ends = (0..ENDS).map(|n| (0..rest).map(|i| letter(n * rest + i)).collect()).collect();
        Producer { way, due, path: format!("/v1/queues/{queue}/messages"), ends, words: Words::default() }
    }

    /// Appends the requests for messages of these numbers; the last one may be smaller.
    pub(crate) fn requests(&mut self, numbers: Range<u64>, out: &mut Vec<u8>) {
        let mut first = numbers.start;
        while first < numbers.end {
            let end = numbers.end.min(first + self.way.per_request());
            self.request(first..end, out);
            first = end;
        }
    }

    fn request(&mut self, numbers: Range<u64>, out: &mut Vec<u8>) {
        let now_ms = now_ms();
        if let SendMethod::Homemade(homemade, _) = &self.way {
            let count = usize::try_from(numbers.end - numbers.start).unwrap_or_default();
            homemade.push_enqueue(out, count);
        }
        self.words.lines.clear();
        for number in numbers {
            let due_ms = self.due.at(number, now_ms);
            let Words { id, due, body, lines } = &mut self.words;
            for word in [&mut *id, due, body] {
                word.clear();
            }
            // Writing to memory does not fail.
            let _ = write!(id, "{number:0NUMBER_DIGITS$}");
            let _ = write!(due, "{due_ms:0DUE_DIGITS$}");
            body.extend_from_slice(due);
            body.extend_from_slice(id);
            body.extend_from_slice(&self.ends[usize::try_from(number).unwrap_or_default() % ENDS]);
            match self.way {
                SendMethod::Homemade(..) => push_message(out, id, due, body),
                SendMethod::Beanstalk => {
                    let delay_s = due_ms.saturating_sub(now_ms) / 1_000;
                    let _ = write!(out, "put 1024 {delay_s} 60 {}\r\n", body.len());
                    out.extend_from_slice(body);
                    out.extend_from_slice(b"\r\n");
                }
                SendMethod::Http => push_json(lines, body, None, self.due, due_ms, now_ms),
                SendMethod::Ndjson(_, keys) => {
                    let key = (keys == Keys::Own).then_some(id.as_slice());
                    push_json(lines, body, key, self.due, due_ms, now_ms);
                    lines.push(b'\n');
                }
            }
        }
        let content = match self.way {
            SendMethod::Homemade(..) | SendMethod::Beanstalk => return,
            SendMethod::Http => "application/json",
            SendMethod::Ndjson(..) => "application/x-ndjson",
        };
        push_post(out, &self.path, content, &self.words.lines);
    }
}

fn push_json(out: &mut Vec<u8>, body: &[u8], key: Option<&[u8]>, due: Due, due_ms: u64, now_ms: u64) {
    out.extend_from_slice(b"{\"body\":\"");
    out.extend_from_slice(body);
    if let Some(key) = key {
        out.extend_from_slice(b"\",\"key\":\"");
        out.extend_from_slice(key);
    }
    let _ = match due {
        Due::WithinHour | Due::After(_) => write!(out, "\",\"delay_ms\":{}}}", due_ms.saturating_sub(now_ms)),
        Due::Spread { .. } => write!(out, "\",\"due_at\":\"{}\"}}", instant(due_ms)),
    };
}

/// Appends a request with a body.
pub(crate) fn push_post(out: &mut Vec<u8>, path: &str, content: &str, body: &[u8]) {
    let _ = write!(
        out,
        "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: {content}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    out.extend_from_slice(body);
}

/// The wall clock.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ndjson_batch_has_line_per_message() {
        let mut producer = Producer::new(SendMethod::Ndjson(3, Keys::Own), Due::After(50), "q", 40);
        let mut out = Vec::new();
        producer.requests(0..5, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("POST ").count(), 2);
        assert_eq!(text.matches("\"delay_ms\":50}\n").count(), 5);
        assert!(text.contains("\"key\":\"000000000004\""));
        let length: usize =
            text.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap().parse().unwrap();
        let body = text.split("\r\n\r\n").nth(1).unwrap().split("POST").next().unwrap();
        assert_eq!(body.len(), length);
    }

    #[test]
    fn messages_are_spread_evenly() {
        let due = Due::Spread { start_ms: 1_000, span_ms: 500, total: 10 };
        assert_eq!([0, 1, 9].map(|n| due.at(n, 7)), [1_000, 1_050, 1_450]);
    }
}
