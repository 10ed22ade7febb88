//! Runs a server: opens the wheel, listens, and drains when stopped.

use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use duewheel::{Duewheel, ShutdownError, VirtualClock};
use duewheel_bridge::BridgeService;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, JoinSet};

use crate::announce;
use crate::auth::Guard;
use crate::beanstalk::{self, SocketMode};
use crate::bug::Bugs;
use crate::claim::Claim;
use crate::config::{LevelOption, PostgresTable, Settings, StoreChoice, VirtualClockOption};
use crate::drain::Drain;
use crate::http::{App, Audience, HttpListener, ServerFacts, StartWords, Starting};
use crate::log::warnings_of_start;
use crate::reload::{self, Reload, Watched, warn_of_empty_shares};
use crate::sealing;
use crate::service::{GivenSockets, ServiceManager};
use crate::signals::Signals;
use crate::store;
use crate::telemetry;
use crate::tls::{Clients, Tls};
use crate::traces::Traces;

mod error;

pub use error::ServeError;

/// How long connections may take for their last answers once the wheel is closed.
const LINGER: Duration = Duration::from_secs(2);

/// How long looks at schedules and steps of jobs may take to end before the wheel is closed.
const SCHEDULES_STOP: Duration = Duration::from_secs(2);

/// How long requests to targets may take to end before the wheel is closed; those that are dropped are sent again.
const DELIVERY_STOP: Duration = Duration::from_secs(5);

/// How often leases that are to be settled before the wheel is closed are counted.
const SETTLE_LOOK: Duration = Duration::from_millis(20);

/// How long the spans that wait may take to reach their collector, behind everything else.
const TRACES_STOP: Duration = Duration::from_secs(5);

/// How long requests in progress may take before the drain begins, when a successor gets the new connections.
const HAND_OVER: Duration = Duration::from_secs(2);

/// How long a connection that was accepted just before the stop may take to send its request, with a successor.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// The number of open files that are not connections: the store's, and those of each process.
const OTHER_FILES: u64 = 512;

