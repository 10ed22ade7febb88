//! Ports for servers that must be free again when a server is restarted.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// Below the ports that kernels choose for outgoing connections: a client that calls a dead server again and again must
/// not be given its port, or connect to itself.
const FROM: u64 = 11_000;
const UNTIL: u64 = 32_000;

/// A free port of the loopback. Another process may take it before the intended one does.
///
/// # Errors
///
/// None of many ports is free.
pub fn free_port() -> io::Result<u16> {
    for _ in 0..1_000 {
        let drawn = FROM + RandomState::new().build_hasher().finish() % (UNTIL - FROM);
        let port = u16::try_from(drawn).map_err(io::Error::other)?;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::other("no port is free"))
}
