//! A bound address on which the process does not listen yet.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// Number of connections that the system accepts in advance, as in the standard library.
const BACKLOG: u32 = 1_024;

/// A TCP address that this process has bound and does not listen on yet: connections to it are refused.
///
/// It is bound before the store is opened, so that a server whose port is taken changes no data folder.
#[derive(Debug)]
pub(crate) struct Claim(TcpSocket);

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
        Ok(Claim(socket))
    }

    /// Begins to listen. Must be called within the runtime that accepts.
    ///
    /// # Errors
    /// Another socket has begun to listen there since.
    pub(crate) fn listen(self) -> io::Result<TcpListener> {
        self.0.listen(BACKLOG)
    }
}
