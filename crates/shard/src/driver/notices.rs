//! Log lines for operators: queues without a consumer, each once, and dead messages, of which a queue has a few lines a
//! minute, and a count of the others.

use std::collections::{BTreeMap, VecDeque};

use duewheel_core::engine::Notice;
use duewheel_core::name::QueueName;
use duewheel_core::time::EngineMs;

/// The largest number of lines.
const MAX_SAID: usize = 200;
/// How long a consumer may take to come before a line says that there is none, in ms. Producers usually start first.
const ATTENDED_WITHIN: u64 = 60_000;
/// The number of dead messages of a queue that have a line of their own within [`DEATHS_MS`].
const DEATH_LINES: u64 = 10;
/// How long dead messages of a queue are counted together, in ms.
const DEATHS_MS: u64 = 60_000;

/// The notices that were logged, and the queues that are watched for the next ones.
#[derive(Debug, Default)]
pub(super) struct Notices {
    said: Vec<QueueName>,
    /// Queues without a consumer, reported since the last look.
    fresh: Vec<QueueName>,
    /// Queues without a consumer, with the time of the next look at each; earliest first.
    waiting: VecDeque<(EngineMs, QueueName)>,
    /// The number of messages of a queue that died, and from when on they are counted.
    deaths: BTreeMap<QueueName, (EngineMs, u64)>,
    /// The time of the last look.
    now: EngineMs,
}

impl Notices {
    /// Takes a notice of the engine.
    pub(super) fn take(&mut self, notice: Notice) {
        match notice {
            Notice::Unattended(queue) => {
                if self.said.len() < MAX_SAID && !self.said.contains(&queue) {
                    self.said.push(queue.clone());
                    self.fresh.push(queue);
                }
            }
            Notice::Died { queue, id, key, reason } => {
                if self.counts_death(&queue) {
                    let key = key.as_ref().map(tracing::field::display);
                    tracing::warn!(%queue, %id, key, reason = reason.as_str(), "a message is dead; it is kept");
                }
            }
        }
    }

    /// Counts a death; returns whether it has a line of its own.
    fn counts_death(&mut self, queue: &QueueName) -> bool {
        if self.deaths.len() >= MAX_SAID && !self.deaths.contains_key(queue) {
            return false;
        }
        let (_, count) = self.deaths.entry(queue.clone()).or_insert((self.now, 0));
        *count += 1;
        *count <= DEATH_LINES
    }

    /// The queues of which messages died without a line, with their number, once their minute is over.
    fn uncounted_deaths(&mut self) -> Vec<(QueueName, u64)> {
        let (now, mut found) = (self.now, Vec::new());
        self.deaths.retain(|queue, (since, count)| {
            let is_over = now.0 >= since.0.saturating_add(DEATHS_MS);
            if is_over && *count > DEATH_LINES {
                found.push((queue.clone(), *count - DEATH_LINES));
            }
            !is_over
        });
        found
    }

    /// Logs the queues that have had no consumer for a minute. `ready` gives the number of ready messages of a queue
    /// without a consumer; `None` if it has one, or does not exist any more.
    pub(super) fn look(&mut self, now: EngineMs, ready: impl Fn(&QueueName) -> Option<u64>) {
        self.now = now;
        for (queue, count) in self.uncounted_deaths() {
            tracing::warn!(%queue, count, "more messages have died within a minute; they are kept");
        }
        for queue in self.unattended(now, ready) {
            tracing::warn!(
                %queue,
                "a message has been ready for a minute without a reserve from its queue; it is kept"
            );
        }
    }

    fn unattended(&mut self, now: EngineMs, ready: impl Fn(&QueueName) -> Option<u64>) -> Vec<QueueName> {
        let later = EngineMs(now.0.saturating_add(ATTENDED_WITHIN));
        self.waiting.extend(self.fresh.drain(..).map(|queue| (later, queue)));
        let mut found = Vec::new();
        while self.waiting.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, queue)) = self.waiting.pop_front()
        {
            match ready(&queue) {
                None => self.said.retain(|said| *said != queue),
                // Its messages are gone, or it is paused; others may come.
                Some(0) => self.waiting.push_back((later, queue)),
                Some(_) => found.push(queue),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deaths_have_lines_up_to_a_limit() {
        let (orders, sms) = (QueueName::new("orders").unwrap(), QueueName::new("sms").unwrap());
        let mut notices = Notices::default();
        let lines = |notices: &mut Notices, n| (0..n).filter(|_| notices.counts_death(&orders)).count();
        assert_eq!(lines(&mut notices, 25), 10);
        assert!(notices.counts_death(&sms), "each queue has lines of its own");
        notices.look(EngineMs(59_999), |_| None);
        assert_eq!(lines(&mut notices, 5), 0);
        notices.now = EngineMs(60_000);
        assert_eq!(notices.uncounted_deaths(), [(orders.clone(), 20)]);
        assert_eq!(lines(&mut notices, 1), 1);
        notices.now = EngineMs(120_000);
        assert_eq!(notices.uncounted_deaths(), []);
        assert!(notices.deaths.is_empty());
    }

    /// Story: a producer that starts a second before its consumers got a warning each time.
    #[test]
    fn unattended_queue_is_reported_once() {
        let name = |text: &str| QueueName::new(text).unwrap();
        let (orders, sms) = (name("orders"), name("sms"));
        let mut notices = Notices::default();
        let at = |notices: &mut Notices, s: u64, of_sms| {
            notices.unattended(EngineMs(s * 1_000), |queue| if *queue == sms { of_sms } else { Some(1) })
        };
        notices.take(Notice::Unattended(orders.clone()));
        notices.take(Notice::Unattended(name("sms")));
        assert_eq!(at(&mut notices, 5, Some(1)), []);
        assert_eq!(at(&mut notices, 64, Some(1)), []);
        // The messages of the other are cancelled at this time.
        assert_eq!(at(&mut notices, 65, Some(0)), [name("orders")]);
        notices.take(Notice::Unattended(orders));
        assert_eq!(at(&mut notices, 124, Some(1)), []);
        assert_eq!(at(&mut notices, 125, Some(1)), [name("sms")]);
        assert_eq!(at(&mut notices, 999, Some(1)), []);
        // With a consumer it is reported no more.
        let mut attended = Notices::default();
        attended.take(Notice::Unattended(name("sms")));
        assert_eq!(at(&mut attended, 0, None), []);
        assert_eq!(at(&mut attended, 60, None), []);
        assert!(attended.waiting.is_empty());
    }
}
