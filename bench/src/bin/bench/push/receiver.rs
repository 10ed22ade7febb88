//! A receiver that costs as little as possible: it reads requests, notes when they were due, and answers.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::push::now_ms;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
/// Lateness is counted up to this many ms; the last place is for all above.
const PLACES: usize = 60_000;

pub(crate) struct PushReceiver {
    address: SocketAddr,
    seen: Arc<Arrivals>,
    _runtime: tokio::runtime::Runtime,
}

struct Arrivals {
    count: AtomicU64,
    hung: AtomicU64,
    begun: Instant,
    /// Of the first and the latest request, in ns since `begun`.
    first: AtomicU64,
    last: AtomicU64,
    lateness: Mutex<Vec<u32>>,
}

impl PushReceiver {
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let seen = Arc::new(Arrivals {
            count: AtomicU64::new(0),
            hung: AtomicU64::new(0),
            begun: Instant::now(),
            first: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(0),
            lateness: Mutex::new(vec![0; PLACES + 1]),
        });
        let arrivals = seen.clone();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, arrivals.clone()));
            }
        });
        Ok(PushReceiver { address, seen, _runtime: runtime })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a target. That of `hang` never answers.
    pub(crate) fn url(&self, target: &str) -> String {
        format!("http://{}/{target}", self.address)
    }

    pub(crate) fn reset(&self) {
        self.seen.count.store(0, Ordering::SeqCst);
        self.seen.first.store(u64::MAX, Ordering::SeqCst);
        self.seen.last.store(0, Ordering::SeqCst);
        self.seen.lateness.lock().unwrap_or_else(PoisonError::into_inner).fill(0);
    }

    /// Requests that were answered.
    pub(crate) fn count(&self) -> u64 {
        self.seen.count.load(Ordering::SeqCst)
    }

    /// Requests that were not, over all rounds.
    pub(crate) fn hung(&self) -> u64 {
        self.seen.hung.load(Ordering::SeqCst)
    }

    /// Requests a second, from the first to the latest one.
    #[allow(clippy::cast_precision_loss, reason = "counts and times of a benchmark")]
    pub(crate) fn per_second(&self) -> f64 {
        let (first, last) = (self.seen.first.load(Ordering::SeqCst), self.seen.last.load(Ordering::SeqCst));
        self.count() as f64 / Duration::from_nanos(last.saturating_sub(first)).as_secs_f64()
    }

    /// Lateness in ms that so many of a thousand do not exceed.
    pub(crate) fn lateness_ms(&self, permille: u64) -> u64 {
        let lateness = self.seen.lateness.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = (self.count() * permille).div_ceil(1_000);
        let mut seen = 0;
        for (ms, count) in (0..).zip(&*lateness) {
            seen += u64::from(*count);
            if seen >= wanted {
                return ms;
            }
        }
        u64::MAX
    }
}

impl Arrivals {
    fn arrived(&self, head: &[u8]) {
        let now = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.first.fetch_min(now, Ordering::Relaxed);
        self.last.fetch_max(now, Ordering::Relaxed);
        if let Some(due) = field(head, b"\r\nduewheel-due-at: ").and_then(ms_of) {
            let late = usize::try_from(now_ms().saturating_sub(due)).unwrap_or(PLACES).min(PLACES);
            self.lateness.lock().unwrap_or_else(PoisonError::into_inner)[late] += 1;
        }
        self.count.fetch_add(1, Ordering::SeqCst);
    }
}

async fn serve(mut stream: TcpStream, seen: Arc<Arrivals>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(4_096);
    loop {
        let head = loop {
            if let Some(end) = find(&buffer, b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let length = field(&buffer[..head], b"\r\ncontent-length: ");
        let length: usize =
            length.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok()).unwrap_or_default();
        while buffer.len() < head + length {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        if buffer.starts_with(b"POST /hang ") {
            seen.hung.fetch_add(1, Ordering::SeqCst);
            // Until the sender gives up.
            while stream.read_buf(&mut buffer).await? > 0 {}
            return Ok(());
        }
        seen.arrived(&buffer[..head]);
        buffer.drain(..head + length);
        stream.write_all(ANSWER).await?;
    }
}

/// The value of a header, to the end of its line.
fn field<'a>(head: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let from = find(head, name)? + name.len();
    let length = head[from..].iter().position(|b| *b == b'\r')?;
    Some(&head[from..from + length])
}

/// The time of the day of an instant such as `2026-01-01T00:00:00.000Z`, on the present day: enough for lateness, other
/// than around midnight.
fn ms_of(instant: &[u8]) -> Option<u64> {
    const DAY: u64 = 86_400_000;
    let text = std::str::from_utf8(instant).ok()?;
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u64>().ok();
    let (hours, minutes) = (number(11..13)?, number(14..16)?);
    let (seconds, ms) = (number(17..19)?, number(20..23)?);
    Some(now_ms() / DAY * DAY + ((hours * 60 + minutes) * 60 + seconds) * 1_000 + ms)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
