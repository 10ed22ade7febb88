//! Pages from the store must not bring back what has changed meanwhile.

use duewheel_core::engine::*;
use duewheel_core::policy::Policy;

use crate::harness::*;

#[test]
fn pages_of_one_row_load_everything_in_every_sequence() {
    let mut rig = Rig::new(Policy { load_rows: 1, ..Policy::default() });
    for delay in [0, 0, 5, 60_000, 120_000] {
        rig.put("q", delay, None);
    }
    let grant = rig.reserve("q", 1).remove(0);
    let dead = rig.reserve("q", 1).remove(0);
    rig.call(Op::Bury { id: dead.message.id, token: dead.token, priority: None, note: "".into() });
    rig.restart();
    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert_eq!(stats.counts, Counts { scheduled: 3, ready: 0, leased: 1, dead: 1, estimated: false });
    let ack = rig.call(Op::Ack { id: grant.message.id, token: grant.token });
    assert_eq!(ack, Reply::Settle(Ok(Settled::Acked)));
}
