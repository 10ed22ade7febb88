//! The codec of beanstalkd's protocol: bytes to commands, and the fixed replies. Sans I/O. Tubes, jobs, TTR, bury and
//! kick are words of this folder; everywhere else they are queues, messages, leases, dead and fired.
//!
//! The codec follows `doc/protocol.txt` of beanstalkd 1.13 and, where that is silent, its `prot.c`: commands are
//! recognised by the start of the line in the order of [`parse`], numbers may follow any number of spaces, `kick` reads
//! its number as C's `strtoul` does. However the bytes are cut into reads, the same commands come out.
//!
//! # Clients of other protocols
//!
//! A web page can have its visitor's browser connect here and send what the page has written, such as commands in the
//! body of a request. beanstalkd refuses the lines before them and carries the commands out. Here two kinds of lines are
//! answered, and nothing behind them is decoded ([`DecoderState::Ended`]):
//!
//! * a first line that is no command of this protocol, or too long for one: a client of this protocol begins with a
//!   command, well-formed or not. Most others are recognised by their first byte, before any end of a line;
//! * any line that begins as one of HTTP or TLS ([`is_foreign`]), however long it is.
//!
//! Other unknown lines are harmless later on, as in beanstalkd: the tests of clients send them.

use bytes::{Buf, Bytes, BytesMut};
use duewheel::core::{Key, MessageId, QueueName};
use percent_encoding::percent_decode;

/// Longest line of a command that beanstalkd knows, with its CRLF.
pub(super) const MAX_LINE: usize = 224;
/// Longest line of duewheel's own commands, with its CRLF: a key of 512 bytes, percent-encoded, and the numbers.
const MAX_LONG_LINE: usize = 2_048;

/// A well-formed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Put(Put),
    Use(QueueName),
    Watch(QueueName),
    Ignore(QueueName),
    /// Reserves a job; `None`: waits without a limit.
    Reserve(Option<u32>),
    ReserveJob(MessageId),
    Delete(MessageId),
    Release {
        id: MessageId,
        priority: u32,
        delay: u32,
    },
    Bury {
        id: MessageId,
        priority: u32,
    },
    Touch(MessageId),
    Kick(u32),
    KickJob(MessageId),
    Peek(MessageId),
    PeekReady,
    PeekDelayed,
    PeekBuried,
    Stats,
    StatsJob(MessageId),
    StatsTube(QueueName),
    ListTubes,
    ListTubeUsed,
    ListTubesWatched,
    PauseTube {
        queue: QueueName,
        seconds: u32,
    },
    Quit,
    /// Own command: cancels by key.
    DeleteKey(Key),
    /// Own command: shows a job by key.
    PeekKey(Key),
    /// The line of a put was well-formed; its body follows. It counts from now on, whatever the result.
    BeginPut,
    /// The line of a put was well-formed except for the size, or for trailing bytes.
    MissPut,
}

/// A job to put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Put {
    pub(super) priority: u32,
    /// Delay in seconds.
    pub(super) delay: u32,
    /// TTR in seconds.
    pub(super) ttr: u32,
    pub(super) key: Option<(Key, IfTaken)>,
    pub(super) body: Bytes,
}

/// The effect of a put whose key is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfTaken {
    Refuse,
    Replace,
    Supersede,
}

/// The kinds of commands in the counters of `stats`: those of beanstalkd, in the order of its table, and one for all
/// own commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandKind {
    Put,
    Peek,
    PeekReady,
    PeekDelayed,
    PeekBuried,
    Reserve,
    ReserveWithTimeout,
    Delete,
    Release,
    Use,
    Watch,
    Ignore,
    Bury,
    Kick,
    Touch,
    Stats,
    StatsJob,
    StatsTube,
    ListTubes,
    ListTubeUsed,
    ListTubesWatched,
    PauseTube,
    /// Commands that beanstalkd does not count: `reserve-job`, `kick-job`, `quit`, and the own ones.
    Other,
}

