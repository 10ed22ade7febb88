//! The settings of a server.

use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The binary: the one that `DUEWHEEL_REDIS` names, or the one on the path.
pub fn program() -> OsString {
    std::env::var_os("DUEWHEEL_REDIS").unwrap_or_else(|| "redis-server".into())
}

/// The append-only file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Appendonly {
    /// Synced before each reply (`appendfsync always`).
    #[default]
    Always,
    /// Synced each second (`appendfsync everysec`).
    EverySecond,
    /// There is none, and no snapshots either: a restart begins with nothing.
    Off,
}

/// The clients that may log in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Login {
    /// All clients.
    #[default]
    Nobody,
    /// Clients that know this password (`requirepass`).
    Password(String),
    /// This user of the access control list alone; the default user is off.
    User {
        /// Its name.
        name: String,
        /// Its password.
        password: String,
    },
}

/// How connections are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// They are not encrypted.
    #[default]
    Plain,
    /// TLS only, with certificates made for this server; between the nodes of a cluster, too.
    Tls,
    /// TLS, and clients must present a certificate of the same authority.
    TlsBothWays,
}

/// Where a server has its folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataMedium {
    /// In memory (`/dev/shm`) if there is room, else on the disk. The disk of a busy machine stands still for seconds, and
    /// leases run out meanwhile; what a power loss takes is no question of a test.
    #[default]
    Memory,
    /// On the disk, whose syncs are to be measured.
    Disk,
}

/// The room that a folder in memory needs, in bytes.
const ROOM: u64 = 1 << 30;

impl DataMedium {
    /// The folder above.
    pub(crate) fn above(self) -> PathBuf {
        let memory = Path::new("/dev/shm");
        let room = || {
            let figures = rustix::fs::statvfs(memory).ok()?;
            figures.f_bavail.checked_mul(figures.f_frsize)
        };
        match self {
            DataMedium::Memory if room().is_some_and(|room| room >= ROOM) => memory.to_owned(),
            DataMedium::Memory | DataMedium::Disk => std::env::temp_dir(),
        }
    }
}

/// The settings of a server. The default keeps every acknowledged change, and accepts all clients.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The append-only file.
    pub appendonly: Appendonly,
    /// The clients that may log in.
    pub login: Login,
    /// How connections are encrypted.
    pub transport: Transport,
    /// `maxmemory` in bytes, without eviction.
    pub maxmemory: Option<u64>,
    /// Further arguments of the command line, after all others: `--hz`, `100`.
    pub extra: Vec<String>,
    /// A binary other than that of [`program`].
    pub program: Option<OsString>,
    /// Where its folder is.
    pub medium: DataMedium,
}

/// Further settings of a node of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clustered {
    pub(crate) bus: u16,
    pub(crate) node_timeout_ms: u64,
}

impl Settings {
    /// The command that starts a server on this folder and port. Its file of settings is written there, readable by its
    /// owner.
    ///
    /// # Errors
    ///
    /// The folder cannot be written.
    pub fn command(&self, folder: &Path, port: u16) -> io::Result<Command> {
        self.command_of(folder, port, None)
    }

    pub(crate) fn command_of(
        &self,
        folder: &Path,
        port: u16,
        clustered: Option<Clustered>,
    ) -> io::Result<Command> {
        fs::create_dir_all(folder)?;
        let file = folder.join("redis.conf");
        fs::write(&file, self.lines(port, clustered))?;
        let mut command = Command::new(self.program.clone().unwrap_or_else(program));
        // The server changes to that folder first, so that no path needs quotes.
        command.current_dir(folder).arg(file).args(&self.extra);
        Ok(command)
    }

    fn lines(&self, port: u16, clustered: Option<Clustered>) -> String {
        let mut out = String::from("bind 127.0.0.1\ndaemonize no\nsave \"\"\n");
        let mut line = |text: std::fmt::Arguments<'_>| {
            let _ = writeln!(out, "{text}");
        };
        let clients = match self.transport {
            Transport::Plain => None,
            Transport::Tls => Some("no"),
            Transport::TlsBothWays => Some("yes"),
        };
        match clients {
            None => line(format_args!("port {port}")),
            Some(clients) => line(format_args!(
                "port 0\ntls-port {port}\ntls-cert-file cert.pem\ntls-key-file key.pem\ntls-ca-cert-file ca.pem\n\
                 tls-auth-clients {clients}\ntls-replication yes\ntls-cluster yes"
            )),
        }
        match self.appendonly {
            Appendonly::Always => line(format_args!("appendonly yes\nappendfsync always")),
            Appendonly::EverySecond => line(format_args!("appendonly yes\nappendfsync everysec")),
            Appendonly::Off => line(format_args!("appendonly no")),
        }
        match &self.login {
            Login::Nobody => {}
            Login::Password(password) => {
                line(format_args!("requirepass {password}\nmasterauth {password}"));
            }
            Login::User { name, password } => line(format_args!(
                "user default off\nuser {name} on >{password} ~* &* +@all\nmasteruser {name}\nmasterauth {password}"
            )),
        }
        if let Some(bytes) = self.maxmemory {
            line(format_args!("maxmemory {bytes}\nmaxmemory-policy noeviction"));
        }
        // Replicas get their first copy at once, and not after 5 s of waiting for more of them.
        line(format_args!("repl-diskless-sync-delay 0"));
        if let Some(Clustered { bus, node_timeout_ms }) = clustered {
            line(format_args!(
                "cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-port {bus}\n\
                 cluster-node-timeout {node_timeout_ms}"
            ));
        }
        out
    }
}
