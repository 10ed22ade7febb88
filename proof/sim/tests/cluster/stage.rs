//! A run: nodes, clients, a probe, and a judge at the end.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use duewheel_judge::checker::{Fact, Report, check};
use duewheel_judge::history::{Blow, Fault, OpId, What};
use duewheel_judge::rng::Rng;
use duewheel_redis_rig::free_port;
use duewheel_sim::blackbox::System as _;
use duewheel_sim::blackbox::client::{Run, Stage as Work};
use duewheel_sim::blackbox::cluster::{Build, DuewheelCluster, Member, TAKEOVER};
use duewheel_sim::blackbox::crew::{Crew, Gossip, QUEUES};
use duewheel_sim::blackbox::verdict::{self, Done, Figures, Finding};
pub(crate) use duewheel_sim::process::PATIENCE;
use duewheel_sim::process::Server;
use duewheel_sim::{http, process};
use serde_json::Value;

use crate::probe::Probe;

/// So often a run does what it is about, at most, until it has proved something.
const ACTS: usize = 4;

/// For so long it waits for what shows late, leases that run out above all.
const EVIDENCE: Duration = Duration::from_secs(6);

/// Three nodes on one machine have more to do for a request than one.
const PACE: u64 = 16;

/// What a run is.
pub(crate) struct Play {
    /// The test, as cargo takes it.
    pub(crate) name: &'static str,
    /// The variable that says how often, and how often it is.
    pub(crate) count: (&'static str, u64),
    pub(crate) system: DuewheelCluster,
    /// The store of each node.
    pub(crate) stores: Vec<String>,
    /// How many nodes there are at the beginning.
    pub(crate) nodes: usize,
    /// What must provably have happened.
    pub(crate) facts: Vec<(Fact, u64)>,
}

/// What a run works with.
pub(crate) struct Stage<'a> {
    pub(crate) run: &'a Run<'a>,
    pub(crate) rng: Rng,
    pub(crate) probe: Option<Probe>,
    pub(crate) system: &'a DuewheelCluster,
    folder: PathBuf,
    nodes: Vec<Node>,
    starts: u64,
    /// Said at the end.
    said: Vec<String>,
}

struct Node {
    member: Member,
    server: Option<Server>,
    http: Option<SocketAddr>,
}

/// How often something is to be done, in runs that are not too long to be judged at once.
pub(crate) fn in_runs(variable: &str, usual: u64, most: u64, mut run: impl FnMut(u64)) {
    let mut left = verdict::env(variable).unwrap_or(usual);
    while left > 0 {
        let now = left.min(most);
        run(now);
        left -= now;
    }
}

