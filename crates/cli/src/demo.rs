//! `duewheel demo`: three stories on a server of its own on a temporary folder, which is killed in the middle.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use duewheel_client::Error;
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::failure::CommandFailure;
use super::remote::{Remote, ServerArgs};
use super::session::{Interrupt, RunCommand};
use super::table::are;

/// The number of SMS of one instant.
const SMS: usize = 200;
/// How often the main thread looks whether it was interrupted.
const LOOK: Duration = Duration::from_millis(50);
/// How long a message may be late before it counts as lost.
const LOST: Duration = Duration::from_secs(30);

#[derive(Args, Debug)]
#[command(
    after_help = "It needs nothing, and leaves nothing behind: the server listens on a free port of this machine, \
and its folder is a temporary one, which is removed at the end, at Ctrl-C, too."
)]
pub(super) struct DemoArgs {
    /// How long it takes, in seconds
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u16).range(3..=3_600))]
    seconds: u16,
}

impl RunCommand for DemoArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let interrupt = Interrupt::watch()?;
        let server = DemoServer::start()?;
        let stage = DemoStage::new(server, Duration::from_secs(u64::from(self.seconds)), interrupt)?;
        stage.play()
    }
}

/// A message that a consumer got.
#[derive(Debug)]
struct DemoGrant {
    body: String,
    lateness_ms: u64,
    is_early: bool,
}

/// The demonstration under way.
struct DemoStage {
    server: DemoServer,
    remote: Remote,
    begun: Instant,
    length: Duration,
    interrupt: Interrupt,
    grants: Receiver<DemoGrant>,
    /// Set when the consumers are to stop.
    is_over: Arc<AtomicBool>,
    sms: Vec<u64>,
    orders: BTreeMap<String, u64>,
    has_early: bool,
}

impl DemoStage {
    fn new(server: DemoServer, length: Duration, interrupt: Interrupt) -> Result<DemoStage, CommandFailure> {
        let (sender, grants) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        for queue in ["orders", "sms"] {
            let remote = remote_of(&server)?;
            let (sender, is_over) = (sender.clone(), Arc::clone(&is_over));
            // The thread ends with the process, or once `is_over` is set.
            thread::spawn(move || consume(&remote, queue, &sender, &is_over));
        }
        let remote = remote_of(&server)?;
        Ok(DemoStage {
            server,
            remote,
            begun: Instant::now(),
            length,
            interrupt,
            grants,
            is_over,
            sms: Vec::new(),
            orders: BTreeMap::new(),
            has_early: false,
        })
    }

    fn play(mut self) -> Result<(), CommandFailure> {
        let result = self.stories();
        self.is_over.store(true, Ordering::Relaxed);
        self.server.stop();
        result
    }

    fn stories(&mut self) -> Result<(), CommandFailure> {
        let address = self.server.url.clone();
        self.say(&format!("a server runs on an empty folder; {address} in a browser shows it"))?;
        let closes = self.length.mul_f64(0.7);
        let timeout = json!({"body": "close order 42", "key": "order-42", "delay_ms": ms(closes)});
        self.remote.post("/v1/queues/orders/messages", &timeout)?;
        self.say(&format!("order 42 is placed: it closes itself in {}, unless it is paid", seconds(closes)))?;
        let timeout = json!({"body": "close order 43", "key": "order-43", "delay_ms": ms(closes)});
        self.remote.post("/v1/queues/orders/messages", &timeout)?;
        self.say("order 43 is placed, with the same timeout")?;
        let instant = self.length.mul_f64(0.85);
        self.write_sms(instant)?;
        self.say(&format!("{SMS} SMS are written, all for one instant, in {}", seconds(instant)))?;

        self.pass_until(self.length.mul_f64(0.2))?;
        self.remote.delete("/v1/queues/orders/keys/order-43")?;
        self.say("order 43 is paid: its timeout is cancelled, by the order's own key")?;

        self.pass_until(self.length.mul_f64(0.4))?;
        self.server.kill();
        self.say("kill -9: the server is gone, and had no time to save anything")?;
        self.pass_until(self.length.mul_f64(0.45))?;
        let before = Instant::now();
        self.server.start_again()?;
        let took = before.elapsed().as_millis();
        let counts = self.remote.get("/v1/stats")?["counts"].take();
        // On a slow machine some are due by now.
        let there: u64 =
            ["scheduled", "ready", "leased"].iter().filter_map(|state| counts[*state].as_u64()).sum();
        self.say(&format!("it is started again, which took {took} ms: {} there", are(there, "message")))?;

        self.pass_until(instant)?;
        self.wait_for_all()?;
        self.tell_lateness()
    }

