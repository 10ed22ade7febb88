//! The bridges of one node: each is run by one node at a time, which holds its ticket.
//!
//! ```text
//!   ticket held, not paused          other side away            1 s, 2 s, … 30 s
//!   ───────────────────────► runs ───────────────────► open ─────────────────────► runs
//! ```
//!
//! Messages stay where they are while a bridge is open, paused, or without an owner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use duewheel::core::Policy;
use duewheel::core::engine::Op;
use duewheel::core::name::{BadName, QueueName};
use duewheel::{CallError, Client, Duewheel};
use duewheel_delivery::{NotWritten, RecordStore, Supervised, Ticket, Tickets};
use duewheel_shard::random::doubled;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::figures::{BridgeFigures, Direction, Meter};
use crate::intake;
use crate::outlet::{self, OutletPlan};
use crate::report::{BridgePlan, ProbeStep};
use crate::seam::{BridgeConnector, SeamError};
#[cfg(not(feature = "rabbitmq"))]
use crate::settings::BridgeKind;
use crate::settings::{BadBridge, BridgeSettings};

/// The queue of the records of bridges.
const BRIDGES: &str = "#bridges";
/// The beginning of the names of the queues of their tickets.
const OWNERS: &str = "#bridge-owner/";
/// How often the owner looks at its ticket, at the record, and at the lag.
const LOOK: Duration = Duration::from_millis(500);
/// How long a look may take.
const LOOK_TIME: Duration = Duration::from_secs(5);
/// The first pause of an open breaker; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A connection that has lasted for so long was well: the next pause is the first again.
const WAS_WELL: Duration = Duration::from_secs(10);
/// How long messages under way may take when a bridge is paused.
const PAUSE_TIME: Duration = Duration::from_secs(10);
/// How often an edit is tried that others come in the way of.
const TRIES: u32 = 5;

/// Why a bridge is paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgePause {
    /// When it was paused, in ms since 1970.
    pub at_ms: u64,
    /// The reason, in words.
    pub reason: String,
}

/// The record of a bridge.
#[derive(Debug, Default, Serialize, Deserialize)]
struct BridgeRecord {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paused: Option<BridgePause>,
}

/// The state of a bridge, as this node sees it.
#[derive(Clone, Debug)]
pub struct BridgeView {
    /// The settings.
    pub settings: BridgeSettings,
    /// Why it is paused; the same for all nodes.
    pub paused: Option<BridgePause>,
    /// Whether this node runs it.
    pub is_owner: bool,
    /// The figures of this node.
    pub figures: BridgeFigures,
}

/// Why a bridge was neither paused nor resumed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PauseError {
    /// No bridge has this name.
    #[error("there is no such bridge in the configuration of this node")]
    NotFound,
    /// The record was not written.
    #[error(transparent)]
    NotWritten(NotWritten),
    /// The record was not read.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The bridges of one node. Dropping it stops them.
///
/// # What survives a crash
/// All messages: each is on one of the two sides, or on both. Whether a bridge is paused survives as well; counts begin
/// anew.
#[derive(Debug)]
pub struct BridgeService {
    bridges: BTreeMap<String, Arc<RunningBridge>>,
    workers: Vec<Supervised>,
    restarts: Arc<AtomicU64>,
    records: RecordStore,
    client: Client,
}

#[derive(Debug)]
struct RunningBridge {
    settings: BridgeSettings,
    client: Client,
    queue: QueueName,
    tickets: Tickets,
    records: RecordStore,
    plan: OutletPlan,
    meter: Meter,
    is_owner: AtomicBool,
    restarts: Arc<AtomicU64>,
}

impl BridgeService {
    /// Starts bridges on the runtime of the caller, in the store of this wheel, whose limits are `policy`.
    ///
    /// # Errors
    /// A bridge is not valid.
    pub fn start(wheel: &Duewheel, policy: &Policy, bridges: Vec<BridgeSettings>) -> Result<Self, BadBridge> {
        #[cfg_attr(not(feature = "rabbitmq"), allow(unused_mut))]
        let mut service = BridgeService::none(wheel, policy).map_err(|bad| internal(&bad))?;
        BridgeService::check(&bridges)?;
        #[cfg(feature = "rabbitmq")]
        for settings in bridges {
            let connector = crate::rabbitmq::RabbitConnector::new(&settings, policy)?;
            service.add(wheel, settings, connector)?;
        }
        Ok(service)
    }

    /// Checks all bridges of a node.
    ///
    /// # Errors
    /// A field of one is not valid, this build lacks its feature, or two bridges have one name or queue.
    pub fn check(all: &[BridgeSettings]) -> Result<(), BadBridge> {
        for (n, one) in all.iter().enumerate() {
            one.check()?;
            #[cfg(feature = "rabbitmq")]
            crate::rabbitmq::check(one).map_err(|(field, what)| one.bad(field, what))?;
            for other in all.iter().take(n) {
                // Messages of one queue are for one exchange.
                for (field, same) in [("name", other.name == one.name), ("queue", other.queue == one.queue)] {
                    if same {
                        return Err(one.bad(field, "another bridge has it".to_owned()));
                    }
                }
            }
        }
        Ok(())
    }

