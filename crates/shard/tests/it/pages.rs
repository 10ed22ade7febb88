//! Pages that the disk does not give: who is told, and who goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use duewheel_core::engine::{Attempt, Config, Op, Reply};
use duewheel_core::message::State;
use duewheel_core::pass_on;
use duewheel_core::policy::Policy;
use duewheel_core::store::{
    ErrorKind, Loaded, MemoryDisk, MemoryStore, Sequence, Store, StoreArrival, StoreError, StoreRequest,
};
use duewheel_core::time::Now;
use duewheel_shard::driver::Driver;
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::{Answers, Submission, WhenBusy};
use tokio::sync::oneshot;

use crate::driver::{put, queue};

/// A memory store whose disk does not give the pages of dead messages.
struct Torn {
    store: MemoryStore,
    is_torn: Arc<AtomicBool>,
    /// Pages that could not be read, to be read again.
    unread: Vec<Loaded>,
}

impl Store for Torn {
    pass_on!(store: recovered append sync sync_here progress room room_error terms find_many idle close figures);
    fn ask(&mut self, request: StoreRequest) -> Result<(), StoreError> {
        if let StoreRequest::Forget(ticket) = request {
            self.unread.retain(|page| page.load.ticket != ticket);
        }
        self.store.ask(request)
    }
    fn arrived(&mut self) -> Option<Result<StoreArrival, StoreError>> {
        if !self.is_torn.load(Relaxed)
            && let Some(page) = self.unread.pop()
        {
            return Some(Ok(StoreArrival::Loaded(page)));
        }
        match self.store.arrived()? {
            Ok(StoreArrival::Loaded(page))
                if self.is_torn.load(Relaxed) && page.load.sequence == Sequence::Dead =>
            {
                let error = StoreError::new(ErrorKind::Unavailable, "cannot read runs/0000000007.run: EIO");
                let ticket = page.load.ticket;
                self.unread.push(page);
                Some(Err(error.of_page(ticket)))
            }
            page => Some(page),
        }
    }
}

fn now() -> Now {
    Now::whole(0, 1_000)
}

struct Rig {
    driver: Driver<Torn>,
    is_torn: Arc<AtomicBool>,
}

impl Rig {
    fn new() -> Self {
        let mut store = MemoryStore::open(&MemoryDisk::default(), Arc::new(|| {}));
        let recovered = store.recovered();
        let is_torn = Arc::new(AtomicBool::new(false));
        let torn = Torn { store, is_torn: is_torn.clone(), unread: Vec::new() };
        let mut driver = Driver::new(torn, recovered, Config::default(), now()).unwrap();
        while !driver.is_open() {
            driver.step(now(), &mut Vec::new()).unwrap();
        }
        Rig { driver, is_torn }
    }

    fn submit(&mut self, op: Op) -> oneshot::Receiver<Answers> {
        let (answer, answers) = oneshot::channel();
        let submission = Submission { ops: vec![op], answer, patience: WhenBusy::Refuse, has_waited: false };
        self.driver.step(now(), &mut vec![submission]).unwrap();
        answers
    }

    fn step(&mut self) {
        self.driver.step(now(), &mut Vec::new()).unwrap();
    }

    fn bury_one(&mut self) {
        self.submit(put(0));
        let mut grants = self.submit(crate::driver::reserve(0)).try_recv().unwrap();
        let Some(Ok(Reply::Reserve(duewheel_core::engine::Reserved::Grants(grants)))) = grants.pop() else {
            panic!()
        };
        let nack = |id, proof| Op::Nack {
            id,
            proof,
            attempt: Attempt::Failed,
            delay_ms: Some(0),
            priority: None,
            note: "".into(),
        };
        let (last, others) = grants.split_last().unwrap();
        for grant in others {
            self.submit(nack(grant.message.id, grant.token.into()));
        }
        let (id, proof) = (last.message.id, last.token.into());
        self.submit(Op::Bury { id, proof, priority: None, note: "".into() });
    }
}

fn list_dead() -> Op {
    Op::List { queue: queue(), state: Some(State::Dead), after: None, limit: 10, from: None }
}

fn assert_unread(answers: &mut oneshot::Receiver<Answers>) {
    match answers.try_recv().expect("an answer").pop() {
        Some(Err(CallError::Store { error, outcome })) => {
            assert_eq!((error.kind(), outcome), (ErrorKind::Unavailable, Outcome::NotApplied));
        }
        other => panic!("{other:?}"),
    }
}

/// Story: as many listings as may read at a time waited for pages that the disk did not give, and kept their places.
/// From then on every listing and every peek of every queue waited for ever.
#[test]
fn unreadable_pages_fail_only_their_questions() {
    let mut rig = Rig::new();
    rig.bury_one();
    rig.submit(put(60_000));
    rig.is_torn.store(true, Relaxed);
    let places = Policy::default().max_gathers;
    let mut torn: Vec<_> = (0..2 * places).map(|_| rig.submit(list_dead())).collect();
    let all = Op::List { queue: queue(), state: None, after: None, limit: 10, from: None };
    let mut well = rig.submit(all);
    for _ in 0..10 {
        rig.step();
    }
    assert!(
        matches!(&well.try_recv().expect("an answer")[0], Ok(Reply::Page(page)) if page.views.len() == 2)
    );
    torn.iter_mut().for_each(assert_unread);
    assert!(!rig.driver.is_waiting_for_store(), "a shutdown need not wait for them");

    let mut redrive = rig.submit(Op::RedriveMany { queue: queue(), max: 10 });
    rig.step();
    assert_unread(&mut redrive);
    rig.is_torn.store(false, Relaxed);
    let mut again = rig.submit(list_dead());
    rig.step();
    assert!(
        matches!(&again.try_recv().expect("an answer")[0], Ok(Reply::Page(page)) if page.views.len() == 1)
    );
    let mut redrive = rig.submit(Op::RedriveMany { queue: queue(), max: 10 });
    rig.step();
    rig.step();
    assert!(matches!(redrive.try_recv().expect("an answer")[0], Ok(Reply::Count(n)) if *n == 1));
}
