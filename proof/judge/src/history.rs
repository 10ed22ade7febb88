//! The history of a run as the clients saw it: the only input of the checker.
//!
//! A history is a list of events in the order in which they were recorded. Four obligations of the recorder make the
//! checker's conclusions valid:
//!
//! 1. `Invoke` is recorded *before* the request can reach the system, its answer (`Ok`, `Fail`, `Info`) *after* it was
//!    read. So when an answer is recorded before an invocation, the first operation really ended before the second
//!    began.
//! 2. `Info` means that the outcome is unknown; an operation without an answer counts as `Info`. `Fail` is a definite
//!    refusal: nothing was changed.
//! 3. An operation invoked before [`Fault::Killed`], [`Fault::Stopped`] or [`Fault::PowerLoss`] takes no effect after
//!    it. For a cluster these are not recorded ([`Fault::Struck`] is), and [`Unanswered`] determines how long such an
//!    operation may take effect. (A client opens its connection before it records the invocation, never retries inside
//!    one operation, and the fault is recorded after the process is gone.)
//! 4. The end of a process separates what it did from what the next one does: it is recorded after everything that the
//!    process has sent to a receiver was recorded ([`What::PushSeen`]), and before the next process is spawned.
//!    [`Fault::Started`] comes later than the first acts of a process, and concerns clients alone: none of them knows
//!    its address before.
//!
//! Where leases belong to connections ([`Leases::OfConnections`]) there is a fifth: a client has one connection at a
//! time, and [`What::Closing`] is recorded before it closes one.
//!
//! Times are the client's own: monotonic nanoseconds since the start of the run, and wall-clock milliseconds rounded
//! down. An invocation is stamped as late as possible and an answer as early as possible, so that the time between them
//! is never over-estimated.

use std::io::{self, BufRead, Write};
use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use crate::body::{Payload, Seen, Tag, body, hash};
pub use crate::limits::{Expiry, OnExpiry, QueueLimits};
pub use crate::pushes::{PushAnswer, PushId, PushSeen, PushedQueue};
pub use crate::rules::{Downtime, Leases, Rules, Shards, Told, Unanswered};

/// The number of an operation of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpId(pub u64);

/// A message's id, as the system gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MsgId(pub u64);

/// A lease token. The newer of two is the greater: longer, or of the same length and later in the alphabet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub String);

impl Ord for Token {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0.len(), &self.0).cmp(&(other.0.len(), &other.0))
    }
}

impl PartialOrd for Token {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A reading of the client's clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Monotonic, since the start of the run.
    pub mono_ns: u64,
    /// Wall clock since 1970, rounded down.
    pub wall_ms: u64,
}

/// One event of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When it happened.
    pub at: Stamp,
    /// The client; 0 is the test itself.
    pub client: u32,
    /// The event itself.
    pub what: What,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A client is about to make a request.
    Invoke {
        /// The operation.
        op: OpId,
        /// The request.
        call: Call,
    },
    /// The request was carried out.
    Ok {
        /// The operation.
        op: OpId,
        /// The answer.
        answer: Answer,
    },
    /// The request was refused; nothing was changed.
    Fail {
        /// The operation.
        op: OpId,
        /// The reason.
        refusal: Refusal,
    },
    /// The request may have been carried out or not.
    Info {
        /// The operation.
        op: OpId,
        /// What the client saw instead of an answer.
        why: String,
    },
    /// A fault begins or ends.
    Fault(Fault),
    /// The client is about to close its connection, or has found it broken.
    Closing,
    /// The run is in this phase from here on.
    Phase(String),
    /// All messages that are visible in one queue at the end; complete.
    Dump {
        /// The queue.
        queue: String,
        /// Its messages.
        rows: Vec<Held>,
    },
    /// The system's own totals of one queue since the beginning.
    Totals {
        /// The queue.
        queue: String,
        /// Its figures.
        totals: Totals,
    },
    /// From here on the system sends the messages of a queue to the receiver of the run.
    Pushed(PushedQueue),
    /// The receiver has read a request.
    PushSeen(PushSeen),
    /// The receiver is about to answer a request, or will not.
    PushAnswered {
        /// The request.
        push: PushId,
        /// The answer.
        answer: PushAnswer,
    },
}

impl What {
    /// The operation that ends with this event, with any outcome.
    pub fn ends(&self) -> Option<OpId> {
        match self {
            What::Ok { op, .. } | What::Fail { op, .. } | What::Info { op, .. } => Some(*op),
            _ => None,
        }
    }
}

