//! Sockets that the service manager opens before the server starts, and keeps open after it has ended (`LISTEN_FDS`).
//!
//! Connections that arrive in between wait in the system's backlog, so a server is replaced by a newer one without a
//! refused connection.

use std::net::TcpListener;

use listenfd::ListenFd;

use super::{is_for_us, number};
use crate::config::{ConfigError, Listen, Settings};

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