    /// A service without bridges.
    ///
    /// # Errors
    /// The queue of records has no valid name, which is a bug.
    pub fn none(wheel: &Duewheel, policy: &Policy) -> Result<Self, BadName> {
        Ok(BridgeService {
            bridges: BTreeMap::new(),
            workers: Vec::new(),
            restarts: Arc::default(),
            records: RecordStore::new(wheel, QueueName::system(BRIDGES)?, policy),
            client: wheel.client().clone(),
        })
    }

    /// Starts one more bridge, to the other side that `connector` reaches.
    ///
    /// # Errors
    /// The bridge is not valid.
    pub fn add(
        &mut self,
        wheel: &Duewheel,
        settings: BridgeSettings,
        connector: impl BridgeConnector,
    ) -> Result<(), BadBridge> {
        let (client, queue) = (wheel.client().clone(), settings.queue_name()?);
        let name = settings.name.clone();
        let plan = OutletPlan {
            client: client.clone(),
            queue: queue.clone(),
            max_attempts: settings.attempts()?,
            session: client.new_session(),
        };
        let bridge = Arc::new(RunningBridge {
            tickets: Tickets::new(&client, &format!("{OWNERS}{name}")).map_err(|bad| internal(&bad))?,
            records: self.records.clone(),
            meter: Meter::default(),
            is_owner: AtomicBool::new(false),
            restarts: self.restarts.clone(),
            settings,
            client,
            queue,
            plan,
        });
        let (run, connector) = (bridge.clone(), Arc::new(connector));
        let work = move |stop| own(run.clone(), connector.clone(), stop);
        self.workers.push(Supervised::start(format!("bridge {name}"), self.restarts.clone(), work));
        self.bridges.insert(name, bridge);
        Ok(())
    }

    /// How often a bug has ended a bridge.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// The declarations by which a bridge takes the place of what its broker had.
    ///
    /// # Errors
    /// [`PauseError::NotFound`].
    pub fn plan(&self, name: &str) -> Result<BridgePlan, PauseError> {
        let bridge = self.bridges.get(name).ok_or(PauseError::NotFound)?;
        #[cfg(feature = "rabbitmq")]
        return Ok(crate::rabbitmq::plan(&bridge.settings));
        #[cfg(not(feature = "rabbitmq"))]
        match bridge.settings.kind {
            BridgeKind::Rabbitmq => Err(PauseError::NotFound),
        }
    }

    /// Tests a bridge, also one that is paused or run by another node: connects, and sends a message each way that no
    /// consumer gets.
    ///
    /// # Errors
    /// [`PauseError::NotFound`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn probe(&self, name: &str) -> Result<Vec<ProbeStep>, PauseError> {
        let bridge = self.bridges.get(name).ok_or(PauseError::NotFound)?;
        #[cfg(feature = "rabbitmq")]
        {
            let connector = crate::rabbitmq::RabbitConnector::new(&bridge.settings, &Policy::default());
            Ok(match connector {
                Ok(connector) => crate::rabbitmq::probe(&connector).await,
                Err(bad) => vec![ProbeStep { step: "connect", ok: Some(false), detail: bad.to_string() }],
            })
        }
        #[cfg(not(feature = "rabbitmq"))]
        match bridge.settings.kind {
            BridgeKind::Rabbitmq => Err(PauseError::NotFound),
        }
    }

    /// The figures of each bridge on this node.
    pub fn figures(&self) -> impl Iterator<Item = (&str, BridgeFigures)> {
        self.bridges.iter().map(|(name, bridge)| (&**name, bridge.meter.read()))
    }

    /// The state of one bridge.
    ///
    /// # Errors
    /// See [`PauseError`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn view(&self, name: &str) -> Result<BridgeView, PauseError> {
        let bridge = self.bridges.get(name).ok_or(PauseError::NotFound)?;
        Ok(BridgeView {
            settings: bridge.settings.clone(),
            paused: bridge.paused().await?,
            is_owner: bridge.is_owner.load(Ordering::Relaxed),
            figures: bridge.meter.read(),
        })
    }

    /// The states of all bridges, by name.
    ///
    /// # Errors
    /// See [`PauseError`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn views(&self) -> Result<Vec<BridgeView>, PauseError> {
        let mut views = Vec::new();
        for name in self.bridges.keys() {
            views.push(self.view(name).await?);
        }
        Ok(views)
    }

    /// Pauses a bridge on all nodes, or resumes it. When it returns, that is durable; the owner follows within a second.
    ///
    /// # Errors
    /// See [`PauseError`].
    ///
    /// # Cancel safety
    /// When the future is dropped, it is unknown whether it was written.
    pub async fn set_pause(&self, name: &str, reason: Option<&str>) -> Result<BridgeView, PauseError> {
        if !self.bridges.contains_key(name) {
            return Err(PauseError::NotFound);
        }
        for _ in 0..TRIES {
            let at_ms = self.client.now().wall.0;
            let paused = reason.map(|reason| BridgePause { at_ms, reason: reason.to_owned() });
            let body = serde_json::to_vec(&BridgeRecord { paused }).map(Bytes::from).unwrap_or_default();
            let written = match self.records.read(name).await? {
                None => self.records.create(name, body).await,
                Some(row) => {
                    self.records.write((row.id, row.generation), body, None, None).await.map(|_| true)
                }
            };
            match written {
                Ok(true) => return self.view(name).await,
                Ok(false) | Err(NotWritten::Lost) => {}
                Err(why) => return Err(PauseError::NotWritten(why)),
            }
        }
        Err(PauseError::NotWritten(NotWritten::Lost))
    }

    /// Ends all bridges: messages under way get until `deadline`, and other nodes may have the bridges at once.
    ///
    /// # Cancel safety
    /// When the future is dropped, the bridges end by themselves.
    pub async fn stop(self, deadline: Duration) {
        let mut stopping = JoinSet::new();
        for worker in self.workers {
            stopping.spawn(worker.stop(deadline));
        }
        while stopping.join_next().await.is_some() {}
    }
}

