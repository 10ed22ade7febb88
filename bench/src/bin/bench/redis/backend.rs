//! The Redis of each measurement: a fresh one, with an append-only file.

use std::fmt;
use std::io;
use std::ops::Sub;

use duewheel_redis_rig::{Appendonly, DataMedium, Redis, RedisCluster, Settings};

/// When the append-only file is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Fsync {
    /// Each second
    Everysec,
    /// Before each reply
    Always,
}

impl fmt::Display for Fsync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Fsync::Everysec => "everysec",
            Fsync::Always => "always",
        })
    }
}

/// One server, or a cluster of masters.
#[derive(Debug)]
pub(crate) enum Backend {
    One(Redis),
    Cluster(RedisCluster),
}

impl Backend {
    /// One server.
    pub(crate) fn one(fsync: Fsync) -> io::Result<Self> {
        Redis::start(settings(fsync)).map(Backend::One)
    }

    /// So many masters without replicas.
    pub(crate) fn cluster(masters: usize, fsync: Fsync) -> io::Result<Self> {
        RedisCluster::start(masters, 0, settings(fsync)).map(Backend::Cluster)
    }

    fn servers(&self) -> Vec<&Redis> {
        match self {
            Backend::One(redis) => vec![redis],
            Backend::Cluster(cluster) => (0..cluster.addresses().len()).map(|n| cluster.node(n)).collect(),
        }
    }

    /// The value of `--store`.
    pub(crate) fn url(&self) -> String {
        match self {
            Backend::One(redis) => redis.url(0),
            Backend::Cluster(cluster) => {
                let hosts: Vec<String> = cluster.addresses().iter().map(ToString::to_string).collect();
                format!("redis-cluster://{}", hosts.join(","))
            }
        }
    }

    /// The usage of all servers so far.
    pub(crate) fn used(&self) -> io::Result<Used> {
        let mut all = Used::default();
        for redis in self.servers() {
            let reply = redis.command(&["INFO", "everything"])?;
            let text =
                reply.text().ok_or_else(|| io::Error::other(format!("INFO was answered {reply:?}")))?;
            all.add(&text);
        }
        Ok(all)
    }
}

fn settings(fsync: Fsync) -> Settings {
    let appendonly = match fsync {
        Fsync::Everysec => Appendonly::EverySecond,
        Fsync::Always => Appendonly::Always,
    };
    // A rewrite would happen in some measurements and not in others.
    let extra = ["--auto-aof-rewrite-percentage", "0"].map(str::to_owned).to_vec();
    Settings { appendonly, extra, medium: DataMedium::Disk, ..Settings::default() }
}

/// The usage that Redis reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Used {
    /// Processor time of the processes, all threads, in µs.
    pub(crate) processor_us: f64,
    /// The part of it in scripts.
    pub(crate) scripts_us: f64,
    /// Calls of them.
    pub(crate) scripts: f64,
    pub(crate) memory_bytes: f64,
    /// Of the append-only files.
    pub(crate) file_bytes: f64,
    pub(crate) in_bytes: f64,
    pub(crate) out_bytes: f64,
}

impl Used {
    fn add(&mut self, info: &str) {
        for line in info.lines() {
            let Some((name, value)) = line.split_once(':') else { continue };
            let number = || value.trim().parse().unwrap_or(0.0);
            match name {
                "used_cpu_user" | "used_cpu_sys" => self.processor_us += 1e6 * number(),
                "used_memory" => self.memory_bytes += number(),
                "aof_current_size" => self.file_bytes += number(),
                "total_net_input_bytes" => self.in_bytes += number(),
                "total_net_output_bytes" => self.out_bytes += number(),
                "cmdstat_evalsha" | "cmdstat_eval" | "cmdstat_fcall" => {
                    let of = |name: &str| -> f64 {
                        let field = value.split(',').find_map(|field| field.strip_prefix(name));
                        field.and_then(|n| n.parse().ok()).unwrap_or(0.0)
                    };
                    self.scripts_us += of("usec=");
                    self.scripts += of("calls=");
                }
                _ => {}
            }
        }
    }

    /// The usage of one message, given their number.
    pub(crate) fn per(self, count: f64) -> Used {
        Used {
            processor_us: self.processor_us / count,
            scripts_us: self.scripts_us / count,
            scripts: self.scripts / count,
            memory_bytes: self.memory_bytes / count,
            file_bytes: self.file_bytes / count,
            in_bytes: self.in_bytes / count,
            out_bytes: self.out_bytes / count,
        }
    }
}

impl Sub for Used {
    type Output = Used;

    fn sub(self, before: Used) -> Used {
        Used {
            processor_us: self.processor_us - before.processor_us,
            scripts_us: self.scripts_us - before.scripts_us,
            scripts: self.scripts - before.scripts,
            memory_bytes: self.memory_bytes - before.memory_bytes,
            file_bytes: self.file_bytes - before.file_bytes,
            in_bytes: self.in_bytes - before.in_bytes,
            out_bytes: self.out_bytes - before.out_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_off_the_text() {
        let mut used = Used::default();
        used.add("# CPU\r\nused_cpu_sys:0.5\r\nused_cpu_user:1.25\r\nused_cpu_sys_children:9\r\nused_memory:100\r\n");
        used.add(
            "cmdstat_evalsha:calls=2,usec=30,usec_per_call=15.00\r\naof_current_size:7\r\nused_memory:1\r\n",
        );
        let wanted = Used {
            processor_us: 1_750_000.0,
            scripts_us: 30.0,
            scripts: 2.0,
            memory_bytes: 101.0,
            file_bytes: 7.0,
            ..Used::default()
        };
        assert_eq!(used, wanted);
    }
}
