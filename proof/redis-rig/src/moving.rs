//! Moves slots from one master of a Redis Cluster to another, step by step as `redis-cli --cluster reshard` does it.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::{RedisCluster, Role};
use crate::resp::Value;

/// The time limit of a `MIGRATE`, in ms.
const MIGRATE_MS: &str = "60000";
/// How long a cluster may be down for a moment, because the machine is busy.
const PATIENCE: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(50);
/// Keys of one `MIGRATE`.
const AT_A_TIME: usize = 100;

/// A slot that is moving: its old master still has it, and some of its keys may be at the new one already.
#[derive(Debug)]
#[must_use = "a slot stays on its way until it is finished or turned back"]
pub struct Moving<'a> {
    cluster: &'a RedisCluster,
    slot: String,
    from: usize,
    to: usize,
}

impl RedisCluster {
    /// Begins to move a slot to another master. No key has moved yet, but Redis refuses missing keys from now on.
    ///
    /// # Errors
    ///
    /// No node answers, or one of the two refuses.
    pub fn begin_move(&self, slot: u16, to: usize) -> io::Result<Moving<'_>> {
        let from = self.master_of_slot(slot)?;
        let moving = Moving { cluster: self, slot: slot.to_string(), from, to };
        let (old, new) = (moving.name(from)?, moving.name(to)?);
        moving.set(to, &["IMPORTING", &old])?;
        moving.set(from, &["MIGRATING", &new])?;
        Ok(moving)
    }

    /// Moves a slot with all its keys to another master.
    ///
    /// # Errors
    ///
    /// See [`RedisCluster::begin_move`] and [`Moving::finish`].
    pub fn move_slot(&self, slot: u16, to: usize) -> io::Result<()> {
        self.begin_move(slot, to)?.finish()
    }
}

impl Moving<'_> {
    /// The keys that are still at the old master.
    ///
    /// # Errors
    ///
    /// The master does not answer.
    pub fn keys(&self) -> io::Result<Vec<String>> {
        self.keys_at(self.from, 1_000_000)
    }

    /// Moves some keys.
    ///
    /// # Errors
    ///
    /// One of the two masters does not answer, or refuses.
    pub fn take(&self, keys: &[String]) -> io::Result<()> {
        self.migrate(self.from, self.to, keys)
    }

    /// Moves the keys that are left, and gives the slot to the new master.
    ///
    /// # Errors
    ///
    /// One of the two masters does not answer, or refuses.
    pub fn finish(self) -> io::Result<()> {
        self.all(self.from, self.to)?;
        let new = self.name(self.to)?;
        // The new master comes first, so that the slot always has an owner.
        self.set(self.to, &["NODE", &new])?;
        self.set(self.from, &["NODE", &new])?;
        let masters = self.cluster.nodes()?.into_iter().filter(|node| node.role == Role::Master);
        for node in masters.filter(|node| ![self.from, self.to].contains(&node.number)) {
            self.set(node.number, &["NODE", &new])?;
        }
        Ok(())
    }

    /// Moves the keys back; the slot stays with the old master.
    ///
    /// # Errors
    ///
    /// One of the two masters does not answer, or refuses.
    pub fn turn_back(self) -> io::Result<()> {
        self.set(self.from, &["STABLE"])?;
        self.all(self.to, self.from)?;
        self.set(self.to, &["STABLE"])
    }

    fn all(&self, from: usize, to: usize) -> io::Result<()> {
        loop {
            let keys = self.keys_at(from, AT_A_TIME)?;
            if keys.is_empty() {
                return Ok(());
            }
            self.migrate(from, to, &keys)?;
        }
    }

    fn keys_at(&self, node: usize, most: usize) -> io::Result<Vec<String>> {
        let most = most.to_string();
        let words = ["CLUSTER", "GETKEYSINSLOT", &self.slot, &most];
        let keys = must(self.cluster, node, &words)?;
        Ok(keys.list().iter().filter_map(Value::text).collect())
    }

    fn migrate(&self, from: usize, to: usize, keys: &[String]) -> io::Result<()> {
        for keys in keys.chunks(AT_A_TIME) {
            let to = self.cluster.node(to).address();
            let (host, port) = (to.ip().to_string(), to.port().to_string());
            let moved = |how: &[&str]| {
                let mut words = vec!["MIGRATE", &host, &port, "", "0", MIGRATE_MS];
                words.extend(how);
                words.push("KEYS");
                words.extend(keys.iter().map(String::as_str));
                must(self.cluster, from, &words).map(drop)
            };
            match moved(&[]) {
                // A write has created the key again at its old master.
                Err(error) if error.to_string().contains("BUSYKEY") => moved(&["REPLACE"])?,
                other => other?,
            }
        }
        Ok(())
    }

    fn set(&self, node: usize, how: &[&str]) -> io::Result<()> {
        let words: Vec<&str> = ["CLUSTER", "SETSLOT", &self.slot].iter().chain(how).copied().collect();
        must(self.cluster, node, &words).map(drop)
    }

    fn name(&self, node: usize) -> io::Result<String> {
        must(self.cluster, node, &["CLUSTER", "MYID"])?.text().ok_or_else(|| io::Error::other("no name"))
    }
}

/// Repeats what a node, or the one that it hands keys to, refuses because it has not heard of another one for a moment:
/// nothing of it was done, or a part that is left out the next time.
fn must(cluster: &RedisCluster, node: usize, words: &[&str]) -> io::Result<Value> {
    let begun = Instant::now();
    loop {
        match cluster.node(node).command(words)? {
            Value::Error(e) if e.contains("CLUSTERDOWN") && begun.elapsed() < PATIENCE => {
                thread::sleep(AGAIN)
            }
            Value::Error(e) => return Err(io::Error::other(format!("node {node}: {words:?}: {e}"))),
            value => return Ok(value),
        }
    }
}