/// Performs a run and judges it. `act` finds all nodes at work, and leaves them so; it is done again while too little
/// has happened for the run to prove anything.
pub(crate) fn perform(play: Play, act: impl FnMut(&mut Stage<'_>) -> Result<(), String>) {
    perform_with(play, Company::Crew, act);
}

/// As [`perform`], for an act that brings its own clients. It is done once.
pub(crate) fn perform_alone(play: Play, act: impl FnMut(&mut Stage<'_>) -> Result<(), String>) {
    perform_with(play, Company::None, act);
}

/// Who works beside the act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    /// The clients of the kill -9 test.
    Crew,
    /// Nobody.
    None,
}

fn perform_with(play: Play, company: Company, act: impl FnMut(&mut Stage<'_>) -> Result<(), String>) {
    let seed = verdict::seed();
    let (name, (variable, count)) = (play.name, play.count);
    let folder = tempfile::Builder::new().prefix("duewheel-cluster-").tempdir().expect("a temporary folder");
    println!("{name}: {variable}={count}, seed {seed}, folder {}", folder.path().display());
    let began = Instant::now();
    let run = Run::new(&play.system).at_pace(PACE);
    let nodes = play.stores.iter().enumerate().map(|(n, store)| Node::new(n, store)).collect();
    let mut stage = Stage {
        run: &run,
        rng: Rng::new(seed),
        probe: None,
        system: &play.system,
        folder: folder.path().to_owned(),
        nodes: match nodes {
            Ok(nodes) => nodes,
            Err(e) => panic!("no ports: {e}"),
        },
        starts: 0,
        said: Vec::new(),
    };
    let result = stage.play(&play, company, seed, act);
    let said = std::mem::take(&mut stage.said);
    drop(stage);
    let title = format!("{name}, {variable}={count}, seed {seed}");
    let figures = Figures::new(move |report: &Report| {
        let b = report.balance;
        let loss = format!("{} of {} accepted messages forgotten", b.forgotten, b.accepted);
        format!("{} operations, {loss}; {}", report.operations, said.join("; "))
    });
    let done = result.map(|()| Done { require: play.facts, figures });
    // A shard that is with nobody is not there for questions either.
    let expected = |complaint: &String| complaint.starts_with("a get was refused with Other(");
    let complaints = run.complaints().into_iter().filter(|complaint| !expected(complaint)).collect();
    let again = format!(
        "DUEWHEEL_SEED={seed} {variable}={count} cargo test -p duewheel-sim --test cluster -- --nocapture {name}"
    );
    let finding = Finding { seconds: began.elapsed().as_secs_f32(), ..Finding::new(again) };
    verdict::conclude(&run, complaints, &title, folder, &done, finding).must_hold();
}

impl Node {
    fn new(number: usize, store: &str) -> io::Result<Self> {
        let address = || Ok::<_, io::Error>((Ipv4Addr::LOCALHOST, free_port()?).into());
        let member = Member {
            name: format!("node-{number}"),
            peers: address()?,
            beanstalk: address()?,
            store: store.to_owned(),
            build: Build::This,
        };
        Ok(Node { member, server: None, http: None })
    }
}

impl Stage<'_> {
    fn play(
        &mut self,
        play: &Play,
        company: Company,
        seed: u64,
        mut act: impl FnMut(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let (run, gossip) = (self.run, Gossip::default());
        std::thread::scope(|scope| {
            let crew = (company == Company::Crew).then(|| Crew::hire(scope, run, &gossip, seed));
            let result = self.begin(play.nodes).and_then(|()| {
                run.phase("load");
                let Some(crew) = crew else {
                    act(self)?;
                    return QUEUES.iter().try_for_each(|queue| run.dump(queue, &[]));
                };
                for _ in 0..ACTS {
                    act(self)?;
                    if self.until_proved(&play.facts) {
                        break;
                    }
                }
                crew.drain(run, &gossip)
            });
            // Whatever happened, let the clients go.
            run.set_stage(Work::Stop);
            for node in 0..self.nodes.len() {
                run.set_node(node, None);
            }
            self.probe = None;
            result
        })
    }

    /// Whether what must provably happen has happened. Whether a request is under way at the moment of a fault, and a
    /// lease runs out after it, is a matter of chance, and the last of it shows a little later.
    fn until_proved(&mut self, facts: &[(Fact, u64)]) -> bool {
        let deadline = Instant::now() + EVIDENCE;
        loop {
            let mut history = self.run.recorder.history("so far", self.run.system.rules());
            // What is under way looks as if it would never be answered.
            let ended: BTreeSet<OpId> = history.events.iter().filter_map(|event| event.what.ends()).collect();
            history
                .events
                .retain(|event| !matches!(&event.what, What::Invoke { op, .. } if !ended.contains(op)));
            match check(&history).evidence.require(facts) {
                Ok(()) => return true,
                Err(missing) if Instant::now() > deadline => {
                    self.say(format!("once more, for {missing}"));
                    return false;
                }
                Err(_) => std::thread::sleep(Duration::from_millis(500)),
            }
        }
    }

    fn begin(&mut self, nodes: usize) -> Result<(), String> {
        for node in 0..nodes {
            self.spawn(node)?;
        }
        let address = self.http(0)?;
        self.until("the cluster serves", |stage| {
            Ok(QUEUES.iter().try_for_each(|queue| stage.system.prepare(address, queue)).ok())
        })?;
        let probe = Probe::start(self.nodes.iter().map(|node| node.http).collect())?;
        probe.until_whole(Instant::now(), PATIENCE)?;
        probe.longest();
        self.probe = Some(probe);
        self.run.fault(Fault::Started);
        for node in 0..nodes {
            self.tell(node);
        }
        Ok(())
    }

    /// Something worth saying in the end.
    pub(crate) fn say(&mut self, what: String) {
        self.said.push(what);
    }

    /// Where a running node listens for HTTP.
    pub(crate) fn http(&self, node: usize) -> Result<SocketAddr, String> {
        self.nodes[node].http.ok_or_else(|| format!("node {node} does not run"))
    }

    /// Any of all nodes.
    pub(crate) fn any(&mut self) -> usize {
        usize::try_from(self.rng.below(self.nodes.len() as u64)).unwrap_or(0)
    }

    /// For some time.
    pub(crate) fn sleep(&mut self, from_ms: u64, until_ms: u64) {
        std::thread::sleep(Duration::from_millis(self.rng.range(from_ms, until_ms)));
    }

    pub(crate) fn probe(&self) -> Result<&Probe, String> {
        self.probe.as_ref().ok_or_else(|| "no probe".to_owned())
    }

    /// Says what is done to the cluster, just before it is done, and from when on it counts.
    pub(crate) fn strike(&self, blow: Blow) -> Instant {
        self.run.fault(Fault::Struck(blow));
        Instant::now()
    }

    /// Waits until every shard is served again, and says so. Gives the time since the blow.
    pub(crate) fn heal(&self, since: Instant) -> Result<Duration, String> {
        // Asked for after now: what was answered between blow and effect proves nothing.
        let delay = since.elapsed();
        let took = self.probe()?.until_whole(Instant::now(), PATIENCE)?;
        self.run.fault(Fault::Healed);
        Ok(delay + took)
    }

    /// Says for how long a shard was with nobody, and what is promised. This is no condition: a machine with too much to do
    /// adds to the time, and the simulation asserts it.
    pub(crate) fn say_longest(&mut self, what: &str, longest: Duration) {
        let promised = self.system.shard_lease + TAKEOVER;
        self.say(format!("{what} after at most {} ms ({} promised)", ms(longest), ms(promised)));
    }

    /// Repeats a fault, and gives the longest time that it took until all was well.
    pub(crate) fn worst_of(
        &mut self,
        times: u64,
        mut fault: impl FnMut(&mut Self, u64) -> Result<Duration, String>,
    ) -> Result<Duration, String> {
        let mut worst = Duration::ZERO;
        for round in 0..times {
            worst = worst.max(fault(self, round)?);
        }
        Ok(worst)
    }

    /// Repeats a fault until it has hit an owner of shards so often: somebody had to wait for his shard for the better
    /// part of a lease. One that hits a node with no shards, as one is that has just come, is done once more.
    pub(crate) fn until_it_bites(
        &mut self,
        times: u64,
        what: &str,
        mut fault: impl FnMut(&mut Self, u64) -> Result<Duration, String>,
    ) -> Result<Duration, String> {
        let (mut bites, mut worst) = (0, Duration::ZERO);
        for round in 0..2 * times + 2 {
            let took = fault(self, round)?;
            worst = worst.max(took);
            bites += u64::from(took >= self.system.shard_lease / 2);
            if bites == times {
                return Ok(worst);
            }
        }
        Err(format!("{what}: only {bites} of {times} hit a node with shards"))
    }

    /// Starts a node, and waits until it listens.
    fn spawn(&mut self, node: usize) -> Result<(), String> {
        let member = self.nodes[node].member.clone();
        let fail = |e: io::Error| format!("{}: {e}", member.name);
        let mut server = self.system.node(&member, &self.folder).map_err(fail)?;
        let address = server.address(PATIENCE).map_err(fail)?;
        self.nodes[node].server = Some(server);
        self.nodes[node].http = Some(address);
        Ok(())
    }

    /// Tells clients and probe where a node is now.
    fn tell(&mut self, node: usize) {
        use duewheel_sim::blackbox::cluster::Door;
        self.starts += 1;
        let http = self.nodes[node].http;
        let door = match self.system.door {
            Door::Http => http,
            Door::Beanstalk => http.map(|_| self.nodes[node].member.beanstalk),
        };
        self.run.set_node(node, door.map(|address| (address, self.starts)));
        if let Some(probe) = &self.probe {
            probe.set_node(node, http);
        }
    }

    /// Starts a node that did not run.
    pub(crate) fn start(&mut self, node: usize) -> Result<(), String> {
        self.spawn(node)?;
        self.tell(node);
        Ok(())
    }

    /// From its next start on a node is of this version.
    pub(crate) fn set_build(&mut self, node: usize, build: Build) {
        self.nodes[node].member.build = build;
    }

    /// What a node has logged over all its starts.
    pub(crate) fn log(&self, node: usize) -> Result<String, String> {
        let file = self.folder.join(format!("{}.log", self.nodes[node].member.name));
        std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Kills a node with SIGKILL.
    pub(crate) fn kill(&mut self, node: usize) -> Result<(), String> {
        let server = self.take(node)?;
        server.kill().map_err(|e| format!("kill of node {node}: {e}"))?;
        self.nodes[node].http = None;
        self.tell(node);
        Ok(())
    }

    /// Ends a node with SIGTERM; its clients notice by themselves.
    pub(crate) fn stop(&mut self, node: usize) -> Result<(), String> {
        let server = self.take(node)?;
        if let Some(probe) = &self.probe {
            probe.leave(node);
        }
        server.stop(PATIENCE).map_err(|e| format!("SIGTERM of node {node}: {e}"))?;
        self.nodes[node].http = None;
        self.tell(node);
        Ok(())
    }

    /// Stops a node with SIGSTOP. The probe keeps away from it, its clients do not.
    pub(crate) fn pause(&self, node: usize) -> Result<(), String> {
        let id = self.nodes[node].server.as_ref().map(Server::id).ok_or("no such node")?;
        self.probe()?.leave(node);
        process::pause(id, PATIENCE)
    }

    /// Lets it go on.
    pub(crate) fn resume(&self, node: usize) -> Result<(), String> {
        let id = self.nodes[node].server.as_ref().map(Server::id).ok_or("no such node")?;
        process::resume(id)?;
        self.probe()?.set_node(node, self.nodes[node].http);
        Ok(())
    }

    fn take(&mut self, node: usize) -> Result<Server, String> {
        self.nodes[node].server.take().ok_or_else(|| format!("node {node} does not run"))
    }

    /// A request to a node that is no operation of the history: its status and JSON.
    pub(crate) fn call(
        &self,
        node: usize,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<(u16, Value), String> {
        http::ask(self.http(node)?, PATIENCE, method, path, body)
    }

    /// A request to any node that runs, which must be answered with success.
    pub(crate) fn done(&self, method: &str, path: &str, body: &Value) -> Result<(), String> {
        let node =
            (0..self.nodes.len()).find(|node| self.nodes[*node].http.is_some()).ok_or("no node runs")?;
        http::done(self.http(node)?, PATIENCE, method, path, body).map(drop)
    }

    /// What a node answers to a `GET`, as text.
    pub(crate) fn text(&self, node: usize, path: &str) -> Result<String, String> {
        let fail = |e: io::Error| format!("GET {path}: {e}");
        let mut connection = http::Connection::open(self.http(node)?, PATIENCE).map_err(fail)?;
        let answer = connection.request("GET", path, "text/plain", b"").map_err(fail)?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// The status of a node's `/healthz`, and its trouble in words.
    pub(crate) fn health(&self, node: usize) -> Result<(u16, String), String> {
        let (status, health) = self.call(node, "GET", "/healthz", &Value::Null)?;
        Ok((status, health["trouble"].as_str().unwrap_or_default().to_owned()))
    }

    /// The node that owns a shard, as node 0 sees it.
    pub(crate) fn owner_of(&self, shard: usize) -> Result<usize, String> {
        let (_, view) = self.call(0, "GET", "/v1/cluster", &Value::Null)?;
        let owner = &view["shards"][shard]["owner"];
        let found = self.nodes.iter().position(|node| *owner == node.member.name.as_str());
        found.ok_or_else(|| format!("no owner: {view}"))
    }

    /// Asks until it is so.
    pub(crate) fn until(
        &self,
        what: &str,
        mut so: impl FnMut(&Self) -> Result<Option<()>, String>,
    ) -> Result<(), String> {
        process::until(what, PATIENCE, || so(self))
    }
}

/// In whole ms.
pub(crate) fn ms(time: Duration) -> u128 {
    time.as_millis()
}
