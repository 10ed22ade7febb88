//! Pages from the store must not bring back what has changed meanwhile.

use duewheel_core::engine::*;
use duewheel_core::id::{Epoch, Lsn};
use duewheel_core::policy::Policy;
use duewheel_core::store::{Found, Lookups, Recovered};

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
    assert_eq!(stats.counts, Counts { scheduled: 3, ready: 0, leased: 1, dead: 1 });
    let ack = rig.call(Op::Ack { id: grant.message.id, token: grant.token });
    assert_eq!(ack, Reply::Settle(Ok(Settled::Acked)));
}

#[test]
fn what_was_found_in_the_store_is_taken_in_unless_memory_knows_better() {
    // A rig whose store has a message that the engine was not told of at the start.
    let mut rig = Rig::new(Policy::default());
    let id = rig.put("q", 60_000, Some("k"));
    let lookups = Lookups { ids: vec![id], keys: vec![] };
    let mut found = Found::default();
    rig.table.find_many(&lookups, &mut found);

    let recovered = Recovered { epoch: Epoch(2), next_lsn: Lsn(2), next_id: 2, ..Recovered::default() };
    let mut engine = Engine::new(Config::default(), recovered, rig.now).unwrap();
    let mut fx = Effects::new();
    let cancel = || Op::Cancel { target: Target::Key(queue("q"), key("k")) };
    let to = duewheel_core::ReplyTo(1);
    engine.handle(rig.now, Input::Request { to, op: cancel() }, &found, &mut fx);
    let answer = |fx: &Effects| {
        fx.iter().find_map(|e| match e {
            Effect::Respond { reply: Reply::Change(result), .. } => Some(result.is_ok()),
            _ => None,
        })
    };
    assert_eq!(answer(&fx), Some(true), "found far away, cancelled");
}