    fn write_sms(&self, after: Duration) -> Result<(), CommandFailure> {
        let after = i64::try_from(after.as_millis()).map_err(CommandFailure::failed)?;
        let due = Timestamp::from_millisecond(Timestamp::now().as_millisecond().saturating_add(after));
        let due = format!("{:.3}", due.map_err(CommandFailure::failed)?);
        let lines: String =
            (1..=SMS).map(|n| format!("{}\n", json!({"body": format!("SMS {n}"), "due_at": due}))).collect();
        let results = self.remote.post_lines("/v1/queues/sms/messages", lines.lines())?;
        match results.iter().find(|result| result.get("id").is_none()) {
            Some(refused) => Err(CommandFailure::Failed(format!("an SMS was refused: {refused}"))),
            None => Ok(()),
        }
    }

    /// Receives messages until `since_begin` has passed since the start.
    fn pass_until(&mut self, since_begin: Duration) -> Result<(), CommandFailure> {
        loop {
            let left = since_begin.saturating_sub(self.begun.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            self.next(left)?;
        }
    }

    /// Waits for what is due and did not come yet.
    fn wait_for_all(&mut self) -> Result<(), CommandFailure> {
        let until = Instant::now() + LOST;
        while self.sms.len() < SMS || self.orders.is_empty() {
            if Instant::now() >= until {
                let what = format!(
                    "{} of {SMS} SMS and {} of 1 timeouts came; that is a bug in duewheel",
                    self.sms.len(),
                    self.orders.len()
                );
                return Err(CommandFailure::Failed(what));
            }
            self.next(LOOK)?;
        }
        Ok(())
    }

    /// Takes the next message, if one comes in time.
    fn next(&mut self, wait: Duration) -> Result<(), CommandFailure> {
        if self.interrupt.has_come() {
            return Err(CommandFailure::Failed(
                "interrupted: the server is stopped, its folder is removed".into(),
            ));
        }
        let grant = match self.grants.recv_timeout(wait.min(LOOK)) {
            Ok(grant) => grant,
            Err(RecvTimeoutError::Timeout) => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(CommandFailure::failed("the consumers of the demonstration have ended"));
            }
        };
        self.has_early |= grant.is_early;
        if grant.body.starts_with("SMS") {
            self.sms.push(grant.lateness_ms);
        } else {
            let words = format!("{}: it was not paid; {} ms late", grant.body, grant.lateness_ms);
            self.orders.insert(grant.body, grant.lateness_ms);
            self.say(&words)?;
        }
        Ok(())
    }

    fn tell_lateness(&mut self) -> Result<(), CommandFailure> {
        self.sms.sort_unstable();
        let (half, last) = (self.sms[self.sms.len() / 2], self.sms[self.sms.len() - 1]);
        self.say(&format!(
            "{} of {SMS} SMS are sent: half of them at most {half} ms late, the last one {last} ms",
            self.sms.len()
        ))?;
        if self.has_early || self.sms.len() != SMS || self.orders.keys().ne(["close order 42"]) {
            let orders: Vec<&str> = self.orders.keys().map(String::as_str).collect();
            let what = format!(
                "came: {} SMS and {}{}; that is a bug in duewheel",
                self.sms.len(),
                orders.join(", "),
                if self.has_early { ", one of them early" } else { "" }
            );
            return Err(CommandFailure::Failed(what));
        }
        self.say("order 43 was never closed. Nothing was early, lost or doubled")?;
        writeln!(
            io::stdout(),
            "\nNext: duewheel serve, and in another terminal: duewheel enqueue orders hello --delay 10s"
        )?;
        Ok(())
    }

    fn say(&self, words: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{:>6.1} s  {words}", self.begun.elapsed().as_secs_f64())?;
        out.flush()
    }
}

