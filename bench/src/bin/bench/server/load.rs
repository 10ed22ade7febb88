//! The loads: batches, single messages, and messages that come due.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use duewheel_bench::instant::instant;
use duewheel_judge::rng::Rng;
use tokio::task::LocalSet;

use crate::server::connection::{Connection, find, get, post};

/// Messages of one batch.
pub(crate) const BATCH: usize = 1_000;
const BODY: usize = 100;
const HOUR_MS: u64 = 3_600_000;
/// Different requests of one connection, sent in turn.
const VARIANTS: usize = 16;

/// The result of a load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) messages: u64,
    pub(crate) seconds: f64,
    /// The median duration of a request, in ms.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

fn body(rng: &mut Rng) -> String {
    (0..BODY).map(|_| char::from(b'a' + u8::try_from(rng.below(26)).unwrap_or(0))).collect()
}

/// Batches of 1000 messages due within an hour, over some connections, one request at a time on each.
pub(crate) fn batches(address: SocketAddr, connections: usize, time: Duration) -> io::Result<Outcome> {
    let request = |rng: &mut Rng| {
        let lines: String = (0..BATCH)
            .map(|_| format!("{{\"body\":\"{}\",\"delay_ms\":{}}}\n", body(rng), rng.below(HOUR_MS)))
            .collect();
        post("/v1/queues/bench/messages", "application/x-ndjson", lines.as_bytes())
    };
    let check = |status: u16, body: &[u8]| {
        let lines = body.iter().filter(|b| **b == b'\n').count();
        status == 200 && lines == BATCH && find(&body[..200.min(body.len())], b"\"id\":").is_some()
    };
    run(address, connections, time, BATCH as u64, request, check)
}

/// Single messages due within an hour.
pub(crate) fn singles(address: SocketAddr, connections: usize, time: Duration) -> io::Result<Outcome> {
    let request = |rng: &mut Rng| {
        let body = format!("{{\"body\":\"{}\",\"delay_ms\":{}}}", body(rng), rng.below(HOUR_MS));
        post("/v1/queues/bench/messages", "application/json", body.as_bytes())
    };
    run(address, connections, time, 1, request, |status, _| status == 201)
}

fn run(
    address: SocketAddr,
    connections: usize,
    time: Duration,
    per_request: u64,
    request: impl Fn(&mut Rng) -> Vec<u8>,
    check: impl Fn(u16, &[u8]) -> bool + Clone + 'static,
) -> io::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let times: Rc<RefCell<Vec<u32>>> = Rc::default();
    let mut rng = Rng::new(1);
    let requests: Vec<Vec<Vec<u8>>> =
        (0..connections).map(|_| (0..VARIANTS).map(|_| request(&mut rng)).collect()).collect();
    let local = LocalSet::new();
    let warm = time / 5;
    let (first, last) = (Instant::now() + warm, Instant::now() + warm + time);
    let tasks: Vec<_> = requests
        .into_iter()
        .map(|mine| {
            let (times, check) = (times.clone(), check.clone());
            local.spawn_local(async move {
                let mut connection = Connection::open(address).await?;
                for request in mine.iter().cycle() {
                    let sent = Instant::now();
                    if sent >= last {
                        break;
                    }
                    let (status, body) = connection.call(request).await?;
                    if !check(status, body) {
                        let start = String::from_utf8_lossy(&body[..300.min(body.len())]).into_owned();
                        return Err(io::Error::other(format!("answer {status}: {start}")));
                    }
                    let done = Instant::now();
                    if sent >= first && done <= last {
                        let us = u32::try_from((done - sent).as_micros()).unwrap_or(u32::MAX);
                        times.borrow_mut().push(us);
                    }
                }
                io::Result::Ok(())
            })
        })
        .collect();
    runtime.block_on(local.run_until(async {
        for task in tasks {
            task.await.map_err(io::Error::other)??;
        }
        io::Result::Ok(())
    }))?;
    let mut times = times.take();
    times.sort_unstable();
    let at = |permille: usize| {
        times.get(times.len() * permille / 1_000).map_or(0.0, |us| f64::from(*us) / 1_000.0)
    };
    Ok(Outcome {
        messages: times.len() as u64 * per_request,
        seconds: time.as_secs_f64(),
        p50: at(500),
        p99: at(990),
    })
}

/// The observations of consumers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lateness {
    /// Grants by lateness in ms; the last element is for everything above.
    pub(crate) by_ms: Vec<u64>,
    pub(crate) max_ms: u64,
    pub(crate) granted: u64,
    /// Requests that returned messages.
    pub(crate) reserves: u64,
}

impl Lateness {
    /// The lateness that this number of a thousand messages does not exceed.
    pub(crate) fn at(&self, permille: u64) -> u64 {
        let wanted = (self.granted * permille).div_ceil(1_000);
        let mut sum = 0;
        let found = self.by_ms.iter().position(|n| {
            sum += n;
            sum >= wanted
        });
        found.unwrap_or(self.by_ms.len()) as u64
    }

