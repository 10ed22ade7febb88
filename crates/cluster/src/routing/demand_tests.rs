#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small

use std::sync::Arc;

use duewheel_core::id::{Epoch, LeaseToken, MessageId};
use duewheel_core::message::{MessageContent, Options};
use duewheel_core::time::WallMs;

use super::*;

/// Demands, and the actions that they want; each call moves the clock a little.
struct Rig {
    demands: Demands,
    now: u64,
    out: Vec<Action>,
    waiters: u64,
    ids: u64,
}

type Receiver = oneshot::Receiver<Answers>;

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

impl Rig {
    fn new(shards: u32) -> Self {
        Rig { demands: Demands::new(shards, 1_000, 0), now: 0, out: Vec::new(), waiters: 1 << 30, ids: 0 }
    }

    fn join(&mut self, queues: &[&str], max: usize, wait: u64) -> (WaiterId, Receiver) {
        self.waiters += 1;
        let waiter = WaiterId(self.waiters);
        let reserve = Reserve {
            waiter,
            queues: queues.iter().map(|name| queue(name)).collect(),
            max,
            max_bytes: usize::MAX,
            wait_ms: wait,
            lease_ms: None,
            session: SessionId(self.waiters),
            max_of: Vec::new(),
            max_attempts: None,
            deadline_margin_ms: None,
        };
        let (answer, receiver) = oneshot::channel();
        let deadline = self.now + wait * MS;
        let demand = WaitingReserve { reserve, answer, deadline, soon: None, state: DemandState::Waiting };
        self.demands.join(self.now, demand, &mut self.out);
        (waiter, receiver)
    }

    /// The actions wanted since the last call, as text; answers are sent.
    fn wants(&mut self) -> Vec<String> {
        let mut words = Vec::new();
        for action in std::mem::take(&mut self.out) {
            words.push(match action {
                Action::Arm { queue, shard, waiter } => format!("arm {queue} {shard} as {}", waiter.0),
                Action::Withdraw { shard, waiter } => format!("withdraw {} at {shard}", waiter.0),
                Action::Ask { queue, shard, demands } => {
                    let who: Vec<u64> = demands.iter().map(|(arrival, _)| arrival.0).collect();
                    format!("ask {queue} {shard} for {who:?}")
                }
                Action::Look { arrival, .. } => format!("look for {}", arrival.0),
                Action::Answer { to, with } => {
                    let word = match &with {
                        Ok(Reserved::Grants(grants)) => format!("answer {}", grants.len()),
                        Ok(other) => format!("answer {other:?}"),
                        Err(error) => format!("answer {error}"),
                    };
                    drop(to.send(vec![with.map(duewheel_core::engine::Reply::Reserve)]));
                    word
                }
            });
        }
        words
    }

    fn notified(&mut self, name: &str, shard: u32, waiter: u64) {
        self.demands.notified(self.now, &queue(name), ShardId(shard), WaiterId(waiter), &mut self.out);
    }

    fn wait_failed(&mut self, name: &str, shard: u32, waiter: u64) {
        let error = CallError::Overloaded;
        self.demands.wait_failed(
            self.now,
            &queue(name),
            ShardId(shard),
            WaiterId(waiter),
            error,
            &mut self.out,
        );
    }

    /// A shard has answered: each of these waiters got this number of messages.
    fn asked(&mut self, name: &str, shard: u32, gave: &[(u64, usize)]) {
        let grants = |n: usize| {
            (0..n)
                .map(|_| {
                    self.ids += 1;
                    grant(self.ids)
                })
                .collect::<Vec<_>>()
        };
        let mut grants = grants;
        let asked = gave.iter().map(|&(who, n)| (Arrival(who), Ok(grants(n)))).collect();
        self.demands.asked(self.now, &queue(name), ShardId(shard), asked, &mut self.out);
    }

    fn failed(&mut self, name: &str, shard: u32, who: &[u64]) {
        let asked = who.iter().map(|&who| (Arrival(who), Err(CallError::Overloaded))).collect();
        self.demands.asked(self.now, &queue(name), ShardId(shard), asked, &mut self.out);
    }

    fn pass(&mut self, ms: u64) {
        self.now += ms * MS;
        self.demands.at(self.now);
        self.demands.tick(self.now, &mut self.out);
    }
}

pub(crate) fn grant(id: u64) -> Grant {
    Grant {
        message: Arc::new(MessageContent {
            dedupe_id: None,
            id: MessageId(id),
            queue: queue("q"),
            key: None,
            body: bytes::Bytes::new(),
            headers: Vec::new(),
            options: Options::default(),
            enqueued_at: WallMs(0),
        }),
        late: false,
        attempt: 1,
        priority: 0,
        due_at: WallMs(0),
        token: LeaseToken { epoch: Epoch(1), counter: id },
        lease_until: WallMs(0),
        lease_ms: 1,
        lateness_ms: 0,
        generation: 1,
    }
}

