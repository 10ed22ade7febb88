//! Producers and consumers on one thread.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, LocalSet};

use crate::redis::consumer::{Consumer, Seen};
use crate::redis::line::{Connection, Speech, find};
use crate::redis::producer::{Due, Producer, SendMethod, now_ms};

/// How requests are sent: the number of connections, and of requests on each before the replies are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) connections: usize,
    pub(crate) depth: usize,
}

/// The result of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Messages within the measured time.
    pub(crate) messages: u64,
    pub(crate) seconds: f64,
    /// All messages, including those before and after the measured time.
    pub(crate) all: u64,
    /// From sending a connection's requests to its last reply, in ms.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// The observations of consumers.
    pub(crate) seen: Option<Seen>,
}

/// The target of the load: several nodes share the connections.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) way: SendMethod,
    /// Over HTTP.
    pub(crate) queue: &'static str,
    pub(crate) body: usize,
}

impl Target {
    async fn lines(&self, count: usize) -> io::Result<Vec<Connection>> {
        let mut lines = Vec::new();
        for address in self.addresses.iter().cycle().take(count) {
            lines.push(Connection::open(*address, self.way.speech()).await?);
        }
        Ok(lines)
    }

    fn producer(&self, due: Due) -> Producer {
        Producer::new(self.way.clone(), due, self.queue, self.body)
    }
}

/// Enqueues messages due within an hour for this time, after a warm-up of a fifth of it.
pub(crate) fn enqueue(target: &Target, shape: Shape, time: Duration) -> io::Result<Outcome> {
    run(async {
        let next = Rc::new(Cell::new(0));
        let times: Rc<RefCell<Vec<f64>>> = Rc::default();
        let lines = target.lines(shape.connections).await?;
        let first = Instant::now() + time / 5;
        let last = first + time;
        let tasks: Vec<_> = lines
            .into_iter()
            .map(|mut line| {
                let (next, times, mut producer) =
                    (next.clone(), times.clone(), target.producer(Due::WithinHour));
                tokio::task::spawn_local(async move {
                    let mut out = Vec::new();
                    loop {
                        let sent = Instant::now();
                        if sent >= last {
                            return Ok(());
                        }
                        send(&mut line, &mut producer, shape.depth, u64::MAX, &next, &mut out).await?;
                        let done = Instant::now();
                        if sent >= first && done <= last {
                            times.borrow_mut().push((done - sent).as_secs_f64() * 1e3);
                        }
                    }
                })
            })
            .collect();
        join(tasks).await?;
        let mut times = times.take();
        times.sort_by(f64::total_cmp);
        let at = |permille: usize| times.get(times.len() * permille / 1_000).copied().unwrap_or(0.0);
        Ok(Outcome {
            messages: times.len() as u64 * shape.depth as u64 * target.way.per_request(),
            seconds: time.as_secs_f64(),
            all: next.get(),
            p50_ms: at(500),
            p99_ms: at(990),
            seen: None,
        })
    })
}

/// Enqueues messages with a delay, while consumers take and ack them: from the first enqueue to the last ack.
pub(crate) fn through(
    target: &Target,
    shape: Shape,
    (consumer, consumers): (&Consumer, usize),
    (total, delay_ms): (u64, u64),
) -> io::Result<Outcome> {
    run(async {
        let lines = target.lines(shape.connections).await?;
        let seen = Rc::new(RefCell::new(Seen::new(total)));
        let began = Instant::now();
        let takers = consumer.start(&target.addresses, consumers, &seen).await?;
        let makers = all(target, lines, shape.depth, total, Due::After(delay_ms));
        join(makers).await?;
        join(takers).await?;
        let seen = seen.take();
        let seconds = seen.acked.map_or(0.0, |acked| (acked - began).as_secs_f64());
        Ok(Outcome { messages: total, seconds, all: total, seen: Some(seen), ..Outcome::default() })
    })
}

/// Lets this number of messages a second come due, all accepted before; consumers take and ack them.
pub(crate) fn come_due(
    target: &Target,
    shape: Shape,
    (consumer, consumers): (&Consumer, usize),
    (rate, time): (u64, Duration),
) -> io::Result<Outcome> {
    /// The slowest system of the comparison accepts more than this number of messages a second.
    const ACCEPTED: u64 = 10_000;
    let total = rate * time.as_secs();
    run(async {
        let start_ms = now_ms() + 2_000 + total * 1_000 / ACCEPTED;
        let span_ms = u64::try_from(time.as_millis()).map_err(io::Error::other)?;
        let lines = target.lines(shape.connections).await?;
        join(all(target, lines, shape.depth, total, Due::Spread { start_ms, span_ms, total })).await?;
        let left = start_ms.checked_sub(now_ms());
        let left = left
            .ok_or_else(|| io::Error::other("the messages took too long to accept; some were due already"))?;
        // Consumers start shortly before the first message is due.
        tokio::time::sleep(Duration::from_millis(left.saturating_sub(500))).await;
        let seen = Rc::new(RefCell::new(Seen::new(total)));
        let began = Instant::now();
        join(consumer.start(&target.addresses, consumers, &seen).await?).await?;
        let seen = seen.take();
        let seconds = seen.acked.map_or(0.0, |acked| (acked - began).as_secs_f64());
        Ok(Outcome { messages: total, seconds, all: total, seen: Some(seen), ..Outcome::default() })
    })
}

/// The answer of a node to a GET.
pub(crate) fn look(address: SocketAddr, path: &str) -> io::Result<serde_json::Value> {
    run(async {
        let mut line = Connection::open(address, Speech::Http).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n");
        let answer = line.call(request.as_bytes(), 1).await?;
        let body = find(answer, b"\r\n\r\n").map_or(answer.len(), |head| head + 4);
        serde_json::from_slice(&answer[body..]).map_err(io::Error::other)
    })
}

type Work = JoinHandle<io::Result<()>>;

fn all(target: &Target, lines: Vec<Connection>, depth: usize, total: u64, due: Due) -> Vec<Work> {
    let next = Rc::new(Cell::new(0));
    lines
        .into_iter()
        .map(|mut line| {
            let (next, mut producer) = (next.clone(), target.producer(due));
            tokio::task::spawn_local(async move {
                let mut out = Vec::new();
                while next.get() < total {
                    send(&mut line, &mut producer, depth, total, &next, &mut out).await?;
                }
                Ok(())
            })
        })
        .collect()
}

/// Sends this number of requests, and reads the replies.
async fn send(
    line: &mut Connection,
    producer: &mut Producer,
    depth: usize,
    total: u64,
    next: &Cell<u64>,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let per_request = producer.way.per_request();
    let first = next.get();
    let end = total.min(first + depth as u64 * per_request);
    next.set(end);
    out.clear();
    producer.requests(first..end, out);
    let requests = (end - first).div_ceil(per_request);
    let replies = line.call(out, usize::try_from(requests).unwrap_or(usize::MAX)).await?;
    // The last request may be a smaller one.
    if (end - first).is_multiple_of(per_request) && !producer.way.accepts(requests, replies) {
        let start = String::from_utf8_lossy(&replies[..replies.len().min(400)]).into_owned();
        return Err(io::Error::other(format!("not every message was taken: {start}")));
    }
    Ok(())
}

fn run<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, work)
}

async fn join(tasks: Vec<Work>) -> io::Result<()> {
    for task in tasks {
        task.await.map_err(io::Error::other)??;
    }
    Ok(())
}
