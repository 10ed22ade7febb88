//! A server of this binary's own, on a temporary folder: killed and removed with its owner.

use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::CommandFailure;

/// How long a server may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
const OWNER_ONLY: u32 = 0o700;

/// A server process and its folder.
#[derive(Debug)]
pub(super) struct DemoServer {
    folder: PathBuf,
    child: Child,
    url: String,
}

impl DemoServer {
    /// Starts one on a free port of this machine and an empty folder.
    ///
    /// # Errors
    /// The folder cannot be created, or the server does not start; then the error has what it logged.
    pub(super) fn start() -> Result<DemoServer, CommandFailure> {
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

    /// The address of the server, the same after a restart.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on the same folder and port.
    ///
    /// # Errors
    /// See [`DemoServer::start`].
    pub(super) fn start_again(&mut self) -> Result<(), CommandFailure> {
        let address = self.url.trim_start_matches("http://").to_owned();
        (self.child, self.url) = spawn(&self.folder, &address)?;
        Ok(())
    }

    /// SIGTERM; SIGKILL if that takes too long.
    pub(super) fn stop(&mut self) {
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