/// The request of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Accepts a message.
    Enqueue(Enqueue),
    /// Cancels a message.
    Cancel(Target),
    /// Gives a message another due time, and perhaps another body.
    Postpone {
        /// The message.
        target: Target,
        /// The new due time.
        when: When,
        /// The new body.
        body: Option<Payload>,
    },
    /// Makes a message due now.
    Fire(Target),
    /// Reads a message.
    Get(Target),
    /// Reserves messages.
    Reserve {
        /// The queue.
        queue: String,
        /// The largest number of messages.
        max: u64,
        /// How long to wait for the first one, in ms.
        wait_ms: u64,
        /// Length of the leases; `None`: the setting of message or queue.
        lease_ms: Option<u64>,
    },
    /// Acks a message.
    Ack(Proof),
    /// Nacks a message.
    Nack {
        /// The lease.
        proof: Proof,
        /// Delay until the next attempt; `None`: the backoff decides.
        delay_ms: Option<u64>,
    },
    /// Moves the lease's deadline to this time from now.
    Extend {
        /// The lease.
        proof: Proof,
        /// The length from now, in ms.
        lease_ms: u64,
    },
    /// Buries a message.
    Bury(Proof),
    /// Redrives a dead message.
    Redrive(MsgId),
    /// Removes all scheduled, ready and dead messages.
    Purge {
        /// The queue.
        queue: String,
    },
    /// Gives a queue other limits, in place of all that it had.
    Limit {
        /// The queue.
        queue: String,
        /// Its limits.
        limits: QueueLimits,
    },
}

/// A message to accept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueue {
    /// The queue.
    pub queue: String,
    /// The caller's own name for it.
    pub key: Option<String>,
    /// The body. Two requests have the same tag only if the second retries the first with the same `dedupe_id`.
    pub body: Payload,
    /// The due time.
    pub when: When,
    /// What happens if the key is taken.
    pub if_exists: IfExists,
    /// Makes a retry return the first answer.
    pub dedupe_id: Option<String>,
    /// The number of grants after which the message is dead; `None`: the queue's setting.
    pub max_attempts: Option<u64>,
    /// The length of a lease for which the reserve names none; `None`: the queue's setting.
    pub lease_ms: Option<u64>,
    /// The message is due at an instant from its due time to this many ms later.
    #[serde(default)]
    pub spread_ms: u64,
    /// When it expires; `None`: the queue's setting.
    #[serde(default)]
    pub expiry: Option<Expiry>,
}

/// When a message is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// After this number of ms of elapsed time.
    DelayMs(u64),
    /// At an instant of the wall clock, in ms since 1970.
    AtMs(u64),
}

/// What happens if the key is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IfExists {
    /// The enqueue is refused.
    Reject,
    /// The existing message is kept.
    Keep,
    /// The new message replaces the existing one.
    Replace,
    /// The same, but the new message takes the key of one that is leased, which ends with its lease.
    Supersede,
}

/// Identifies a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// By its id.
    Id(MsgId),
    /// By its key.
    Key {
        /// The queue.
        queue: String,
        /// The key.
        key: String,
    },
}

/// A message and the proof of a lease on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The message.
    pub id: MsgId,
    /// The token of the lease.
    pub token: Token,
}

/// A positive answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The answer to an enqueue.
    Enqueued {
        /// The message that has the key now.
        id: MsgId,
        /// `false`: an older message was kept.
        created: bool,
        /// The message that it replaced.
        replaced: Option<MsgId>,
        /// The leased message whose key it took.
        #[serde(default)]
        superseded: Option<MsgId>,
        /// When it is due, by the wall clock, if the answer says so.
        #[serde(default)]
        due_at_ms: Option<u64>,
    },
    /// The answer to a cancel. The id if the answer names it or the request did.
    Cancelled(Option<MsgId>),
    /// The answer to a postpone, fire or redrive. The id as for a cancel.
    Changed(Option<MsgId>),
    /// The answer to a get.
    Found(Held),
    /// The answer to a reserve.
    Grants(Vec<Grant>),
    /// The answer to a reserve that found messages which it must not have yet.
    HeldBack(HeldBack),
    /// The answer to an ack, nack, extend or bury.
    Settled,
    /// The answer to a purge: the number of removed messages.
    Purged(u64),
    /// The answer to a change of limits.
    Limited,
}

/// What holds messages back that are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldBack {
    /// A rate.
    Rate,
    /// A number of leases: the queue's, a tenant's or that of the whole system.
    Leases,
}

