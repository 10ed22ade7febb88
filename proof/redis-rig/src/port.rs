//! Ports for servers that must find them free again when they are started anew.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// Below those that kernels draw for outgoing connections: a client that calls a dead server again and again must not be
/// given its port, or meet itself there.
const FROM: u64 = 11_000;
const UNTIL: u64 = 32_000;

/// A port of the loopback at which nobody listens. Another process may take it before the one that it is meant for.
///
/// # Errors
///
/// None of many is free.
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
