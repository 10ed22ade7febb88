//! Connections to other nodes: over TCP and TLS, or provided by a simulation.

use std::fmt;
use std::io;
#[cfg(any(test, feature = "testing"))]
use std::{future::Future, pin::Pin, sync::Arc};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::tls::{Binding, PeerTls};

/// A connection that is read and written.
#[allow(unreachable_pub)] // the feature `testing` exports it
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection of any kind.
#[allow(unreachable_pub)] // the feature `testing` exports it
pub type PeerStream = Box<dyn Duplex>;

impl fmt::Debug for dyn Duplex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerStream")
    }
}

/// The connections of a simulation. They need no TLS, because no third party can read them.
#[cfg(any(test, feature = "testing"))]
pub trait Network: Send + Sync + fmt::Debug {
    /// Connects to the node at an address.
    fn connect(&self, address: &str) -> Pin<Box<dyn Future<Output = io::Result<PeerStream>> + Send + '_>>;
}

/// The way connections are made.
#[derive(Clone, Debug)]
pub(crate) enum Connector {
    /// Connections over TCP and TLS.
    Tls(PeerTls),
    /// Connections of a simulation.
    #[cfg(any(test, feature = "testing"))]
    Simulated(Arc<dyn Network>),
}

impl Connector {
    /// Connects to the node at an address, `host:port`.
    pub(super) async fn connect(&self, address: &str) -> io::Result<(PeerStream, Binding)> {
        match self {
            Connector::Tls(tls) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let (stream, binding) = tls.connect(stream, address).await?;
                Ok((Box::new(stream), binding))
            }
            #[cfg(any(test, feature = "testing"))]
            Connector::Simulated(network) => Ok((network.connect(address).await?, SIMULATED)),
        }
    }

    /// Accepts TLS on a TCP connection. A simulated node has no TCP connections.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<(PeerStream, Binding)> {
        match self {
            Connector::Tls(tls) => {
                let (stream, binding) = tls.accept(stream).await?;
                Ok((Box::new(stream), binding))
            }
            #[cfg(any(test, feature = "testing"))]
            Connector::Simulated(_) => Err(io::Error::other("a simulated node listens on no socket")),
        }
    }
}

/// The channel binding of a connection without TLS.
#[cfg(any(test, feature = "testing"))]
pub(super) const SIMULATED: Binding = [0; 32];
