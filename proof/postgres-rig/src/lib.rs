//! Real PostgreSQL servers for tests and benchmarks: primaries, and standbys that can be promoted.
//!
//! Everything is private to the caller: loopback, an unused port, a folder of its own, processes that end with their
//! owner. The calls block. `DUEWHEEL_POSTGRES` names the folder of the server's programs
//! (`scripts/tools --newer-postgres` prints one); by default the newest one of Debian's packages is taken. PostgreSQL
//! refuses to run as root, so root runs it as `postgres` or as `nobody`.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use duewheel_redis_rig::free_port;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The time limit of a start or an end.
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(20);
/// The superuser of each server.
const SUPERUSER: &str = "postgres";

/// How a server is set up.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Settings of `postgresql.conf`, beside those of the rig.
    pub set: Vec<(String, String)>,
    /// Where its folder is made, if not in memory.
    pub within: Option<PathBuf>,
}

impl Settings {
    /// With one more setting.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.set.push((name.into(), value.into()));
        self
    }

    /// With its folder in this one.
    #[must_use]
    pub fn within(mut self, folder: &Path) -> Self {
        self.within = Some(folder.to_owned());
        self
    }
}

/// A server on 127.0.0.1 with a port and a folder of its own. Dropping it kills it and removes the folder.
#[derive(Debug)]
pub struct Postgres {
    settings: Settings,
    folder: TempDir,
    port: u16,
    child: Option<Child>,
}

/// The folder of the server's programs.
///
/// # Errors
///
/// There is none: the package `postgresql` is not installed.
pub fn programs() -> io::Result<PathBuf> {
    match std::env::var_os("DUEWHEEL_POSTGRES") {
        Some(folder) => Ok(folder.into()),
        None => packaged(),
    }
}

/// The folder of the programs of Debian's newest package.
fn packaged() -> io::Result<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = Vec::new();
    for entry in fs::read_dir("/usr/lib/postgresql")? {
        let path = entry?.path();
        let version = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        if let Some(version) = version
            && path.join("bin/postgres").exists()
        {
            versions.push((version, path.join("bin")));
        }
    }
    versions.sort();
    versions.pop().map(|(_, folder)| folder).ok_or_else(|| io::Error::other("no PostgreSQL is installed"))
}

/// The user and the group as which root runs the server.
fn unprivileged() -> io::Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let of = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut ids = line.split(':').skip(2).map(str::parse::<u32>);
        Some((ids.next()?.ok()?, ids.next()?.ok()?))
    };
    let found = of("postgres").or_else(|| of("nobody"));
    found.map(Some).ok_or_else(|| io::Error::other("neither the user postgres nor nobody is there"))
}

/// A program of the server's folder, or of Debian's package if that folder has none: some have the server alone.
fn program(name: &str) -> io::Result<Command> {
    let own = programs()?.join(name);
    let mut command = Command::new(if own.exists() { own } else { packaged()?.join(name) });
    if let Some((user, group)) = unprivileged()? {
        command.uid(user).gid(group);
    }
    // The caller's own settings are not for this server, and neither is its folder.
    command.current_dir("/").env_clear().env("LC_ALL", "C").env("TZ", "UTC").stdin(Stdio::null());
    Ok(command)
}

/// A folder in memory if it has room: each server makes and removes a thousand files, for which a disk that is busy with
/// those of others takes seconds. Benchmarks name a folder on the disk.
fn usual_place() -> PathBuf {
    const ROOM: u64 = 4 << 30;
    let memory = Path::new("/dev/shm");
    let room =
        rustix::fs::statvfs(memory).map_or(0, |volume| volume.f_bavail.saturating_mul(volume.f_frsize));
    if room < ROOM { std::env::temp_dir() } else { memory.into() }
}