impl CommandKind {
    pub(super) const COUNT: usize = CommandKind::Other as usize + 1;
}

/// An error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorReply {
    BadFormat,
    UnknownCommand,
    JobTooBig,
    ExpectedCrlf,
}

impl ErrorReply {
    pub(super) fn reply(self) -> &'static str {
        match self {
            ErrorReply::BadFormat => "BAD_FORMAT\r\n",
            ErrorReply::UnknownCommand => "UNKNOWN_COMMAND\r\n",
            ErrorReply::JobTooBig => "JOB_TOO_BIG\r\n",
            ErrorReply::ExpectedCrlf => "EXPECTED_CRLF\r\n",
        }
    }
}

/// An input of a client. A put is two inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DecodedInput {
    /// The counter; `None`: none, because its line was malformed, or because it was counted before.
    pub(super) kind: Option<CommandKind>,
    pub(super) what: Result<Command, ErrorReply>,
}

/// Decodes bytes into commands.
#[derive(Debug)]
pub(super) struct Decoder {
    max_body: usize,
    state: DecoderState,
    /// The next input, before anything is read.
    next: Option<DecodedInput>,
    /// Number of bytes at the start of the buffer that contain no end of a line.
    scanned: usize,
}

#[derive(Debug)]
enum DecoderState {
    /// The first line of the connection.
    FirstLine,
    Line,
    /// A line that is too long is dropped, up to its end.
    DropLine,
    Body {
        put: Put,
        size: usize,
    },
    /// A refused body is dropped; the refusal follows it.
    DropBody {
        left: u64,
    },
    /// The client speaks another protocol. What it sends is dropped.
    Ended,
}

impl Decoder {
    pub(super) fn new(max_body: usize) -> Self {
        Decoder { max_body, state: DecoderState::FirstLine, next: None, scanned: 0 }
    }

