//! A network that can be cut: a relay of TCP connections on the loopback.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::port::free_port;

/// The way the proxy handles data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It forwards data.
    Forward,
    /// It ends all connections, and each new one as soon as it is made.
    Cut,
    /// It keeps connections, and accepts new ones, but forwards nothing until this ends: then everything, late.
    Stall,
    /// It forwards each piece after this delay, one after the other; so it limits the rate, too.
    Delay(Duration),
    /// It forwards everything except the reply to a request with this text: the connection ends when that reply comes,
    /// so the request was carried out, and the client does not know it. Replies that come with it or behind it are
    /// lost, too.
    LoseReply(&'static str),
}

/// One direction of a connection. Both directions share the mark that the next reply is to be lost.
#[derive(Debug)]
enum Direction {
    ToServer(Arc<AtomicBool>),
    ToClient(Arc<AtomicBool>),
}

#[derive(Debug)]
struct State {
    mode: Mode,
    streams: Vec<TcpStream>,
    ended: Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    NotYet,
    Ended,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

/// Forwards connections to a target. Dropping it ends them all.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    listener: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy that forwards everything. The target need not listen yet.
    ///
    /// # Errors
    ///
    /// It cannot listen.
    pub fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, free_port()?))?;
        let address = listener.local_addr()?;
        let state = State { mode: Mode::Forward, streams: Vec::new(), ended: Ended::NotYet };
        let shared = Arc::new(Shared { target, state: Mutex::new(state), changed: Condvar::new() });
        let theirs = shared.clone();
        let listener = std::thread::spawn(move || theirs.listen(&listener));
        Ok(Proxy { shared, address, listener: Some(listener) })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets how data is handled from now on.
    pub fn set(&self, mode: Mode) {
        let mut state = self.shared.lock();
        state.mode = mode;
        if mode == Mode::Cut {
            state.hang_up();
        }
        self.shared.changed.notify_all();
    }

    /// Forwards everything again.
    pub fn heal(&self) {
        self.set(Mode::Forward);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.ended = Ended::Ended;
            state.hang_up();
        }
        self.shared.changed.notify_all();
        // Wakes the listener, which then sees that it is to end.
        let _ = TcpStream::connect(self.address);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

impl State {
    fn hang_up(&mut self) {
        for stream in self.streams.drain(..) {
            // The other side may have closed it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(self: Arc<Self>, listener: &TcpListener) {
        for near in listener.incoming() {
            let mode = {
                let state = self.lock();
                if state.ended == Ended::Ended {
                    return;
                }
                state.mode
            };
            if let (Ok(near), false) = (near, mode == Mode::Cut) {
                let shared = self.clone();
                std::thread::spawn(move || shared.relay(near));
            }
        }
    }

    /// Both directions of one connection. A failure ends it; its ends see a closed connection, as they would without
    /// the proxy.
    fn relay(self: Arc<Self>, near: TcpStream) {
        // Not before the network permits it.
        if self.pass().is_err() {
            return;
        }
        let Ok(far) = TcpStream::connect(self.target) else { return };
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let (Ok(near2), Ok(far2)) = (near.try_clone(), far.try_clone()) else { return };
        {
            let mut state = self.lock();
            let (Ok(a), Ok(b)) = (near.try_clone(), far.try_clone()) else { return };
            state.streams.extend([a, b]);
            if state.ended == Ended::Ended || state.mode == Mode::Cut {
                state.hang_up();
            }
        }
        let (shared, lose) = (self.clone(), Arc::new(AtomicBool::new(false)));
        let back = Direction::ToClient(lose.clone());
        std::thread::spawn(move || shared.copy(far2, near2, &back));
        self.copy(near, far, &Direction::ToServer(lose));
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream, way: &Direction) {
        let mut buffer = vec![0; 64 * 1024];
        // The end of the data that was forwarded before: a text may come in two pieces.
        let mut before = Vec::new();
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            if self.pass().is_err() {
                break;
            }
            match way {
                Direction::ToServer(lose) => {
                    if let Mode::LoseReply(text) = self.mode() {
                        before.extend_from_slice(&buffer[..n]);
                        let is_there = before.windows(text.len().max(1)).any(|part| part == text.as_bytes());
                        lose.fetch_or(is_there, SeqCst);
                        before.drain(..before.len().saturating_sub(text.len().saturating_sub(1)));
                    }
                }
                Direction::ToClient(lose) if lose.load(SeqCst) => break,
                Direction::ToClient(_) => {}
            }
            if to.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        // The two ends of this connection are closed now; all closed ones are removed.
        let mut state = self.lock();
        state.streams.retain(|s| s.peer_addr().is_ok());
    }

    fn mode(&self) -> Mode {
        self.lock().mode
    }

    /// Waits as long as the mode requires it. An error if the connection is to end.
    fn pass(&self) -> Result<(), ()> {
        let mut state = self.lock();
        loop {
            match (state.ended, state.mode) {
                (Ended::Ended, _) | (_, Mode::Cut) => return Err(()),
                (_, Mode::Forward | Mode::LoseReply(_)) => return Ok(()),
                (_, Mode::Delay(time)) => {
                    drop(state);
                    std::thread::sleep(time);
                    return Ok(());
                }
                (_, Mode::Stall) => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}
