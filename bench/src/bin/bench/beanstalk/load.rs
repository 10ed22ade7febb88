//! The load generator: one thread, sockets that never block, bytes made beforehand.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::beanstalk::commands::Commands;
use crate::beanstalk::replies::{self, Expected};

/// A server that sends nothing for this long has lost a request.
const SILENCE: Duration = Duration::from_secs(30);
const BUFFER: usize = 256 * 1024;

/// The work that each connection repeats, `depth` jobs at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// Puts.
    Put,
    /// Reserves available jobs, and deletes them.
    Reserve,
    /// Puts, reserves and deletes.
    Cycle,
}

/// When to stop: at this number of jobs or when the time is over, whichever comes first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) jobs: u64,
    pub(crate) time: Duration,
}

/// The result of a load.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    /// Jobs that went through all of the work.
    pub(crate) jobs: u64,
    pub(crate) time: Duration,
    /// Reserves without a job.
    pub(crate) empty: u64,
    /// From writing a group of puts to having its last reply, in ns, sorted.
    pub(crate) put_ns: Vec<u64>,
    /// When each tenth of the jobs was done, from the start on.
    pub(crate) tenths: Vec<Duration>,
}

/// Open connections to a server.
#[derive(Debug)]
pub(crate) struct Load<'a> {
    commands: &'a Commands,
    depth: usize,
    poll: Poll,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
}

impl<'a> Load<'a> {
    /// Connects.
    pub(crate) fn open(
        address: SocketAddr,
        connections: usize,
        depth: usize,
        commands: &'a Commands,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut opened = Vec::with_capacity(connections);
        for number in 0..connections {
            let stream = std::net::TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            poll.registry().register(&mut stream, Token(number), Interest::READABLE | Interest::WRITABLE)?;
            opened.push(Connection {
                stream,
                sending: Sending::Nothing,
                sent: 0,
                awaited: 0,
                got: 0,
                carry: Vec::new(),
                deletes: Vec::new(),
                since: Instant::now(),
            });
        }
        // A whole reply fits, whatever its body.
        let buffer = vec![0; BUFFER.max(2 * commands.body())];
        Ok(Load { commands, depth, poll, connections: opened, buffer })
    }

    /// Works until the limit is reached and every reply has arrived.
    ///
    /// # Errors
    /// A reply is not the expected one, or does not arrive.
    pub(crate) fn run(&mut self, work: Work, limit: Limit) -> io::Result<Done> {
        let start = Instant::now();
        let mut tally = Tally {
            work,
            depth: self.depth,
            commands: self.commands,
            left: limit.jobs,
            until: start.checked_add(limit.time),
            jobs: 0,
            all: limit.jobs,
            started: 0,
            empty: 0,
            put_ns: Vec::new(),
            tenths: Vec::new(),
            start,
        };
        let mut busy = 0;
        for connection in &mut self.connections {
            connection.next(&mut tally)?;
            busy += usize::from(connection.is_busy());
        }
        let mut events = Events::with_capacity(1024);
        while busy > 0 {
            self.poll.poll(&mut events, Some(SILENCE))?;
            if events.is_empty() {
                return Err(io::Error::other(format!(
                    "no reply for {} s; {busy} connections wait, {} jobs are done",
                    SILENCE.as_secs(),
                    tally.jobs
                )));
            }
            for event in &events {
                let connection = &mut self.connections[event.token().0];
                if connection.is_busy() {
                    connection.ready(&mut self.buffer, &mut tally)?;
                    busy -= usize::from(!connection.is_busy());
                }
            }
        }
        let time = start.elapsed();
        tally.put_ns.sort_unstable();
        Ok(Done { jobs: tally.jobs, time, empty: tally.empty, put_ns: tally.put_ns, tenths: tally.tenths })
    }
}

/// The state that all connections share while they work.
struct Tally<'a> {
    work: Work,
    depth: usize,
    commands: &'a Commands,
    left: u64,
    until: Option<Instant>,
    jobs: u64,
    all: u64,
    /// Groups of puts, which have other bodies each.
    started: usize,
    empty: u64,
    put_ns: Vec<u64>,
    tenths: Vec<Duration>,
    start: Instant,
}

impl Tally<'_> {
    /// The number of jobs that a connection may start.
    fn claim(&mut self, now: Instant) -> usize {
        if self.until.is_some_and(|until| now >= until) {
            return 0;
        }
        let count = self.depth.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= count as u64;
        count
    }

    fn done(&mut self, jobs: usize, now: Instant) {
        self.jobs += jobs as u64;
        while self.tenths.len() < 10
            && self.jobs >= self.all.saturating_mul(self.tenths.len() as u64 + 1) / 10
        {
            self.tenths.push(now - self.start);
        }
    }
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    sending: Sending,
    /// Bytes of them that are written.
    sent: usize,
    /// Replies that are to come, and jobs that came.
    awaited: usize,
    got: usize,
    /// The beginning of a reply.
    carry: Vec<u8>,
    deletes: Vec<u8>,
    /// When the commands were written.
    since: Instant,
}