    fn add(&mut self, ms: u64) {
        self.granted += 1;
        self.max_ms = self.max_ms.max(ms);
        let place = usize::try_from(ms).unwrap_or(usize::MAX).min(self.by_ms.len() - 1);
        self.by_ms[place] += 1;
    }
}

/// `rate` messages/s come due for `time`, all accepted before; consumers reserve and ack in batches.
pub(crate) fn come_due(
    address: SocketAddr,
    rate: u64,
    time: Duration,
    consumers: usize,
) -> io::Result<Lateness> {
    let total = rate * time.as_secs();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    let prepare = Duration::from_secs(3) + Duration::from_millis(total / 100);
    let start_ms = u64::try_from((wall + prepare).as_millis()).map_err(io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let seen = Rc::new(RefCell::new(Lateness { by_ms: vec![0; 60_000], ..Lateness::default() }));
    let local = LocalSet::new();
    runtime.block_on(local.run_until(async {
        enqueue_spread(address, total, start_ms, time).await?;
        let late = UNIX_EPOCH + Duration::from_millis(start_ms);
        if SystemTime::now() > late {
            return Err(io::Error::other("the messages took too long to accept; the first were due already"));
        }
        let tasks: Vec<_> =
            (0..consumers).map(|_| local.spawn_local(consume(address, total, seen.clone()))).collect();
        for task in tasks {
            task.await.map_err(io::Error::other)??;
        }
        io::Result::Ok(())
    }))?;
    Ok(seen.take())
}

async fn enqueue_spread(address: SocketAddr, total: u64, start_ms: u64, time: Duration) -> io::Result<()> {
    let mut connection = Connection::open(address).await?;
    let mut rng = Rng::new(2);
    let body = body(&mut rng);
    let span = u64::try_from(time.as_millis()).map_err(io::Error::other)?;
    let mut sent = 0;
    while sent < total {
        let n = (BATCH as u64).min(total - sent);
        let mut lines = String::new();
        for i in sent..sent + n {
            let due = instant(start_ms + i * span / total);
            lines.push_str(&format!("{{\"body\":\"{body}\",\"due_at\":\"{due}\"}}\n"));
        }
        let request = post("/v1/queues/due/messages", "application/x-ndjson", lines.as_bytes());
        let (status, answer) = connection.call(&request).await?;
        if status != 200 || find(answer, b"\"code\"").is_some() {
            return Err(io::Error::other(format!("answer {status}")));
        }
        sent += n;
    }
    Ok(())
}

async fn consume(address: SocketAddr, total: u64, seen: Rc<RefCell<Lateness>>) -> io::Result<()> {
    let mut connection = Connection::open(address).await?;
    let reserve = post("/v1/queues/due/reserve", "application/json", b"{\"max\":1000,\"wait_ms\":1000}");
    let mut acks = String::new();
    let mut quiet = 0;
    while seen.borrow().granted < total {
        let (status, answer) = connection.call(&reserve).await?;
        if status != 200 {
            return Err(io::Error::other(format!("answer {status}")));
        }
        acks.clear();
        acks.push_str("{\"messages\":[");
        let text = std::str::from_utf8(answer).map_err(io::Error::other)?;
        let mut found = 0;
        {
            let mut seen = seen.borrow_mut();
            for grant in text.split("{\"id\":\"").skip(1) {
                let value = |name: &str| {
                    grant
                        .find(name)
                        .map(|at| &grant[at + name.len()..])
                        .and_then(|rest| rest.split(['"', ',', '}']).next())
                };
                let (id, token) = (grant.split('"').next(), value("\"lease_token\":\""));
                let late = value("\"lateness_ms\":").and_then(|n| n.parse().ok());
                let (Some(id), Some(token), Some(late)) = (id, token, late) else {
                    return Err(io::Error::other("a grant without id, token or lateness"));
                };
                seen.add(late);
                let comma = if found == 0 { "" } else { "," };
                acks.push_str(&format!("{comma}{{\"id\":\"{id}\",\"lease_token\":\"{token}\"}}"));
                found += 1;
            }
            seen.reserves += u64::from(found > 0);
        }
        if found == 0 {
            quiet += 1;
            if quiet > 60 {
                return Err(io::Error::other("messages are missing"));
            }
            continue;
        }
        quiet = 0;
        acks.push_str("]}");
        let (status, answer) = connection.call(&post("/v1/ack", "application/json", acks.as_bytes())).await?;
        if status != 200 || find(answer, b"\"code\"").is_some() {
            return Err(io::Error::other(format!("ack: answer {status}")));
        }
    }
    Ok(())
}

/// The number of messages that a queue reports as accepted.
pub(crate) fn accepted(address: SocketAddr) -> io::Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut connection = Connection::open(address).await?;
        let (_, answer) = connection.call(&get("/v1/queues/bench")).await?;
        let text = std::str::from_utf8(answer).map_err(io::Error::other)?;
        let n = text
            .split("\"totals\":{\"enqueued\":")
            .nth(1)
            .and_then(|rest| rest.split(',').next()?.parse().ok());
        n.ok_or_else(|| io::Error::other("no totals"))
    })
}