fn internal(bad: &BadName) -> BadBridge {
    BadBridge { name: String::new(), field: "name", what: bad.to_string() }
}

/// Runs a bridge whenever this node has its ticket.
async fn own(
    bridge: Arc<RunningBridge>,
    connector: Arc<impl BridgeConnector>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        bridge.tickets.lay_out(&[&bridge.settings.name]).await;
        let free = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            free = bridge.tickets.free() => free,
        };
        let mut ticket = match free {
            Ok(grants) => grants.first().and_then(Ticket::of).map(|(_, ticket)| ticket),
            Err(CallError::Closed(_)) => break,
            Err(_) => {
                tokio::time::sleep(LOOK).await;
                None
            }
        };
        bridge.tickets.renew(&mut [&mut ticket]).await;
        if ticket.is_none() {
            continue;
        }
        tracing::info!(bridge = bridge.settings.name, "this node runs a bridge");
        bridge.is_owner.store(true, Ordering::Relaxed);
        let left = bridge.hold(&mut ticket, &connector, &mut stop).await;
        bridge.is_owner.store(false, Ordering::Relaxed);
        bridge.meter.rest();
        match (left, ticket) {
            (WhyLeft::Stopped, Some(ticket)) => bridge.tickets.give_back(ticket, 0).await,
            (WhyLeft::Stopped | WhyLeft::Lost, _) => {
                tracing::warn!(bridge = bridge.settings.name, "another node may run the bridge now");
            }
        }
    }
    bridge.tickets.close().await;
}

/// Why a node does not run a bridge any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhyLeft {
    Stopped,
    Lost,
}

/// The two directions of a bridge while they run.
struct Directions {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl RunningBridge {
    /// Runs the bridge until the ticket is lost or `stop` becomes true.
    async fn hold<C: BridgeConnector>(
        self: &Arc<Self>,
        ticket: &mut Option<Ticket>,
        connector: &Arc<C>,
        stop: &mut watch::Receiver<bool>,
    ) -> WhyLeft {
        let mut running: Option<Directions> = None;
        let (mut bugs, mut begins_at) = (0, tokio::time::Instant::now());
        let left = loop {
            let now = self.client.now().engine;
            let Some(held) = ticket.as_ref() else { break WhyLeft::Lost };
            if now >= held.until {
                break WhyLeft::Lost;
            }
            if held.wants_renewal(now) {
                self.tickets.renew(&mut [&mut *ticket]).await;
                continue;
            }
            let paused = tokio::time::timeout(LOOK_TIME, self.paused()).await;
            match (paused, running.take()) {
                (Ok(Ok(Some(_))), directions) => {
                    if let Some(directions) = directions {
                        self.end(directions, PAUSE_TIME).await;
                    }
                    self.meter.rest();
                }
                (Ok(Ok(None)), None) if begins_at <= tokio::time::Instant::now() => {
                    running = Some(self.begin(connector));
                }
                // Without an answer it goes on as it was.
                (_, as_before) => running = as_before,
            }
            self.look_at_lag().await;
            let bug = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break WhyLeft::Stopped,
                why = ended(&mut running) => why,
                () = tokio::time::sleep(LOOK) => continue,
            };
            let pause = doubled(FIRST_PAUSE, LONGEST_PAUSE, bugs);
            (bugs, begins_at) = (bugs.saturating_add(1), tokio::time::Instant::now() + pause);
            tracing::error!(bridge = self.settings.name, bug, ?pause, "a bug has ended a direction");
            self.restarts.fetch_add(1, Ordering::Relaxed);
            if let Some(directions) = running.take() {
                self.end(directions, PAUSE_TIME).await;
            }
            self.meter.open(Direction::In, &bug);
            self.meter.open(Direction::Out, &bug);
        };
        if let Some(directions) = running {
            // What another node may do as well ends at once.
            let time = if left == WhyLeft::Lost { Duration::ZERO } else { PAUSE_TIME };
            self.end(directions, time).await;
        }
        left
    }

