//! Feeds a client's bytes through codec and session, without a socket, for the fuzz target alone.

use std::sync::OnceLock;

use bytes::BytesMut;
use duewheel::Duewheel;
use duewheel::core::SessionId;
use duewheel::core::engine::{Op, WaiterId};
use duewheel_shard::inbox::Answers;

use super::codec::{Command, DecodedInput, Decoder};
use super::session::{self, Session};
use super::{BeanstalkApp, Kernel};
use crate::drain::Drain;

/// A decoded input of a client, with the permitted replies to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientInput {
    decoded: DecodedInput,
    /// The permitted replies.
    pub answer: PermittedReplies,
}

impl ClientInput {
    /// The body, if this is a put.
    pub fn body(&self) -> Option<&[u8]> {
        match &self.decoded.what {
            Ok(Command::Put(put)) => Some(&put.body),
            Ok(_) | Err(_) => None,
        }
    }
}

/// The permitted replies to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermittedReplies {
    /// No reply yet: another input of the same command follows.
    Nothing,
    /// A reply with one of these words and its numbers, or one of the replies for errors.
    Words(&'static [&'static str]),
    /// No reply: the connection ends.
    End,
}

/// The commands in a stream that arrives in these pieces, and the largest number of bytes that waited.
pub fn commands<'a>(pieces: impl Iterator<Item = &'a [u8]>, max_body: usize) -> (Vec<ClientInput>, usize) {
    let mut decoder = Decoder::new(max_body);
    let (mut input, mut heard, mut most) = (BytesMut::new(), Vec::new(), 0);
    for piece in pieces {
        input.extend_from_slice(piece);
        while let Some(decoded) = decoder.next(&mut input) {
            heard.push(ClientInput { answer: answer(&decoded), decoded });
        }
        most = most.max(input.len());
    }
    (heard, most)
}

fn answer(decoded: &DecodedInput) -> PermittedReplies {
    let Ok(command) = &decoded.what else { return PermittedReplies::Words(&[]) };
    PermittedReplies::Words(match command {
        Command::BeginPut | Command::MissPut => return PermittedReplies::Nothing,
        Command::Quit => return PermittedReplies::End,
        Command::Put(_) => &["INSERTED", "KEY_EXISTS", "KEY_RESERVED"],
        Command::Use(_) | Command::ListTubeUsed => &["USING"],
        Command::Watch(_) => &["WATCHING"],
        Command::Ignore(_) => &["WATCHING", "NOT_IGNORED"],
        Command::Reserve(_) => &["RESERVED", "TIMED_OUT", "DEADLINE_SOON"],
        Command::ReserveJob(_) => &["RESERVED", "NOT_FOUND"],
        Command::Delete(_) => &["DELETED", "NOT_FOUND"],
        Command::Release { .. } => &["RELEASED", "BURIED", "NOT_FOUND"],
        Command::Bury { .. } => &["BURIED", "NOT_FOUND"],
        Command::Touch(_) => &["TOUCHED", "NOT_FOUND"],
        Command::Kick(_) => &["KICKED"],
        Command::KickJob(_) => &["KICKED", "NOT_FOUND"],
        Command::Peek(_) | Command::PeekReady | Command::PeekDelayed | Command::PeekBuried => {
            &["FOUND", "NOT_FOUND"]
        }
        Command::Stats | Command::ListTubes | Command::ListTubesWatched => &["OK"],
        Command::StatsJob(_) | Command::StatsTube(_) => &["OK", "NOT_FOUND"],
        Command::PauseTube { .. } => &["PAUSED", "NOT_FOUND"],
        Command::DeleteKey(_) => &["DELETED", "KEY_RESERVED", "NOT_FOUND"],
        Command::PeekKey(_) => &["FOUND", "NOT_FOUND"],
    })
}

/// A client's session. Its driver asks an engine for the answers.
#[derive(Debug)]
pub struct FuzzClient {
    app: BeanstalkApp,
    session: Session,
    decoder: Decoder,
    input: BytesMut,
    /// The replies to the client.
    pub out: Vec<u8>,
}

/// The next need of a session.
#[derive(Debug)]
pub enum ClientNext {
    /// The operations to ask, perhaps none; then [`FuzzClient::answered`].
    Ask(Vec<Op>),
    /// The reserve to ask, which may wait; then [`FuzzClient::answered`].
    Wait(WaiterId, Op),
    /// More bytes.
    Read,
    /// The connection ends.
    Close,
}

impl FuzzClient {
    /// A new session; `wheel` supplies the time and the numbers of waiters.
    pub fn new(wheel: &Duewheel, max_body: usize) -> FuzzClient {
        static KERNEL: OnceLock<Kernel> = OnceLock::new();
        let kernel = KERNEL.get_or_init(Kernel::read).clone();
        FuzzClient {
            app: BeanstalkApp::on(kernel, wheel, max_body, 10, Drain::default()),
            session: Session::new(SessionId(1), None),
            decoder: Decoder::new(max_body),
            input: BytesMut::new(),
            out: Vec::new(),
        }
    }

    /// The operations at the start of a session.
    pub fn opening(&self) -> Vec<Op> {
        self.session.opening()
    }

    /// The operations at the end of a session.
    pub fn close(&mut self) -> Vec<Op> {
        self.session.close(&self.app.0)
    }

    /// Adds bytes of the client; the session continues if no operation is in progress.
    pub fn say(&mut self, bytes: &[u8]) -> ClientNext {
        self.input.extend_from_slice(bytes);
        while let Some(decoded) = self.decoder.next(&mut self.input) {
            self.session.hear(decoded);
        }
        self.session.go_on(&self.app.0, &mut self.out).into()
    }

    /// The engine's answers, one for each operation.
    pub fn answered(&mut self, answers: Answers) -> ClientNext {
        self.session.answered(answers, &self.app.0, &mut self.out).into()
    }
}

impl From<session::SessionNext> for ClientNext {
    fn from(next: session::SessionNext) -> Self {
        match next {
            session::SessionNext::Ask(ops) => ClientNext::Ask(ops),
            session::SessionNext::Wait(waiter, op) => ClientNext::Wait(waiter, op),
            session::SessionNext::Read => ClientNext::Read,
            session::SessionNext::Close => ClientNext::Close,
        }
    }
}
