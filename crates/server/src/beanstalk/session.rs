//! A client's session: commands in, operations for the engine and replies out. Sans I/O.
//!
//! Commands are carried out one after the other, as the protocol requires. Commands that need the engine once each, and
//! do not wait, are handed to it together: a client that sends a hundred puts at once waits for one sync, not for a
//! hundred.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use duewheel::core::engine::{
    Applied, Attempt, ChangeRefusal, DedupeId, Enqueue, EnqueueRefusal, Hold, IfExists, Op, Proof, QueueView,
    Reply, Reserve, Reserved, Settled, Target, WaiterId, When,
};
use duewheel::core::message::{MaxAttempts, Options, QueueLimit, State};
use duewheel::core::policy::ReadyOrder;
use duewheel::core::{Key, MessageId, QueueName, SessionId};

use super::batch::{BatchStep, Brings, brings, is_alone, sees_what_follows};
use super::codec::{Command, CommandKind, DecodedInput, IfTaken, Put};
use super::reach::PermittedQueues;
use super::replies::EngineAnswer;
use super::replies::{block, found, line, lost, no_answer, unchanged};
use super::stats::ClientRole;
use super::{BeanstalkState, stats};
use crate::auth::Prefixes;
use crate::error::{ErrorCode, Problem};

/// Largest number of commands that are handed to the engine together.
const BATCH: usize = 1_024;
/// Largest size of bodies, and of lists, in the replies to a batch; one always fits. A client that does not read its
/// replies holds no more than this.
const BATCH_BYTES: usize = 1024 * 1024;
/// Largest number of queues that one session may watch.
const MAX_WATCHED: usize = 1_024;
/// A waiting reserve ends when a lease of the session has less than this left.
const SAFETY_MARGIN_MS: u64 = 1_000;
/// Number of queues that are listed at a time.
const PAGE: usize = 1_000;
/// The queue of a client that has not chosen one.
const DEFAULT: &str = "default";

/// The next need of a session.
#[derive(Debug)]
pub(super) enum SessionNext {
    /// The operations to ask, perhaps none; then [`Session::answered`].
    Ask(Vec<Op>),
    /// The reserve to ask, which may wait; then [`Session::answered`].
    Wait(WaiterId, Op),
    /// More bytes of the client.
    Read,
    /// The connection ends.
    Close,
}

/// A client's session.
#[derive(Debug)]
pub(super) struct Session {
    id: SessionId,
    /// The permitted queues. If the initial queue is not among them, it is only a name.
    reach: PermittedQueues,
    used: QueueName,
    watched: Vec<QueueName>,
    /// Holds that were released for others which were refused.
    held_again: Vec<Op>,
    inputs: VecDeque<DecodedInput>,
    /// Size of the bodies in `decoded`, in bytes.
    bytes: usize,
    task: Task,
    produces: ClientRole,
    works: ClientRole,
    input: InputState,
}

/// Whether more input may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputState {
    Open,
    /// The client has closed its half of the connection: no command waits any more.
    HalfClosed,
}