/// Serves until a signal, or a bug. Writes a line for each listener to `out` when it is ready. Listens at `given` sockets
/// in place of its own.
///
/// # Errors
/// See [`ServeError`]. A clean stop is not an error.
pub async fn serve(
    mut settings: Settings,
    given: GivenSockets,
    mut bugs: Bugs,
    out: &mut impl Write,
) -> Result<(), ServeError> {
    without_huge_pages();
    let manager = ServiceManager::from_environment();
    let is_given = !given.is_empty();
    given.put_into(&mut settings)?;
    let (http, beanstalk) = (settings.http_address()?, settings.beanstalk_address()?);
    if http.is_none() && beanstalk.is_none() {
        return Err(ServeError::NoListener);
    }
    // This precedes reading the files, so that no change is missed.
    let watched = Watched::of(&settings);
    let guard = Arc::new(settings.tokens.clone().map_or_else(|| Ok(Guard::open()), Guard::of)?);
    let tls = settings.tls.clone().map(|files| Tls::of(files, Clients::Any)).transpose()?.map(Arc::new);
    let beanstalk_tls = match (&settings.tls, &settings.of_beanstalk.client_ca) {
        (Some(files), Some(ca)) => Some(Arc::new(Tls::of(files.clone(), Clients::Signed(ca.clone()))?)),
        (None, _) | (_, None) => None,
    };
    // This precedes everything that takes time, so that no signal is missed.
    let all_tls = tls.iter().chain(&beanstalk_tls).cloned().collect();
    let sealing = sealing::of(&settings)?;
    BridgeService::check(&settings.bridges)?;
    let traces = telemetry::start(&settings)?;
    let peers = settings.store.peer_files().map(reload::certificates).transpose()?;
    let reload = Reload::new(&settings, Arc::clone(&guard), all_tls, peers.clone());
    let mut stop = Signals::new(reload, watched)?;
    let drain = Drain::default();
    // This precedes opening the store: a server whose address is taken changes nothing.
    let http =
        http.map(|address| claim("http", address, given.http).map(|claim| (address, claim))).transpose()?;
    let beanstalk_claim = match &beanstalk {
        Some(beanstalk::ListenAddress::Tcp(address)) => Some(claim("beanstalk", *address, given.beanstalk)?),
        Some(beanstalk::ListenAddress::Unix(_)) | None => None,
    };
    // From now on clients get the answer that the server starts, and why it does not serve yet.
    let waits = StartWords::new("the store is being opened".to_owned());
    let audience = if guard.is_open() { Audience::Named(settings.hosts.clone()) } else { Audience::Nobody };
    let start = |(address, claim)| match HttpSocket::of(claim, tls.clone(), &waits, audience) {
        Ok(socket) => Ok((address, socket)),
        Err(why) => Err(bind_error("http", address, why)),
    };
    let http = http.map(start).transpose()?;
    let clock = (settings.virtual_clock != VirtualClockOption::Off).then(virtual_clock);
    let since = Instant::now();
    let wheel = tokio::select! {
        wheel = store::open(&settings, peers, &waits, clock.clone()) => wheel?,
        // The server may be waiting for its store.
        () = async { stop.next(&drain).await; announce::never_started() } => return Ok(()),
        () = manager.starting(waits.subscribe()) => return Ok(()),
    };
    announce::started(&settings, &wheel, since.elapsed()).await;
    warn_of_empty_shares(&settings.quotas, wheel.client().shards());
    stop.opened(wheel.clone());
    let mut limits = settings.limits.clone();
    limits.max_connections = places(limits.max_connections, [http.is_some(), beanstalk.is_some()]);
    let (max_connections, asks) = (limits.max_connections, !guard.is_open());
    let policy = settings.engine_policy();
    let app = App::guarded(wheel.clone(), policy, limits, drain.clone(), guard, settings.hosts.clone());
    app.set_sealing(sealing);
    if let Some(traces) = &traces {
        app.set_traces(Arc::clone(traces));
    }
    if let Some(clock) = clock {
        app.set_clock(clock);
    }
    let lean = beanstalk.as_ref().map(|_| BeanstalkRuntime::new()).transpose()?;
    let max_body = settings.beanstalk_max_job_size;
    let of_beanstalk = settings.of_beanstalk.clone();
    let header_timeout = settings.limits.header_timeout;
    let bound = async {
        // With a successor the listeners stop first, and the drain follows.
        let more = if is_given { HAND_OVER.saturating_add(settings.drain_timeout) } else { Duration::ZERO };
        let mut listeners = Listeners::lingering(LINGER.saturating_add(more));
        if let Some((address, socket)) = http {
            let socket = socket.ready().await.map_err(|why| bind_error("http", address, why))?;
            let first_request = if is_given { FIRST_REQUEST } else { Duration::ZERO };
            listeners.add_http(socket, app.clone(), tls, first_request)?;
        }
        if let (Some(address), Some(lean)) = (beanstalk, &lean) {
            if asks && beanstalk_tls.is_none() {
                tracing::warn!(
                    %address,
                    "beanstalkd's protocol has no tokens: each client of this address may use all commands"
                );
            }
            let app = beanstalk::BeanstalkApp::new(&wheel, max_body, max_connections, drain.clone())
                .limited_to(of_beanstalk.queues);
            let tls = beanstalk_tls.map(|tls| (tls, header_timeout));
            let socket = (address, beanstalk_claim, of_beanstalk.socket_mode);
            listeners.add_beanstalk(socket, app, tls, lean).await?;
        }
        Ok(listeners)
    };
    let mut listeners = match bound.await {
        Ok(listeners) => listeners,
        Err(error) => {
            // Other nodes need not wait for the shards that this one would have owned.
            let _ = wheel.shutdown(Duration::ZERO).await;
            return Err(error);
        }
    };
    app.set_start(start_facts(&settings));
    let addresses = listeners.start();
    for address in &addresses {
        writeln!(out, "listening on {address}")?;
    }
    out.flush()?;
    if let Err(error) = start_services(&settings, &app).await {
        let _ = wheel.shutdown(Duration::ZERO).await;
        return Err(error);
    }
    manager.ready(&addresses);
    let _pulse = manager.watch(&app)?;
    let server = RunningServer { app, settings, wheel, drain, manager, is_given, traces };
    server.until_stopped(&mut stop, &mut bugs, &mut listeners).await
}

/// Starts the consumers of the library: schedules, jobs, deliveries, outboxes and bridges.
async fn start_services(settings: &Settings, app: &App) -> Result<(), ServeError> {
    app.start_schedules();
    app.start_jobs();
    app.start_delivery();
    let all: Vec<_> = settings.outboxes.iter().map(PostgresTable::settings).collect::<Result<_, _>>()?;
    let node = settings.store.node().map_or("duewheel", |node| &node.name);
    app.start_outboxes(node, &all);
    Ok(app.start_bridges(&settings.bridges).await?)
}

