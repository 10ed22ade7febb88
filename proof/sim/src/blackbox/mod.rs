//! The black box: real systems as processes of their own, tormented by clients, judged by what the clients saw.
//!
//! ```text
//!    kill9 ──── Server (start, SIGKILL)                 one for each system under test
//!      │
//!    crew ───── Client (writes invocation and answer down, in the order the judge needs)
//!                  │
//!                 Peer  (one connection: says a [`Call`] in the system's own words)
//! ```
//!
//! A [`System`] says what it can do ([`Ability`]) and what it promises (its [`Rules`]). What it cannot do is not asked
//! of it; nothing is imitated. The three obligations of histories are kept in one place,
//! by [`client::Client`]; adapters only translate.

pub mod beanstalk;
pub mod client;
pub mod cluster;
pub mod crew;
pub mod http;
pub mod kill9;
pub mod verdict;

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use duewheel_judge::history::{Answer, Call, Held, MsgId, Proof, Recorder, Refusal, Rules, Stamp, Totals};

use crate::http::Soundness;
use crate::process::Server;

/// For how long a due message may wait at our server in a real run, in ms: as long as a test waits for anything. What is
/// promised (G3) is less; the stepped simulation asserts it, and real runs print the lateness.
const OFFER_MS: u64 = 60_000;

/// Something that a system may or may not be able to do. Enqueue with a delay, reserve and ack all can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// Take a message back by its id.
    Cancel,
    /// Messages have keys, and can be cancelled by them; an enqueue with a taken key is refused.
    Keys,
    /// An enqueue may keep or replace the message that has its key.
    IfExists,
    /// An enqueue may take the key of a leased message.
    Supersede,
    /// Due at an instant.
    At,
    /// Another due time for a message.
    Postpone,
    /// Due now.
    Fire,
    /// Look at a message.
    Get,
    /// Retries of an enqueue are recognised.
    Dedupe,
    /// Messages die after so many attempts.
    MaxAttempts,
    /// A reserve says how long its lease is, to the millisecond.
    LeaseLength,
    /// A message does.
    MessageLease,
    /// Several messages by one reserve.
    ReserveMany,
    /// A reserve waits; in whole units.
    Wait,
    /// Another delay by the holder.
    Nack,
    /// A nack without a delay backs off.
    Backoff,
    /// The holder pushes the deadline.
    Extend,
}

/// A kind of system under test.
pub trait System: Debug + Send + Sync {
    /// As reports call it.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn abilities(&self) -> &[Ability];

    /// The smallest step of its delays.
    fn unit_ms(&self) -> u64;

    /// What it promises.
    fn rules(&self) -> Rules;

    /// Starts a process on a folder.
    fn spawn(&self, folder: &Path) -> io::Result<Server>;

    /// Opens a connection to a process that was the `reign`-th to be started.
    fn connect(&self, address: SocketAddr, reign: u64) -> io::Result<Box<dyn Peer>>;

    /// Sets a queue up once, before anything else.
    fn prepare(&self, _address: SocketAddr, _queue: &str) -> Result<(), String> {
        Ok(())
    }

    /// Whether it can do this.
    fn can(&self, ability: Ability) -> bool {
        self.abilities().contains(&ability)
    }
}

/// One operation to be asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// As the history has it.
    pub call: Call,
    /// An enqueue's body.
    pub bytes: Vec<u8>,
}

impl From<Call> for Asked {
    fn from(call: Call) -> Self {
        Asked { call, bytes: Vec::new() }
    }
}

/// What came of an operation.
#[derive(Clone, Debug)]
pub struct Reply {
    /// When it was read.
    pub at: Stamp,
    /// What it says.
    pub heard: Heard,
}

/// What an answer says.
#[derive(Clone, Debug)]
pub enum Heard {
    /// Done.
    Done(Answer),
    /// Refused; nothing was changed.
    Refused(Refusal),
    /// Nobody knows.
    Unknown(String),
    /// An answer that no client should ever get; what became of the operation is unknown, too.
    Absurd(String),
}

/// One connection. It never connects again and never asks twice.
pub trait Peer: Send + Debug {
    /// Asks for some operations of one kind, together where the system has a way to, and gives as many replies.
    fn ask(&mut self, asked: &[Asked], clock: &Recorder) -> Vec<Reply>;

    /// Whether it may be asked again.
    fn soundness(&self) -> Soundness;

    /// Whether this connection can show this proof.
    fn may_settle(&self, _proof: &Proof) -> bool {
        true
    }

    /// Everything that is in a queue. Where there is no listing, the ids that are known are looked at, and it is an
    /// error if the queue says that it holds more.
    fn list(&mut self, queue: &str, known: &[MsgId]) -> Result<Vec<Held>, String>;

    /// How many messages of a queue are not dead.
    fn waiting(&mut self, queue: &str) -> Result<u64, String>;

    /// What the system says it has done in a queue.
    fn totals(&mut self, _queue: &str) -> Result<Option<Totals>, String> {
        Ok(None)
    }
}