/// Reserves and acks until the demonstration is over. A server that is gone is waited for.
fn consume(remote: &Remote, queue: &str, sender: &Sender<DemoGrant>, is_over: &AtomicBool) {
    let path = format!("/v1/queues/{queue}/reserve");
    while !is_over.load(Ordering::Relaxed) {
        let wait = Duration::from_millis(500);
        let request = json!({"max": SMS, "wait_ms": ms(wait)});
        let Ok(answer) = remote.post_waiting(&path, &request, wait) else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        let messages = answer["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
        if !messages.is_empty() && take(remote, messages, sender).is_err() {
            // Their leases run out, and they come again.
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn take(remote: &Remote, messages: &[Value], sender: &Sender<DemoGrant>) -> Result<(), Error> {
    let now = Timestamp::now();
    let leases: Vec<Value> = messages
        .iter()
        .map(|message| json!({"id": message["id"], "lease_token": message["lease_token"]}))
        .collect();
    remote.post("/v1/ack", &json!({ "messages": leases }))?;
    for message in messages {
        let due = message["due_at"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let grant = DemoGrant {
            body: message["body"].as_str().unwrap_or_default().to_owned(),
            lateness_ms: message["lateness_ms"].as_u64().unwrap_or(0),
            is_early: due.is_none_or(|due| now < due),
        };
        // The other side has ended with the demonstration.
        let _ = sender.send(grant);
    }
    Ok(())
}

fn remote_of(server: &DemoServer) -> Result<Remote, CommandFailure> {
    Remote::new(&ServerArgs { server: server.url.clone(), ..ServerArgs::default() }, Some(Duration::ZERO))
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

/// How long a server may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
const OWNER_ONLY: u32 = 0o700;

/// A server process and its folder.
#[derive(Debug)]
struct DemoServer {
    folder: PathBuf,
    child: Child,
    /// The address of the server, the same after a restart.
    url: String,
}

impl DemoServer {
    /// Starts one on a free port of this machine and an empty folder.
    ///
    /// # Errors
    /// The folder cannot be created, or the server does not start; then the error has what it logged.
    fn start() -> Result<DemoServer, CommandFailure> {
        let name = format!("duewheel-demo-{}-{}", std::process::id(), jiff::Timestamp::now().as_nanosecond());
        let folder = std::env::temp_dir().join(name);
        DirBuilder::new().mode(OWNER_ONLY).create(&folder).map_err(|error| {
            CommandFailure::Failed(format!("cannot create {}: {error}", folder.display()))
        })?;
        match spawn(&folder, "127.0.0.1:0") {
            Ok((child, url)) => Ok(DemoServer { folder, child, url }),
            Err(failure) => {
                let _ = fs::remove_dir_all(&folder);
                Err(failure)
            }
        }
    }

    /// SIGKILL.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on the same folder and port.
    ///
    /// # Errors
    /// See [`DemoServer::start`].
    fn start_again(&mut self) -> Result<(), CommandFailure> {
        let address = self.url.trim_start_matches("http://").to_owned();
        (self.child, self.url) = spawn(&self.folder, &address)?;
        Ok(())
    }

    /// SIGTERM; SIGKILL if that takes too long.
    fn stop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| matches!(self.child.try_wait(), Ok(None))) {
            let _ = kill_process(pid, Signal::TERM);
            let until = Instant::now() + GRACE;
            while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self.kill();
    }
}

impl Drop for DemoServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn spawn(folder: &Path, address: &str) -> Result<(Child, String), CommandFailure> {
    let log_file = folder.join("log");
    let log = File::options().create(true).append(true).open(&log_file)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["serve", "--beanstalk", "off", "--log", "warn", "--http", address, "--data"]);
    command.arg(folder.join("data"));
    // Options of another server are none of its business.
    for (name, _) in std::env::vars_os() {
        if ["DUEWHEEL_", "OTEL_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    // Ctrl-C in the terminal is for this process, which then stops the server.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn()?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        let _ = BufReader::new(out).read_line(&mut line);
    }
    if let Some(url) = line.trim().strip_prefix("listening on ") {
        return Ok((child, url.to_owned()));
    }
    let _ = child.kill();
    let _ = child.wait();
    let mut said = String::new();
    let _ = File::open(&log_file).and_then(|mut file| file.read_to_string(&mut said));
    Err(CommandFailure::Failed(format!("the server does not start: {}", said.trim())))
}