/// Facts of the start, for `/v1/status`.
fn start_facts(settings: &Settings) -> ServerFacts {
    let is_memory = settings.durability == LevelOption::Memory;
    let (store, folder) = match settings.store {
        StoreChoice::Redis(_) => ("redis", None),
        StoreChoice::Postgres(_) => ("postgres", None),
        StoreChoice::Log { .. } if is_memory => ("memory", None),
        StoreChoice::Log { .. } => ("log", Some(settings.data.clone())),
    };
    ServerFacts { store, folder, memory: settings.memory, warnings: warnings_of_start() }
}

/// A server whose listeners accept.
struct RunningServer {
    app: App,
    settings: Settings,
    wheel: Duewheel,
    drain: Drain,
    manager: ServiceManager,
    /// Whether a successor gets the connections that this server does not accept any more.
    is_given: bool,
    /// The tracer, if tracing is enabled.
    traces: Option<Arc<dyn Traces>>,
}

impl RunningServer {
    /// Serves until a signal, or a bug, and then stops.
    async fn until_stopped(
        &self,
        stop: &mut Signals,
        bugs: &mut Bugs,
        listeners: &mut Listeners,
    ) -> Result<(), ServeError> {
        let mut turn = self.turn(stop, bugs, listeners).await;
        if turn == StopReason::Told {
            self.manager.stopping(self.settings.drain_delay.saturating_add(self.settings.drain_timeout));
            turn = self.leave(stop, bugs, listeners).await;
        }
        let since = Instant::now();
        let result = match turn {
            StopReason::Told => {
                tracing::info!("stopping");
                if self.is_given {
                    // New connections are for the successor; those that are open have their answers first.
                    let _ = tokio::time::timeout(HAND_OVER, listeners.stop()).await;
                }
                self.app.set_draining();
                tokio::select! {
                    result = self.shut_down() => result.map_err(ServeError::from),
                    () = stop.next(&self.drain) => {
                        Err(ServeError::Ended("a second signal came while draining".into()))
                    }
                }
            }
            StopReason::Ended(why) => Err(ServeError::Ended(why)),
            StopReason::Bug(bug) => {
                tracing::error!(%bug, "stopping");
                self.app.set_failing(&bug);
                // Accepted changes become durable if possible; the bug is reported in any case.
                let _ = self.wheel.shutdown(self.settings.drain_timeout).await;
                Err(ServeError::Ended(bug))
            }
        };
        tokio::select! {
            () = listeners.stop() => {}
            () = stop.next(&self.drain) => {}
        }
        if let Some(traces) = &self.traces {
            // The last answers also have spans.
            tokio::select! {
                () = traces.stop(TRACES_STOP) => {}
                () = stop.next(&self.drain) => {}
            }
        }
        announce::stopped(&self.settings, result.is_ok(), since.elapsed());
        result
    }

    /// Ends the workers of schedules, jobs and deliveries, lets consumers settle what a stop would give to others, then
    /// closes the wheel.
    async fn shut_down(&self) -> Result<(), ShutdownError> {
        let time = self.settings.drain_timeout;
        let until = tokio::time::Instant::now() + time;
        let (schedules, delivery) = (SCHEDULES_STOP.min(time), DELIVERY_STOP.min(time));
        tokio::join!(
            self.app.stop_schedules(schedules),
            self.app.stop_jobs(schedules),
            self.app.stop_outboxes(delivery),
            self.app.stop_bridges(delivery),
            self.app.stop_delivery(delivery)
        );
        self.wheel.drain();
        // With a successor the connections have ended, and it takes the settlements.
        if !self.is_given {
            let _ = tokio::time::timeout_at(until, self.settled()).await;
        }
        self.wheel.shutdown(time).await
    }

    /// Waits until no lease is left that ends with this process: those of beanstalkd's protocol. All others survive it,
    /// and are settled after the restart or at another node.
    async fn settled(&self) {
        while self.wheel.client().bound_leases().await.is_ok_and(|left| left > 0) {
            tokio::time::sleep(SETTLE_LOOK).await;
        }
    }

