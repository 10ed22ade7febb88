//! Consumers: they take due messages, check them, and ack them.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::redis::homemade::{CLAIM, Homemade};
use crate::redis::line::{Connection, Speech, find};
use crate::redis::producer::{DUE_DIGITS, NUMBER_DIGITS, now_ms, push_post};
use crate::redis::resp;

/// The queue that is served over HTTP.
pub(crate) const QUEUE: &str = "bench";
/// Messages that do not arrive for this long are lost.
const SILENCE: Duration = Duration::from_secs(60);

/// The way messages are taken.
#[derive(Clone, Debug)]
pub(crate) enum Consumer {
    /// Polls at this interval, and at once when it got as many as it can take.
    Homemade(Homemade, Duration),
    /// Reserves up to this number, waiting at the server, and acks them in one request.
    Http(usize),
}

/// The observations of consumers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Whether each message has arrived, by number.
    came: Vec<bool>,
    left: u64,
    /// Messages by lateness in ms; the last element is for everything above.
    by_ms: Vec<u64>,
    pub(crate) max_ms: u64,
    /// Messages that arrived more than once.
    pub(crate) again: u64,
    /// Polls or reserves that brought something.
    pub(crate) groups: u64,
    /// Those that brought nothing.
    pub(crate) empty: u64,
    /// When the last ack was answered.
    pub(crate) acked: Option<Instant>,
}

impl Seen {
    pub(crate) fn new(total: u64) -> Self {
        let came = vec![false; usize::try_from(total).unwrap_or_default()];
        Seen { came, left: total, by_ms: vec![0; 60_000], ..Seen::default() }
    }

    fn add(&mut self, body: &[u8], now_ms: u64) -> io::Result<()> {
        let digits = |from: usize, count: usize| {
            let text = std::str::from_utf8(body.get(from..from + count)?).ok()?;
            text.parse::<u64>().ok()
        };
        let (due, number) = (digits(0, DUE_DIGITS), digits(DUE_DIGITS, NUMBER_DIGITS));
        let place = number.and_then(|n| self.came.get_mut(usize::try_from(n).ok()?));
        let (Some(due), Some(came)) = (due, place) else {
            return Err(io::Error::other(format!(
                "a body that nobody sent: {}",
                String::from_utf8_lossy(body)
            )));
        };
        if std::mem::replace(came, true) {
            self.again += 1;
            return Ok(());
        }
        self.left -= 1;
        let late = now_ms.saturating_sub(due);
        self.max_ms = self.max_ms.max(late);
        let place = usize::try_from(late).unwrap_or(usize::MAX).min(self.by_ms.len() - 1);
        self.by_ms[place] += 1;
        Ok(())
    }

    /// The lateness that this number of a thousand messages does not exceed, in ms, by the consumer's clock on
    /// delivery.
    pub(crate) fn late_ms(&self, permille: u64) -> u64 {
        let wanted = ((self.came.len() as u64 - self.left) * permille).div_ceil(1_000);
        let mut sum = 0;
        let found = self.by_ms.iter().position(|n| {
            sum += n;
            sum >= wanted
        });
        found.unwrap_or(self.by_ms.len()) as u64
    }
}

type Shared = Rc<RefCell<Seen>>;

impl Consumer {
    /// Starts this number of consumers, which end when all messages are acked.
    pub(crate) async fn start(
        &self,
        addresses: &[SocketAddr],
        count: usize,
        seen: &Shared,
    ) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
        let mut started = Vec::new();
        for address in addresses.iter().cycle().take(count) {
            let seen = seen.clone();
            started.push(match self.clone() {
                Consumer::Homemade(homemade, interval) => {
                    let line = Connection::open(*address, Speech::Redis).await?;
                    tokio::task::spawn_local(poll(line, homemade, interval, seen))
                }
                Consumer::Http(most) => {
                    let line = Connection::open(*address, Speech::Http).await?;
                    tokio::task::spawn_local(reserve(line, most, seen))
                }
            });
        }
        Ok(started)
    }
}

