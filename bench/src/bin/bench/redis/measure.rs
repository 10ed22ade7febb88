//! One measurement: a fresh Redis, fresh nodes, a load, and the cost of all of them.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use duewheel_bench::process::processor_time;

use crate::redis::backend::{Backend, Fsync, Used};
use crate::redis::bullmq::Bullmq;
use crate::redis::consumer::{Consumer, QUEUE};
use crate::redis::homemade::Homemade;
use crate::redis::load::{self, Outcome, Shape, Target};
use crate::redis::node::{Fellows, Node};
use crate::redis::parts;
use crate::redis::producer::{Keys, SendMethod};
use crate::redis::store::{Owner, Phase};
use crate::redis::system::{Run, System};

/// Many in flight.
pub(crate) const PIPELINED: Shape = Shape { connections: 8, depth: 100 };
/// A request of a batch has as many messages as ten connections have in flight otherwise.
pub(crate) const BATCHES: Shape = Shape { connections: 8, depth: 1 };
/// Calls of BullMQ in progress, and jobs of one.
pub(crate) const BULK: (usize, usize) = (4, 500);
const SCRIPT: usize = 100;
const NDJSON: usize = 1_000;
/// Groups of a measurement of the store alone, at most.
const STORE_GROUPS: usize = 4_000;
const SHARDS: u32 = 16;
const NODES: usize = 3;
/// The delay in the run from end to end.
pub(crate) const DELAY_MS: u64 = 1_000;
const POLL: Duration = Duration::from_millis(10);
const SLOW_POLL: Duration = Duration::from_millis(100);
/// The time limit for the assignment of shards to nodes.
const SETTLED: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);
const WARM: Duration = Duration::from_secs(1);

/// A row of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Case {
    pub(crate) run: Run,
    pub(crate) fsync: Fsync,
    pub(crate) system: System,
}

/// The result of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) rate: f64,
    /// Of a connection's requests.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// Of one message.
    pub(crate) redis: Used,
    pub(crate) nodes_us: f64,
    pub(crate) clients_us: f64,
    pub(crate) late: Option<Late>,
}

/// How late messages were, in ms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
    pub(crate) per_group: f64,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:8.0}/s, us each: Redis {:.1}, nodes {:.1}, clients {:.1}; {:.0} B",
            self.rate, self.redis.processor_us, self.nodes_us, self.clients_us, self.redis.memory_bytes
        )?;
        self.late
            .map_or(Ok(()), |late| write!(f, "; late p50 {} p99 {} max {}", late.p50, late.p99, late.max))
    }
}

/// The parameters of all measurements.
#[derive(Clone, Debug)]
pub(crate) struct Measure {
    pub(crate) time: Duration,
    pub(crate) body: usize,
    /// Connections of the run with one message at a time.
    pub(crate) singles: usize,
    pub(crate) consumers: usize,
    /// Messages from end to end, and jobs of BullMQ's.
    pub(crate) messages: u64,
    pub(crate) jobs: u64,
    pub(crate) due_rate: u64,
    pub(crate) due_time: Duration,
    pub(crate) bullmq: Option<Bullmq>,
}

