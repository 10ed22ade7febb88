//! Log lines for operators about queues, each once for a queue: a line in every round would be of no use.

use std::collections::VecDeque;

use duewheel_core::engine::Notice;
use duewheel_core::name::QueueName;
use duewheel_core::time::EngineMs;

/// The largest number of lines.
const MAX_SAID: usize = 200;
/// How long a consumer may take to come before a line says that there is none, in ms. Producers usually start first.
const ATTENDED_WITHIN: u64 = 60_000;

/// The notices that were logged, and the queues that are watched for the next ones.
#[derive(Debug, Default)]
pub(super) struct Notices {
    said: Vec<Notice>,
    /// Queues without a consumer, reported since the last look.
    fresh: Vec<QueueName>,
    /// Queues without a consumer, with the time of the next look at each; earliest first.
    waiting: VecDeque<(EngineMs, QueueName)>,
}

impl Notices {
    /// Takes a notice of the engine.
    pub(super) fn take(&mut self, notice: Notice) {
        if self.said.len() >= MAX_SAID || self.said.contains(&notice) {
            return;
        }
        match &notice {
            Notice::Unattended(queue) => self.fresh.push(queue.clone()),
            Notice::Died(queue) => {
                tracing::warn!(%queue, "a message is dead: it failed too often, or was buried; it is kept");
            }
        }
        self.said.push(notice);
    }

    /// Logs the queues that have had no consumer for a minute. `ready` gives the number of ready messages of a queue
    /// without a consumer; `None` if it has one, or does not exist any more.
    pub(super) fn look(&mut self, now: EngineMs, ready: impl Fn(&QueueName) -> Option<u64>) {
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
                None => self.said.retain(|said| *said != Notice::Unattended(queue.clone())),
                // Its messages are gone; others may come.
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

    /// Story: a producer that starts a second before its consumers got a warning each time.
    #[test]
    fn a_queue_is_reported_after_a_minute_and_once() {
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