fn run(mut command: Command) -> io::Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("{:?}: {}: {said}", command.get_program(), output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Postgres {
    /// Makes an empty database and starts its server.
    ///
    /// # Errors
    ///
    /// It is not installed, cannot be started, or does not answer within a minute; the error has the end of its log.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let postgres = Postgres::new(settings)?;
        let mut make = program("initdb")?;
        make.arg("--no-sync").arg("--auth=trust").arg("--encoding=UTF8").arg("--locale=C");
        make.arg(format!("--username={SUPERUSER}")).arg(postgres.data());
        run(make)?;
        postgres.started()
    }

    /// Makes a standby of a running server, which streams its changes under this name.
    ///
    /// # Errors
    ///
    /// See [`Postgres::start`].
    pub fn standby(primary: &Postgres, name: &str, settings: Settings) -> io::Result<Self> {
        let postgres = Postgres::new(settings)?;
        let source = format!("host=127.0.0.1 port={} user={SUPERUSER} application_name={name}", primary.port);
        if programs()?.join("pg_basebackup").exists() {
            let mut copy = program("pg_basebackup")?;
            copy.args(["--checkpoint=fast", "--write-recovery-conf", "--no-sync", "--wal-method=stream"]);
            copy.arg("--dbname").arg(source).arg("--pgdata").arg(postgres.data());
            run(copy)?;
        } else {
            postgres.copy_of(primary, &source)?;
        }
        postgres.started()
    }

    /// Copies the files of a running server, as the manual's "Making a Base Backup Using the Low Level API" does: the
    /// program that does it belongs to the server's own version.
    fn copy_of(&self, primary: &Postgres, source: &str) -> io::Result<()> {
        let (from, to) = (primary.data().display().to_string(), self.data().display().to_string());
        let script = format!(
            "SELECT pg_backup_start('standby', true);\n\\! cp -a '{from}' '{to}' && rm -f '{to}/postmaster.pid'\n\
             \\o '{to}/backup_label'\nSELECT labelfile FROM pg_backup_stop(false);\n"
        );
        let file = self.folder.path().join("copy.sql");
        fs::write(&file, script)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
        let mut copy = psql_at(primary.port)?;
        copy.arg("--file").arg(&file);
        run(copy)?;
        let conf = self.data().join("postgresql.auto.conf");
        let settings = format!("{}primary_conninfo = '{source}'\n", fs::read_to_string(&conf)?);
        fs::write(&conf, settings)?; // its owner stays
        let signal = self.data().join("standby.signal");
        fs::write(&signal, "")?;
        if let Some((user, group)) = unprivileged()? {
            chown(&signal, Some(user), Some(group))?;
        }
        Ok(())
    }

    fn new(settings: Settings) -> io::Result<Self> {
        let mut named = tempfile::Builder::new();
        named.prefix("duewheel-postgres-");
        let folder = named.tempdir_in(settings.within.clone().unwrap_or_else(usual_place))?;
        if let Some((user, group)) = unprivileged()? {
            chown(folder.path(), Some(user), Some(group))?;
        }
        Ok(Postgres { settings, folder, port: free_port()?, child: None })
    }

    fn started(mut self) -> io::Result<Self> {
        // Another process may have taken the port between the check and the server's start.
        for _ in 0..10 {
            match self.spawn_and_wait() {
                Ok(()) => return Ok(self),
                Err(error) if error.kind() == ErrorKind::AddrInUse => self.port = free_port()?,
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("no port is free"))
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The folder with its data and its log.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its log since the first start.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The port at which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The number of its first process; `None` when it does not run.
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The database `postgres` of it, as its superuser.
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// The same by another port of the loopback, say that of a proxy.
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://{SUPERUSER}@127.0.0.1:{port}/postgres")
    }

    fn spawn(&self) -> io::Result<Child> {
        let log = File::options().create(true).append(true).open(self.folder.path().join("log"))?;
        let mut server = program("postgres")?;
        server.arg("-D").arg(self.data());
        let sockets = self.folder.path().display().to_string();
        let port = self.port.to_string();
        let own = [
            ("listen_addresses", "127.0.0.1"),
            ("port", &*port),
            ("unix_socket_directories", &*sockets),
            ("shared_buffers", "64MB"),
            ("max_connections", "200"),
            ("log_min_messages", "warning"),
        ];
        let given = self.settings.set.iter().map(|(name, value)| (&**name, &**value));
        for (name, value) in own.into_iter().chain(given) {
            server.arg("-c").arg(format!("{name}={value}"));
        }
        server.stdout(log.try_clone()?).stderr(log).spawn()
    }

    fn spawn_and_wait(&mut self) -> io::Result<()> {
        let mut before = self.log().len();
        self.child = Some(self.spawn()?);
        let deadline = Instant::now() + PATIENCE;
        while self.query("SELECT 1").is_err() {
            let said = self.log().split_off(before);
            let ended =
                self.child.as_mut().is_none_or(|child| child.try_wait().is_ok_and(|end| end.is_some()));
            if ended && said.contains("could not bind") {
                return Err(ErrorKind::AddrInUse.into());
            }
            if ended && said.contains("is still in use") && Instant::now() < deadline {
                // Processes of a server that was killed have its memory until they have ended.
                std::thread::sleep(STEP);
                before = self.log().len();
                self.child = Some(self.spawn()?);
                continue;
            }
            if ended || Instant::now() >= deadline {
                return Err(io::Error::other(format!("the server does not start: {said}")));
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Makes statements by `psql`, and returns what they answer: columns with `|` between, a row a line.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or refuses one.
    pub fn query(&self, sql: &str) -> io::Result<String> {
        Postgres::query_at(self.port, sql)
    }

    /// The same at a port.
    ///
    /// # Errors
    ///
    /// See [`Postgres::query`].
    pub fn query_at(port: u16, sql: &str) -> io::Result<String> {
        let mut ask = psql_at(port)?;
        ask.arg("--command").arg(sql);
        Ok(run(ask)?.trim_end().to_owned())
    }

    /// Begins a transaction that keeps its first look at these statements' tables until it is dropped.
    ///
    /// # Errors
    ///
    /// The server cannot be reached.
    pub fn long_transaction(&self, sql: &str) -> io::Result<LongTransaction> {
        let mut psql = psql_at(self.port)?;
        psql.arg("--command").arg("BEGIN ISOLATION LEVEL REPEATABLE READ");
        psql.arg("--command").arg(sql).arg("--command").arg("SELECT pg_sleep(3600)");
        let child = psql.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let transaction = LongTransaction(child);
        let deadline = Instant::now() + PATIENCE;
        let held = "SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND query LIKE '%pg_sleep(3600)%' \
                    AND pid <> pg_backend_pid()";
        while self.query(held)? != "1" {
            if Instant::now() >= deadline {
                return Err(io::Error::other("the transaction does not begin"));
            }
            std::thread::sleep(STEP);
        }
        Ok(transaction)
    }

    /// Kills all of its processes with SIGKILL.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub fn kill(&mut self) -> io::Result<()> {
        let mut child = self.child.take().ok_or_else(not_running)?;
        kill_all(&mut child)
    }

    /// Ends it at once without writing anything out, as `pg_ctl stop -m immediate`.
    ///
    /// # Errors
    ///
    /// It does not run, or does not end within a minute.
    pub fn stop_immediately(&mut self) -> io::Result<()> {
        self.end(Signal::QUIT)
    }

    /// Ends it cleanly, as `pg_ctl stop -m fast`.
    ///
    /// # Errors
    ///
    /// It does not run, or does not end within a minute.
    pub fn stop(&mut self) -> io::Result<()> {
        self.end(Signal::INT)
    }

    fn end(&mut self, signal: Signal) -> io::Result<()> {
        let mut child = self.child.take().ok_or_else(not_running)?;
        kill_process(id(&child)?, signal)?;
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait()?.is_none() {
            if Instant::now() >= deadline {
                kill_all(&mut child)?;
                return Err(io::Error::new(ErrorKind::TimedOut, "the server does not end"));
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Whether it has ended by itself.
    ///
    /// # Errors
    ///
    /// It was ended by this rig.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.child.as_mut().ok_or_else(not_running)?.try_wait()?.is_some())
    }

    /// Starts it again, on its folder and its port, and waits until it answers.
    ///
    /// # Errors
    ///
    /// See [`Postgres::start`].
    pub fn start_again(&mut self) -> io::Result<()> {
        self.spawn_and_wait()
    }

    /// Stops all of its processes with SIGSTOP: it keeps its connections and answers nothing.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub fn pause(&self) -> io::Result<()> {
        let child = self.child.as_ref().ok_or_else(not_running)?;
        signal_all(child, Signal::STOP)
    }

    /// Continues after [`Postgres::pause`].
    ///
    /// # Errors
    ///
    /// It does not run.
    pub fn go_on(&self) -> io::Result<()> {
        let child = self.child.as_ref().ok_or_else(not_running)?;
        signal_all(child, Signal::CONT)
    }

    /// Makes a standby the primary.
    ///
    /// # Errors
    ///
    /// It is none, or does not become one within a minute.
    pub fn promote(&self) -> io::Result<()> {
        match self.query("SELECT pg_promote(true, 60)")?.as_str() {
            "t" => Ok(()),
            other => Err(io::Error::other(format!("pg_promote: {other}"))),
        }
    }
}

fn psql_at(port: u16) -> io::Result<Command> {
    let mut ask = program("psql")?;
    ask.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"]);
    ask.arg(format!("host=127.0.0.1 port={port} user={SUPERUSER} dbname=postgres connect_timeout=5"));
    Ok(ask)
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.kill(); // or it has ended
    }
}

/// Sends a signal to a server and to its processes, each of which has a group of its own.
fn signal_all(child: &Child, signal: Signal) -> io::Result<()> {
    kill_process(id(child)?, signal)?;
    for other in children(child)? {
        let _ = kill_process(other, signal); // it may have ended meanwhile
    }
    Ok(())
}

/// Ends all processes of a server, as the end of its machine does. A stopped one makes no further ones meanwhile.
fn kill_all(child: &mut Child) -> io::Result<()> {
    kill_process(id(child)?, Signal::STOP)?;
    // They have another parent as soon as theirs is gone.
    let others = children(child)?;
    kill_process(id(child)?, Signal::KILL)?;
    for other in others {
        let _ = kill_process(other, Signal::KILL); // it may have ended meanwhile
    }
    child.wait()?;
    Ok(())
}

/// The processes whose parent a server is.
fn children(child: &Child) -> io::Result<Vec<Pid>> {
    let parent = child.id().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // The name of the program, in brackets, may have spaces in it.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
        if behind.split_whitespace().nth(1) == Some(&*parent) {
            found.extend(Pid::from_raw(id));
        }
    }
    Ok(found)
}

fn id(child: &Child) -> io::Result<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("no process id"))
}