#[test]
fn each_shard_has_one_wait() {
    let mut rig = Rig::new(2);
    let _first = rig.join(&["q"], 1, 9_000);
    assert_eq!(rig.wants(), ["arm q 0 as 1", "arm q 1 as 2"]);
    let _second = rig.join(&["q"], 1, 9_000);
    assert!(rig.wants().is_empty(), "the posts are there");
    rig.notified("q", 1, 2);
    assert_eq!(rig.wants(), ["ask q 1 for [1]", "arm q 1 as 3"], "it says if there is more for the next");
    rig.asked("q", 1, &[(1, 1)]);
    assert_eq!(rig.wants(), ["answer 1"]);
    rig.notified("q", 1, 3);
    assert_eq!(rig.wants(), ["ask q 1 for [2]"]);
    rig.asked("q", 1, &[(2, 1)]);
    assert_eq!(rig.wants(), ["answer 1"]);
    let _third = rig.join(&["q"], 1, 9_000);
    assert_eq!(rig.wants(), ["ask q 1 for [3]"], "it had all that was wanted, so there may be more");
    rig.asked("q", 1, &[(3, 0)]);
    assert_eq!(rig.wants(), ["arm q 1 as 4"]);
}

#[test]
fn batch_grows_while_all_are_granted() {
    let mut rig = Rig::new(1);
    let _all: Vec<_> = (0..8).map(|_| rig.join(&["q"], 1, 9_000)).collect();
    rig.wants();
    rig.notified("q", 0, 1);
    assert_eq!(rig.wants(), ["ask q 0 for [1]", "arm q 0 as 2"]);
    rig.asked("q", 0, &[(1, 1)]);
    rig.notified("q", 0, 2);
    assert_eq!(rig.wants(), ["answer 1", "ask q 0 for [2, 3]", "arm q 0 as 3"]);
    rig.asked("q", 0, &[(2, 1), (3, 0)]);
    assert_eq!(rig.wants(), ["answer 1"]);
    rig.notified("q", 0, 3);
    assert_eq!(rig.wants(), ["ask q 0 for [3]", "arm q 0 as 4"], "back in its place, and fewer again");
}

#[test]
fn vain_notices_back_off_exponentially() {
    let mut rig = Rig::new(1);
    let _one = rig.join(&["q"], 1, 900_000);
    let mut waiter = 1;
    let mut pauses = Vec::new();
    rig.wants();
    for _ in 0..12 {
        rig.notified("q", 0, waiter);
        assert_eq!(rig.wants(), ["ask q 0 for [1]"]);
        rig.asked("q", 0, &[(1, 0)]);
        let mut pause = 0;
        waiter += 1;
        loop {
            let wants = rig.wants();
            if wants == [format!("arm q 0 as {waiter}")] {
                break;
            }
            assert!(wants.is_empty(), "{wants:?}");
            pause += 1;
            rig.pass(1);
        }
        pauses.push(pause);
    }
    assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 64, 64, 64, 64, 64]);
    rig.notified("q", 0, waiter);
    rig.asked("q", 0, &[(1, 1)]);
    let _two = rig.join(&["q"], 1, 900_000);
    rig.asked("q", 0, &[(2, 0)]);
    assert!(rig.wants().contains(&format!("arm q 0 as {}", waiter + 1)), "forgotten once it has given");
}

#[test]
fn demand_is_asked_for_serially() {
    let mut rig = Rig::new(2);
    let _one = rig.join(&["a", "b"], 1, 9_000);
    assert_eq!(rig.wants().len(), 4);
    rig.notified("a", 0, 1);
    rig.notified("b", 1, 4);
    assert_eq!(rig.wants(), ["ask a 0 for [1]"]);
    rig.asked("a", 0, &[(1, 0)]);
    assert_eq!(rig.wants(), ["arm a 0 as 5", "ask b 1 for [1]"], "the other one has something, too");
    rig.asked("b", 1, &[(1, 1)]);
    assert_eq!(rig.wants(), ["answer 1"]);
    assert_eq!(
        (rig.demands.len(), rig.demands.count(&queue("a")), rig.demands.count(&queue("b"))),
        (0, (0, 0), (0, 0))
    );
}

#[test]
fn expired_wait_ends_with_pending_answer() {
    for gave in [0, 1] {
        let mut rig = Rig::new(1);
        let (waiter, _receiver) = rig.join(&["q"], 1, 50);
        rig.notified("q", 0, 1);
        rig.wants();
        if gave == 0 {
            rig.demands.cancel(rig.now, waiter, &mut rig.out);
        }
        rig.pass(60);
        assert!(rig.wants().is_empty());
        rig.asked("q", 0, &[(1, gave)]);
        assert_eq!(rig.wants(), [format!("answer {gave}")]);
        assert_eq!(rig.demands.len(), 0);
    }
}