    /// Whether the client speaks another protocol. The last input was [`Command::Quit`].
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, DecoderState::Ended)
    }

    /// The next input, if its last byte has arrived. Takes its bytes off the front.
    pub(super) fn next(&mut self, input: &mut BytesMut) -> Option<DecodedInput> {
        loop {
            if let Some(decoded) = self.next.take() {
                return Some(decoded);
            }
            match &mut self.state {
                DecoderState::FirstLine | DecoderState::Line => {
                    if let Some(decoded) = self.line(input)? {
                        return Some(decoded);
                    }
                }
                DecoderState::DropLine => {
                    let Some(end) = find_crlf(input, 0) else {
                        // A CR may be the first half of the end.
                        let keep = usize::from(input.last() == Some(&b'\r'));
                        input.advance(input.len() - keep);
                        return None;
                    };
                    input.advance(end + 2);
                    self.state = DecoderState::Line;
                    return Some(refused(None, ErrorReply::BadFormat));
                }
                DecoderState::Body { size, .. } => {
                    let size = *size;
                    if input.len() < size + 2 {
                        return None;
                    }
                    let DecoderState::Body { mut put, .. } =
                        std::mem::replace(&mut self.state, DecoderState::Line)
                    else {
                        return None;
                    };
                    let right = input[size..size + 2] == *b"\r\n";
                    // A copy: a slice would keep the whole buffer in memory for as long as the message waits.
                    put.body = if right { Bytes::copy_from_slice(&input[..size]) } else { Bytes::new() };
                    input.advance(size + 2);
                    let what = if right { Ok(Command::Put(put)) } else { Err(ErrorReply::ExpectedCrlf) };
                    return Some(DecodedInput { kind: None, what });
                }
                DecoderState::DropBody { left } => {
                    let here = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                    input.advance(here);
                    *left -= here as u64;
                    if *left > 0 {
                        return None;
                    }
                    self.state = DecoderState::Line;
                    return Some(refused(None, ErrorReply::JobTooBig));
                }
                DecoderState::Ended => {
                    input.clear();
                    return None;
                }
            }
        }
    }

    /// Number of bytes that [`Decoder::next`] certainly needs before it can return anything.
    pub(super) fn wanted(&self, input: &BytesMut) -> usize {
        match &self.state {
            DecoderState::Body { size, .. } => (size + 2).saturating_sub(input.len()),
            DecoderState::FirstLine
            | DecoderState::Line
            | DecoderState::DropLine
            | DecoderState::DropBody { .. }
            | DecoderState::Ended => 0,
        }
    }

    /// Takes a line. `None`: it is incomplete; `Some(None)`: there is no input yet.
    fn line(&mut self, input: &mut BytesMut) -> Option<Option<DecodedInput>> {
        let is_first = matches!(self.state, DecoderState::FirstLine);
        // Every command begins with a lowercase letter.
        let begins_no_command = || input.first().is_some_and(|byte| !byte.is_ascii_lowercase());
        if is_foreign(input) || is_first && begins_no_command() {
            return Some(Some(self.end(ErrorReply::UnknownCommand)));
        }
        let max = if is_ours(input) { MAX_LONG_LINE } else { MAX_LINE };
        let Some(end) = find_crlf(input, self.scanned).filter(|end| end + 2 <= max) else {
            self.scanned = input.len().saturating_sub(1);
            if input.len() < max {
                return None;
            }
            if is_first {
                return Some(Some(self.end(ErrorReply::BadFormat)));
            }
            self.scanned = 0;
            self.state = DecoderState::DropLine;
            return Some(None);
        };
        if is_first && is_unknown(&input[..end]) {
            return Some(Some(self.end(ErrorReply::UnknownCommand)));
        }
        self.scanned = 0;
        self.state = DecoderState::Line;
        let parsed = parse(&input[..end], self.max_body);
        input.advance(end + 2);
        Some(match parsed {
            Parsed::Input(decoded) => Some(decoded),
            Parsed::Put(kind, put, size) => {
                self.state = DecoderState::Body { put, size };
                Some(DecodedInput { kind: Some(kind), what: Ok(Command::BeginPut) })
            }
            Parsed::TooBig(kind, size) => {
                self.state = DecoderState::DropBody { left: u64::from(size) + 2 };
                Some(DecodedInput { kind: Some(kind), what: Ok(Command::MissPut) })
            }
            Parsed::Garbage(kind) => {
                self.next = Some(refused(None, ErrorReply::BadFormat));
                Some(DecodedInput { kind: Some(kind), what: Ok(Command::MissPut) })
            }
        })
    }

    /// The last reply; the end of the connection follows it.
    fn end(&mut self, why: ErrorReply) -> DecodedInput {
        self.state = DecoderState::Ended;
        self.next = Some(DecodedInput { kind: None, what: Ok(Command::Quit) });
        refused(None, why)
    }
}

enum Parsed {
    Input(DecodedInput),
    /// The line of a put, whose body has this size.
    Put(CommandKind, Put, usize),
    /// The line of a put whose body, of this size, is too large.
    TooBig(CommandKind, u32),
    /// The line of a put, with trailing bytes.
    Garbage(CommandKind),
}

fn refused(kind: Option<CommandKind>, why: ErrorReply) -> DecodedInput {
    DecodedInput { kind, what: Err(why) }
}

fn find_crlf(input: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += input.get(at..)?.iter().position(|b| *b == b'\r')?;
        if *input.get(at + 1)? == b'\n' {
            return Some(at);
        }
        at += 1;
    }
}

const PUT_KEY: &[u8] = b"put-key ";
const REPLACE_KEY: &[u8] = b"replace-key ";
const SUPERSEDE_KEY: &[u8] = b"supersede-key ";
const DELETE_KEY: &[u8] = b"delete-key ";
const PEEK_KEY: &[u8] = b"peek-key ";
const PAUSE_TUBE: &[u8] = b"pause-tube";

