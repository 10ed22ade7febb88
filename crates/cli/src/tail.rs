//! `duewheel tail`: what happens to messages, live.
//!
//! The stream goes on over a restart of the server, from the last `id` on.

use std::io::{self, BufRead, BufReader, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use duewheel_client::{BlockingBody, Error, segment};
use jiff::{Timestamp, Zoned};
use serde_json::Value;

use super::failure::CommandFailure;
use super::failure::refused_line;
use super::remote::will_pass;
use super::session::{ClientCommand, ClientSession, Interrupt};
use super::system_words::on_stderr;
use super::table::{cell, cell_counted, plain};
use super::when;

/// How long the stream is awaited before the signals are looked at again.
const LOOK: Duration = Duration::from_millis(100);
/// The server says something every 15 seconds; a stream that is silent for longer is broken.
const SILENCE: Duration = Duration::from_secs(60);
/// The pause before the next attempt to connect again, doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

#[derive(Args, Debug)]
#[command(
    after_help = "Waits for a server that is stopped or restarted, and goes on behind the last event. --json prints one object \
a line, with the id behind which --since goes on as `position`. Ctrl-C ends it.\n\n\
The token needs the scope admin; one that is for some queues shows the events of these."
)]
pub(super) struct TailArgs {
    /// Only events of these queues
    #[arg(value_name = "QUEUE")]
    queues: Vec<String>,
    /// Begin behind the event with this id, as far back as the server has them; without it, now
    #[arg(long, value_name = "ID")]
    since: Option<String>,
}

impl ClientCommand for TailArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let mut tail = TailSession { position: self.since.clone(), queues: self.queues, session };
        // A wrong address, token or id is an error of the command. Later the server may be away.
        let mut lines = tail.connect()?;
        let interrupt = Interrupt::watch()?;
        loop {
            tail.print_until_it_ends(&lines, &interrupt)?;
            let Some(again) = tail.connect_again(&interrupt)? else {
                tail.say_position();
                return Ok(());
            };
            lines = again;
        }
    }
}

/// The lines of a stream; an empty one ends an event.
type StreamLines = Receiver<String>;

/// A run of the command, with the position up to which its stream was read.
struct TailSession<'a> {
    queues: Vec<String>,
    session: &'a ClientSession,
    position: Option<String>,
}

/// A part of a stream: an event, or a position alone.
#[derive(Debug, Default)]
struct StreamPart {
    id: Option<String>,
    data: String,
}

impl TailSession<'_> {
    fn connect(&self) -> Result<StreamLines, Error> {
        let mut path = "/v1/events".to_owned();
        // The server filters one queue; of several, this command does.
        if let [queue] = &self.queues[..] {
            path += &format!("?queue={}", segment(queue));
        }
        let source = self.session.remote.events(&path, self.position.as_deref())?;
        Ok(read_lines(source))
    }

    /// Connects again, until a signal comes.
    fn connect_again(&self, interrupt: &Interrupt) -> Result<Option<StreamLines>, CommandFailure> {
        let mut failures = 0_u32;
        let mut has_told = false;
        loop {
            let pause = FIRST_PAUSE.saturating_mul(1 << failures.min(16)).min(LONGEST_PAUSE);
            let until = Instant::now() + pause;
            while Instant::now() < until {
                if interrupt.has_come() {
                    return Ok(None);
                }
                thread::sleep(LOOK.min(pause));
            }
            match self.connect() {
                Ok(lines) => return Ok(Some(lines)),
                Err(trouble) if !will_pass(&trouble) => return Err(trouble.into()),
                Err(trouble) if !has_told => {
                    has_told = true;
                    on_stderr(refused_line(None, "waiting for the server", &trouble));
                }
                Err(_) => {}
            }
            failures = failures.saturating_add(1);
        }
    }

    /// Prints events until the stream ends or a signal comes.
    fn print_until_it_ends(
        &mut self,
        lines: &StreamLines,
        interrupt: &Interrupt,
    ) -> Result<(), CommandFailure> {
        let mut part = StreamPart::default();
        let mut heard = Instant::now();
        loop {
            if interrupt.has_come() {
                return Ok(());
            }
            match lines.recv_timeout(LOOK) {
                Ok(line) if line.is_empty() => self.take(std::mem::take(&mut part))?,
                Ok(line) => part.take(&line),
                Err(RecvTimeoutError::Timeout) if heard.elapsed() < SILENCE => continue,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(()),
            }
            heard = Instant::now();
        }
    }

    fn take(&mut self, part: StreamPart) -> Result<(), CommandFailure> {
        self.position = part.id.or(self.position.take());
        let Ok(mut event) = serde_json::from_str::<Value>(&part.data) else { return Ok(()) };
        let is_wanted = |queue: &str| self.queues.is_empty() || self.queues.iter().any(|q| q == queue);
        if event["queue"].as_str().is_some_and(|queue| !is_wanted(queue)) {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        if self.session.is_json {
            event["position"] = self.position.clone().into();
            writeln!(out, "{event}")?;
        } else {
            writeln!(out, "{}", line(&event))?;
        }
        out.flush()?;
        Ok(())
    }

    /// Says where to go on.
    fn say_position(&self) {
        // With --json each event has its own.
        if let Some(position) = &self.position
            && !self.session.is_json
        {
            on_stderr(format_args!("to go on from here: --since {}", plain(position)));
        }
    }
}