/// The commands in progress.
#[derive(Clone, Debug)]
enum Sending {
    Nothing,
    Puts { start: usize, count: usize },
    Reserves { count: usize },
    Deletes { count: usize },
}

impl Connection {
    fn is_busy(&self) -> bool {
        !matches!(self.sending, Sending::Nothing)
    }

    /// Starts more jobs, if there are any.
    fn next(&mut self, tally: &mut Tally<'_>) -> io::Result<()> {
        let now = Instant::now();
        let count = tally.claim(now);
        let sending = match tally.work {
            _ if count == 0 => Sending::Nothing,
            Work::Put | Work::Cycle => {
                tally.started += 1;
                // A step that is prime to the number of bodies.
                Sending::Puts { start: tally.started * 101, count }
            }
            Work::Reserve => Sending::Reserves { count },
        };
        self.send(sending, count, now, tally.commands)
    }

    fn send(&mut self, sending: Sending, count: usize, now: Instant, commands: &Commands) -> io::Result<()> {
        self.sending = sending;
        (self.sent, self.awaited, self.got, self.since) = (0, count, 0, now);
        self.flush(commands)
    }

    /// Writes as much as the socket takes.
    fn flush(&mut self, commands: &Commands) -> io::Result<()> {
        let bytes = match self.sending {
            Sending::Nothing => return Ok(()),
            Sending::Puts { start, count } => commands.puts(start, count),
            Sending::Reserves { count } => commands.reserves(count),
            Sending::Deletes { .. } => &self.deletes,
        };
        while self.sent < bytes.len() {
            match self.stream.write(&bytes[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Handles an event: the socket can be written or read.
    fn ready(&mut self, buffer: &mut [u8], tally: &mut Tally<'_>) -> io::Result<()> {
        self.flush(tally.commands)?;
        loop {
            let carried = self.carry.len();
            buffer[..carried].copy_from_slice(&self.carry);
            let read = match self.stream.read(&mut buffer[carried..]) {
                Ok(0) => return Err(io::Error::other("the server has closed a connection")),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let all = carried + read;
            self.replies(&buffer[..all], tally)?;
            // Less than there was room for: the socket is empty, and the next bytes are another event.
            if all < buffer.len() || !self.is_busy() {
                return Ok(());
            }
        }
    }

    fn replies(&mut self, bytes: &[u8], tally: &mut Tally<'_>) -> io::Result<()> {
        let expected = match self.sending {
            Sending::Nothing => return Ok(()),
            Sending::Puts { .. } => Expected::Inserted,
            Sending::Reserves { .. } => Expected::Reserved,
            Sending::Deletes { .. } => Expected::Deleted,
        };
        let seen = replies::read(bytes, expected, self.awaited, tally.commands, &mut self.deletes)
            .map_err(|unexpected| io::Error::other(format!("{unexpected:?} to {:?}", self.sending)))?;
        self.awaited -= seen.replies;
        self.got += seen.replies - seen.empty;
        tally.empty += seen.empty as u64;
        self.carry.clear();
        self.carry.extend_from_slice(&bytes[seen.bytes..]);
        if self.awaited > 0 {
            return Ok(());
        }
        if !self.carry.is_empty() {
            let more = String::from_utf8_lossy(&self.carry).into_owned();
            return Err(io::Error::other(format!("more replies than commands: {more:?}")));
        }
        self.answered(tally)
    }

    /// Handles the end of the commands in progress: all are answered.
    fn answered(&mut self, tally: &mut Tally<'_>) -> io::Result<()> {
        let now = Instant::now();
        match self.sending {
            Sending::Nothing => Ok(()),
            Sending::Puts { count, .. } => {
                tally.put_ns.push(u64::try_from((now - self.since).as_nanos()).unwrap_or(u64::MAX));
                if tally.work == Work::Cycle {
                    return self.send(Sending::Reserves { count }, count, now, tally.commands);
                }
                tally.done(count, now);
                self.next(tally)
            }
            Sending::Reserves { count } => {
                // Jobs that did not arrive are reserved again.
                tally.left += (count - self.got) as u64;
                if self.got == 0 {
                    return self.next(tally);
                }
                let count = self.got;
                self.send(Sending::Deletes { count }, count, now, tally.commands)
            }
            Sending::Deletes { count } => {
                self.deletes.clear();
                tally.done(count, now);
                self.next(tally)
            }
        }
    }
}