fn not_running() -> io::Error {
    io::Error::other("the server does not run")
}

/// A transaction of [`Postgres::long_transaction`].
#[derive(Debug)]
pub struct LongTransaction(Child);

impl Drop for LongTransaction {
    fn drop(&mut self) {
        let _ = self.0.kill(); // or it has ended
        let _ = self.0.wait();
    }
}

/// A pooler in front of a server, which gives a connection of the server to each transaction. When it ends by itself it is
/// started again, as a service is. (Story: version 1.18 ended beside statements that their clients had given up.)
#[derive(Debug)]
pub struct PgBouncer {
    _folder: TempDir,
    port: u16,
    ends: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
}

impl PgBouncer {
    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    ///
    /// The package `pgbouncer` is not installed, or it does not answer within a minute.
    pub fn start(server: &Postgres) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("duewheel-pgbouncer-").tempdir()?;
        let port = free_port()?;
        let config = folder.path().join("pgbouncer.ini");
        let users = folder.path().join("users.txt");
        fs::write(&users, format!("\"{SUPERUSER}\" \"\"\n"))?;
        let text = format!(
            "[databases]\n* = user={SUPERUSER} host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nauth_type = any\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = 5\n\
             unix_socket_dir =\n",
            server.port,
            users.display()
        );
        fs::write(&config, text)?;
        let owner = unprivileged()?;
        if let Some((user, group)) = owner {
            for path in [folder.path(), &config, &users] {
                chown(path, Some(user), Some(group))?;
            }
        }
        let spawn = move || {
            let mut command = Command::new("/usr/sbin/pgbouncer");
            if let Some((user, group)) = owner {
                command.uid(user).gid(group);
            }
            command.arg("--quiet").arg(&config);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        };
        let mut child = spawn()?;
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if child.try_wait()?.is_some() || Instant::now() >= deadline {
                let _ = child.kill(); // or it has ended
                return Err(io::Error::other("pgbouncer does not start"));
            }
            std::thread::sleep(STEP);
        }
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let keeper = std::thread::spawn(move || {
            while !is_over.load(SeqCst) {
                if matches!(child.try_wait(), Ok(Some(_)))
                    && let Ok(another) = spawn()
                {
                    child = another;
                }
                std::thread::sleep(STEP);
            }
            let _ = child.kill(); // or it has ended
            let _ = child.wait();
        });
        Ok(PgBouncer { _folder: folder, port, ends, keeper: Some(keeper) })
    }

    /// The port at which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.ends.store(true, SeqCst);
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join(); // its panic was printed
        }
    }
}
