//! Two servers that are told the same and must answer the same.

use std::collections::BTreeMap;
use std::time::Duration;

use super::compare::{Ids, Known, Normal, difference, normal};
use super::server::{Kind, Server, Setup};
use super::wire::{Connection, Heard, show};
use crate::fixture::PATIENCE;

/// How long nothing has to come before it counts as nothing.
const SHORT_WHILE: Duration = Duration::from_millis(60);

/// Why a comparison ended, for a reader.
pub(crate) type Difference = String;

#[derive(Debug)]
pub(crate) struct Pair {
    theirs: Side,
    ours: Side,
    /// What was said and answered, for whoever has to understand a difference.
    said: Vec<String>,
}

#[derive(Debug)]
struct Side {
    server: Server,
    ids: Ids,
    open: BTreeMap<String, Open>,
}

#[derive(Debug)]
struct Open {
    connection: Connection,
    asked: Vec<u8>,
}

impl Pair {
    /// `other` takes the place of ours: a second beanstalkd tests the tests.
    pub(crate) fn start(other: Kind, setup: Setup) -> Pair {
        let side =
            |kind| Side { server: Server::start(kind, setup), ids: Ids::default(), open: BTreeMap::new() };
        Pair { theirs: side(Kind::Theirs), ours: side(other), said: Vec::new() }
    }

    /// The bytes with ids filled in, to both. The connection is opened at its first use.
    pub(crate) fn send(&mut self, name: &str, bytes: &[u8]) -> Result<(), Difference> {
        self.note(format!("{name}> {}", show(bytes)));
        for side in [&mut self.theirs, &mut self.ours] {
            let filled = side.ids.fill_in(bytes)?;
            let open = side.open(name);
            open.connection.send(&filled);
            open.asked = filled;
        }
        Ok(())
    }

    /// The same, each byte in a packet of its own as far as the system lets it.
    pub(crate) fn send_in_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<(), Difference> {
        self.note(format!("{name}>> {}", show(bytes)));
        for side in [&mut self.theirs, &mut self.ours] {
            let filled = side.ids.fill_in(bytes)?;
            let open = side.open(name);
            for byte in &filled {
                open.connection.send(&[*byte]);
                std::thread::yield_now();
            }
            open.asked = filled;
        }
        Ok(())
    }

    /// One reply from both; theirs, when they are the same.
    pub(crate) fn receive(&mut self, name: &str) -> Result<Normal, Difference> {
        let (theirs, ours) = (self.theirs.receive(name), self.ours.receive(name));
        if theirs.is_same(&ours) && !theirs.lines[0].starts_with(SILENT) {
            self.note(format!("{name}<  # {}", theirs.lines.join("\\n")));
            return Ok(theirs);
        }
        Err(difference(&theirs, &ours))
    }

    fn note(&mut self, line: String) {
        if std::env::var_os("DUEWHEEL_PEER_SHOW").is_some() {
            eprintln!("{line}");
        }
        self.said.push(line);
    }

    pub(crate) fn said(&self) -> &[String] {
        &self.said
    }

    pub(crate) fn ask(&mut self, name: &str, bytes: &[u8]) -> Result<Normal, Difference> {
        self.send(name, bytes)?;
        self.receive(name)
    }

    /// Each side must answer what the list of known differences says.
    pub(crate) fn receive_known(&mut self, name: &str, known: &Known) -> Result<(), Difference> {
        self.note(format!("{name}<known {}", known.name));
        self.theirs.receive_all(name, known, known.theirs)?;
        match self.ours.server.kind {
            Kind::Ours => self.ours.receive_all(name, known, known.ours),
            Kind::Theirs => self.ours.receive_all(name, known, known.theirs),
        }
    }

    /// Neither answers for a while.
    pub(crate) fn nothing(&mut self, name: &str) -> Result<(), Difference> {
        for side in [&mut self.theirs, &mut self.ours] {
            match side.open(name).connection.receive(SHORT_WHILE) {
                Heard::Nothing(begun) if begun.is_empty() => {}
                other => return Err(format!("{:?} is not silent: {other:?}", side.server.kind)),
            }
        }
        Ok(())
    }

