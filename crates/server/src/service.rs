//! Communication with the service manager that runs the server (systemd): sockets that the manager keeps open, and
//! states of the server. Neither needs a manager: without its variables in the environment nothing here has an effect.
//!
//! Sockets that the manager opens before the server starts stay open after it has ended (`LISTEN_FDS`). Connections that
//! arrive in between wait in the system's backlog, so a server is replaced by a newer one without a refused connection.
//! States are told as `sd_notify` does: ready, alive, stopping.

use std::io;
use std::net::TcpListener;
#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use listenfd::ListenFd;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::{ConfigError, Listen, Settings};
use crate::http::App;

/// Time between two messages that a start goes on.
const START_STEP: Duration = Duration::from_secs(5);
/// Time that such a message asks for: a start that sends none for so long has failed.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// Time that a stop may take in addition to the drain: for the last answers, and the store.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// The service manager, if there is one that wants notifications.
#[derive(Debug, Default)]
pub(crate) struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// The manager restarts a server from which it does not hear for this long.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`. An address of another kind is logged and ignored.
    pub(crate) fn from_environment() -> ServiceManager {
        let Some(name) = std::env::var("NOTIFY_SOCKET").ok().filter(|name| !name.is_empty()) else {
            return ServiceManager::default();
        };
        match open(&name) {
            Ok(socket) => ServiceManager { socket: Some(socket), watchdog: watchdog() },
            Err(error) => {
                tracing::warn!(%name, %error, "cannot notify the service manager at NOTIFY_SOCKET");
                ServiceManager::default()
            }
        }
    }

    /// Reports why the start is not complete, and asks for more time, until it is cancelled. Never ends. Cancel safe.
    pub(crate) async fn starting(&self, mut waits: watch::Receiver<String>) {
        if self.socket.is_none() {
            std::future::pending::<()>().await;
        }
        loop {
            let status = waits.borrow_and_update().clone();
            self.tell(&format!(
                "EXTEND_TIMEOUT_USEC={}\nSTATUS=starting: {}",
                START_PATIENCE.as_micros(),
                line(&status)
            ));
            let changed = async {
                if waits.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(START_STEP) => {}
            }
        }
    }

    /// Reports that the server serves at these addresses.
    pub(crate) fn ready(&self, addresses: &[String]) {
        self.tell(&format!("READY=1\nSTATUS=listening on {}", line(&addresses.join(", "))));
    }

    /// Reports that the server stops, and how long its drain may take.
    pub(crate) fn stopping(&self, drain: Duration) {
        let patience = drain.saturating_add(STOP_PATIENCE).as_micros();
        self.tell(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={patience}\nSTATUS=stopping"));
    }

    /// Reports that the server is alive as long as `/livez` says so, and until the result is dropped. Must be called
    /// within a runtime.
    pub(crate) fn watch(&self, app: &App) -> io::Result<JoinSet<()>> {
        let mut task = JoinSet::new();
        if let (Some((socket, address)), Some(patience)) = (&self.socket, self.watchdog) {
            let (app, socket, address) = (app.clone(), socket.try_clone()?, address.clone());
            task.spawn(async move {
                let mut ticks = tokio::time::interval((patience / 3).max(Duration::from_millis(1)));
                loop {
                    ticks.tick().await;
                    if app.is_alive() {
                        let _ = socket.send_to_addr(b"WATCHDOG=1", &address);
                    }
                }
            });
        }
        Ok(task)
    }

    fn tell(&self, state: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(state.as_bytes(), address) {
            tracing::warn!(%error, "cannot notify the service manager");
        }
    }
}

