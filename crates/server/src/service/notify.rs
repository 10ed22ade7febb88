//! Tells the service manager the state of the server, as `sd_notify` does: ready, alive, stopping.

use std::io;
#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{is_for_us, number};
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
