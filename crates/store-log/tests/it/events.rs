//! Events that are read while the journal is cut and its segments are used again.

use duewheel_core::Lsn;
use duewheel_core::event::MessageEvent;
use duewheel_core::record::Group;
use duewheel_core::store::conformance::History;
use duewheel_core::store::{EventPage, EventRequest, Store, StoreArrival, StoreRequest};
use duewheel_sim_disk::SimDisk;
use duewheel_store_log::Worked;

use crate::rig::{Rig, by_hand, figure, work_all};

/// Appends so many groups, and does all the work that follows from it.
fn go_on(rig: &mut Rig, groups: &mut Vec<Group>, count: u64) {
    let hands = rig.store.hands();
    for _ in 0..count {
        let group = rig.history.group(9);
        rig.store.append(&group).expect("append");
        groups.push(group);
        rig.sync();
        work_all(&hands);
        while hands.prepare() == Worked::Done {}
    }
}

/// Whether a page has the events between its positions, and no others.
fn is_right(page: &EventPage, groups: &[Group]) -> bool {
    let all = groups.iter().flat_map(MessageEvent::of_group);
    all.filter(|event| event.position > page.from && event.position <= page.upto).eq(page.events.clone())
}

/// The segments that a request names are often used again before it is read.
#[test]
fn recycled_segment_gives_no_wrong_events() {
    let (mut cut, mut whole, mut rotations) = (0, 0, 0);
    for seed in 0..40 {
        let disk = SimDisk::new(seed);
        let mut rig = Rig::open(&disk, by_hand(), History::new(seed));
        let mut groups = Vec::new();
        go_on(&mut rig, &mut groups, 10);
        for _ in 0..6 {
            let applied = rig.history.model().applied().0;
            let after = rig.history.dice().below(applied);
            let asked = EventRequest { ticket: seed, after: Some(Lsn(after)), events: 40, bytes: 1 << 20 };
            rig.store.ask(StoreRequest::Events(asked)).expect("a request");
            // By the time it is read the journal is another one.
            let churn = rig.history.dice().below(60);
            go_on(&mut rig, &mut groups, churn);
            let Some(Ok(StoreArrival::Events(page))) = rig.store.arrived() else {
                panic!("seed {seed}: no page")
            };
            assert!(page.from.0 >= after && page.from <= page.upto, "seed {seed}: {page:?}");
            assert!(page.upto.0 > after, "seed {seed}: progress");
            assert!(is_right(&page, &groups), "seed {seed}: {page:?}");
            if page.from.0 > after { cut += 1 } else { whole += 1 }
        }
        rotations += figure(&rig.store, "segment_rotations_total");
    }
    let seen = format!("{cut} pages begin later than asked for, {whole} do not, {rotations} segments");
    println!("{seen}");
    assert!(cut > 20 && whole > 20 && rotations > 100, "{seen}");
}