/// A socket to send from, and the address of the manager: a path, or `@` and a name without a file.
fn open(name: &str) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix('@') {
        #[cfg(target_os = "linux")]
        Some(name) => SocketAddr::from_abstract_name(name)?,
        #[cfg(not(target_os = "linux"))]
        Some(_) => return Err(io::ErrorKind::Unsupported.into()),
        None if name.starts_with('/') => SocketAddr::from_pathname(name)?,
        None => return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a path nor @NAME")),
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not stop the server.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

fn watchdog() -> Option<Duration> {
    let ours = std::env::var_os("WATCHDOG_PID").is_none() || is_for_us("WATCHDOG_PID");
    let patience = number("WATCHDOG_USEC").filter(|us| ours && *us > 0)?;
    Some(Duration::from_micros(patience))
}

/// A status is one line of a message.
fn line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// The largest number of sockets that are looked at: there are two listeners.
const MOST: u64 = 8;

/// Listening sockets of the service manager, by the listener that they are for.
#[derive(Debug, Default)]
pub struct GivenSockets {
    pub(crate) http: Option<TcpListener>,
    pub(crate) beanstalk: Option<TcpListener>,
}

impl GivenSockets {
    /// Takes the sockets of `LISTEN_FDS`. `LISTEN_FDNAMES` says which listener each is for: `http` or `beanstalk`. Without
    /// sockets for this process (`LISTEN_PID`) nothing is taken. Must be called once, before there are other threads,
    /// because it removes variables from the environment.
    ///
    /// # Errors
    /// [`ConfigError`] when a socket has another name, or the same as one before it, or is no TCP socket that listens.
    pub fn from_environment() -> Result<GivenSockets, ConfigError> {
        let mut given = GivenSockets::default();
        let Some(count) = number("LISTEN_FDS").filter(|count| *count > 0 && is_for_us("LISTEN_PID")) else {
            return Ok(given);
        };
        if count > MOST {
            return Err(ConfigError::Value(format!("LISTEN_FDS={count}: more than {MOST} sockets")));
        }
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut sockets = ListenFd::from_env();
        for index in 0..sockets.len() {
            let name = names.next().unwrap_or_default();
            let bad = |what: &str| ConfigError::Value(format!("LISTEN_FDNAMES: {name:?}: {what}"));
            let place = match name {
                "http" => &mut given.http,
                "beanstalk" => &mut given.beanstalk,
                _ => {
                    return Err(bad(
                        "a socket is for one of the listeners http, beanstalk (FileDescriptorName=)",
                    ));
                }
            };
            let socket = sockets.take_tcp_listener(index).map_err(|error| bad(&error.to_string()))?;
            let socket = socket.filter(listens);
            let socket = socket.ok_or_else(|| bad("the socket does not listen"))?;
            if place.replace(socket).is_some() {
                return Err(bad("there are two sockets for this listener"));
            }
        }
        Ok(given)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.http.is_none() && self.beanstalk.is_none()
    }

    /// Puts the addresses of these sockets in the place of `--http` and `--beanstalk`, so that the same rules hold for
    /// them.
    ///
    /// # Errors
    /// [`ConfigError`] when the system does not say the address of a socket.
    pub(crate) fn put_into(&self, settings: &mut Settings) -> Result<(), ConfigError> {
        for (socket, listen) in [(&self.http, &mut settings.http), (&self.beanstalk, &mut settings.beanstalk)]
        {
            if let Some(socket) = socket {
                let address = socket.local_addr();
                let address = address
                    .map_err(|error| ConfigError::Value(format!("a socket of LISTEN_FDS: {error}")))?;
                *listen = Listen::At(address.to_string());
            }
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn listens(socket: &TcpListener) -> bool {
    rustix::net::sockopt::socket_acceptconn(socket) == Ok(true)
}

/// The system does not say it; a socket that does not listen fails at the first accept.
#[cfg(not(target_os = "linux"))]
fn listens(_: &TcpListener) -> bool {
    true
}

/// Reads a number of a variable; `None` if it is missing or no number.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Whether a variable with a process id is for this process, and not for the one that started it.
fn is_for_us(name: &str) -> bool {
    number(name) == Some(u64::from(std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_manager_socket_may_be_abstract() {
        let name = format!("duewheel-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let manager = UnixDatagram::bind_addr(&address).expect("bind");
        let socket = open(&format!("@{name}")).expect("a socket");
        let server = ServiceManager { socket: Some(socket), watchdog: None };
        server.ready(&["http://a".to_owned(), "b\nREADY=0".to_owned()]);
        let mut bytes = [0; 256];
        let n = manager.recv(&mut bytes).expect("a state");
        // An address cannot add a line of its own.
        assert_eq!(&bytes[..n], b"READY=1\nSTATUS=listening on http://a, b READY=0");
        for bad in ["relative", "vsock:2:1"] {
            let what = open(bad).map(|_| ()).map_err(|error| error.kind());
            assert_eq!(what, Err(io::ErrorKind::InvalidInput), "{bad}");
        }
        // Without a manager nothing is sent, and nothing fails.
        ServiceManager::default().ready(&[]);
    }
}