fn is_ours(line: &[u8]) -> bool {
    [PUT_KEY, REPLACE_KEY, SUPERSEDE_KEY, DELETE_KEY, PEEK_KEY].iter().any(|word| line.starts_with(word))
}

/// A line without its CRLF.
fn parse(line: &[u8], max_body: usize) -> Parsed {
    if line.contains(&0) {
        return Parsed::Input(refused(None, ErrorReply::BadFormat));
    }
    if let Some(rest) = line.strip_prefix(b"put ") {
        return parse_put(Arguments(rest), None, max_body);
    }
    let puts =
        [(PUT_KEY, IfTaken::Refuse), (REPLACE_KEY, IfTaken::Replace), (SUPERSEDE_KEY, IfTaken::Supersede)];
    for (word, if_taken) in puts {
        if let Some(rest) = line.strip_prefix(word) {
            let mut words = Arguments(rest);
            return match words.key() {
                Some(key) => parse_put(words, Some((key, if_taken)), max_body),
                None => Parsed::Input(refused(None, ErrorReply::BadFormat)),
            };
        }
    }
    let (kind, command) = parse_simple(line);
    Parsed::Input(match command {
        Some(command) => DecodedInput { kind: Some(kind), what: Ok(command) },
        None if kind == CommandKind::Other && !is_known(line) => refused(None, ErrorReply::UnknownCommand),
        // beanstalkd counts this command before it checks the name.
        None if line.strip_prefix(PAUSE_TUBE).is_some_and(|rest| pause_numbers(rest).is_some()) => {
            refused(Some(CommandKind::PauseTube), ErrorReply::BadFormat)
        }
        None => refused(None, ErrorReply::BadFormat),
    })
}

/// Commands that have no counter of their own.
const UNCOUNTED: [&[u8]; 5] = [b"reserve-job ", b"kick-job ", b"quit", DELETE_KEY, PEEK_KEY];

fn is_known(line: &[u8]) -> bool {
    UNCOUNTED.iter().any(|word| line.starts_with(word))
}

/// Parses what follows the word of a command.
type ParseArguments = fn(&[u8]) -> Option<Command>;

/// Every command but a put, in the order in which the beginning of a line is compared with its word.
#[rustfmt::skip]
const COMMANDS: [(&[u8], CommandKind, ParseArguments); 26] = [
    (b"peek ", CommandKind::Peek, |rest| Arguments(rest).only_id().map(Command::Peek)),
    (b"peek-ready", CommandKind::PeekReady, |rest| bare(rest, Command::PeekReady)),
    (b"peek-delayed", CommandKind::PeekDelayed, |rest| bare(rest, Command::PeekDelayed)),
    (b"peek-buried", CommandKind::PeekBuried, |rest| bare(rest, Command::PeekBuried)),
    // Bytes after the number are ignored.
    (b"reserve-with-timeout ", CommandKind::ReserveWithTimeout, |rest| Some(Command::Reserve(Some(Arguments(rest).u32()?)))),
    (b"reserve-job ", CommandKind::Other, |rest| Arguments(rest).only_id().map(Command::ReserveJob)),
    (b"reserve", CommandKind::Reserve, |rest| bare(rest, Command::Reserve(None))),
    (b"delete ", CommandKind::Delete, |rest| Arguments(rest).only_id().map(Command::Delete)),
    (b"release ", CommandKind::Release, |rest| Arguments(rest).release()),
    (b"bury ", CommandKind::Bury, |rest| Arguments(rest).bury()),
    (b"kick ", CommandKind::Kick, |rest| strtoul(rest).map(Command::Kick)),
    (b"kick-job ", CommandKind::Other, |rest| Arguments(rest).only_id().map(Command::KickJob)),
    (b"touch ", CommandKind::Touch, |rest| Arguments(rest).only_id().map(Command::Touch)),
    (b"stats-job ", CommandKind::StatsJob, |rest| Arguments(rest).only_id().map(Command::StatsJob)),
    (b"stats-tube ", CommandKind::StatsTube, |rest| queue_name(rest).map(Command::StatsTube)),
    (b"stats", CommandKind::Stats, |rest| bare(rest, Command::Stats)),
    (b"use ", CommandKind::Use, |rest| queue_name(rest).map(Command::Use)),
    (b"watch ", CommandKind::Watch, |rest| queue_name(rest).map(Command::Watch)),
    (b"ignore ", CommandKind::Ignore, |rest| queue_name(rest).map(Command::Ignore)),
    (b"list-tubes-watched", CommandKind::ListTubesWatched, |rest| bare(rest, Command::ListTubesWatched)),
    (b"list-tube-used", CommandKind::ListTubeUsed, |rest| bare(rest, Command::ListTubeUsed)),
    (b"list-tubes", CommandKind::ListTubes, |rest| bare(rest, Command::ListTubes)),
    (b"quit", CommandKind::Other, |_| Some(Command::Quit)),
    (PAUSE_TUBE, CommandKind::PauseTube, |rest| {
        let (name, seconds) = pause_numbers(rest)?;
        Some(Command::PauseTube { queue: queue_name(name)?, seconds })
    }),
    (DELETE_KEY, CommandKind::Other, |rest| Arguments(rest).only_key().map(Command::DeleteKey)),
    (PEEK_KEY, CommandKind::Other, |rest| Arguments(rest).only_key().map(Command::PeekKey)),
];