impl StreamPart {
    fn take(&mut self, line: &str) {
        if let Some(id) = line.strip_prefix("id: ") {
            self.id = Some(id.to_owned());
        } else if let Some(data) = line.strip_prefix("data: ") {
            self.data.push_str(data);
        }
    }
}

/// Reads a stream on a thread of its own, which ends with the stream or with the process.
fn read_lines(source: BlockingBody) -> StreamLines {
    let (sender, lines) = sync_channel(64);
    thread::spawn(move || {
        for line in BufReader::new(source).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// An event for people.
fn line(event: &Value) -> String {
    let kind = cell(event, "event");
    if kind == "missed" {
        return format!(
            "missed: the events behind {} up to {} were not kept",
            cell(event, "from"),
            cell(event, "to")
        );
    }
    let mut line = format!("{}  {kind:<13} {}", time(event), cell(event, "queue"));
    if event["id"].is_string() {
        line += &format!("  {}", cell(event, "id"));
    }
    let mut more = Vec::new();
    if event["key"].is_string() {
        more.push(format!("key {}", cell(event, "key")));
    }
    if event["due_at"].is_string() {
        more.push(format!("due {}", when::due(event)));
    }
    if event["attempt"].is_number() {
        more.push(format!("attempt {}", cell(event, "attempt")));
    }
    if event["reason"].is_string() {
        more.push(cell(event, "reason"));
    }
    if event["count"].is_number() {
        more.push(cell_counted(event, "count", "message"));
    }
    if more.is_empty() { line } else { format!("{line}  {}", more.join(", ")) }
}

/// The time of an event in the zone of this machine.
fn time(event: &Value) -> String {
    let Some(at) = event["at"].as_str() else { return "-".into() };
    let Ok(instant) = at.parse::<Timestamp>() else { return plain(at) };
    instant.to_zoned(Zoned::now().time_zone().clone()).strftime("%H:%M:%S%.3f").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_a_line() {
        let said = line(&json!({
            "event": "dead", "id": "17", "queue": "q\u{1b}[2J", "at": "2026-01-31T08:00:00.125Z",
            "attempt": 3, "reason": "max_attempts",
        }));
        let (time, rest) = said.split_once("  ").unwrap();
        assert!(time.ends_with(":00.125"), "{said}");
        assert_eq!(rest, r"dead          q\u{1b}[2J  17  attempt 3, max_attempts");
        let missed = line(&json!({"event": "missed", "from": "1.2", "to": "7.2"}));
        assert_eq!(missed, "missed: the events behind 1.2 up to 7.2 were not kept");
        let purged = line(&json!({"event": "purged", "queue": "q", "at": "x", "count": 4}));
        assert_eq!(purged, "x  purged        q  4 messages");
    }

    #[test]
    fn parts_of_a_stream_are_read() {
        let mut part = StreamPart::default();
        for line in [": here", "event: acked", "id: 5.6", "data: {}"] {
            part.take(line);
        }
        assert_eq!((part.id.as_deref(), &*part.data), (Some("5.6"), "{}"));
    }
}
