//! Connections between simulated nodes: bytes arrive late, or not at all.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use duewheel_cluster::testing::{Network, PeerStream};
use duewheel_judge::rng::Rng;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{MS, NODES};

/// All connections. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Net(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    now: u64,
    seed: u64,
    /// The number of connections that each node has made to each other one.
    made: [[u64; NODES]; NODES],
    /// The longest time that bytes are in flight, in ms.
    latency_ms: u64,
    pipes: Vec<Arc<Mutex<Pipe>>>,
    /// Connections that are not accepted yet: the time, the node, and its end of the connection.
    calls: VecDeque<(u64, usize, End)>,
    /// Pairs of nodes that are cut off from each other.
    cut: [[bool; NODES]; NODES],
    /// Bytes that never arrived because their connection broke.
    lost: u64,
}

/// One direction of a connection.
#[derive(Debug)]
struct Pipe {
    from: usize,
    to: usize,
    /// The source of delays and losses of this connection. Each connection has its own, because tokio wakes several
    /// tasks that wait for one event in an order that does not depend on the seed: the random numbers of one connection
    /// must not depend on the others.
    rng: Rng,
    /// Bytes in flight, with the time of their arrival.
    flying: VecDeque<(u64, Vec<u8>)>,
    arrived: VecDeque<u8>,
    /// Set when nothing more is written: the reader sees the end behind the bytes in flight.
    shut: bool,
    /// Set when both ends are gone.
    broken: bool,
    reader: Option<Waker>,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct End {
    net: Net,
    reads: Arc<Mutex<Pipe>>,
    writes: Arc<Mutex<Pipe>>,
}

/// The connections of one node to the others.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) net: Net,
    pub(super) node: usize,
}

/// The address of a node.
pub(super) fn address(node: usize) -> String {
    format!("node-{node}:1")
}

impl Network for Caller {
    fn connect(&self, address: &str) -> Pin<Box<dyn Future<Output = io::Result<PeerStream>> + Send + '_>> {
        let to = (0..NODES).find(|node| self::address(*node) == address);
        let end = to.map(|to| self.net.call(self.node, to));
        Box::pin(async move {
            match end {
                Some(end) => Ok(Box::new(end) as PeerStream),
                None => Err(io::ErrorKind::NotFound.into()),
            }
        })
    }
}

impl Net {
    pub(super) fn new(seed: u64, latency_ms: u64) -> Self {
        Net(Arc::new(Mutex::new(State {
            now: 0,
            seed,
            made: [[0; NODES]; NODES],
            latency_ms,
            pipes: Vec::new(),
            calls: VecDeque::new(),
            cut: [[false; NODES]; NODES],
            lost: 0,
        })))
    }

    fn call(&self, from: usize, to: usize) -> End {
        let mut state = self.state();
        state.made[from][to] += 1;
        let name = (from * NODES + to) as u64 | state.made[from][to] << 8;
        let mut rng = Rng::new(state.seed ^ name.rotate_left(32));
        let at = state.arrival(&mut rng);
        let mut pipe = |from, to| {
            let (flying, arrived, rng) = (VecDeque::new(), VecDeque::new(), Rng::new(rng.bits()));
            let reader = None;
            Arc::new(Mutex::new(Pipe { from, to, rng, flying, arrived, shut: false, broken: false, reader }))
        };
        let (there, back) = (pipe(from, to), pipe(to, from));
        state.pipes.extend([there.clone(), back.clone()]);
        let other = End { net: self.clone(), reads: there.clone(), writes: back.clone() };
        state.calls.push_back((at, to, other));
        End { net: self.clone(), reads: back, writes: there }
    }

    /// Cuts two nodes off from each other, or ends that.
    pub(super) fn cut(&self, one: usize, other: usize, cut: bool) {
        let mut state = self.state();
        state.cut[one][other] = cut;
        state.cut[other][one] = cut;
    }

    /// Ends all cuts.
    pub(super) fn heal(&self) {
        self.state().cut = [[false; NODES]; NODES];
    }