    /// Serves until a signal, or until the server is to end without one.
    async fn turn(&self, stop: &mut Signals, bugs: &mut Bugs, listeners: &mut Listeners) -> StopReason {
        tokio::select! {
            () = stop.next(&self.drain) => StopReason::Told,
            turn = bad_turn(&self.wheel, bugs, listeners) => turn,
        }
    }

    /// Serves on after a signal, for the drain's delay or until the next signal.
    async fn leave(&self, stop: &mut Signals, bugs: &mut Bugs, listeners: &mut Listeners) -> StopReason {
        let delay = self.settings.drain_delay;
        if delay.is_zero() {
            return StopReason::Told;
        }
        tracing::info!(?delay, "a stop was requested: the server is no longer ready; the drain begins later");
        self.app.set_leaving();
        tokio::select! {
            () = tokio::time::sleep(delay) => StopReason::Told,
            turn = self.turn(stop, bugs, listeners) => turn,
        }
    }
}

/// The reason why a running server stops.
#[derive(Debug, PartialEq, Eq)]
enum StopReason {
    /// A signal.
    Told,
    /// The wheel ended by itself.
    Ended(String),
    /// A bug in duewheel.
    Bug(String),
}

/// Waits for an unexpected end. Cancel safe.
async fn bad_turn(wheel: &Duewheel, bugs: &mut Bugs, listeners: &mut Listeners) -> StopReason {
    tokio::select! {
        why = wheel.ended() => StopReason::Ended(why),
        bug = bugs.first() => StopReason::Bug(bug),
        bug = listeners.failed() => StopReason::Bug(bug),
    }
}

/// The threads that serve beanstalkd's protocol. Its clients mostly wait for one short answer after the other, so the
/// time of each hand-over between threads dominates: it has one thread for every four processors, separate from those
/// that serve HTTP.
struct BeanstalkRuntime(Option<Runtime>);

impl BeanstalkRuntime {
    fn new() -> std::io::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut runtime = Builder::new_multi_thread();
        let threads = processors.div_ceil(4);
        let runtime = runtime.worker_threads(threads).thread_name("duewheel-lean").enable_all().build()?;
        Ok(BeanstalkRuntime(Some(runtime)))
    }

    fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        match &self.0 {
            Some(runtime) => runtime.spawn(task),
            None => tokio::spawn(task),
        }
    }
}

impl Drop for BeanstalkRuntime {
    /// Ends the threads without waiting, because a connection that hangs must not keep the process alive.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The listeners. None runs before all are bound: a server with a wrong configuration serves no requests.
struct Listeners {
    /// How long connections may go on after the listeners have stopped.
    linger: Duration,
    bound: Vec<(String, ListenerTask)>,
    running: JoinSet<()>,
    stoppers: Vec<Box<dyn Fn() + Send>>,
}

/// A clock that stands at the present. At a whole millisecond: due times are rounded up, and 48 hours later a delay of 48
/// hours is to be over.
fn virtual_clock() -> VirtualClock {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let ms = u64::try_from(since.as_millis()).unwrap_or(0);
    VirtualClock::new(SystemTime::UNIX_EPOCH + Duration::from_millis(ms))
}

fn claim(
    option: &'static str,
    address: SocketAddr,
    given: Option<std::net::TcpListener>,
) -> Result<Claim, ServeError> {
    match given {
        Some(socket) => Ok(Claim::Given(socket)),
        None => Claim::of(address).map_err(|why| bind_error(option, address, why)),
    }
}

/// The socket of HTTP until the store is open.
enum HttpSocket {
    /// Requests get the answer that the server starts.
    Answering(Starting),
    /// Connections wait in the backlog of the service manager's socket, so that an upgrade refuses nothing.
    Waiting(Claim),
}

impl HttpSocket {
    fn of(
        claim: Claim,
        tls: Option<Arc<Tls>>,
        waits: &StartWords,
        audience: Audience,
    ) -> std::io::Result<HttpSocket> {
        match claim {
            Claim::Bound(_) => Starting::on(claim, tls, waits, audience).map(HttpSocket::Answering),
            Claim::Given(_) => Ok(HttpSocket::Waiting(claim)),
        }
    }

