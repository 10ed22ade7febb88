//! A small client of the protocol: asks with text, and is answered with text.

use std::time::{Duration, Instant};

use crate::fixture::PATIENCE;
use crate::peer::wire::{Address, Connection, Heard};

#[derive(Debug)]
pub(super) struct Client(Connection);

impl Client {
    pub(super) fn connect(address: &str) -> Client {
        Client::open(&Address::Tcp(address.to_owned()))
    }

    pub(super) fn open(address: &Address) -> Client {
        Client(Connection::open(address).expect("connect"))
    }

    /// Uses and watches this tube and no other.
    pub(super) fn enter(&mut self, tube: &str) {
        assert_eq!(self.ask(&format!("use {tube}")), format!("USING {tube}"));
        if tube != "default" {
            assert_eq!(self.ask(&format!("watch {tube}")), "WATCHING 2");
            assert_eq!(self.ask("ignore default"), "WATCHING 1");
        }
    }

    pub(super) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.send(bytes.as_ref());
    }

    pub(super) fn half_close(&self) {
        self.0.half_close();
    }

    /// The next reply, without the CRLF at its end; a body is behind a CRLF.
    pub(super) fn reply(&mut self) -> String {
        let mut bytes = self.reply_bytes();
        assert_eq!(bytes.split_off(bytes.len() - 2), b"\r\n");
        String::from_utf8(bytes).expect("text")
    }

    pub(super) fn reply_bytes(&mut self) -> Vec<u8> {
        match self.0.receive(PATIENCE) {
            Heard::Reply(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// The server has closed the connection and said nothing before.
    pub(super) fn is_closed(&mut self) {
        let heard = self.0.receive(PATIENCE);
        assert!(matches!(&heard, Heard::Closed(begun) if begun.is_empty()), "{heard:?}");
    }

    /// Sends the line, with a CRLF behind it, and reads a reply.
    pub(super) fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n"));
        self.reply()
    }

    /// As `ask`; none if the server closes instead.
    pub(super) fn try_ask(&mut self, line: &str) -> Option<String> {
        self.send(format!("{line}\r\n"));
        match self.0.receive(PATIENCE) {
            Heard::Reply(reply) => Some(String::from_utf8(reply).expect("text").trim_end().to_owned()),
            Heard::Closed(_) => None,
            Heard::Nothing(begun) => panic!("nothing but {begun:?}"),
        }
    }

    /// `line` is a put's without the size.
    pub(super) fn ask_put(&mut self, line: &str, body: &str) -> String {
        self.ask(&format!("{line} {}\r\n{body}", body.len()))
    }

    /// The id of what was put.
    pub(super) fn put(&mut self, line: &str, body: &str) -> String {
        let answer = self.ask_put(line, body);
        answer.strip_prefix("INSERTED ").unwrap_or_else(|| panic!("{line}: {answer}")).to_owned()
    }

    /// A field of a stats reply; none if there is no such thing.
    pub(super) fn field(&mut self, question: &str, field: &str) -> Option<String> {
        let answer = self.ask(question);
        assert!(answer.starts_with("OK ") || answer == "NOT_FOUND", "{question}: {answer}");
        answer.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(": ")).map(str::to_owned)
    }

    /// Asks again until the field has this value.
    pub(super) fn until(&mut self, question: &str, field: &str, value: &str) {
        let begun = Instant::now();
        loop {
            let seen = self.field(question, field);
            if seen.as_deref() == Some(value) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{question}: {field} is {seen:?} and not {value}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
