//! A Redis Cluster on the loopback.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::resp::Value;
use crate::server::Redis;
use crate::settings::Settings;

/// The time without an answer after which the other nodes take a node for dead; a replica is elected a little later.
const NODE_TIMEOUT_MS: u64 = 1_500;
const SLOTS: usize = 16_384;
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(50);

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The node takes writes for its slots.
    Master,
    /// The node follows the master with this number.
    Replica {
        /// The master's number.
        of: usize,
    },
}

/// A node, as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number in this rig.
    pub number: usize,
    /// Its name in the cluster.
    pub name: String,
    /// The address at which it listens.
    pub address: SocketAddr,
    /// Its role.
    pub role: Role,
    /// Its slots, each range with both ends.
    pub slots: Vec<(u16, u16)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Runs,
    Paused,
    Gone,
}

/// Masters with replicas. Nodes have numbers: first all masters, then all replicas, as they were at the start; a
/// failover changes the roles, not the numbers. Dropping it kills all.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
    runs: Vec<Run>,
}

impl RedisCluster {
    /// Starts the nodes, distributes the slots evenly, and waits until all agree that the cluster works and all
    /// replicas follow.
    ///
    /// # Errors
    ///
    /// A node does not start, or they do not agree within a minute.
    pub fn start(masters: usize, replicas_per_master: usize, settings: Settings) -> io::Result<Self> {
        let count = masters * (1 + replicas_per_master);
        let mut nodes: Vec<Redis> = Vec::new();
        for _ in 0..count {
            // The nodes trust each other's certificates over the cluster's bus.
            let certificates = nodes.first().and_then(Redis::certificates);
            let node = Redis::start_of(&settings, Some(NODE_TIMEOUT_MS), certificates)?;
            nodes.push(node);
        }
        let cluster = RedisCluster { runs: vec![Run::Runs; nodes.len()], nodes };
        cluster.make(masters)?;
        cluster.wait_until_well(PATIENCE)?;
        Ok(cluster)
    }