/// The work in progress.
#[derive(Debug)]
enum Task {
    Nothing,
    /// Looking up the queues of these messages.
    Look(Vec<MessageId>),
    Batch(Vec<BatchStep>),
    /// This number of reserves at the front.
    Reserve(usize),
    /// Kicking dead messages first; scheduled ones only if there were none.
    Kick {
        left: u32,
        kicked: u32,
        from: State,
    },
    KickJob(MessageId, State),
    ListQueues(Vec<QueueName>),
    Pause {
        queue: QueueName,
        seconds: u32,
        step: PauseStep,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PauseStep {
    Look,
    Pause,
}

impl Session {
    pub(super) fn new(id: SessionId, reach: Option<Arc<Prefixes>>) -> Self {
        let used = default_queue();
        Session {
            id,
            reach: PermittedQueues::new(reach),
            watched: vec![used.clone()],
            used,
            held_again: Vec::new(),
            inputs: VecDeque::new(),
            bytes: 0,
            task: Task::Nothing,
            produces: ClientRole::Not,
            works: ClientRole::Not,
            input: InputState::Open,
        }
    }

    /// The operations at the start of a session; their answers are ignored.
    pub(super) fn opening(&self) -> Vec<Op> {
        let hold = |how| Op::Hold { queue: self.used.clone(), how };
        if self.reach.has(&self.used) { vec![hold(Hold::Use), hold(Hold::Watch)] } else { Vec::new() }
    }

    /// Ends the session. Returns the last operations; their answers are ignored.
    pub(super) fn close(&mut self, shared: &BeanstalkState) -> Vec<Op> {
        self.produces.end(&shared.counters.producers);
        self.works.end(&shared.counters.workers);
        let mut ops = vec![Op::SessionClosed { session: self.id }];
        ops.append(&mut self.held_again);
        let holds = std::iter::once((&self.used, Hold::Use));
        let holds = holds.chain(self.watched.iter().map(|queue| (queue, Hold::Watch)));
        let held = holds.filter(|(queue, _)| self.reach.has(queue));
        ops.extend(held.map(|(queue, how)| Op::LetGo { queue: queue.clone(), how }));
        ops
    }

    /// Adds a command.
    pub(super) fn hear(&mut self, decoded: DecodedInput) {
        if let Ok(Command::Put(put)) = &decoded.what {
            self.bytes += put.body.len();
        }
        self.inputs.push_back(decoded);
    }

    /// Whether more commands should be read before the present ones are done.
    pub(super) fn has_room(&self, max_bytes: usize) -> bool {
        self.inputs.len() < BATCH && self.bytes < max_bytes
    }

    /// Notes that the client will send nothing more.
    pub(super) fn half_close(&mut self) {
        self.input = InputState::HalfClosed;
    }

    pub(super) fn is_half_closed(&self) -> bool {
        self.input == InputState::HalfClosed
    }

    /// Continues when no operation is in progress.
    pub(super) fn go_on(&mut self, shared: &BeanstalkState, out: &mut Vec<u8>) -> SessionNext {
        loop {
            if let Some(next) = self.advance(shared, out) {
                return next;
            }
        }
    }

    /// Takes one step. `None` if the step has no need of its own: the next one follows.
    fn advance(&mut self, shared: &BeanstalkState, out: &mut Vec<u8>) -> Option<SessionNext> {
        if let Some(next) = self.ask().or_else(|| self.look(shared.max_body)) {
            return Some(next);
        }
        let (mut parts, mut ops, mut bytes) = (Vec::new(), Vec::new(), 0);
        let (mut more, mut batch) = (true, Brings::Either);
        while more && parts.len() < BATCH && bytes < BATCH_BYTES {
            let Some(decoded) = self.inputs.front() else { break };
            let alone = match &decoded.what {
                Ok(command) => is_alone(command),
                Err(_) => false,
            };
            if alone {
                if parts.is_empty() {
                    return self.alone(shared, out);
                }
                break;
            }
            match (batch, decoded.what.as_ref().map_or(Brings::Either, brings)) {
                (_, Brings::Either) => {}
                (Brings::Either, brings) => batch = brings,
                (batch, brings) if batch == brings => {}
                (Brings::Messages | Brings::Nothing, _) => break,
            }
            if decoded.what.as_ref().is_ok_and(|command| self.reach.is_unseen(command)) {
                break;
            }
            let Some(decoded) = self.inputs.pop_front() else { break };
            more = !decoded.what.as_ref().is_ok_and(sees_what_follows);
            let before = parts.len();
            self.plan(shared, decoded, &mut parts, &mut ops);
            bytes += parts[before..].iter().map(|part| part.most(shared.max_body)).sum::<usize>();
        }
        if parts.is_empty() {
            return Some(SessionNext::Read);
        }
        // The commands behind this batch are examined again.
        self.reach.forget();
        for op in mem::take(&mut self.held_again) {
            parts.insert(0, BatchStep::Silent);
            ops.insert(0, op);
        }
        self.task = Task::Batch(parts);
        Some(SessionNext::Ask(ops))
    }

    /// Looks up the queues of the messages that the next batch of commands names, where not all queues are permitted.
    fn look(&mut self, max_body: usize) -> Option<SessionNext> {
        let ids = self.reach.unseen(self.inputs.iter().take(BATCH), BATCH_BYTES / max_body.max(1))?;
        let ops = ids.iter().map(|id| Op::Get { target: Target::Id(*id) }).collect();
        self.task = Task::Look(ids);
        Some(SessionNext::Ask(ops))
    }

    /// Plans a command that takes one step: its operations, and the handling of the answer.
    fn plan(
        &mut self,
        shared: &BeanstalkState,
        decoded: DecodedInput,
        parts: &mut Vec<BatchStep>,
        ops: &mut Vec<Op>,
    ) {
        self.count(shared, decoded.kind);
        let command = match decoded.what {
            Ok(command) => command,
            Err(refusal) => return parts.push(BatchStep::Text(refusal.reply())),
        };
        if let Some(text) = self.reach.refusal(&command, &self.used, &self.watched) {
            if let Command::Put(put) = &command {
                self.bytes -= put.body.len();
            }
            return parts.push(BatchStep::Text(text));
        }
        let mut ask = |part: BatchStep, op: Op| {
            parts.push(part);
            ops.push(op);
        };
        let proof = Proof::Session(self.id);
        match command {
            Command::Put(put) => {
                self.bytes -= put.body.len();
                if shared.drain.is_on() {
                    return parts.push(BatchStep::Text("DRAINING\r\n"));
                }
                ask(BatchStep::Put, self.put(put));
            }
            Command::Use(queue) => {
                let left = mem::replace(&mut self.used, queue.clone());
                let part = BatchStep::Use { queue: queue.clone(), left: left.clone() };
                ask(part, Op::Hold { queue, how: Hold::Use });
                if self.reach.has(&left) {
                    ask(BatchStep::Silent, Op::LetGo { queue: left, how: Hold::Use });
                }
            }
            Command::Watch(queue) => {
                if !self.watched.contains(&queue) {
                    if self.watched.len() >= MAX_WATCHED {
                        return parts.push(BatchStep::Text("OUT_OF_MEMORY\r\n"));
                    }
                    self.watched.push(queue.clone());
                    let watching = self.watched.len();
                    return ask(
                        BatchStep::Watch { queue: queue.clone(), watching },
                        Op::Hold { queue, how: Hold::Watch },
                    );
                }
                parts.push(self.watching());
            }
            Command::Ignore(queue) => {
                if let Some(at) = self.watched.iter().position(|q| *q == queue) {
                    if self.watched.len() == 1 {
                        return parts.push(BatchStep::Text("NOT_IGNORED\r\n"));
                    }
                    // The last queue takes its place, as in beanstalkd: clients see the order.
                    self.watched.swap_remove(at);
                    if self.reach.has(&queue) {
                        ask(BatchStep::Silent, Op::LetGo { queue, how: Hold::Watch });
                    }
                }
                parts.push(self.watching());
            }
            Command::ReserveJob(id) => {
                ask(BatchStep::ReserveJob, Op::ReserveOne { id, session: self.id, lease_ms: None });
            }
            Command::Delete(id) => ask(BatchStep::Delete, Op::Delete { id, session: self.id }),
            Command::Release { id, priority, delay } => {
                let delay_ms = Some(u64::from(delay) * 1_000);
                ask(
                    BatchStep::Release,
                    Op::Nack {
                        id,
                        proof,
                        attempt: Attempt::Failed,
                        delay_ms,
                        priority: Some(priority),
                        note: "".into(),
                    },
                );
            }
            Command::Bury { id, priority } => {
                ask(BatchStep::Bury, Op::Bury { id, proof, priority: Some(priority), note: "".into() });
            }
            Command::Touch(id) => ask(BatchStep::Touch, Op::Extend { id, proof, lease_ms: None }),
            Command::Peek(id) => ask(BatchStep::Found, Op::Get { target: Target::Id(id) }),
            Command::PeekReady => ask(BatchStep::Found, self.peek(State::Ready)),
            Command::PeekDelayed => ask(BatchStep::Found, self.peek(State::Scheduled)),
            Command::PeekBuried => ask(BatchStep::Found, self.peek(State::Dead)),
            Command::Stats => ask(BatchStep::Stats, Op::Stats),
            Command::StatsJob(id) => ask(BatchStep::StatsJob, Op::Get { target: Target::Id(id) }),
            Command::StatsTube(queue) => ask(BatchStep::StatsQueue, Op::Queue { queue }),
            Command::ListTubeUsed => parts.push(BatchStep::Line(format!("USING {}\r\n", self.used))),
            Command::ListTubesWatched => parts.push(BatchStep::Block(stats::list(&self.watched))),
            Command::DeleteKey(key) => {
                let target = Target::Key(self.used.clone(), key);
                ask(BatchStep::DeleteKey, Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target });
            }
            Command::PeekKey(key) => {
                ask(BatchStep::Found, Op::Get { target: Target::Key(self.used.clone(), key) });
            }
            Command::BeginPut => self.produce(shared),
            Command::MissPut => {}
            // The command is done alone; see `is_alone`.
            Command::Reserve(_)
            | Command::Kick(_)
            | Command::KickJob(_)
            | Command::ListTubes
            | Command::PauseTube { .. }
            | Command::Quit => {}
        }
    }

    fn put(&self, put: Put) -> Op {
        let Put { priority, delay, ttr, key, body } = put;
        let (key, if_exists): (Option<Key>, _) = match key {
            None => (None, IfExists::Reject),
            Some((key, IfTaken::Refuse)) => (Some(key), IfExists::Reject),
            Some((key, IfTaken::Replace)) => (Some(key), IfExists::Replace),
            Some((key, IfTaken::Supersede)) => (Some(key), IfExists::Supersede),
        };
        Op::Enqueue(Box::new(Enqueue {
            key,
            if_exists,
            when: When::Seconds(delay),
            priority: Some(priority),
            options: Options {
                lease_ms: Some(u64::from(ttr.max(1)) * 1_000),
                max_attempts: Some(MaxAttempts::UNLIMITED),
                queue_limit: QueueLimit::Wins,
                ..Options::default()
            },
            order_if_new: Some(ReadyOrder::Arrival),
            ..Enqueue::new(self.used.clone(), body)
        }))
    }

    fn peek(&self, state: State) -> Op {
        Op::Peek { queue: self.used.clone(), state }
    }

    fn watching(&self) -> BatchStep {
        BatchStep::Line(format!("WATCHING {}\r\n", self.watched.len()))
    }

    fn produce(&mut self, shared: &BeanstalkState) {
        self.produces.begin(&shared.counters.producers);
    }

    fn work(&mut self, shared: &BeanstalkState) {
        self.works.begin(&shared.counters.workers);
    }

    fn count(&self, shared: &BeanstalkState, kind: Option<CommandKind>) {
        if let Some(kind) = kind {
            shared.counters.count(kind);
        }
    }

    /// Starts the command at the front, which takes several steps or may wait.
    fn alone(&mut self, shared: &BeanstalkState, out: &mut Vec<u8>) -> Option<SessionNext> {
        if matches!(self.inputs.front().map(|s| &s.what), Some(Ok(Command::Reserve(_)))) {
            return self.reserve(shared, out);
        }
        let Some(DecodedInput { kind, what: Ok(command) }) = self.inputs.pop_front() else {
            return Some(SessionNext::Read);
        };
        self.count(shared, kind);
        let refusal = self.reach.refusal(&command, &self.used, &self.watched);
        self.reach.forget();
        if let Some(text) = refusal {
            out.extend_from_slice(text.as_bytes());
            return None;
        }
        self.task = match command {
            Command::Kick(most) => Task::Kick { left: most, kicked: 0, from: State::Dead },
            Command::KickJob(id) => Task::KickJob(id, State::Dead),
            Command::ListTubes => Task::ListQueues(Vec::new()),
            Command::PauseTube { queue, seconds } => Task::Pause { queue, seconds, step: PauseStep::Look },
            Command::Quit => return Some(SessionNext::Close),
            _ => Task::Nothing,
        };
        None
    }

    /// Combines the reserves at the front into one demand: it is answered as soon as there is a message for the first.
    fn reserve(&mut self, shared: &BeanstalkState, out: &mut Vec<u8>) -> Option<SessionNext> {
        let queues: Vec<_> = self.watched.iter().filter(|queue| self.reach.has(queue)).cloned().collect();
        if queues.is_empty() {
            // No queue that it watches can ever provide a message.
            self.answer_first(ErrorCode::Forbidden.beanstalk(), shared, out);
            return None;
        }
        let is_reserve = |decoded: &&DecodedInput| matches!(decoded.what, Ok(Command::Reserve(_)));
        let reserves = self.inputs.iter().take(BATCH).take_while(is_reserve).count();
        let seconds = match self.inputs.front().map(|decoded| &decoded.what) {
            Some(Ok(Command::Reserve(seconds))) => *seconds,
            _ => Some(0),
        };
        let wait_ms = match (self.input, seconds) {
            (InputState::HalfClosed, _) => 0,
            (InputState::Open, Some(seconds)) => u64::from(seconds) * 1_000,
            (InputState::Open, None) => u64::MAX,
        };
        // Counted before the wait, so that the client is a worker during it.
        let kind = self.inputs.front_mut().and_then(|decoded| decoded.kind.take());
        self.count(shared, kind);
        self.work(shared);
        self.task = Task::Reserve(reserves);
        let waiter = shared.client.new_waiter();
        let op = Op::Reserve(Reserve {
            waiter,
            queues,
            max: reserves,
            max_bytes: BATCH_BYTES,
            wait_ms,
            lease_ms: None,
            session: self.id,
            max_of: Vec::new(),
            max_attempts: None,
            deadline_margin_ms: Some(SAFETY_MARGIN_MS),
        });
        Some(SessionNext::Wait(waiter, op))
    }

    /// The next step of the command in progress, if it takes several.
    fn ask(&self) -> Option<SessionNext> {
        let op = match &self.task {
            Task::Kick { left, from, .. } => {
                let (queue, max) = (self.used.clone(), usize::try_from(*left).unwrap_or(usize::MAX));
                match from {
                    State::Dead => Op::RedriveMany { queue, max },
                    State::Scheduled | State::Ready | State::Leased | State::Done => {
                        Op::FireMany { queue, max }
                    }
                }
            }
            Task::KickJob(id, State::Dead) => {
                return Some(SessionNext::Ask(vec![
                    Op::Redrive { id: *id, delay_ms: None, died: None },
                    Op::Get { target: Target::Id(*id) },
                ]));
            }
            Task::KickJob(id, _) => Op::Fire { target: Target::Id(*id) },
            Task::ListQueues(names) => Op::Queues { after: names.last().cloned(), limit: PAGE },
            Task::Pause { queue, step: PauseStep::Look, .. } => Op::Queue { queue: queue.clone() },
            Task::Pause { queue, seconds, step: PauseStep::Pause } => {
                Op::Pause { queue: queue.clone(), for_ms: Some(u64::from(*seconds) * 1_000) }
            }
            Task::Nothing | Task::Look(_) | Task::Batch(_) | Task::Reserve(_) => return None,
        };
        Some(SessionNext::Ask(vec![op]))
    }

    /// Takes the answers to the last operations, one for each.
    pub(super) fn answered(
        &mut self,
        answers: Vec<EngineAnswer>,
        shared: &BeanstalkState,
        out: &mut Vec<u8>,
    ) -> SessionNext {
        let mut answers = answers.into_iter();
        match mem::replace(&mut self.task, Task::Nothing) {
            Task::Nothing => {}
            Task::Look(ids) => {
                for (id, answer) in ids.into_iter().zip(answers) {
                    self.reach.learn(id, answer);
                }
            }
            Task::Batch(parts) => {
                for part in parts {
                    let answer = if part.has_answer() { answers.next() } else { None };
                    self.reply(part, answer, shared, out);
                }
            }
            Task::Reserve(reserves) => self.reserved(reserves, answers.next(), shared, out),
            Task::Kick { left, kicked, from } => match answers.next() {
                Some(Ok(Reply::Count(n))) => {
                    let n = u32::try_from(*n).unwrap_or(left).min(left);
                    let (left, kicked) = (left - n, kicked + n);
                    let from = match (from, n) {
                        (State::Dead, 0) if kicked == 0 => Some(State::Scheduled),
                        (_, 0) => None,
                        (from, _) => Some(from),
                    };
                    match from {
                        Some(from) if left > 0 => self.task = Task::Kick { left, kicked, from },
                        _ => out.extend_from_slice(format!("KICKED {kicked}\r\n").as_bytes()),
                    }
                }
                answer => out.extend_from_slice(no_answer(answer).as_bytes()),
            },
            Task::KickJob(id, step) => match (answers.next(), answers.next()) {
                (Some(Ok(Reply::Change(Ok(_)))), _) => out.extend_from_slice(b"KICKED\r\n"),
                (Some(Ok(Reply::Change(Err(_)))), Some(Ok(Reply::View(Some(view)))))
                    if step == State::Dead && view.state == State::Scheduled =>
                {
                    self.task = Task::KickJob(id, State::Scheduled);
                }
                (Some(Ok(Reply::Change(Err(refusal)))), _) => {
                    out.extend_from_slice(unchanged(refusal).as_bytes())
                }
                (answer, _) => out.extend_from_slice(no_answer(answer).as_bytes()),
            },
            Task::ListQueues(mut names) => match answers.next() {
                Some(Ok(Reply::Queues(views))) => {
                    let full = views.len() >= PAGE;
                    names.extend(views.into_iter().map(|view| view.name));
                    if full {
                        self.task = Task::ListQueues(names);
                        return self.go_on(shared, out);
                    }
                    // The tube exists for every client, and is listed first, as in beanstalkd.
                    let default = default_queue();
                    // A name that no command of this protocol can have is left out.
                    names.retain(|name| *name != default && name.is_plain() && self.reach.has(name));
                    if self.reach.has(&default) {
                        names.insert(0, default);
                    }
                    block(out, &stats::list(&names));
                }
                answer => out.extend_from_slice(no_answer(answer).as_bytes()),
            },
            Task::Pause { queue, seconds, step } => match (step, answers.next()) {
                (PauseStep::Look, Some(Ok(Reply::Queues(views)))) if !views.iter().any(exists) => {
                    out.extend_from_slice(b"NOT_FOUND\r\n");
                }
                (PauseStep::Look, Some(Ok(Reply::Queues(_)))) => {
                    self.task = Task::Pause { queue, seconds, step: PauseStep::Pause };
                }
                (PauseStep::Pause, Some(Ok(Reply::Configured(_)))) => out.extend_from_slice(b"PAUSED\r\n"),
                (PauseStep::Pause, Some(Ok(Reply::Configure(_)))) => {
                    out.extend_from_slice(ErrorCode::Overloaded.beanstalk().as_bytes());
                }
                (_, answer) => out.extend_from_slice(no_answer(answer).as_bytes()),
            },
        }
        self.go_on(shared, out)
    }

    /// Answers the reserves at the front: each of the messages is for one; if there is none, the first reserve is
    /// answered empty.
    fn reserved(
        &mut self,
        reserves: usize,
        answer: Option<EngineAnswer>,
        shared: &BeanstalkState,
        out: &mut Vec<u8>,
    ) {
        match answer {
            Some(Ok(Reply::Reserve(Reserved::Grants(grants)))) if grants.is_empty() => {
                self.answer_first("TIMED_OUT\r\n", shared, out);
            }
            Some(Ok(Reply::Reserve(Reserved::HeldBack(_)))) => {
                self.answer_first("TIMED_OUT\r\n", shared, out);
            }
            Some(Ok(Reply::Reserve(Reserved::Grants(grants)))) => {
                for grant in grants.iter().take(reserves) {
                    self.answer_first("", shared, out);
                    found(out, "RESERVED", &grant.message);
                }
            }
            Some(Ok(Reply::Reserve(Reserved::DeadlineSoon))) => {
                self.answer_first("DEADLINE_SOON\r\n", shared, out);
            }
            Some(Ok(Reply::Reserve(Reserved::Overloaded | Reserved::TooManyQueues))) => {
                self.answer_first(ErrorCode::Overloaded.beanstalk(), shared, out);
            }
            answer => self.answer_first(no_answer(answer), shared, out),
        }
    }

    fn answer_first(&mut self, text: &str, shared: &BeanstalkState, out: &mut Vec<u8>) {
        if let Some(decoded) = self.inputs.pop_front() {
            self.count(shared, decoded.kind);
        }
        out.extend_from_slice(text.as_bytes());
    }

    fn reply(
        &mut self,
        part: BatchStep,
        answer: Option<EngineAnswer>,
        shared: &BeanstalkState,
        out: &mut Vec<u8>,
    ) {
        let text = match (part, answer) {
            (BatchStep::Text(text), _) => text,
            (BatchStep::Line(line), _) => return out.extend_from_slice(line.as_bytes()),
            (BatchStep::Block(text), _) => return block(out, &text),
            (BatchStep::Silent, _) => return,
            (BatchStep::Use { queue, left }, Some(Ok(Reply::Configure(_)))) => {
                // The session continues with the former queue, whose hold it has released in the same batch.
                if self.used == queue {
                    if self.reach.has(&left) {
                        self.held_again.push(Op::Hold { queue: left.clone(), how: Hold::Use });
                    }
                    self.used = left;
                }
                ErrorCode::Overloaded.beanstalk()
            }
            (BatchStep::Use { queue, .. }, _) => {
                return out.extend_from_slice(format!("USING {queue}\r\n").as_bytes());
            }
            (BatchStep::Watch { queue, .. }, Some(Ok(Reply::Configure(_)))) => {
                self.watched.retain(|watched| *watched != queue);
                ErrorCode::Overloaded.beanstalk()
            }
            (BatchStep::Watch { watching, .. }, _) => {
                return out.extend_from_slice(format!("WATCHING {watching}\r\n").as_bytes());
            }
            (BatchStep::Put, Some(Ok(Reply::Enqueue(Ok(done))))) => return line(out, "INSERTED", done.id),
            (BatchStep::Put, Some(Ok(Reply::Enqueue(Err(EnqueueRefusal::KeyExists(holder)))))) => {
                return line(out, "KEY_EXISTS", holder.id);
            }
            (BatchStep::Put, Some(Ok(Reply::Enqueue(Err(EnqueueRefusal::Leased(id)))))) => {
                return line(out, "KEY_RESERVED", id);
            }
            (BatchStep::Put, Some(Ok(Reply::Enqueue(Err(refusal))))) => {
                Problem::from_enqueue(refusal, "delay").code.beanstalk()
            }
            (BatchStep::ReserveJob, Some(Ok(Reply::ReserveOne(Ok(grant))))) => {
                self.work(shared);
                return found(out, "RESERVED", &grant.message);
            }
            (BatchStep::ReserveJob, Some(Ok(Reply::ReserveOne(Err(refusal))))) => unchanged(refusal),
            (BatchStep::Delete, Some(Ok(Reply::Settle(Ok(_))))) => "DELETED\r\n",
            (BatchStep::Release, Some(Ok(Reply::Settle(Ok(Applied { what: Settled::Dead(_), .. }))))) => {
                "BURIED\r\n"
            }
            (BatchStep::Release, Some(Ok(Reply::Settle(Ok(_))))) => "RELEASED\r\n",
            (BatchStep::Bury, Some(Ok(Reply::Settle(Ok(_))))) => "BURIED\r\n",
            (BatchStep::Touch, Some(Ok(Reply::Extend(Ok(_))))) => "TOUCHED\r\n",
            (
                BatchStep::Delete | BatchStep::Release | BatchStep::Bury,
                Some(Ok(Reply::Settle(Err(refusal)))),
            ) => lost(refusal),
            (BatchStep::Touch, Some(Ok(Reply::Extend(Err(refusal))))) => lost(refusal),
            (BatchStep::DeleteKey, Some(Ok(Reply::Change(Ok(_))))) => "DELETED\r\n",
            (BatchStep::DeleteKey, Some(Ok(Reply::Change(Err(ChangeRefusal::Leased))))) => "KEY_RESERVED\r\n",
            (BatchStep::DeleteKey, Some(Ok(Reply::Change(Err(refusal))))) => unchanged(refusal),
            (BatchStep::Found, Some(Ok(Reply::View(Some(view))))) => {
                return found(out, "FOUND", &view.message);
            }
            (BatchStep::StatsJob, Some(Ok(Reply::View(Some(view))))) => {
                return block(out, &stats::message(&view, shared.client.now()));
            }
            (BatchStep::Found | BatchStep::StatsJob, Some(Ok(Reply::View(None)))) => "NOT_FOUND\r\n",
            (BatchStep::StatsQueue, Some(Ok(Reply::Queues(views)))) => {
                match views.first().filter(|view| exists(view)) {
                    Some(view) => return block(out, &stats::queue(view)),
                    None => "NOT_FOUND\r\n",
                }
            }
            (BatchStep::Stats, Some(Ok(Reply::Stats(stats)))) => {
                return block(out, &stats::server(&stats, shared));
            }
            (_, answer) => no_answer(answer),
        };
        out.extend_from_slice(text.as_bytes());
    }
}

/// Whether a queue exists, and not only its totals. The queue `default` always does.
pub(crate) fn exists(view: &QueueView) -> bool {
    view.is_there() || view.name == default_queue()
}

pub(crate) fn default_queue() -> QueueName {
    QueueName::new(DEFAULT).expect("a good name")
}

#[cfg(test)]
mod tests {
    use duewheel::CallError;

