//! The number of decisions of one core: the engine alone, and the driver over the memory store. `bench/run engine
//! [messages]`

use std::sync::Arc;
use std::time::Instant;

use duewheel::core::engine::{Config, Enqueue, Op, Reply, Reserve, Reserved, WaiterId, When};
use duewheel::core::id::SessionId;
use duewheel::core::name::{Key, QueueName};
use duewheel::core::store::{MemoryDisk, MemoryStore, Store};
use duewheel::core::time::Now;
use duewheel_shard::driver::Driver;
use duewheel_shard::inbox::{Answers, Submission, WhenBusy};
use tokio::sync::oneshot;

pub(crate) fn main() {
    let n: u64 = std::env::args().nth(2).map_or(1_000_000, |a| a.parse().expect("a number of messages"));
    let _ = MemoryDisk::default();
    let mut store = MemoryStore::new();
    let recovered = store.recovered();
    let mut now = Now::whole(0, 1_700_000_000_000);
    let config = Config {
        seed: 1,
        policy: duewheel::Policy { max_messages: 100_000_000, ..Default::default() },
        ..Config::default()
    };
    let mut driver = Driver::new(store, recovered, config, now).expect("a ring");
    while !driver.is_open() {
        driver.step(now, &mut Vec::new()).expect("memory does not fail");
    }
    let queue = QueueName::new("q").expect("a name");
    let body: Arc<[u8]> = vec![7u8; 100].into();
    let mut random = 88_172_645_463_325_252u64;
    let mut step = |now: Now, ops: Vec<Op>| -> Answers {
        let (answer, mut answers) = oneshot::channel();
        driver
            .step(now, &mut vec![Submission { ops, answer, patience: WhenBusy::Refuse, has_waited: false }])
            .expect("memory does not fail");
        answers.try_recv().expect("answered at once")
    };
    for keyed in [false, true] {
        let start = Instant::now();
        for batch in 0..n / 1000 {
            let ops = (0..1000)
                .map(|i| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let key = keyed.then(|| Key::new(&format!("order-{}", batch * 1000 + i)).expect("a key"));
                    let when = When::After(random % 3_600_000);
                    Op::Enqueue(Box::new(Enqueue { key, when, ..Enqueue::new(queue.clone(), body.to_vec()) }))
                })
                .collect();
            step(now, ops);
        }
        report(if keyed { "enqueue, keyed" } else { "enqueue" }, n, start);
        now = Now::whole(now.engine.0 + 3_600_000, now.wall.0 + 3_600_000);
        let start = Instant::now();
        let (mut granted, mut acks) = (0u64, Vec::new());
        while granted < n {
            let demand = Op::Reserve(Reserve {
                waiter: WaiterId(granted),
                queues: vec![queue.clone()],
                max: 1000,
                max_bytes: usize::MAX,
                wait_ms: 0,
                lease_ms: None,
                session: SessionId::NONE,
                max_of: Vec::new(),
                max_attempts: None,
                deadline_margin_ms: None,
            });
            acks.push(demand);
            let answers = step(now, std::mem::take(&mut acks));
            let Some(Ok(Reply::Reserve(Reserved::Grants(grants)))) = answers.last() else {
                panic!("{answers:?}")
            };
            granted += grants.len() as u64;
            acks = grants
                .iter()
                .map(|g| Op::Ack { id: g.message.id, proof: g.token.into(), result: None })
                .collect();
        }
        step(now, acks);
        report("fire + reserve + ack", n, start);
    }
}

fn report(what: &str, n: u64, start: Instant) {
    let s = start.elapsed().as_secs_f64();
    println!("{what:24} {:>10.0} /s {:>8.0} ns", n as f64 / s, s / n as f64 * 1e9);
}
