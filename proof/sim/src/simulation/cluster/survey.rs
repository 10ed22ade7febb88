//! Configures the queues of a simulated cluster, checks whether they are drained, and lists the rest.

use std::task::{Context, Poll, Waker};

use duewheel_core::State;
use duewheel_core::engine::{Op, Reply, View};
use duewheel_core::policy::QueueSettings;
use duewheel_core::record::Totals;
use duewheel_judge::history::What;
use duewheel_shard::client::Client;

use super::place::Promise;
use super::{Action, Cluster, MS, OF_CLUSTER, Stage, ask};

/// Messages that are due later than this stay.
const FAR_MS: u64 = 1_500;
const PAGE: usize = 50;

/// The content of one queue.
struct Listed {
    queue: String,
    rows: Vec<View>,
    totals: Option<Totals>,
}

/// The requests in progress, and the node that they were sent to.
#[derive(Default)]
pub(super) struct Survey {
    ready: bool,
    setting_up: Option<(usize, Promise<bool>)>,
    listing: Option<(usize, Promise<Option<Vec<Listed>>>)>,
}

impl Survey {
    /// Whether clients may begin.
    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Drops the requests to a node that is gone.
    pub(super) fn forget(&mut self, place: usize) {
        self.setting_up.take_if(|(at, _)| *at == place);
        self.listing.take_if(|(at, _)| *at == place);
    }
}

impl Cluster {
    /// Begins to list.
    pub(super) fn begin_survey(&mut self) {
        let flying = self.people.iter().any(|person| person.flight.is_some());
        if (self.stage == Stage::Stop && flying) || !self.is_whole() {
            return self.soon(20, 40, Action::Look);
        }
        let queues = self.style.queues.clone();
        let Some((place, client)) = self.client() else { return self.soon(20, 40, Action::Look) };
        self.survey.listing = Some((place, Box::pin(list(client, queues))));
    }

    fn client(&mut self) -> Option<(usize, Client)> {
        let place = self.some_node()?;
        let up = self.machines[place].process.as_ref()?.serving()?;
        Some((place, up.client.clone()))
    }

    /// Continues the requests in progress.
    pub(super) fn look_over(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        if !self.survey.ready && self.survey.setting_up.is_none() {
            let queues = self.style.queues.clone();
            if let Some((place, client)) = self.client() {
                self.survey.setting_up = Some((place, Box::pin(configure(client, queues))));
            }
        }
        if let Some((place, asked)) = &mut self.survey.setting_up
            && self.now >= self.machines[*place].still_until
            && let Some(process) = &self.machines[*place].process
            && let Poll::Ready(ready) = process.within(|| asked.as_mut().poll(&mut context))
        {
            self.survey.ready = ready;
            self.survey.setting_up = None;
        }
        if let Some((place, asked)) = &mut self.survey.listing
            && let Some(process) = &self.machines[*place].process
            && let Poll::Ready(listed) = process.within(|| asked.as_mut().poll(&mut context))
        {
            self.survey.listing = None;
            match listed {
                Some(listed) => self.take(&listed),
                None => self.soon(20, 40, Action::Look),
            }
        }
    }

    fn take(&mut self, listed: &[Listed]) {
        let waits = |view: &View| view.state != State::Dead && view.due_in_ms < FAR_MS;
        match self.stage {
            Stage::Work => {}
            Stage::Drain => {
                let drained = !listed.iter().any(|listed| listed.rows.iter().any(waits));
                if drained && !self.gossip.has_retries() {
                    self.stage = Stage::Stop;
                    self.at(self.now + 500 * MS, Action::Look);
                } else {
                    self.at(self.now + 100 * MS, Action::Look);
                }
            }
            Stage::Stop => {
                for Listed { queue, rows, totals } in listed {
                    let rows = rows.iter().map(ask::held).collect();
                    self.note(0, What::Dump { queue: queue.clone(), rows });
                    if let Some(totals) = totals {
                        self.note(0, What::Totals { queue: queue.clone(), totals: ask::totals(totals) });
                    }
                }
                self.done = true;
            }
        }
    }
}

/// Gives the queues settings that keep them, and their totals, when they are empty.
async fn configure(client: Client, queues: Vec<String>) -> bool {
    let settings = QueueSettings { lease_ms: Some(OF_CLUSTER.lease_ms), ..QueueSettings::default() };
    let configure = |queue: &String| Op::Configure { queue: ask::queue(queue), settings: settings.clone() };
    match client.submit(queues.iter().map(configure).collect()) {
        Ok(pending) => pending.await.iter().all(|answer| matches!(answer, Ok(Reply::Configured(_)))),
        Err(_) => false,
    }
}

/// Lists all queues; `None` when a request was not answered.
async fn list(client: Client, queues: Vec<String>) -> Option<Vec<Listed>> {
    let mut all = Vec::new();
    for queue in queues {
        let (name, mut rows, mut after) = (ask::queue(&queue), Vec::new(), None);
        loop {
            let list = Op::List { queue: name.clone(), state: None, after, limit: PAGE, from: None };
            let Ok(Reply::Page(page)) = client.call(list).await else { return None };
            rows.extend(page.views);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let Ok(Reply::Queues(views)) = client.call(Op::Queue { queue: name }).await else { return None };
        let totals = views.first().map(|view| view.totals);
        all.push(Listed { queue, rows, totals });
    }
    Some(all)
}