    /// Both have closed the connection, without a word.
    pub(crate) fn end(&mut self, name: &str) -> Result<(), Difference> {
        for side in [&mut self.theirs, &mut self.ours] {
            match side.open(name).connection.receive(PATIENCE) {
                Heard::Closed(begun) if begun.is_empty() => {}
                other => return Err(format!("{:?} does not end: {other:?}", side.server.kind)),
            }
            side.open.remove(name);
            side.closed()?;
        }
        Ok(())
    }

    /// Closes, and waits until both servers have seen it.
    pub(crate) fn close(&mut self, name: &str) -> Result<(), Difference> {
        for side in [&mut self.theirs, &mut self.ours] {
            if side.open.remove(name).is_none() {
                return Err(format!("{name} is not open"));
            }
            side.closed()?;
        }
        Ok(())
    }

    pub(crate) fn half_close(&mut self, name: &str) {
        for side in [&mut self.theirs, &mut self.ours] {
            side.open(name).connection.half_close();
        }
    }

    /// Waits until a field of `stats-tube`, or of `stats`, has this value on both.
    pub(crate) fn until(&mut self, tube: Option<&str>, field: &str, value: &str) -> Result<(), Difference> {
        self.theirs.server.until(tube, field, value)?;
        self.ours.server.until(tube, field, value)
    }

    /// A field of `stats` of both, asked beside the connections of the test.
    pub(crate) fn field(&mut self, field: &str) -> (Option<String>, Option<String>) {
        (self.theirs.server.field(None, field), self.ours.server.field(None, field))
    }

    pub(crate) fn drain(&mut self) -> Result<(), Difference> {
        for side in [&mut self.theirs, &mut self.ours] {
            side.server.signal("-USR1");
            side.server.until(None, "draining", "true")?;
        }
        Ok(())
    }

    /// Every connection says that it has no more to ask; what is still unread must be the same, and then the end.
    pub(crate) fn finish(&mut self) -> Result<(), Difference> {
        let names: Vec<String> = self.theirs.open.keys().cloned().collect();
        for name in names {
            self.half_close(&name);
            let last = self.receive(&name)?;
            if last.lines != [CLOSED] {
                return Err(format!("{name} has unread: {}", last.lines.join("\n")));
            }
            self.theirs.open.remove(&name);
            self.ours.open.remove(&name);
        }
        Ok(())
    }

    /// For the next sequence on the same pair.
    pub(crate) fn begin_anew(&mut self) {
        self.said.clear();
        self.theirs.ids.forget();
        self.ours.ids.forget();
    }
}

/// The end of a connection, in the place of a reply.
pub(crate) const CLOSED: &str = "(closed)";

/// A reply that never comes is not one, not even from both.
pub(crate) const SILENT: &str = "(no reply";

impl Side {
    fn open(&mut self, name: &str) -> &mut Open {
        let server = &self.server;
        self.open
            .entry(name.to_owned())
            .or_insert_with(|| Open { connection: server.connect(), asked: Vec::new() })
    }

    /// Waits until the server counts none but those still open and the test's own.
    fn closed(&mut self) -> Result<(), Difference> {
        let left = (self.open.len() + 1).to_string();
        self.server.until(None, "current-connections", &left)
    }

    fn receive(&mut self, name: &str) -> Normal {
        let heard = self.open(name).connection.receive(PATIENCE);
        match heard {
            Heard::Reply(reply) => {
                let asked = self.open.get(name).map(|open| open.asked.as_slice()).unwrap_or_default();
                normal(self.server.kind, asked, &reply, &mut self.ids, self.server.asked)
            }
            Heard::Closed(begun) if begun.is_empty() => Normal { lines: vec![CLOSED.to_owned()] },
            Heard::Closed(begun) => Normal { lines: vec![format!("(closed within {})", show(&begun))] },
            Heard::Nothing(begun) => Normal { lines: vec![format!("{SILENT}, only {:?})", show(&begun))] },
        }
    }

    fn receive_all(&mut self, name: &str, known: &Known, expected: &[&str]) -> Result<(), Difference> {
        for expected in expected {
            let got = self.receive(name).lines.join("\\n");
            if got != *expected {
                let side = self.server.kind;
                return Err(format!(
                    "  known difference {}: {side:?} says {got} and not {expected}",
                    known.name
                ));
            }
        }
        Ok(())
    }
}
