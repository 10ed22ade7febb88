//! The lateness of first grants, by the client's clock, per phase of the run.

use std::collections::BTreeMap;
use std::fmt;

use crate::history::{Call, Told, When};

use super::op::NS;
use super::world::World;

/// Latenesses of one phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// By the client's clock: received − (sent + delay), which is an upper bound. In µs, ascending.
    pub seen_us: Vec<u64>,
    /// As reported by the system, in ms, ascending.
    pub said_ms: Vec<u64>,
}

/// Points of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentiles {
    /// The median.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The largest.
    pub max: u64,
}

impl Percentiles {
    fn of(sorted: &[u64]) -> Option<Self> {
        let last = sorted.len().checked_sub(1)?;
        let at = |per_mille: usize| sorted[(last * per_mille).div_ceil(1_000)];
        Some(Percentiles { p50: at(500), p90: at(900), p99: at(990), max: sorted[last] })
    }
}

impl Lateness {
    /// By the client's clock, in µs.
    pub fn seen(&self) -> Option<Percentiles> {
        Percentiles::of(&self.seen_us)
    }

    /// As reported by the system, in ms.
    pub fn said(&self) -> Option<Percentiles> {
        Percentiles::of(&self.said_ms)
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>7} first grants", self.seen_us.len())?;
        if let Some(seen) = self.seen() {
            let ms = |us: u64| format!("{}.{}", us / 1_000, us / 100 % 10);
            write!(
                f,
                ", seen by the client p50 {} p90 {} p99 {} max {} ms",
                ms(seen.p50),
                ms(seen.p90),
                ms(seen.p99),
                ms(seen.max)
            )?;
        }
        if let Some(said) = self.said() {
            write!(f, "; said by the server p50 {} p99 {} max {} ms", said.p50, said.p99, said.max)?;
        }
        Ok(())
    }
}

/// When a message came due, by the client's monotonic clock.
pub(super) struct Due {
    pub(super) earliest: u64,
    pub(super) latest: u64,
}

pub(super) fn due(world: &World<'_>, send: usize) -> Option<Due> {
    let op = &world.ops[send];
    let Call::Enqueue(e) = op.call else { return None };
    let spread = e.spread_ms.saturating_mul(NS);
    let Due { earliest, latest } = match e.when {
        When::DelayMs(ms) => {
            let ns = ms.saturating_mul(NS);
            Due { earliest: op.inv.ns.saturating_add(ns), latest: op.latest.ns.saturating_add(ns) }
        }
        When::AtMs(ms) => {
            let ahead = ms.saturating_sub(op.inv.wall).saturating_mul(NS);
            let ago = op.inv.wall.saturating_sub(ms).saturating_mul(NS);
            let at = op.inv.ns.saturating_add(ahead);
            // An instant that has passed when the enqueue arrives may be counted from itself or from the arrival.
            // One from before the beginning of the history is not a time of its clock.
            Due { earliest: at.checked_sub(ago)?.saturating_sub(NS), latest: at.max(op.latest.ns) }
        }
    };
    Some(Due { earliest, latest: latest.saturating_add(spread) })
}

/// Gathers the latenesses by the phases that the history names. Messages that came due while the system was down, or
/// were granted within a second of a start, are a phase of their own.
pub(super) fn gather(world: &World<'_>) -> BTreeMap<String, Lateness> {
    let mut phases: BTreeMap<String, Lateness> = BTreeMap::new();
    for life in &world.lives {
        let (Some(first), [send]) = (life.grants.first(), &life.sends[..]) else { continue };
        if first.grant.attempt > 1 || !life.changes.is_empty() || !life.loose.is_empty() {
            continue;
        }
        let Some(due) = due(world, *send) else { continue };
        let restarted = world
            .downs
            .iter()
            .any(|(down, up)| down.ns < first.ret.ns && due.earliest < up.ns + 1_000 * NS && down.idx > 0);
        let phase = if restarted {
            "downtime"
        } else {
            world.phases.iter().rev().find(|(at, _)| at.ns <= due.earliest).map_or("-", |(_, name)| name)
        };
        let lateness = phases.entry(phase.to_owned()).or_default();
        lateness.seen_us.push(first.ret.ns.saturating_sub(due.earliest) / 1_000);
        if world.rules.lateness == Told::Yes {
            lateness.said_ms.push(first.grant.lateness_ms);
        }
    }
    for lateness in phases.values_mut() {
        lateness.seen_us.sort_unstable();
        lateness.said_ms.sort_unstable();
    }
    phases
}
