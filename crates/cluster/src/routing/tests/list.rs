//! Listings: every message once, in order, however the pages are cut.

use duewheel_core::engine::{Edit, Enqueue, Op, Past, Reply, View, When};
use duewheel_core::message::State;
use duewheel_core::policy::Policy;
use duewheel_core::random::SplitMix64;
use duewheel_core::time::WallMs;
use duewheel_shard::clock::VirtualClock;
use duewheel_shard::error::CallError;
use duewheel_shard::listing::{ListPosition, ListPositions};

use super::rig::*;

/// Random numbers from a seed.
pub(super) struct Random(SplitMix64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(SplitMix64::new(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.next()
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Pages of random length until there is no next one.
async fn walk(rig: &Rig, state: Option<State>, random: &mut Random) -> Vec<View> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let limit = 1 + random.below(40) as usize;
        let page = rig.client.list(queue("q"), state, after, limit).await.unwrap();
        assert!(page.views.len() <= limit);
        all.extend(page.views);
        match page.next {
            Some(next) => after = Some(ListPositions::new(next.as_slice().to_vec())),
            None => return all,
        }
    }
}

async fn check(seed: u64, policy: Policy) {
    let mut random = Random::new(seed);
    let shards = 1 + random.below(9) as u32;
    let rig = rig_with(shards, policy, VirtualClock::at_2026());
    let wall = rig.client.now().wall.0;
    let n = random.below(300);
    for body in 0..n {
        // Few different times, of both clocks: many stand side by side.
        let ms = random.below(20) * 50;
        let when = match random.below(2) {
            0 => When::After(ms),
            _ => When::At { due_at: WallMs(wall + ms), past: Past::Fire },
        };
        // Some shards hold much more than others.
        let shard = (random.below(u64::from(shards)) * random.below(2)) as u32;
        let put = Enqueue { when, ..message("q", &body.to_string()) };
        rig.local.client(shard).call(Op::Enqueue(Box::new(put))).await.unwrap();
    }
    rig.pass(500);
    for (n, grant) in rig.reserve(demand("q", random.below(100) as usize, 0)).await.iter().enumerate() {
        let (id, proof) = (grant.message.id, grant.token.into());
        rig.pass(1);
        if n % 2 == 0 {
            rig.call(Op::Bury { id, proof, priority: None, note: "".into() }).await;
        }
    }
    let states = [None, Some(State::Scheduled), Some(State::Ready), Some(State::Leased), Some(State::Dead)];
    let mut counts = Vec::new();
    for state in states {
        let views = walk(&rig, state, &mut random).await;
        assert!(state.is_none_or(|state| views.iter().all(|view| view.state == state)));
        let place = |view: &View| match (state, view.dead) {
            (Some(State::Dead), Some((_, since))) => (since, WallMs(0)),
            _ => (view.due_at, WallMs(view.message.id.0)),
        };
        assert!(views.is_sorted_by_key(place), "seed {seed}, {state:?}");
        let mut ids: Vec<u64> = views.iter().map(|view| view.message.id.0).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), views.len(), "seed {seed}, {state:?}: one was listed twice");
        counts.push(views.len() as u64);
    }
    assert_eq!(counts[0], n, "seed {seed}");
    assert_eq!(counts[1..].iter().sum::<u64>(), n, "seed {seed}: {counts:?}");
}

#[tokio::test]
async fn every_message_is_listed_in_order() {
    for seed in 0..crate::routing::tests::seeds(12) {
        check(seed, Policy::default()).await;
    }
}

#[tokio::test]
async fn tiny_pages_list_every_message_once() {
    for seed in 0..crate::routing::tests::seeds(6) {
        let policy = Policy {
            load_bytes: 700,
            load_rows: 5,
            near_messages: 10,
            ready_messages: 10,
            ..Policy::default()
        };
        check(seed, policy).await;
    }
}

#[tokio::test]
async fn moved_message_hides_no_other() {
    let rig = rig(4);
    for n in 0..40 {
        rig.enqueue(later("q", &n.to_string(), 1_000 + n)).await;
    }
    let first = rig.client.list(queue("q"), None, None, 10).await.unwrap();
    // What has been listed comes again behind the others; nothing is left out.
    let id = first.views[0].message.id;
    let target = duewheel_core::engine::Target::Id(id);
    rig.call(Op::Postpone { target, edit: Box::new(Edit::due(When::After(90_000))), if_generation: None })
        .await;
    let (mut after, mut rest) = (first.next, Vec::new());
    while let Some(places) = after {
        let page = rig.client.list(queue("q"), None, Some(places), 10).await.unwrap();
        rest.extend(page.views.iter().map(|view| view.message.id));
        after = page.next;
    }
    assert_eq!(rest.len(), 31);
    assert_eq!(rest.last(), Some(&id));
}

#[tokio::test]
async fn foreign_list_positions_are_refused() {
    let rig = rig(4);
    rig.put("q", "x").await;
    let places = |n| Some(ListPositions::new(vec![ListPosition::START; n]));
    for n in [0, 1, 3, 5] {
        let refused = rig.client.list(queue("q"), None, places(n), 10).await;
        assert!(matches!(refused, Err(CallError::Closed(_))), "{refused:?}");
    }
    assert_eq!(rig.client.list(queue("q"), None, places(4), 10).await.unwrap().views.len(), 1);
    let ended = Some(ListPositions::new(vec![ListPosition::End; 4]));
    assert_eq!(rig.client.list(queue("q"), None, ended, 10).await.unwrap(), Default::default());
}

#[tokio::test]
async fn list_operation_returns_single_page() {
    let rig = rig(4);
    for n in 0..10 {
        rig.put("q", &n.to_string()).await;
    }
    let list = |limit| Op::List { queue: queue("q"), state: None, after: None, limit, from: None };
    let Reply::Page(page) = rig.call(list(10)).await else { panic!() };
    assert_eq!((page.views.len(), page.next), (10, None));
    assert!(rig.client.call(list(9)).await.is_err(), "its cursor is of one shard");
}