/// The acks of one poll are sent with the next poll.
async fn poll(mut line: Connection, homemade: Homemade, interval: Duration, seen: Shared) -> io::Result<()> {
    let (mut out, mut ids) = (Vec::new(), Vec::new());
    let mut timer = tokio::time::interval(interval);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = Instant::now();
    while seen.borrow().left > 0 || !ids.is_empty() {
        if ids.len() < CLAIM {
            timer.tick().await;
        }
        out.clear();
        let acked = ids.len();
        if acked > 0 {
            homemade.push_ack(&mut out, &ids);
        }
        homemade.push_poll(&mut out, now_ms());
        let replies = line.call(&out, 1 + usize::from(acked > 0)).await?;
        let ack = format!(":{acked}\r\n");
        if acked > 0 && !replies.starts_with(ack.as_bytes()) {
            return Err(io::Error::other("an ack came too late"));
        }
        if acked > 0 {
            seen.borrow_mut().acked = Some(Instant::now());
        }
        let strings = resp::strings(replies);
        let (names, bodies) = strings.split_at(strings.len() / 2);
        ids.clear();
        ids.extend(names.iter().map(|id| id.to_vec()));
        take(bodies.iter().copied(), &seen, &mut last)?;
    }
    Ok(())
}

async fn reserve(mut line: Connection, most: usize, seen: Shared) -> io::Result<()> {
    let (mut reserve, mut acks, mut ack) = (Vec::new(), Vec::new(), Vec::new());
    let wanted = format!("{{\"max\":{most},\"wait_ms\":500}}");
    push_post(&mut reserve, &format!("/v1/queues/{QUEUE}/reserve"), "application/json", wanted.as_bytes());
    let mut last = Instant::now();
    while seen.borrow().left > 0 {
        let text = std::str::from_utf8(line.call(&reserve, 1).await?).map_err(io::Error::other)?;
        acks.clear();
        acks.extend_from_slice(b"{\"messages\":[");
        let mut bodies = Vec::new();
        for grant in text.split("{\"id\":\"").skip(1) {
            let value = |name: &str| {
                let at = grant.find(name)? + name.len();
                grant[at..].split('"').next()
            };
            let (id, token, body) =
                (grant.split('"').next(), value("\"lease_token\":\""), value("\"body\":\""));
            let (Some(id), Some(token), Some(body)) = (id, token, body) else {
                return Err(io::Error::other("a grant without id, token or body"));
            };
            let comma = if bodies.is_empty() { "" } else { "," };
            acks.extend_from_slice(
                format!("{comma}{{\"id\":\"{id}\",\"lease_token\":\"{token}\"}}").as_bytes(),
            );
            bodies.push(body.as_bytes());
        }
        let count = bodies.len();
        take(bodies.into_iter(), &seen, &mut last)?;
        if count == 0 {
            continue;
        }
        acks.extend_from_slice(b"]}");
        ack.clear();
        push_post(&mut ack, "/v1/ack", "application/json", &acks);
        let answer = line.call(&ack, 1).await?;
        if find(answer, b"\"code\"").is_some() {
            return Err(io::Error::other(format!("ack: {}", String::from_utf8_lossy(answer))));
        }
        seen.borrow_mut().acked = Some(Instant::now());
    }
    Ok(())
}

fn take<'a>(
    bodies: impl ExactSizeIterator<Item = &'a [u8]>,
    seen: &Shared,
    last: &mut Instant,
) -> io::Result<()> {
    let mut seen = seen.borrow_mut();
    if bodies.len() == 0 {
        seen.empty += 1;
        if last.elapsed() > SILENCE {
            return Err(io::Error::other(format!("{} messages do not come", seen.left)));
        }
        return Ok(());
    }
    *last = Instant::now();
    seen.groups += 1;
    let now = now_ms();
    for body in bodies {
        seen.add(body, now)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_counted_once() {
        let mut seen = Seen::new(2);
        seen.add(b"0000000001000000000000001xyz", 1_007).unwrap();
        seen.add(b"0000000001000000000000001xyz", 1_009).unwrap();
        assert_eq!((seen.left, seen.again, seen.late_ms(500), seen.max_ms), (1, 1, 7, 7));
        assert!(seen.add(b"0000000001000000000000002xyz", 0).is_err());
    }
}
