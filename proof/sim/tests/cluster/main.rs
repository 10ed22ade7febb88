//! Three nodes of duewheel on a real Redis, or on a real Redis Cluster of three masters and three replicas, under
//! faults, judged by the checker: nodes that are killed, stopped and cut off (`nodes`), a Redis that is away (`store`),
//! failovers of Redis Cluster (`failover`), a master of it that hangs (`hanging`), slots of it that move (`moving`),
//! steps of its clock (`clocks`), a Redis that has lost everything (`lost`), nodes that come and go (`joining`), nodes
//! that are replaced by those of the next version (`upgrade`), a node that pushes and is killed (`pushes`);
//! and three nodes on a PostgreSQL that is killed, stopped, cut off, and replaced by a standby (`postgres`).
//!
//! Each test is a run as that of `kill9`: its clients work, each at a node of its own, something is done to the
//! cluster, everything is drained, what is left is listed, and the history is judged. A run counts only if its faults
//! provably happened. Meanwhile a probe asks for messages of its own by key, some of each shard, and so measures for
//! how long a shard is with nobody.
//!
//! | variable | |
//! |---|---|
//! | `DUEWHEEL_NODE_KILLS` (3) | how often a node is killed |
//! | `DUEWHEEL_NODE_PAUSES` (3) | how often a node is stopped past its lease |
//! | `DUEWHEEL_PUSHER_KILLS` (1) | how often the node is killed that pushes |
//! | `DUEWHEEL_STORE_FAULTS` (1) | how often a single Redis is killed, stopped, cut off from a node, and away |
//! | `DUEWHEEL_FAILOVERS` (1) | how often a master of Redis Cluster is killed, stopped, and all of it is restarted |
//! | `DUEWHEEL_HANGING_MASTERS` (1) | how often one of several masters hangs while a node dies |
//! | `DUEWHEEL_SLOT_MOVES` (12) | how often the slot of a shard moves from one master to another, or half of the way and back |
//! | `DUEWHEEL_OPEN_SLOTS` (2) | how often such a slot stays open for longer than a lease |
//! | `DUEWHEEL_CLOCK_STEPS` (3) | how often the clock of Redis goes ten minutes forward, or an hour back |
//! | `DUEWHEEL_ROLLS` (1) | how often a node joins and leaves, and all are restarted one after the other |
//! | `DUEWHEEL_UPGRADES` (1) | how often all nodes are replaced by those of the next version, and again by those of this one |
//! | `DUEWHEEL_SEED` | the decisions of another run |
//! | `DUEWHEEL_BIN`, `DUEWHEEL_REDIS`, `DUEWHEEL_KEEP=1` | the binaries; what is left behind is kept |

mod clocks;
mod failover;
mod hanging;
mod joining;
mod lost;
mod moving;
mod nodes;
mod postgres;
mod probe;
mod pushes;
mod stage;
mod store;
mod upgrade;