    fn make(&self, masters: usize) -> io::Result<()> {
        for (number, node) in self.nodes.iter().enumerate() {
            // As redis-cli does it, so that no two nodes begin with the same epoch.
            must(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
            if number < masters {
                let (from, until) = (SLOTS * number / masters, SLOTS * (number + 1) / masters);
                must(node, &["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &(until - 1).to_string()])?;
            }
        }
        for node in &self.nodes[1..] {
            let address = node.address();
            let bus = node.bus().ok_or_else(|| io::Error::other("a node without a bus"))?;
            let (ip, port, bus) = (address.ip().to_string(), address.port().to_string(), bus.to_string());
            must(&self.nodes[0], &["CLUSTER", "MEET", &ip, &port, &bus])?;
        }
        let names: Vec<String> = self
            .nodes
            .iter()
            .map(|n| n.quick(&["CLUSTER", "MYID"])?.text().ok_or_else(|| io::Error::other("no name")))
            .collect::<io::Result<_>>()?;
        for (number, node) in self.nodes.iter().enumerate().skip(masters) {
            let of = &names[number % masters];
            // The node must have heard of its master before.
            poll(PATIENCE, "a replica does not meet its master", || {
                Ok(!matches!(node.quick(&["CLUSTER", "REPLICATE", of])?, Value::Error(_)))
            })?;
        }
        Ok(())
    }

    /// All its servers as one URL: `redis-cluster://…,…`, without TLS and without a user.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.addresses().iter().map(ToString::to_string).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// The addresses of all nodes, by their numbers.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Redis::address).collect()
    }

    /// A node.
    pub fn node(&self, number: usize) -> &Redis {
        &self.nodes[number]
    }

    /// All nodes that are known, as the running node with the newest view sees them.
    ///
    /// # Errors
    ///
    /// No node answers.
    pub fn nodes(&self) -> io::Result<Vec<Node>> {
        let mut newest: Option<(u64, Vec<Node>)> = None;
        for node in self.running() {
            let Ok(info) = info(node) else { continue };
            let epoch = number_in(&info, "cluster_current_epoch:");
            if newest.as_ref().is_none_or(|(e, _)| epoch > *e)
                && let Ok(view) = self.seen_by(node)
            {
                newest = Some((epoch, view));
            }
        }
        newest.map(|(_, view)| view).ok_or_else(|| io::Error::other("no node answers"))
    }

    fn running(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().zip(&self.runs).filter(|(_, run)| **run == Run::Runs).map(|(node, _)| node)
    }

    /// The reply of a node to `CLUSTER NODES`.
    fn seen_by(&self, node: &Redis) -> io::Result<Vec<Node>> {
        let text = node.quick(&["CLUSTER", "NODES"])?.text().unwrap_or_default();
        let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split(' ').collect()).collect();
        let number = |row: &[&str]| {
            let address = row.get(1)?.split('@').next()?.parse().ok()?;
            Some((self.nodes.iter().position(|n| n.address() == address)?, address))
        };
        let by_name = |name: &str| {
            rows.iter().find(|r| r.first() == Some(&name)).and_then(|r| number(r)).map(|(n, _)| n)
        };
        let mut all: Vec<Node> = Vec::new();
        for row in &rows {
            let (Some((number, address)), [name, _, flags, master, ..]) = (number(row), row.as_slice())
            else {
                continue;
            };
            let role = if flags.split(',').any(|f| f == "slave") {
                let Some(of) = by_name(master) else { continue };
                Role::Replica { of }
            } else {
                Role::Master
            };
            let slots = row.iter().skip(8).filter_map(|range| slots(range)).collect();
            all.push(Node { number, name: (*name).to_owned(), address, role, slots });
        }
        all.sort_by_key(|n| n.number);
        Ok(all)
    }

    /// The master of a slot.
    ///
    /// # Errors
    ///
    /// No node answers, or none has the slot.
    pub fn master_of_slot(&self, slot: u16) -> io::Result<usize> {
        let nodes = self.nodes()?;
        let has = |n: &&Node| n.slots.iter().any(|(from, until)| (*from..=*until).contains(&slot));
        nodes
            .iter()
            .filter(|n| n.role == Role::Master)
            .find(has)
            .map(|n| n.number)
            .ok_or_else(|| io::Error::new(ErrorKind::NotFound, format!("no master has slot {slot}")))
    }

    /// The slot of a key, by its hash tag if it has one.
    ///
    /// # Errors
    ///
    /// No node answers.
    pub fn slot_of_key(&self, key: &str) -> io::Result<u16> {
        let node = self.running().next().ok_or_else(|| io::Error::other("no node runs"))?;
        let slot = node.quick(&["CLUSTER", "KEYSLOT", key])?.number();
        slot.and_then(|s| u16::try_from(s).ok()).ok_or_else(|| io::Error::other("no slot"))
    }

    /// The master of a key.
    ///
    /// # Errors
    ///
    /// See [`RedisCluster::master_of_slot`].
    pub fn master_of_key(&self, key: &str) -> io::Result<usize> {
        self.master_of_slot(self.slot_of_key(key)?)
    }

    /// The nodes that follow this one.
    ///
    /// # Errors
    ///
    /// No node answers.
    pub fn replicas_of(&self, number: usize) -> io::Result<Vec<usize>> {
        let follows = |n: &Node| n.role == Role::Replica { of: number };
        Ok(self.nodes()?.into_iter().filter(follows).map(|n| n.number).collect())
    }

    /// Kills a node with SIGKILL.
    ///
    /// # Errors
    ///
    /// See [`Redis::kill`].
    pub fn kill(&mut self, number: usize) -> io::Result<()> {
        self.nodes[number].kill()?;
        self.runs[number] = Run::Gone;
        Ok(())
    }

    /// Stops a node with SIGSTOP.
    ///
    /// # Errors
    ///
    /// See [`Redis::pause`].
    pub fn pause(&mut self, number: usize) -> io::Result<()> {
        self.nodes[number].pause()?;
        self.runs[number] = Run::Paused;
        Ok(())
    }

    /// Lets a stopped node continue.
    ///
    /// # Errors
    ///
    /// See [`Redis::resume`].
    pub fn resume(&mut self, number: usize) -> io::Result<()> {
        self.nodes[number].resume()?;
        self.runs[number] = Run::Runs;
        Ok(())
    }

    /// Starts a node again on its folder and port. To wait until the cluster works again:
    /// [`RedisCluster::wait_until_well`].
    ///
    /// # Errors
    ///
    /// See [`Redis::restart`].
    pub fn restart(&mut self, number: usize) -> io::Result<()> {
        self.nodes[number].restart()?;
        self.runs[number] = Run::Runs;
        Ok(())
    }

    /// Kills all running nodes, as simultaneously as possible.
    ///
    /// # Errors
    ///
    /// A node had ended by itself.
    pub fn kill_all(&mut self) -> io::Result<()> {
        for number in 0..self.nodes.len() {
            if self.runs[number] != Run::Gone {
                self.kill(number)?;
            }
        }
        Ok(())
    }

    /// Starts all nodes that do not run, from their append-only files, and waits until the cluster works.
    ///
    /// # Errors
    ///
    /// See [`RedisCluster::restart`] and [`RedisCluster::wait_until_well`].
    pub fn restart_all(&mut self) -> io::Result<()> {
        for number in 0..self.nodes.len() {
            if self.runs[number] == Run::Gone {
                self.restart(number)?;
            }
        }
        self.wait_until_well(PATIENCE)
    }

    /// Waits until a slot has another master than `old`, and all running nodes report a working cluster. Returns the
    /// new master.
    ///
    /// # Errors
    ///
    /// That does not happen within the time.
    pub fn wait_for_failover(&self, slot: u16, old: usize, patience: Duration) -> io::Result<usize> {
        poll(patience, "no failover", || {
            Ok(self.master_of_slot(slot)? != old && self.running().all(|n| info(n).is_ok_and(|i| is_ok(&i))))
        })?;
        self.master_of_slot(slot)
    }

    /// Waits until all nodes run and report a working cluster, all have the same view, and all replicas follow their
    /// masters.
    ///
    /// # Errors
    ///
    /// That does not happen within the time.
    pub fn wait_until_well(&self, patience: Duration) -> io::Result<()> {
        poll(patience, "the cluster is not well", || {
            let first = self.seen_by(&self.nodes[0])?;
            if first.len() < self.nodes.len() {
                return Ok(false);
            }
            for (number, node) in self.nodes.iter().enumerate() {
                let follows = || {
                    let text = node.quick(&["INFO", "replication"])?.text().unwrap_or_default();
                    Ok::<_, io::Error>(text.contains("master_link_status:up"))
                };
                let replica = first[number].role != Role::Master;
                if !is_ok(&info(node)?) || self.seen_by(node)? != first || (replica && !follows()?) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }
}

fn info(node: &Redis) -> io::Result<String> {
    Ok(node.quick(&["CLUSTER", "INFO"])?.text().unwrap_or_default())
}

fn is_ok(info: &str) -> bool {
    info.contains("cluster_state:ok")
}

fn number_in(info: &str, name: &str) -> u64 {
    info.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0)
}

/// `17` or `17-42`; none for slots that are moving.
fn slots(range: &str) -> Option<(u16, u16)> {
    let (from, until) = range.split_once('-').unwrap_or((range, range));
    Some((from.parse().ok()?, until.parse().ok()?))
}

fn must(node: &Redis, words: &[&str]) -> io::Result<Value> {
    match node.command(words)? {
        Value::Error(e) => Err(io::Error::other(format!("{words:?}: {e}"))),
        value => Ok(value),
    }
}

/// Repeats a check until it succeeds. Errors count as failed checks: a node may be away for a while.
fn poll(patience: Duration, otherwise: &str, mut is_so: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        let last = match is_so() {
            Ok(true) => return Ok(()),
            Ok(false) => String::new(),
            Err(e) => format!(": {e}"),
        };
        if Instant::now() >= deadline {
            return Err(io::Error::new(ErrorKind::TimedOut, format!("{otherwise}{last}")));
        }
        std::thread::sleep(STEP);
    }
}
