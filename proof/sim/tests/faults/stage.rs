//! A run: a server, the clients of the kill -9 test, and a judge at the end.

use std::fs::File;
use std::io::BufWriter;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use duewheel_judge::checker::{Fact, check};
use duewheel_judge::history::{Fault, Moment, Rules};
use duewheel_judge::rng::Rng;
use duewheel_sim::blackbox::System as _;
use duewheel_sim::blackbox::client::{Run, Stage as Work};
use duewheel_sim::blackbox::crew::{self, Gossip, QUEUES};
use duewheel_sim::blackbox::http::DuewheelHttp;
pub(crate) use duewheel_sim::process::PATIENCE;
use duewheel_sim::process::{Server, binary};
use duewheel_sim::{http, process};
use serde_json::Value;

/// Our server, with so little memory that runs are written and merged all the time, and most messages are on the disk
/// alone.
pub(crate) const SYSTEM: DuewheelHttp = DuewheelHttp { shards: 1 };

/// The faults are rarer than those of the kill -9 test.
const PACE: u64 = 3;

/// What a run works with.
pub(crate) struct Stage<'a> {
    pub(crate) run: &'a Run<'a>,
    pub(crate) binary: PathBuf,
    /// For logs and what else is kept.
    pub(crate) folder: PathBuf,
    pub(crate) data: PathBuf,
    pub(crate) rng: Rng,
    /// Options beside the usual ones.
    pub(crate) more: Vec<String>,
    pub(crate) address: Option<SocketAddr>,
    reign: u64,
}

/// What a run is.
pub(crate) struct Play {
    /// The test, as cargo takes it.
    pub(crate) name: &'static str,
    /// The variable that says how often, and how often it is.
    pub(crate) count: (&'static str, u64),
    /// Where the data lies; in the run's own folder if not given.
    pub(crate) data: Option<PathBuf>,
    pub(crate) more: &'static [&'static str],
    /// For rounding and scheduling, wherever the server must not be too late; the usual if not given.
    pub(crate) slack_ms: Option<u64>,
    /// What must provably have happened.
    pub(crate) facts: Vec<(Fact, u64)>,
    pub(crate) crew: Crew,
}

/// Who works meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crew {
    /// The clients of the kill -9 test.
    All,
    /// Nobody but what the act hires.
    None,
}

/// A number from the environment.
pub(crate) fn env(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
}

