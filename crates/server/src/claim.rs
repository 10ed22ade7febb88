//! An address that this process has bound, and on which it does not accept connections yet.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// Number of connections that the system accepts in advance, as in the standard library.
const BACKLOG: u32 = 1_024;

/// A TCP address that this process has bound.
///
/// The address is bound before the store is opened, so that a server whose port is taken changes no data folder.
#[derive(Debug)]
pub(crate) enum Claim {
    /// This process does not listen yet: connections are refused.
    Bound(TcpSocket),
    /// A socket of the service manager, which listens: connections wait.
    Given(std::net::TcpListener),
}

impl Claim {
    /// Binds an address.
    ///
    /// # Errors
    /// Another socket listens there, or the address does not belong to this machine.
    pub(crate) fn of(address: SocketAddr) -> io::Result<Claim> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Connections of an earlier server that are still closing do not block the address.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(Claim::Bound(socket))
    }

    /// Begins to listen. Must be called within the runtime that accepts.
    ///
    /// # Errors
    /// Another socket has begun to listen there since.
    pub(crate) fn listen(self) -> io::Result<TcpListener> {
        match self {
            Claim::Bound(socket) => socket.listen(BACKLOG),
            Claim::Given(socket) => {
                socket.set_nonblocking(true)?;
                TcpListener::from_std(socket)
            }
        }
    }
}