    async fn ready(self) -> std::io::Result<TcpListener> {
        match self {
            HttpSocket::Answering(starting) => starting.end().await,
            HttpSocket::Waiting(claim) => claim.listen(),
        }
    }
}

fn bind_error(option: &'static str, address: SocketAddr, why: std::io::Error) -> ServeError {
    ServeError::Bind { option, address: address.to_string(), why }
}

type ListenerTask = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Listeners {
    fn lingering(linger: Duration) -> Listeners {
        Listeners { linger, bound: Vec::new(), running: JoinSet::new(), stoppers: Vec::new() }
    }

    fn add(
        &mut self,
        address: String,
        run: impl Future<Output = ()> + Send + 'static,
        stop: impl Fn() + Send + 'static,
    ) {
        self.bound.push((address, Box::pin(run)));
        self.stoppers.push(Box::new(stop));
    }

    fn add_http(
        &mut self,
        socket: TcpListener,
        app: App,
        tls: Option<Arc<Tls>>,
        first_request: Duration,
    ) -> Result<(), ServeError> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let listener = HttpListener::on(socket, app).with_tls(tls).with_first_request(first_request);
        let linger = self.linger;
        let (shown, stopper) = (format!("{scheme}://{}", listener.address()?), listener.stopper());
        self.add(shown, listener.run(linger), move || stopper.stop());
        Ok(())
    }

    async fn add_beanstalk(
        &mut self,
        (address, claim, mode): (beanstalk::ListenAddress, Option<Claim>, SocketMode),
        app: beanstalk::BeanstalkApp,
        tls: Option<(Arc<Tls>, Duration)>,
        lean: &BeanstalkRuntime,
    ) -> Result<(), ServeError> {
        let shown = match &address {
            beanstalk::ListenAddress::Tcp(address) => address.to_string(),
            beanstalk::ListenAddress::Unix(path) => format!("unix:{}", path.display()),
        };
        let binding = lean.spawn(async move {
            match claim {
                Some(claim) => beanstalk::BeanstalkListener::on(claim, app),
                None => beanstalk::BeanstalkListener::bind(&address, mode, app).await,
            }
        });
        let bound = binding.await.unwrap_or_else(|failed| Err(std::io::Error::other(failed)));
        let listener = bound.map_err(|why| ServeError::Bind { option: "beanstalk", address: shown, why })?;
        let listener = listener.with_tls(tls);
        let (shown, stopper) = (listener.address()?.to_string(), listener.stopper());
        let linger = self.linger;
        let running = lean.spawn(async move { listener.run(linger).await });
        let run = async move {
            if let Err(failed) = running.await
                && let Ok(panic) = failed.try_into_panic()
            {
                resume_unwind(panic);
            }
        };
        self.add(shown, run, move || stopper.stop());
        Ok(())
    }

    /// Starts the listeners, and returns their addresses, in order.
    fn start(&mut self) -> Vec<String> {
        let mut addresses = Vec::new();
        for (address, run) in self.bound.drain(..) {
            self.running.spawn(run);
            addresses.push(address);
        }
        addresses
    }

    /// Waits until a listener has ended that was not stopped. Cancel safe.
    async fn failed(&mut self) -> String {
        match self.running.join_next().await {
            Some(Err(failed)) => format!("a bug in duewheel: a listener has ended: {failed}"),
            Some(Ok(())) => "a bug in duewheel: a listener has ended".to_owned(),
            None => std::future::pending().await,
        }
    }

    /// Stops the listeners, and waits until their connections have ended or `linger` is over. Cancel safe.
    async fn stop(&mut self) {
        for stop in &self.stoppers {
            stop();
        }
        // A failure is known by now, or does not matter any more.
        while self.running.join_next().await.is_some() {}
    }
}

/// Memory comes in pages of 4 KiB. The allocator asks for huge pages, and the first use of one stops its thread until all
/// of it is there: for 5 ms in a virtual machine whose host has to find 2 MiB, and then everything that is due waits.
fn without_huge_pages() {
    #[cfg(target_os = "linux")]
    if let Err(why) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%why, "transparent huge pages stay enabled for this process");
    }
}

/// The number of connections that each listener may have. Each is an open file, and when the process may open no more
/// the store cannot, either: clients must not be able to cause that.
fn places(wanted: usize, listeners: [bool; 2]) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Nothing in this process uses select(2), for which the lower limit exists.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    let Some(files) = (if raised { maximum } else { current }) else { return wanted };
    let listeners = listeners.into_iter().filter(|on| *on).count().max(1);
    let most = usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX) / listeners;
    if most < wanted {
        let places = most.max(1);
        tracing::warn!(
            files,
            wanted,
            places,
            "this process may open too few files for --max-connections; raise ulimit -n"
        );
        return places;
    }
    wanted
}