/// A command without arguments.
fn bare(rest: &[u8], command: Command) -> Option<Command> {
    rest.is_empty().then_some(command)
}

/// Parses every command but a put. `None`: it is malformed, or (with [`CommandKind::Other`]) perhaps unknown.
fn parse_simple(line: &[u8]) -> (CommandKind, Option<Command>) {
    let parsed = COMMANDS
        .iter()
        .find_map(|(word, kind, arguments)| Some((*kind, arguments(line.strip_prefix(*word)?))));
    parsed.unwrap_or((CommandKind::Other, None))
}

/// Whether a line, which may be incomplete, begins as one of HTTP, or as a handshake of TLS.
fn is_foreign(line: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 9] = [
        b"GET /",
        b"POST /",
        b"PUT /",
        b"PATCH /",
        b"DELETE /",
        b"HEAD /",
        b"OPTIONS /",
        b"Host:",
        b"\x16\x03",
    ];
    let starts = |word: &&[u8]| line.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word));
    BEGINNINGS.iter().any(starts)
}

/// Whether a line has no command, up to a NUL: that is answered [`ErrorReply::BadFormat`] whatever the command is.
fn is_unknown(line: &[u8]) -> bool {
    let text = line.split(|byte| *byte == 0).next().unwrap_or_default();
    matches!(parse(text, 0), Parsed::Input(DecodedInput { what: Err(ErrorReply::UnknownCommand), .. }))
}

fn parse_put(mut words: Arguments<'_>, key: Option<(Key, IfTaken)>, max_body: usize) -> Parsed {
    let numbers = (words.u32(), words.u32(), words.u32(), words.u32());
    let (Some(priority), Some(delay), Some(ttr), Some(size)) = numbers else {
        return Parsed::Input(refused(None, ErrorReply::BadFormat));
    };
    let kind = if key.is_some() { CommandKind::Other } else { CommandKind::Put };
    match usize::try_from(size) {
        // Checked before the end of the line: the body is read and dropped, and the connection stays open.
        Ok(size) if size > max_body => Parsed::TooBig(kind, u32::try_from(size).unwrap_or(u32::MAX)),
        Err(_) => Parsed::TooBig(kind, size),
        Ok(_) if !words.is_empty() => Parsed::Garbage(kind),
        Ok(size) => Parsed::Put(kind, Put { priority, delay, ttr, key, body: Bytes::new() }, size),
    }
}