    async fn paused(&self) -> Result<Option<BridgePause>, CallError> {
        let row = self.records.read(&self.settings.name).await?;
        let record = row.and_then(|row| serde_json::from_slice::<BridgeRecord>(&row.body).ok());
        Ok(record.and_then(|record| record.paused))
    }

    async fn look_at_lag(&self) {
        let asked = self.client.ask(Op::queue(self.queue.clone()));
        let Ok(Ok(view)) = tokio::time::timeout(LOOK_TIME, asked).await else { return };
        let now = self.client.now().wall.0;
        let oldest = view.and_then(|view| view.oldest_ready);
        self.meter.lag_ms.store(oldest.map_or(0, |due| now.saturating_sub(due.0)), Ordering::Relaxed);
        self.meter.note_rates();
    }

    fn begin<C: BridgeConnector>(self: &Arc<Self>, connector: &Arc<C>) -> Directions {
        let stop = watch::Sender::new(false);
        let mut tasks = JoinSet::new();
        for direction in [Direction::In, Direction::Out] {
            tasks.spawn(run(self.clone(), connector.clone(), direction, stop.subscribe()));
        }
        Directions { stop, tasks }
    }

    /// Ends both directions. Leases of what was under way are released.
    async fn end(&self, directions: Directions, time: Duration) {
        let Directions { stop, mut tasks } = directions;
        stop.send_replace(true);
        let ended = async { while tasks.join_next().await.is_some() {} };
        drop(tokio::time::timeout(time, ended).await);
        tasks.shutdown().await;
        drop(tokio::time::timeout(LOOK_TIME, self.client.ask(Op::session_closed(self.plan.session))).await);
    }
}

/// Waits until one of the two directions ends, which only a bug does while they run. Returns what it was.
async fn ended(running: &mut Option<Directions>) -> String {
    match running {
        Some(directions) => match directions.tasks.join_next().await {
            Some(Err(why)) => format!("a bug: {why}"),
            _ => "a bug: it has ended".to_owned(),
        },
        None => std::future::pending().await,
    }
}

/// Runs one direction, and connects again after each error.
async fn run<C: BridgeConnector>(
    bridge: Arc<RunningBridge>,
    connector: Arc<C>,
    direction: Direction,
    mut stop: watch::Receiver<bool>,
) {
    let (name, meter) = (&bridge.settings.name, &bridge.meter);
    let mut failures = 0;
    loop {
        let since = tokio::time::Instant::now();
        let ended = match direction {
            Direction::In => take(&bridge, &*connector, &mut stop).await,
            Direction::Out => give(&bridge, &*connector, &mut stop).await,
        };
        let Err(SeamError(why)) = ended else { return };
        if since.elapsed() > WAS_WELL {
            failures = 0;
        }
        let pause = doubled(FIRST_PAUSE, LONGEST_PAUSE, failures);
        failures = failures.saturating_add(1);
        tracing::warn!(bridge = name, direction = direction.as_str(), why, ?pause, "a direction fails");
        meter.open(direction, &why);
        if stopped(&mut stop, tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// The output of a future, unless `stop` becomes true before.
async fn stopped<T>(stop: &mut watch::Receiver<bool>, of: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => None,
        output = of => Some(output),
    }
}

async fn take(
    bridge: &RunningBridge,
    connector: &impl BridgeConnector,
    stop: &mut watch::Receiver<bool>,
) -> Result<(), SeamError> {
    let Some(source) = stopped(stop, connector.source()).await else { return Ok(()) };
    let mut source = source?;
    bridge.meter.close(Direction::In);
    intake::pump(&mut source, &bridge.client, &bridge.meter, stop).await
}

async fn give(
    bridge: &RunningBridge,
    connector: &impl BridgeConnector,
    stop: &mut watch::Receiver<bool>,
) -> Result<(), SeamError> {
    let Some(sink) = stopped(stop, connector.sink()).await else { return Ok(()) };
    let mut sink = sink?;
    bridge.meter.close(Direction::Out);
    outlet::pump(&mut sink, &bridge.plan, &bridge.meter, stop).await
}