/// Performs a run and judges it. `act` is given the running server and gives the last one back.
pub(crate) fn perform(play: Play, act: impl FnOnce(&mut Stage<'_>, Server) -> Result<Server, String>) {
    let random = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    let seed = env("DUEWHEEL_SEED", u64::from(random));
    let (name, (variable, count)) = (play.name, play.count);
    let folder = tempfile::Builder::new().prefix("duewheel-faults-").tempdir().expect("a temporary folder");
    let binary = binary().expect("the server's binary");
    println!(
        "{name}: {variable}={count}, seed {seed}, binary {}, folder {}",
        binary.display(),
        folder.path().display()
    );
    let started = Instant::now();
    let work = Run::new(&SYSTEM).at_pace(PACE);
    let mut stage = Stage {
        run: &work,
        binary,
        data: play.data.unwrap_or_else(|| folder.path().join("data")),
        folder: folder.path().to_owned(),
        rng: Rng::new(seed),
        more: play.more.iter().map(|&option| option.to_owned()).collect(),
        address: None,
        reign: 0,
    };
    let result = stage.play(play.crew, seed, act);
    let usual = SYSTEM.rules();
    let rules = Rules { slack_ms: play.slack_ms.unwrap_or(usual.slack_ms), ..usual };
    let history = work.recorder.history(&format!("{name}, {variable}={count}, seed {seed}"), rules);
    let report = check(&history);
    println!("{report}in {:.1} s", started.elapsed().as_secs_f32());

    let mut faults: Vec<String> = result.err().into_iter().collect();
    // A store that has failed is not there for questions either, until it is open again.
    let expected = |complaint: &String| complaint.starts_with("a get was refused with Other(");
    faults.extend(work.complaints().into_iter().filter(|complaint| !expected(complaint)));
    faults.extend(report.violations.iter().take(10).map(ToString::to_string));
    if faults.is_empty()
        && let Err(missing) = report.evidence.require(&play.facts)
    {
        faults.push(format!("the run proves too little: {missing}"));
    }
    if faults.is_empty() && std::env::var_os("DUEWHEEL_KEEP").is_none() {
        return;
    }
    let kept = folder.keep();
    let file = kept.join("history.jsonl");
    let mut out = BufWriter::new(File::create(&file).expect("the history's file"));
    history.save(&mut out).expect("the history is written");
    if faults.is_empty() {
        println!("history {}", file.display());
        return;
    }
    panic!(
        "{}\n\n{} violations. History {}, server's log and data beside it.\n\
         judge it again: cargo run -p duewheel-judge --example judge -- {}\n\
         same decisions: DUEWHEEL_SEED={seed} {variable}={count} cargo test -p duewheel-sim --test faults -- --nocapture {name}",
        faults.join("\n"),
        report.violations.len(),
        file.display(),
        file.display()
    );
}

impl Stage<'_> {
    fn play(
        &mut self,
        crew: Crew,
        seed: u64,
        act: impl FnOnce(&mut Stage<'_>, Server) -> Result<Server, String>,
    ) -> Result<(), String> {
        let (run, gossip) = (self.run, Gossip::default());
        std::thread::scope(|scope| {
            let hired = (crew == Crew::All).then(|| crew::Crew::hire(scope, run, &gossip, seed));
            let result = self.start().and_then(|server| {
                run.phase("load");
                let server = act(self, server)?;
                match hired {
                    Some(hired) => hired.drain(run, &gossip)?,
                    None => QUEUES.iter().try_for_each(|queue| run.dump(queue, &[]))?,
                }
                server.kill().map_err(|e| format!("at the end: {e}"))
            });
            // Whatever happened, let the clients go.
            run.set_stage(Work::Stop);
            run.set_address(None);
            result
        })
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// Starts the server, and tells the clients where it is.
    pub(crate) fn start(&mut self) -> Result<Server, String> {
        self.reign += 1;
        let mut command = Command::new(&self.binary);
        command.args(Server::arguments(&self.data)).args(&self.more);
        let mut server = Server::spawn(command, &self.log(), "listening on").map_err(|e| e.to_string())?;
        let address = server.address(PATIENCE).map_err(|e| format!("start {}: {e}", self.reign))?;
        self.fault(Fault::Started);
        self.address = Some(address);
        if self.reign == 1 {
            // Before the clients hear of it: what they did before would have other leases than the history says.
            QUEUES.iter().try_for_each(|queue| SYSTEM.prepare(address, queue))?;
        }
        self.run.set_address(Some((address, self.reign)));
        Ok(server)
    }

    /// Kills it; the fault is recorded when it is gone.
    pub(crate) fn kill(&mut self, server: Server) -> Result<(), String> {
        self.kill_and_hear(server, || Ok(()))
    }

    /// Kills it; the fault is recorded when it is gone and `last` has read everything that it has sent.
    pub(crate) fn kill_and_hear(
        &mut self,
        server: Server,
        last: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        self.run.set_address(None);
        self.address = None;
        server.kill().map_err(|e| format!("kill in reign {}: {e}", self.reign))?;
        last()?;
        self.fault(Fault::Killed(Moment::Serving));
        Ok(())
    }

    pub(crate) fn fault(&self, fault: Fault) {
        self.run.fault(fault);
    }

    pub(crate) fn other(&self, what: impl Into<String>) {
        self.fault(Fault::Other(what.into()));
    }

    /// A request that is no operation of the history: its status and JSON.
    pub(crate) fn call(&self, method: &str, path: &str, body: &Value) -> Result<(u16, Value), String> {
        let address = self.address.ok_or("no server")?;
        http::ask(address, PATIENCE, method, path, body)
    }

    /// As [`Stage::call`], and it must be answered with success.
    ///
    /// Story: the server had too much to do for a message of a test's own, and said so.
    pub(crate) fn done(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let address = self.address.ok_or("no server")?;
        http::done(address, PATIENCE, method, path, body)
    }

    /// Asks until it is so.
    pub(crate) fn until(
        &self,
        what: &str,
        mut so: impl FnMut(&Self) -> Result<Option<()>, String>,
    ) -> Result<(), String> {
        process::until(what, PATIENCE, || so(self))
    }

    /// Waits until the server says that all is well.
    pub(crate) fn until_healthy(&self) -> Result<(), String> {
        let mut last = Value::Null;
        self.until("healthy", |stage| {
            let (status, said) = stage.call("GET", "/healthz", &Value::Null)?;
            last = said;
            Ok((status == 200).then_some(()))
        })
        .map_err(|e| format!("{e}: {last}"))
    }
}

/// What the server has logged so far.
pub(crate) fn read(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