    use super::*;
    use crate::beanstalk::BeanstalkApp;
    use crate::beanstalk::codec::Decoder;
    use crate::drain::Drain;

    /// The operations of each batch that a session makes of an input, when every one of them is refused; and the
    /// replies. The session is limited to the queues with these prefixes, if there are any.
    async fn batches(input: &str, prefixes: Option<&str>) -> (Vec<String>, String) {
        let wheel = duewheel::Duewheel::builder().in_memory().open().await.unwrap();
        let app = BeanstalkApp::new(&wheel, 100, 10, Drain::default());
        let reach = prefixes.map(|prefixes| Arc::new(prefixes.parse().unwrap()));
        let (mut session, mut out) = (Session::new(SessionId(1), reach), Vec::new());
        let (mut decoder, mut input) = (Decoder::new(100), bytes::BytesMut::from(input));
        while let Some(decoded) = decoder.next(&mut input) {
            session.hear(decoded);
        }
        let mut batches = Vec::new();
        let mut next = session.go_on(&app.0, &mut out);
        while let SessionNext::Ask(ops) = next {
            let letter = |op: &Op| match op {
                Op::Enqueue(_) => 'e',
                Op::Hold { .. } | Op::LetGo { .. } => 'h',
                _ => 'o',
            };
            batches.push(ops.iter().map(letter).collect());
            let answers = ops.iter().map(|_| Err(CallError::Overloaded)).collect();
            next = session.answered(answers, &app.0, &mut out);
        }
        (batches, String::from_utf8(out).unwrap())
    }

