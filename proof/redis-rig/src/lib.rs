//! Real Redis servers for tests and benchmarks: one ([`Redis`]), a Redis Cluster ([`RedisCluster`]), and a network
//! between them and a client that can be cut ([`Proxy`]).
//!
//! Everything is private to the caller: loopback, unused ports, folders of its own, processes that end with their
//! owner. The calls block, and the crate uses none of duewheel's own crates, so that each of them may use it in its
//! tests. `DUEWHEEL_REDIS` names the binary; the default is `redis-server`.

mod cluster;
mod moving;
mod port;
mod proxy;
mod resp;
mod server;
mod settings;
mod tls;

pub use cluster::{Node, RedisCluster, Role};
pub use moving::Moving;
pub use port::free_port;
pub use proxy::{Mode, Proxy};
pub use resp::{Value, Wire};
pub use server::{Redis, answers};
pub use settings::{Appendonly, DataMedium, Login, Settings, Transport, program};
pub use tls::Certificates;