#[test]
fn waits_end_by_time_cancel_session() {
    let mut rig = Rig::new(1);
    let _first = rig.join(&["q"], 1, 50);
    let (second, _receiver) = rig.join(&["q"], 1, 500);
    let (third, _receiver2) = rig.join(&["q"], 1, 500);
    rig.wants();
    assert_eq!(rig.demands.next_wakeup(rig.now), Some(50 * MS));
    rig.pass(49);
    assert!(rig.wants().is_empty());
    rig.pass(1);
    assert_eq!(rig.wants(), ["answer 0"]);
    rig.demands.cancel(rig.now, second, &mut rig.out);
    assert_eq!(rig.wants(), ["answer 0"]);
    rig.demands.close(rig.now, SessionId(third.0), &mut rig.out);
    assert_eq!(rig.wants(), ["answer 0"]);
    assert_eq!(rig.demands.len(), 0);
    rig.pass(4_999);
    assert!(rig.wants().is_empty());
    rig.pass(1);
    assert_eq!(rig.wants(), ["withdraw 1 at 0"]);
    assert!(rig.demands.demands.is_empty() && rig.demands.next_wakeup(rig.now).is_none(), "nothing is left");
}

#[test]
fn demand_without_receiver_is_skipped() {
    let mut rig = Rig::new(1);
    let (_, receiver) = rig.join(&["q"], 1, 9_000);
    let _second = rig.join(&["q"], 1, 9_000);
    rig.wants();
    drop(receiver);
    rig.notified("q", 0, 1);
    assert_eq!(rig.wants(), ["ask q 0 for [2]"]);
    assert_eq!(rig.demands.len(), 1);
}

#[test]
fn demand_fails_when_all_shards_fail() {
    let mut rig = Rig::new(2);
    let _one = rig.join(&["q"], 1, 900_000);
    rig.wants();
    rig.wait_failed("q", 0, 1);
    assert!(rig.wants().is_empty(), "the other may have something");
    rig.pass(100);
    assert_eq!(rig.wants(), ["arm q 0 as 3"]);
    rig.notified("q", 1, 2);
    assert_eq!(rig.wants(), ["ask q 1 for [1]"]);
    rig.failed("q", 1, &[1]);
    assert!(rig.wants()[0].starts_with("answer too many"), "both have failed by now");
}

/// Story: consumers that waited for a second or two were told that the queue was empty, for as long as the store was away.
#[test]
fn wait_ending_during_outage_gets_error() {
    let mut rig = Rig::new(2);
    let _one = rig.join(&["q"], 1, 900_000);
    rig.wants();
    rig.wait_failed("q", 0, 1);
    rig.wait_failed("q", 1, 2);
    assert!(rig.wants()[0].starts_with("answer too many"));
    // The waits at the shards begin again a little before the end, and fail again.
    let _two = rig.join(&["q"], 1, 500);
    rig.pass(100);
    assert_eq!(rig.wants(), ["arm q 0 as 3", "arm q 1 as 4"]);
    rig.pass(400);
    assert!(rig.wants()[0].starts_with("answer too many"));
    // They go on: the shards work again, and have nothing.
    let _three = rig.join(&["q"], 1, 1_500);
    rig.wants();
    rig.pass(1_500);
    assert_eq!(rig.wants()[0], "answer 0");
}

#[test]
fn stale_wait_answer_is_ignored() {
    let mut rig = Rig::new(1);
    let _one = rig.join(&["q"], 1, 900_000);
    rig.wants();
    rig.pass(30_000);
    rig.notified("q", 0, 1);
    assert_eq!(rig.wants(), ["arm q 0 as 2"], "its own wait was over");
    rig.notified("q", 0, 1);
    rig.wait_failed("q", 0, 1);
    assert!(rig.wants().is_empty());
    rig.notified("q", 0, 2);
    assert_eq!(rig.wants(), ["ask q 0 for [1]"]);
}

#[test]
fn session_lease_is_checked_before_deadline() {
    let mut rig = Rig::new(1);
    let (_, _receiver) = rig.join(&["q"], 1, 900_000);
    let arrival = Arrival(1);
    let demand = rig.demands.demands.get_mut(&arrival).unwrap();
    let wakeup = demand.wakeup();
    rig.demands.by_time.remove(&(wakeup, arrival));
    rig.demands.demands.get_mut(&arrival).unwrap().soon = Some(10 * MS);
    rig.demands.by_time.insert((10 * MS, arrival));
    rig.wants();
    rig.pass(10);
    assert_eq!(rig.wants(), ["look for 1"]);
    rig.notified("q", 0, 1);
    assert!(rig.wants().is_empty(), "it is away");
    rig.demands.looked(rig.now, arrival, Some(30 * MS), &mut rig.out);
    assert_eq!(rig.wants(), ["ask q 0 for [1]"], "later than it seemed");
    rig.pass(20);
    rig.asked("q", 0, &[(1, 0)]);
    assert_eq!(rig.wants(), ["look for 1", "arm q 0 as 2"]);
    rig.demands.looked(rig.now, arrival, Some(30 * MS), &mut rig.out);
    assert_eq!(rig.wants(), ["answer DeadlineSoon"]);
}
