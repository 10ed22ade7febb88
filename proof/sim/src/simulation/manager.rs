//! Checks whether everything is drained, and lists the rest.

use std::future::Future;
use std::task::{Context, Poll, Waker};

use duewheel_core::State;
use duewheel_core::engine::{ListCursor, Op, Reply, View};
use duewheel_judge::history::{Answer, Call, OpId, What};
use duewheel_shard::inbox::Pending;

use super::clients::Stage;
use super::style::FITTING;
use super::{Action, MS, Sim, ask};

/// Messages that are due later than this stay.
const FAR_MS: u64 = 20_000;
const PAGE: usize = 50;
/// How often it is checked whether all messages are in memory, where they fit.
const CENSUS_MS: u64 = 50;
/// The number of checks in a row that may fail: pages are slow, and the process may be paused.
const PATIENT_CENSUSES: u32 = 15;

#[derive(Debug, Default)]
pub(super) struct Manager {
    configured: Configured,
    asked: Option<Pending>,
    /// The messages of each queue that was listed completely.
    listed: Vec<Vec<View>>,
    rows: Vec<View>,
    shown: u64,
    census: Option<Pending>,
    /// The number of answers in a row by which not all ready messages are in memory.
    behind: u32,
}

/// Whether the queues have settings that keep them, and their totals, when they are empty.
#[derive(Debug, Default)]
enum Configured {
    #[default]
    No,
    Asked(Pending, Vec<OpId>),
    Yes,
}

impl Manager {
    /// Whether clients may begin.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.configured, Configured::Yes)
    }

    /// Drops the request in progress. Returns whether that was a listing.
    pub(super) fn forget(&mut self) -> bool {
        let listing = self.asked.is_some();
        if let Configured::Asked(..) = self.configured {
            self.configured = Configured::No;
        }
        self.asked = None;
        self.census = None;
        self.behind = 0;
        self.listed.clear();
        self.rows.clear();
        self.shown = 0;
        listing
    }

    /// The number of messages in the final listing.
    pub(super) fn shown(&self) -> u64 {
        self.shown
    }
}

impl Sim {
    /// Begins to list.
    pub(super) fn look(&mut self) {
        self.manager.forget();
        let flying = self.people.iter().any(|person| person.flight.is_some()) || self.outbox.is_open();
        if self.serving().is_none() || (self.stage == Stage::Stop && flying) {
            return self.at(self.now + 20 * MS, Action::Look);
        }
        self.list(None);
    }

    fn list(&mut self, after: Option<ListCursor>) {
        let Some(client) = self.serving() else { return self.at(self.now + 20 * MS, Action::Look) };
        let queue = ask::queue(&self.style.queues[self.manager.listed.len()]);
        let look = Op::Queue { queue: queue.clone() };
        match client.submit(vec![Op::List { queue, state: None, after, limit: PAGE, from: None }, look]) {
            Ok(pending) => self.manager.asked = Some(pending),
            Err(_) => self.at(self.now + 20 * MS, Action::Look),
        }
    }

    fn configure(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        match &mut self.manager.configured {
            Configured::Yes => {}
            Configured::No => {
                let Some(client) = self.serving() else { return };
                let mut calls = Vec::new();
                for queue in &self.style.queues {
                    let limits = self.style.bounds.limits(&mut self.rng);
                    calls.push(Call::Limit { queue: queue.clone(), limits });
                }
                let Ok(pending) = client.submit(calls.iter().map(ask::op).collect()) else { return };
                let mut ops = Vec::new();
                for call in calls {
                    let op = self.next_op();
                    self.note(0, What::Invoke { op, call });
                    ops.push(op);
                }
                self.manager.configured = Configured::Asked(pending, ops);
            }
            Configured::Asked(pending, ops) => {
                let Poll::Ready(answers) = std::pin::Pin::new(pending).poll(&mut context) else { return };
                let ops = std::mem::take(ops);
                let done = answers.iter().all(|answer| matches!(answer, Ok(Reply::Configured(_))));
                self.manager.configured = if done { Configured::Yes } else { Configured::No };
                for (op, answer) in ops.into_iter().zip(answers) {
                    if let Ok(Reply::Configured(_)) = answer {
                        self.note(0, What::Ok { op, answer: Answer::Limited });
                    }
                }
            }
        }
    }

    /// Asks how many queues have ready messages, and whether all of these are in memory.
    pub(super) fn take_census(&mut self) {
        if self.style.fits && self.stage != Stage::Stop {
            self.at(self.now + CENSUS_MS * MS, Action::Census);
        }
        let Some(client) = self.serving() else { return };
        let all = Op::Queues { after: None, limit: self.style.queues.len() };
        self.manager.census = client.submit(vec![all]).ok();
    }

    fn count_ready(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let Some(census) = &mut self.manager.census else { return };
        let Poll::Ready(answers) = std::pin::Pin::new(census).poll(&mut context) else { return };
        self.manager.census = None;
        let Some(Ok(Reply::Queues(views))) = answers.into_iter().next() else {
            self.manager.behind = 0;
            return;
        };
        let ready = views.iter().filter(|view| view.counts.ready > 0).count() as u64;
        self.facts.ready_queues = self.facts.ready_queues.max(ready);
        let is_behind = views.iter().any(|view| view.counts.estimated);
        self.manager.behind = if is_behind { self.manager.behind + 1 } else { 0 };
        let fits = self.style.fits && self.gossip.tags() <= FITTING as u64;
        self.facts.fitting += u64::from(fits && !is_behind);
        if fits && self.manager.behind >= PATIENT_CENSUSES {
            self.broken = Some("all that is ready fits into memory, and not all of it is there".to_owned());
        }
    }

    /// Configures the queues, and handles a page.
    pub(super) fn manage(&mut self) {
        self.configure();
        self.count_ready();
        let mut context = Context::from_waker(Waker::noop());
        let Some(asked) = &mut self.manager.asked else { return };
        let Poll::Ready(answers) = std::pin::Pin::new(asked).poll(&mut context) else { return };
        self.manager.asked = None;
        let mut answers = answers.into_iter();
        let (Some(Ok(Reply::Page(page))), Some(Ok(Reply::Queues(views)))) = (answers.next(), answers.next())
        else {
            return self.at(self.now + 20 * MS, Action::Look);
        };
        self.manager.rows.extend(page.views);
        if page.next.is_some() {
            return self.list(page.next);
        }
        let rows = std::mem::take(&mut self.manager.rows);
        let waits = |view: &View| view.state != State::Dead && view.due_in_ms < FAR_MS;
        if self.stage == Stage::Drain && (rows.iter().any(waits) || self.gossip.has_retries()) {
            return self.at(self.now + 100 * MS, Action::Look);
        }
        if self.stage == Stage::Stop {
            self.manager.shown += rows.len() as u64;
            let queue = self.style.queues[self.manager.listed.len()].clone();
            self.note(0, What::Dump { queue: queue.clone(), rows: rows.iter().map(ask::held).collect() });
            if let Some(view) = views.first() {
                self.note(0, What::Totals { queue, totals: ask::totals(&view.totals) });
            }
        }
        self.manager.listed.push(rows);
        if self.manager.listed.len() < self.style.queues.len() {
            return self.list(None);
        }
        match self.stage {
            Stage::Work => {}
            Stage::Drain => {
                self.stage = Stage::Stop;
                self.at(self.now + 500 * MS, Action::Look);
            }
            Stage::Stop => self.done = true,
        }
    }
}