/// The name, unchecked, and the seconds of a `pause-tube`. beanstalkd permits no space before the name.
fn pause_numbers(rest: &[u8]) -> Option<(&[u8], u32)> {
    let mut words = Arguments(rest);
    words.skip_spaces();
    let is_name = |b: &u8| b.is_ascii_alphanumeric() || b"-+/;.$_()".contains(b);
    let end = words.0.iter().position(|b| !is_name(b)).unwrap_or(words.0.len());
    let (name, rest) = words.0.split_at(end);
    let mut words = Arguments(rest);
    let seconds = words.u32().filter(|_| words.is_empty())?;
    (!name.is_empty()).then_some((name, seconds))
}

/// A name by beanstalkd's rule; other queues cannot be named in this protocol.
fn queue_name(bytes: &[u8]) -> Option<QueueName> {
    QueueName::new(std::str::from_utf8(bytes).ok()?).ok().filter(QueueName::is_plain)
}

/// Reads a number like C's `strtoul`, cut to 32 bits: white space, a sign, digits, anything.
fn strtoul(bytes: &[u8]) -> Option<u32> {
    let start = bytes.iter().position(|b| !b" \t\n\x0b\x0c\r".contains(b))?;
    let (negative, digits) = match bytes.get(start)? {
        b'-' => (true, &bytes[start + 1..]),
        b'+' => (false, &bytes[start + 1..]),
        _ => (false, &bytes[start..]),
    };
    let mut words = Arguments(digits);
    let n = words.digits()?;
    let n = if negative { n.wrapping_neg() } else { n };
    u32::try_from(n & u64::from(u32::MAX)).ok()
}

/// The rest of a line.
struct Arguments<'a>(&'a [u8]);