/// A refusal; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Another message has the key.
    KeyExists,
    /// A consumer has the message.
    Leased,
    /// Nothing is pending under this id or key.
    NotFound,
    /// The message is dead.
    Dead,
    /// The lease is not the message's latest, or the message is gone.
    LeaseLost,
    /// The answer to an ack with a token that has acked the message before.
    AlreadyAcked,
    /// Nothing is pending under this id or key, or a consumer has it: the answer does not distinguish the two.
    GoneOrLeased,
    /// The same `dedupe_id` with another content.
    DedupeMismatch,
    /// Any other refusal: its code.
    Other(String),
}

/// A message as a consumer got it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The message.
    pub id: MsgId,
    /// Proof of the lease.
    pub token: Token,
    /// Number of grants so far, this one included.
    pub attempt: u64,
    /// Its key.
    pub key: Option<String>,
    /// Its body.
    pub body: Seen,
    /// Its lateness, as reported by the system.
    pub lateness_ms: u64,
    /// Whether it had expired, as reported by the system.
    #[serde(default)]
    pub late: bool,
}

/// A message as a listing or a get shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The message.
    pub id: MsgId,
    /// Its key.
    pub key: Option<String>,
    /// Its state.
    pub state: State,
    /// Number of grants so far.
    pub attempt: u64,
    /// Its body, if shown.
    pub body: Option<Seen>,
    /// Number of grants that do not count against its attempts, if that is shown.
    #[serde(default)]
    pub forgiven: Option<u64>,
    /// Why it is dead, if that is shown.
    #[serde(default)]
    pub death: Option<Death>,
}

/// Why a message is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Death {
    /// All its attempts failed.
    MaxAttempts,
    /// A consumer wanted it to be.
    Buried,
    /// It had expired when it would have been granted.
    Expired,
}

/// The four states that users see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Not due.
    Scheduled,
    /// Due.
    Ready,
    /// Leased by consumers.
    Leased,
    /// Dead.
    Dead,
}

/// The system's own totals of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Messages accepted.
    pub enqueued: u64,
    /// Acks.
    pub acked: u64,
    /// Messages cancelled.
    pub cancelled: u64,
    /// Messages replaced.
    pub replaced: u64,
    /// Messages that ended with the lease during which another one took their key.
    #[serde(default)]
    pub superseded: u64,
    /// Messages purged.
    pub purged: u64,
    /// Messages dropped because they had expired.
    #[serde(default)]
    pub expired: u64,
}

/// A fault, or another event of the system under test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The system listens. It may have worked for a while before this could be recorded.
    Started,
    /// The process was killed and is gone.
    Killed(Moment),
    /// The process was asked to end, and is gone.
    Stopped,
    /// The process was killed, and unsynced data may be lost.
    PowerLoss,
    /// The wall clock was stepped.
    ClockStep {
        /// The time that it showed just before, in ms.
        before_ms: u64,
        /// The time that it showed just after, in ms.
        after_ms: u64,
    },
    /// A time server makes the wall clock run faster or slower: the time that it has gained on elapsed time since the
    /// last such event, or since that began; negative if it has lost time.
    Slewed {
        /// The gain in µs, rounded up.
        gained_us: i64,
    },
    /// The system was stalled for a while, which ends here: its disk had failed.
    Stalled,
    /// The process was stopped (SIGSTOP), and has stopped by now.
    Paused,
    /// The process is about to continue. Between the two events it does nothing, and its clocks run.
    Resumed,
    /// A part of a cluster is taken away, or added: from here to [`Fault::Healed`] due messages may have to wait.
    /// Nothing else is excused by it: a node is not the system, and requests to it may still take effect elsewhere.
    Struck(Blow),
    /// The store has failed over to a copy, and its former data does not come back: operations that were invoked before
    /// this point, and answered later than [`Rules::failover_ms`] before the last fault, may be forgotten.
    FailedOver,
    /// All parts of the cluster are back.
    Healed,
    /// Another event that the checker does not need.
    Other(String),
}

/// A fault of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blow {
    /// A node was killed.
    NodeKilled,
    /// A node was stopped (SIGSTOP) until others had its shards.
    NodePaused,
    /// A node was asked to end, and is gone.
    NodeLeft,
    /// A node joined.
    NodeCame,
    /// A node was cut off from the store.
    NodeCut,
    /// The whole store was killed.
    StoreKilled,
    /// The whole store was stopped (SIGSTOP).
    StorePaused,
    /// The disk of the whole store was full.
    StoreFull,
    /// The whole store was killed, and is started with an older copy of its data.
    StoreSetBack,
    /// One of several masters of the store was killed.
    MasterKilled,
    /// One of several masters of the store was stopped (SIGSTOP).
    MasterPaused,
    /// The slot of a shard moved from one master of the store to another, or began to move and was returned.
    SlotMoved,
    /// The store's clock was stepped, forward or back.
    StoreClockStepped,
}