    /// Breaks all connections between two nodes; a part of the bytes in flight arrives. Returns the number of
    /// connections.
    pub(super) fn reset(&self, one: usize, other: usize) -> u64 {
        let pipes = self.state().pipes.clone();
        let mut broken = 0;
        for pipe in pipes {
            let mut pipe = lock(&pipe);
            if (pipe.from, pipe.to) == (one, other) || (pipe.from, pipe.to) == (other, one) {
                broken += u64::from(!pipe.broken);
                self.break_off(&mut pipe);
            }
        }
        broken
    }

    /// Whether no nodes are cut off from each other.
    pub(super) fn is_well(&self) -> bool {
        self.state().cut.iter().flatten().all(|cut| !cut)
    }

    /// Bytes that never arrived because their connection broke.
    pub(super) fn lost(&self) -> u64 {
        self.state().lost
    }

    /// Lets time pass: bytes that are due arrive. Returns the connections that a node is to accept now.
    pub(super) fn advance(&self, now: u64, accepts: impl Fn(usize) -> bool) -> Vec<(usize, End)> {
        let (pipes, mut calls) = {
            let mut state = self.state();
            state.now = now;
            state.pipes.retain(|pipe| Arc::strong_count(pipe) > 1);
            let cut = state.cut;
            let mut calls = Vec::new();
            let mut later = VecDeque::new();
            while let Some((at, to, end)) = state.calls.pop_front() {
                let from = lock(&end.reads).from;
                if at > now || cut[from][to] {
                    later.push_back((at, to, end));
                } else {
                    calls.push((to, end));
                }
            }
            state.calls = later;
            calls.sort_by_key(|(to, end): &(usize, End)| (*to, lock(&end.reads).from));
            let pipes: Vec<_> = state
                .pipes
                .iter()
                .filter(|pipe| {
                    let pipe = lock(pipe);
                    !cut[pipe.from][pipe.to]
                })
                .cloned()
                .collect();
            (pipes, calls)
        };
        for pipe in pipes {
            lock(&pipe).arrive(now);
        }
        // No node listens there: the connection is refused.
        calls.retain(|(to, _)| accepts(*to));
        calls
    }

    /// A part of the bytes in flight arrives, and nothing after it.
    fn break_off(&self, pipe: &mut Pipe) {
        let mut state = self.state();
        let keeps = usize::try_from(pipe.rng.below(pipe.flying.len() as u64 + 1)).unwrap_or(0);
        let lost: usize = pipe.flying.drain(keeps..).map(|(_, bytes)| bytes.len()).sum();
        state.lost += lost as u64;
        drop(state);
        pipe.shut = true;
        pipe.broken = true;
        pipe.wake();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    fn arrival(&self, rng: &mut Rng) -> u64 {
        self.now + rng.range(1, self.latency_ms + 1) * MS
    }
}

impl Pipe {
    fn arrive(&mut self, now: u64) {
        let mut some = false;
        while self.flying.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, bytes)) = self.flying.pop_front()
        {
            self.arrived.extend(bytes);
            some = true;
        }
        if some || self.shut {
            self.wake();
        }
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut pipe = lock(&self.reads);
        if pipe.arrived.is_empty() {
            if pipe.shut && pipe.flying.is_empty() {
                return Poll::Ready(if pipe.broken {
                    Err(io::ErrorKind::ConnectionReset.into())
                } else {
                    Ok(())
                });
            }
            pipe.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        while into.remaining() > 0
            && let Some(byte) = pipe.arrived.pop_front()
        {
            into.put_slice(&[byte]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut pipe = lock(&self.writes);
        let at = self.net.state().arrival(&mut pipe.rng);
        if pipe.shut {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // Bytes keep their order.
        let at = pipe.flying.back().map_or(at, |(last, _)| at.max(*last));
        pipe.flying.push_back((at, bytes.to_vec()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.writes).shut = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // Bytes that were written may still arrive, or a part of them; those of the other end do not.
        self.net.break_off(&mut lock(&self.writes));
        let mut reads = lock(&self.reads);
        reads.flying.clear();
        reads.shut = true;
        reads.broken = true;
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pipe = lock(&self.reads);
        write!(f, "{} to {}", pipe.from, pipe.to)
    }
}

pub(super) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