    /// Story: a delete in one packet with a put would have waited with it for a store that is behind, for longer than
    /// its job's TTR.
    #[tokio::test]
    async fn puts_are_batched_apart_from_others() {
        let put = "put 1 0 60 1\r\nx\r\n";
        let all = format!(
            "delete 1\r\nuse a\r\n{put}use b\r\n{put}{put}touch 2\r\npeek-ready\r\npeek 3\r\nwatch c\r\n"
        );
        let (batches, replies) = batches(&all, None).await;
        assert_eq!(batches, ["ohh", "ehhee", "oo", "oh"]);
        let replies: String =
            replies.split("\r\n").map(|reply| reply.chars().next().unwrap_or('.')).collect();
        assert_eq!(replies, "OUOUOOOOOW.", "each in its turn");
    }

    /// Story: after each command that was refused at once the session called itself. One packet with enough of them
    /// overflowed the stack of the thread, and the process was aborted.
    #[tokio::test]
    async fn refused_commands_are_answered_without_recursion() {
        let all = "kick 1\r\npause-tube default 1\r\nreserve\r\n".repeat(50_000);
        let (batches, replies) = batches(&all, Some("mine")).await;
        assert!(batches.is_empty(), "nothing is asked");
        assert!(replies == "FORBIDDEN\r\nNOT_FOUND\r\nFORBIDDEN\r\n".repeat(50_000));
    }

    /// Story: what was found out about the job of a refused `kick-job` was kept for the next one. A client that repeated
    /// the command after an overload got the same reply for as long as it sent nothing else, and each further id took
    /// memory.
    #[tokio::test]
    async fn repeated_kick_job_looks_up_again() {
        let (batches, replies) = batches(&"kick-job 1\r\n".repeat(3), Some("mine")).await;
        assert_eq!(batches, ["o", "o", "o"]);
        assert_eq!(replies, "OUT_OF_MEMORY\r\n".repeat(3));
    }
}