/// When a process was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// While the process served.
    Serving,
    /// Before the process listened.
    Recovering,
}

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The origin of the history: seed, settings.
    pub title: String,
    /// The promises of the system.
    pub rules: Rules,
    /// The events.
    pub events: Vec<Event>,
}

/// The first line of a history's file.
#[derive(Serialize, Deserialize)]
struct Header {
    duewheel_history: u32,
    title: String,
    rules: Rules,
}

impl History {
    /// Writes a header line, then one JSON line an event.
    pub fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = Header { duewheel_history: 1, title: self.title.clone(), rules: self.rules };
        serde_json::to_writer(&mut *out, &header)?;
        out.write_all(b"\n")?;
        for event in &self.events {
            serde_json::to_writer(&mut *out, event)?;
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// Reads what [`History::save`] wrote. A cut last line, as a killed test leaves it, is dropped.
    pub fn load(input: impl BufRead) -> io::Result<History> {
        let mut lines = input.lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let header: Header = serde_json::from_str(&first)?;
        if header.duewheel_history != 1 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a history of another version"));
        }
        let mut events = Vec::new();
        let mut cut = None;
        for line in lines {
            if let Some(e) = cut {
                return Err(e);
            }
            match serde_json::from_str(&line?) {
                Ok(event) => events.push(event),
                Err(e) => cut = Some(io::Error::from(e)),
            }
        }
        Ok(History { title: header.title, rules: header.rules, events })
    }
}

/// Records a history while it happens; shared by all clients of a run.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    events: Vec<Event>,
    ops: u64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// An empty history; its clock starts now.
    pub fn new() -> Self {
        Recorder { start: Instant::now(), inner: Mutex::default() }
    }

    /// The present time. To be taken as soon as an answer was read.
    pub fn stamp(&self) -> Stamp {
        let mono_ns = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Stamp { mono_ns, wall_ms: wall_ms() }
    }

    /// Records invocations. To be called before the first byte is sent, on a connection that is already open.
    pub fn invoke(&self, client: u32, calls: Vec<Call>) -> Vec<OpId> {
        let mut inner = self.lock();
        let at = self.stamp();
        let mut ids = Vec::with_capacity(calls.len());
        for call in calls {
            let op = OpId(inner.ops);
            inner.ops += 1;
            inner.events.push(Event { at, client, what: What::Invoke { op, call } });
            ids.push(op);
        }
        ids
    }

    /// Records any other event, mostly answers.
    pub fn note(&self, at: Stamp, client: u32, what: What) {
        self.lock().events.push(Event { at, client, what });
    }

    /// The history recorded so far.
    pub fn history(&self, title: &str, rules: Rules) -> History {
        History { title: title.to_owned(), rules, events: self.lock().events.clone() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        // A client that panics has added whole events or none.
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The wall clock, rounded down.
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_compare_as_numbers() {
        let t = |s: &str| Token(s.to_owned());
        assert!(t("0000000100000000000000ff") < t("000000020000000000000001"));
        assert!(t("9") < t("10"));
    }

    #[test]
    fn history_loads_dropping_cut_line() {
        let recorder = Recorder::new();
        let text = body(Tag(1), 30);
        let enqueue = Enqueue {
            queue: "q".into(),
            key: Some("k\"".into()),
            body: Payload::of(Tag(1), text.as_bytes()),
            when: When::DelayMs(5),
            if_exists: IfExists::Replace,
            dedupe_id: None,
            max_attempts: None,
            lease_ms: None,
            spread_ms: 0,
            expiry: None,
        };
        let op = recorder.invoke(1, vec![Call::Enqueue(enqueue)])[0];
        let answer = Answer::Enqueued {
            id: MsgId(1),
            created: true,
            replaced: None,
            superseded: None,
            due_at_ms: None,
        };
        recorder.note(recorder.stamp(), 1, What::Ok { op, answer });
        recorder.note(recorder.stamp(), 0, What::Fault(Fault::Killed(Moment::Serving)));
        let history = recorder.history("seed 1", Rules::default());
        let mut file = Vec::new();
        history.save(&mut file).unwrap();
        assert_eq!(History::load(&file[..]).unwrap(), history);
        let cut = History::load(&file[..file.len() - 5]).unwrap();
        assert_eq!(cut.events.len(), 2);
        let mut middle = file.clone();
        let second = file.iter().position(|b| *b == b'\n').unwrap() + 20;
        middle[second] = b'\n';
        assert!(History::load(&middle[..]).is_err());
    }
}