impl Measure {
    pub(crate) fn measure(&self, case: Case) -> io::Result<Figure> {
        let backend = match case.system {
            System::OneNodeCluster | System::ThreeNodes => Backend::cluster(NODES, case.fsync)?,
            _ => Backend::one(case.fsync)?,
        };
        if case.system.is_bullmq() {
            return self.bullmq(case, &backend);
        }
        if let Some(group) = case.system.group() {
            return self.store(case.run, group, &backend);
        }
        if let (Some(parts), Backend::One(redis)) = (case.system.parts(), &backend) {
            let before = (backend.used()?, processor_time());
            let time = parts::write(redis, parts, self.messages, self.body)?;
            let (used, own) = (backend.used()? - before.0, processor_time() - before.1);
            return Ok(figure(&untimed(self.messages, time), used, Duration::ZERO, own));
        }
        let nodes = nodes(case.system, &backend.url())?;
        let target = Target {
            addresses: addresses(case, &backend, &nodes)?,
            way: way(case, &backend)?,
            queue: QUEUE,
            body: self.body,
        };
        let consumer = consumer(case, &backend)?;
        if !matches!(case.run, Run::Pipelined | Run::Alone | Run::Through | Run::Late) {
            settle(&target, nodes.len())?;
        }
        let before = (backend.used()?, processor(&nodes), processor_time());
        let shape = match (case.run, &target.way) {
            (_, SendMethod::Ndjson(..)) => BATCHES,
            // As many messages in flight as with single ones.
            (_, SendMethod::Homemade(_, n)) if *n > 1 => {
                Shape { depth: PIPELINED.depth.div_ceil(*n), ..PIPELINED }
            }
            (Run::Alone, _) | (_, SendMethod::Http) => Shape { connections: self.singles, depth: 1 },
            _ => PIPELINED,
        };
        let consumers = (&consumer, self.consumers(case));
        let outcome = match case.run {
            Run::Pipelined | Run::Alone | Run::Nodes | Run::Forwarded => {
                load::enqueue(&target, shape, self.time)?
            }
            Run::Through | Run::NodesThrough | Run::ForwardedThrough | Run::ForwardedBatches => {
                load::through(&target, shape, consumers, (self.messages, DELAY_MS))?
            }
            Run::Late => load::come_due(&target, shape, consumers, (self.due_rate, self.due_time))?,
            Run::Parts | Run::StorePut | Run::StoreGrant | Run::StoreAck => {
                return Err(io::Error::other("a run without a server"));
            }
        };
        let used = backend.used()? - before.0;
        Ok(figure(&outcome, used, processor(&nodes) - before.1, processor_time() - before.2))
    }

    fn store(&self, run: Run, group: usize, backend: &Backend) -> io::Result<Figure> {
        let phase = match run {
            Run::StorePut => Phase::Put,
            Run::StoreGrant => Phase::Grant,
            _ => Phase::Ack,
        };
        let most = usize::try_from(self.messages).unwrap_or(usize::MAX);
        let count = most.min(STORE_GROUPS * group).next_multiple_of(group);
        let mut owner = Owner::open(&backend.url(), self.body)?;
        owner.prepare(phase, count)?;
        let before = (backend.used()?, processor_time());
        let time = owner.append(phase, count, group)?;
        let (used, own) = (backend.used()? - before.0, processor_time() - before.1);
        Ok(figure(&untimed(count as u64, time), used, Duration::ZERO, own))
    }

    fn consumers(&self, case: Case) -> usize {
        match (case.run, case.system) {
            // The usual queue has one poller.
            (Run::Late, System::Homemade | System::HomemadeSlow) => 1,
            (_, System::Http) | (Run::ForwardedThrough, _) => self.singles,
            _ => self.consumers,
        }
    }

    fn bullmq(&self, case: Case, backend: &Backend) -> io::Result<Figure> {
        let (Some(bullmq), Backend::One(redis)) = (&self.bullmq, backend) else {
            return Err(io::Error::other("BullMQ is not installed"));
        };
        let calls = if case.system == System::BullmqBulk { BULK } else { (self.singles, 1) };
        let before = backend.used()?;
        let (outcome, clients) = if case.run == Run::Through {
            bullmq.through(redis, calls, (self.jobs, DELAY_MS), self.body)?
        } else {
            bullmq.add(redis, calls, (self.time, self.body))?
        };
        Ok(figure(&outcome, backend.used()? - before, Duration::ZERO, clients))
    }
}

fn nodes(system: System, store: &str) -> io::Result<Vec<Node>> {
    if !system.is_duewheel() {
        return Ok(Vec::new());
    }
    match system {
        System::ThreeNodes => {
            (0..NODES).map(|number| Node::start(store, Fellows::Several { number, shards: SHARDS })).collect()
        }
        System::AtOwner | System::AtOther => {
            (0..2).map(|number| Node::start(store, Fellows::Several { number, shards: 1 })).collect()
        }
        System::OneNode | System::OneNodeCluster => {
            Ok(vec![Node::start(store, Fellows::Alone { shards: SHARDS })?])
        }
        System::NdjsonLog => Ok(vec![Node::start("log", Fellows::OwnLog)?]),
        _ => Ok(vec![Node::start(store, Fellows::Alone { shards: 1 })?]),
    }
}