impl Arguments<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn skip_spaces(&mut self) {
        while let Some(rest) = self.0.strip_prefix(b" ") {
            self.0 = rest;
        }
    }

    /// Digits at the very start, up to 2^64 - 1.
    fn digits(&mut self) -> Option<u64> {
        let end = self.0.iter().position(|b| !b.is_ascii_digit()).unwrap_or(self.0.len());
        let (digits, rest) = self.0.split_at(end);
        if digits.is_empty() {
            return None;
        }
        let add = |n: u64, b: &u8| n.checked_mul(10)?.checked_add(u64::from(b - b'0'));
        let n = digits.iter().try_fold(0, add)?;
        self.0 = rest;
        Some(n)
    }

    fn u64(&mut self) -> Option<u64> {
        self.skip_spaces();
        self.digits()
    }

    fn u32(&mut self) -> Option<u32> {
        u32::try_from(self.u64()?).ok()
    }

    fn only_id(&mut self) -> Option<MessageId> {
        let id = self.u64()?;
        self.is_empty().then_some(MessageId(id))
    }

    fn release(&mut self) -> Option<Command> {
        let (id, priority, delay) = (MessageId(self.u64()?), self.u32()?, self.u32()?);
        self.is_empty().then_some(Command::Release { id, priority, delay })
    }

    fn bury(&mut self) -> Option<Command> {
        let (id, priority) = (MessageId(self.u64()?), self.u32()?);
        self.is_empty().then_some(Command::Bury { id, priority })
    }

    /// A key, percent-encoded, up to a space. A `%` without two hexadecimal digits stands for itself: the body of a put
    /// that is refused for its key would be read as commands.
    fn key(&mut self) -> Option<Key> {
        self.skip_spaces();
        let end = self.0.iter().position(|b| *b == b' ').unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        Key::new(&percent_decode(word).decode_utf8().ok()?).ok()
    }

    fn only_key(&mut self) -> Option<Key> {
        let key = self.key()?;
        self.is_empty().then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(input: &[u8], cut: usize) -> (Vec<DecodedInput>, usize) {
        let mut decoder = Decoder::new(20);
        let (mut buffer, mut decoded) = (BytesMut::new(), Vec::new());
        for chunk in input.chunks(cut) {
            buffer.extend_from_slice(chunk);
            decoded.extend(std::iter::from_fn(|| decoder.next(&mut buffer)));
        }
        (decoded, buffer.len())
    }

    /// What a line is that is not the first one.
    fn one(line: &str) -> DecodedInput {
        let (mut decoded, left) = decode(format!("stats\r\n{line}\r\n").as_bytes(), 1_000_000);
        assert_eq!((decoded.len(), left), (2, 0), "{line}");
        decoded.remove(1)
    }

    fn name(text: &str) -> QueueName {
        QueueName::new(text).unwrap()
    }

    #[test]
    fn commands_are_recognised_by_line_start() {
        let ok = |line: &str, kind, command| {
            assert_eq!(one(line), DecodedInput { kind: Some(kind), what: Ok(command) })
        };
        let id = MessageId(7);
        ok("reserve", CommandKind::Reserve, Command::Reserve(None));
        ok("reserve-with-timeout 0", CommandKind::ReserveWithTimeout, Command::Reserve(Some(0)));
        let longest = Command::Reserve(Some(u32::MAX));
        ok("reserve-with-timeout  4294967295x", CommandKind::ReserveWithTimeout, longest);
        ok("reserve-job 7", CommandKind::Other, Command::ReserveJob(id));
        ok("delete   7", CommandKind::Delete, Command::Delete(id));
        ok("release 7 1 2", CommandKind::Release, Command::Release { id, priority: 1, delay: 2 });
        ok("bury 7 1", CommandKind::Bury, Command::Bury { id, priority: 1 });
        ok("kick -1", CommandKind::Kick, Command::Kick(u32::MAX));
        ok("kick \t+10abc", CommandKind::Kick, Command::Kick(10));
        ok("kick 4294967298", CommandKind::Kick, Command::Kick(2));
        ok("pause-tubefoo 3", CommandKind::PauseTube, Command::PauseTube { queue: name("foo"), seconds: 3 });
        ok("quitter", CommandKind::Other, Command::Quit);
        ok("use a-b", CommandKind::Use, Command::Use(name("a-b")));
        ok("stats-tube (x)", CommandKind::StatsTube, Command::StatsTube(name("(x)")));
        ok("delete-key a%20b", CommandKind::Other, Command::DeleteKey(Key::new("a b").unwrap()));
        ok("delete-key %zz", CommandKind::Other, Command::DeleteKey(Key::new("%zz").unwrap()));
        ok("peek-key 100%", CommandKind::Other, Command::PeekKey(Key::new("100%").unwrap()));
        ok(&format!("watch {}", "x".repeat(200)), CommandKind::Watch, Command::Watch(name(&"x".repeat(200))));
    }

    #[test]
    fn malformed_commands_are_refused() {
        for line in [
            "delete 7 ",
            "delete x",
            "delete -1",
            "delete 18446744073709551616",
            "release 7 1",
            "bury 7 4294967296",
            "peek-readyx",
            "statsx",
            "list-tubes ",
            "reserve-with-timeout",
            "reserve ",
            "kick x",
            "kick 99999999999999999999",
            "use -a",
            "use ",
            "watch a b",
            "put 1 2 3",
            "put 1 2 3 -4",
            "put 1 2 4294967296 4",
            "pause-tube a",
            "put-key  1 2 3 4",
            "peek-key ",
            "delete-key %ff",
            "delete 7\0",
        ] {
            assert_eq!(one(line), refused(None, ErrorReply::BadFormat), "{line}");
        }
        for line in ["", "put", "PUT 1 2 3 4", "peek", "use", "kick", "delete", "pause", "hello"] {
            assert_eq!(one(line), refused(None, ErrorReply::UnknownCommand), "{line}");
        }
        let (decoded, _) = decode(b"put 1 2 3 4 5\r\n", 100);
        let missed = DecodedInput { kind: Some(CommandKind::Put), what: Ok(Command::MissPut) };
        assert_eq!(decoded, [missed, refused(None, ErrorReply::BadFormat)]);
        assert_eq!(one("pause-tube -a 3"), refused(Some(CommandKind::PauseTube), ErrorReply::BadFormat));
        assert_eq!(one(&format!("use {}", "x".repeat(201))), refused(None, ErrorReply::BadFormat));
        assert_eq!(one(&"x".repeat(222)), refused(None, ErrorReply::UnknownCommand));
        assert_eq!(one(&"x".repeat(223)), refused(None, ErrorReply::BadFormat));
    }

    #[test]
    fn decoding_is_independent_of_cuts() {
        let mut input = Vec::new();
        input.extend_from_slice(b"put 1 2 3 5\r\nhello\r\nput 0 0 0 0\r\n\r\nput 0 0 0 4\r\n\r\n\r\n\r\n");
        input.extend_from_slice(b"put 0 0 0 21 junk\r\nxxxxxxxxxxxxxxxxxxxxx\r\nput 0 0 0 3\r\nabcde");
        input.extend_from_slice(b"put 0 0 0 20\r\n12345678901234567890\r\n\r\n\r\r\na\rb\r\n");
        input.extend_from_slice("x".repeat(500).as_bytes());
        input.extend_from_slice(b"\r\r\nput-key k%31 1 2 3 1\r\nz\r\nreplace-key ");
        input.extend_from_slice("%20".repeat(512).as_bytes());
        input.extend_from_slice(b" 1 2 3 1\r\nz\r\nput-key ");
        input.extend_from_slice("%20".repeat(800).as_bytes());
        input.extend_from_slice(b"\r\nstats\r\nqui");
        let whole = decode(&input, input.len());
        assert_eq!(whole.0.len(), 22, "{whole:?}");
        assert_eq!(whole.1, 3);
        assert_eq!(whole.0[7], refused(None, ErrorReply::JobTooBig));
        assert_eq!(whole.0[9], refused(None, ErrorReply::ExpectedCrlf));
        for cut in 1..300 {
            assert_eq!(decode(&input, cut), whole, "{cut}");
        }
    }

    #[test]
    fn unending_line_holds_no_memory() {
        let mut decoder = Decoder::new(20);
        let mut buffer = BytesMut::from("stats\r\n");
        assert!(decoder.next(&mut buffer).is_some());
        for _ in 0..10_000 {
            buffer.extend_from_slice(&[b'x'; 100]);
            assert_eq!(decoder.next(&mut buffer), None);
            assert!(buffer.len() <= MAX_LINE);
        }
    }

    /// Nearly all first packets of other protocols are recognised without an end of a line.
    #[test]
    fn invalid_first_byte_ends_connection() {
        for first in 0..=u8::MAX {
            let (decoded, left) = decode(&[first], 1);
            let ends = !first.is_ascii_lowercase();
            assert_eq!((decoded.len(), left), if ends { (2, 0) } else { (0, 1) }, "{first}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_in_any_cut(input in proptest::collection::vec(fragment(), 0..30), cut in 1usize..40) {
            for begin in ["", "stats\r\n"] {
                let input = [begin.as_bytes(), &input.concat()].concat();
                proptest::prop_assert_eq!(decode(&input, cut), decode(&input, input.len().max(1)));
            }
        }
    }

    /// Pieces of which commands and near misses are made.
    fn fragment() -> impl proptest::strategy::Strategy<Value = Vec<u8>> {
        use proptest::prelude::*;
        let word = prop::sample::select(vec![
            "put 0 0 0 ",
            "put ",
            "put-key a ",
            "reserve\r\n",
            "delete ",
            "1",
            "4",
            "21",
            " ",
            "\r",
            "\n",
            "\r\n",
            "stats",
            "peek-",
            "ready",
            "kick ",
            "pause-tube",
            "POST /",
            "\x16\x03",
            "a",
            "\0",
            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        ]);
        prop_oneof![
            4 => word.prop_map(|w| w.as_bytes().to_vec()),
            1 => prop::collection::vec(any::<u8>(), 0..8),
        ]
    }
}