fn way(case: Case, backend: &Backend) -> io::Result<SendMethod> {
    Ok(match case.system {
        System::Homemade | System::HomemadeSlow => SendMethod::Homemade(homemade(backend)?, 1),
        System::HomemadeBatch => SendMethod::Homemade(homemade(backend)?, SCRIPT),
        System::Beanstalk => SendMethod::Beanstalk,
        System::Http => SendMethod::Http,
        _ if matches!(case.run, Run::Forwarded | Run::ForwardedThrough) => SendMethod::Http,
        System::NdjsonKeyed | System::OneNode | System::OneNodeCluster | System::ThreeNodes => {
            SendMethod::Ndjson(NDJSON, Keys::Own)
        }
        _ => SendMethod::Ndjson(NDJSON, Keys::None),
    })
}

fn consumer(case: Case, backend: &Backend) -> io::Result<Consumer> {
    Ok(match case.system {
        System::Homemade => Consumer::Homemade(homemade(backend)?, POLL),
        System::HomemadeSlow => Consumer::Homemade(homemade(backend)?, SLOW_POLL),
        System::Http => Consumer::Http(1),
        _ if case.run == Run::ForwardedThrough => Consumer::Http(1),
        _ => Consumer::Http(NDJSON),
    })
}

fn homemade(backend: &Backend) -> io::Result<Homemade> {
    match backend {
        Backend::One(redis) => Homemade::load(redis),
        Backend::Cluster(_) => Err(io::Error::other("the home-made queue is on one server")),
    }
}

fn addresses(case: Case, backend: &Backend, nodes: &[Node]) -> io::Result<Vec<SocketAddr>> {
    Ok(match (backend, case.system) {
        (_, System::Beanstalk) => nodes.iter().map(|node| node.beanstalk).collect(),
        (_, System::AtOwner | System::AtOther) => {
            let mut of = Vec::new();
            for node in nodes {
                let view = rest(node.http, nodes.len())?;
                let owns = view["shards"][0]["owner"] == view["node"];
                if owns == (case.system == System::AtOwner) {
                    of.push(node.http);
                }
            }
            if of.len() != 1 {
                return Err(io::Error::other("the shard has not one owner"));
            }
            of
        }
        (Backend::One(redis), _) if nodes.is_empty() => vec![redis.address()],
        _ => nodes.iter().map(|node| node.http).collect(),
    })
}

/// Waits until every shard has its owner, and warms up nodes and Redis.
fn settle(target: &Target, nodes: usize) -> io::Result<()> {
    for node in &target.addresses {
        rest(*node, nodes)?;
    }
    let other = Target { queue: "warm", ..target.clone() };
    load::enqueue(&other, BATCHES, WARM).map(|_| ())
}

/// Waits until a node sees this number of nodes and every shard at its owner; returns the cluster as that node sees it.
fn rest(node: SocketAddr, nodes: usize) -> io::Result<serde_json::Value> {
    let until = Instant::now() + SETTLED;
    loop {
        let view = load::look(node, "/v1/cluster")?;
        if is_settled(&view, nodes) {
            return Ok(view);
        }
        if Instant::now() >= until {
            return Err(io::Error::other(format!("shards do not come to rest: {view}")));
        }
        thread::sleep(LOOK);
    }
}

fn is_settled(view: &serde_json::Value, nodes: usize) -> bool {
    let list =
        |name: &str| view.get(name).and_then(|list| list.as_array()).map_or(&[] as &[_], Vec::as_slice);
    let shards = list("shards");
    let at_home = |shard: &serde_json::Value| !shard["owner"].is_null() && shard["owner"] == shard["wanted"];
    list("nodes").len() == nodes && !shards.is_empty() && shards.iter().all(at_home)
}

fn processor(nodes: &[Node]) -> Duration {
    nodes.iter().map(Node::processor_time).sum()
}

fn untimed(messages: u64, time: Duration) -> Outcome {
    Outcome { messages, seconds: time.as_secs_f64(), all: messages, ..Outcome::default() }
}

fn figure(outcome: &Outcome, used: Used, nodes: Duration, clients: Duration) -> Figure {
    let all = outcome.all as f64;
    let seen = outcome.seen.as_ref();
    Figure {
        rate: outcome.messages as f64 / outcome.seconds,
        p50_ms: outcome.p50_ms,
        p99_ms: outcome.p99_ms,
        redis: used.per(all),
        nodes_us: nodes.as_secs_f64() * 1e6 / all,
        clients_us: clients.as_secs_f64() * 1e6 / all,
        late: seen.map(|seen| Late {
            p50: seen.late_ms(500),
            p99: seen.late_ms(990),
            p999: seen.late_ms(999),
            max: seen.max_ms,
            per_group: all / seen.groups.max(1) as f64,
        }),
    }
}
