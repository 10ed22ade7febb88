//! The file of `duewheel export`: a JSON object on each line.
//!
//! | line | what |
//! |---|---|
//! | first | `{"type":"export","version":1,…}` |
//! | one for each queue | `{"type":"queue",…}` with its settings |
//! | one for each schedule | `{"type":"schedule",…}` with its settings |
//! | one for each message | `{"type":"message",…}` |
//! | last | `{"type":"end","queues":N,"schedules":N,"messages":N}`; without it the file is cut off |

use std::collections::BTreeMap;
use std::io::{BufRead, Read};

use duewheel_core::QueueName;
use indexmap::IndexMap;
use serde::de::value::Error as NoValue;
use serde::de::{DeserializeOwned, Error as _, IgnoredAny, Visitor};
use serde::{Deserialize, Deserializer, Serialize, forward_to_deserialize_any};
use serde_json::{Map, Value};

use super::table::plain;

/// The version of the format, which a later one raises when an earlier reader would lose something.
const VERSION: u32 = 1;
/// The longest line that is read, in bytes: a message of the largest size.
const MAX_LINE: u64 = 1 << 30;

/// A line of the file.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum ExportLine {
    Export(ExportHead),
    Queue(ExportedQueue),
    Schedule(ExportedSchedule),
    Message(Box<ExportedMessage>),
    End(ExportEnd),
}

/// Where the file comes from.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct ExportHead {
    version: u32,
    /// The program that has written it.
    program: String,
    /// When it began, by the clock of the machine that ran the command.
    at: String,
}

impl ExportHead {
    pub(super) fn now() -> ExportHead {
        let program = concat!("duewheel ", env!("CARGO_PKG_VERSION")).to_owned();
        ExportHead { version: VERSION, program, at: format!("{:.3}", jiff::Timestamp::now()) }
    }
}

/// A queue and its settings.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct ExportedQueue {
    pub(super) queue: String,
    /// The settings that differ from the server's defaults.
    #[serde(default)]
    pub(super) config: Map<String, Value>,
    #[serde(default)]
    pub(super) paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pause_left_ms: Option<u64>,
}

/// A schedule.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct ExportedSchedule {
    pub(super) name: String,
    /// The queue of its messages.
    pub(super) queue: String,
    /// All other fields, as `PUT /v1/schedules/{name}` takes them.
    pub(super) settings: Map<String, Value>,
    /// Occurrences whose messages are put ahead: `remaining` counts them as entered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) ahead: Vec<String>,
}

/// A message, in the file and in a listing. Members that no import uses are for people.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct ExportedMessage {
    pub(super) queue: String,
    pub(super) id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body_base64: Option<String>,
    /// The headers, in their order.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub(super) headers: IndexMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target_url: Option<String>,
    pub(super) state: ExportedState,
    /// The message that has its key; such a message is in no file.
    #[serde(default, skip_serializing)]
    pub(super) superseded_by: Option<String>,
    pub(super) due_at: String,
    pub(super) enqueued_at: String,
    /// The priority; in the file only if it is not the queue's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) priority: Option<u32>,
    /// When it expires, by its own settings or by those of its queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<String>,
    /// The message's own settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) own: Option<OwnFields>,
    #[serde(default)]
    pub(super) attempt: u32,
    #[serde(default)]
    pub(super) forgiven: u32,
    /// The effective number of attempts after which it is dead.
    pub(super) max_attempts: u32,
    #[serde(default)]
    generation: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_at: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    history: Vec<Value>,
}

/// The state of an exported message.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ExportedState {
    Scheduled,
    Ready,
    Leased,
    Dead,
}

/// Settings that a message has itself.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OwnFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff: Option<Value>,
    /// The spread from which its due time was drawn; no import draws it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) spread_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<String>,
}

/// The last line.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct ExportEnd {
    pub(super) queues: u64,
    /// Missing in files of builds without schedules.
    #[serde(default)]
    pub(super) schedules: u64,
    pub(super) messages: u64,
}

/// A page of a listing, as far as it is exported. Later servers may have more fields.
#[derive(Debug, Deserialize)]
pub(super) struct ListedPage {
    pub(super) messages: Vec<ExportedMessage>,
    pub(super) next: Option<String>,
}

/// Reads a file line by line, and checks that it is whole.
#[derive(Debug)]
pub(super) struct ExportReader<R> {
    input: R,
    line: u64,
    seen: ExportEnd,
    has_ended: bool,
    text: Vec<u8>,
}

impl<R: BufRead> ExportReader<R> {
    pub(super) fn new(input: R) -> Self {
        ExportReader { input, line: 0, seen: ExportEnd::default(), has_ended: false, text: Vec::new() }
    }

    /// The number of the line that was read last.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// The numbers of queues, schedules and messages that were read so far.
    pub(super) fn seen(&self) -> ExportEnd {
        self.seen
    }

    /// The next line; `None` behind the last one of a file that is whole.
    /// An error names the line and, where there is one, the field.
    pub(super) fn next(&mut self) -> Result<Option<ExportLine>, String> {
        self.text.clear();
        self.input.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.text).map_err(|e| e.to_string())?;
        let is_whole = self.text.last() == Some(&b'\n');
        if self.text.trim_ascii().is_empty() {
            return match (self.has_ended, is_whole) {
                (true, false) => Ok(None),
                (false, false) => Err(self.cut()),
                (_, true) => {
                    self.line += 1;
                    Err(self.wrong("is empty"))
                }
            };
        }
        if !is_whole && !self.has_ended && serde_json::from_slice::<IgnoredAny>(&self.text).is_err() {
            return Err(self.cut());
        }
        self.line += 1;
        if self.has_ended {
            return Err(self.wrong("follows the last line, which counts the others"));
        }
        let line = self.parse()?;
        match &line {
            ExportLine::Export(_) => {}
            ExportLine::Queue(_) => self.seen.queues += 1,
            ExportLine::Schedule(_) => self.seen.schedules += 1,
            ExportLine::Message(_) => self.seen.messages += 1,
            ExportLine::End(end) => {
                self.has_ended = true;
                if *end != self.seen {
                    let what = format!(
                        "counts {} queues, {} schedules and {} messages, and there are {}, {} and {}",
                        end.queues,
                        end.schedules,
                        end.messages,
                        self.seen.queues,
                        self.seen.schedules,
                        self.seen.messages
                    );
                    return Err(self.wrong(&what));
                }
            }
        }
        Ok(Some(line))
    }

    fn wrong(&self, what: &str) -> String {
        format!("line {}: {what}", self.line)
    }

    fn cut(&self) -> String {
        let line = self.line;
        format!("the file is cut off behind line {line}: its last line, which counts the others, is missing")
    }

    fn parse(&self) -> Result<ExportLine, String> {
        #[derive(Deserialize)]
        struct TypeOfLine {
            r#type: String,
        }
        let kind = self.read::<TypeOfLine>()?.r#type;
        let line = match (self.line, kind.as_str()) {
            (1, "export") => {
                let head: ExportHead = self.fields()?;
                if head.version != VERSION {
                    let what = format!(
                        "version: the file is of version {}, and this program reads version {VERSION}",
                        head.version
                    );
                    return Err(self.wrong(&what));
                }
                ExportLine::Export(head)
            }
            (1, _) => return Err(self.wrong("type: a file of `duewheel export` begins with \"export\"")),
            (_, "queue") => ExportLine::Queue(self.fields()?),
            (_, "schedule") => ExportLine::Schedule(self.fields()?),
            (_, "message") => ExportLine::Message(Box::new(self.fields()?)),
            (_, "end") => ExportLine::End(self.fields()?),
            (_, _) => return Err(self.wrong("type: must be \"queue\", \"schedule\", \"message\" or \"end\"")),
        };
        let queue = match &line {
            ExportLine::Export(_) | ExportLine::End(_) => None,
            ExportLine::Queue(queue) => Some(&queue.queue),
            ExportLine::Schedule(schedule) => Some(&schedule.queue),
            ExportLine::Message(message) => Some(&message.queue),
        };
        if let Some(Err(what)) = queue.map(|queue| QueueName::new(queue)) {
            return Err(self.wrong(&format!("queue: {what}")));
        }
        if let ExportLine::Message(message) = &line {
            match (&message.body, &message.body_base64) {
                (None, None) => return Err(self.wrong("body: is missing")),
                (Some(_), Some(_)) => {
                    return Err(self.wrong("body_base64: goes instead of body, not with it"));
                }
                (Some(_), None) | (None, Some(_)) => {}
            }
        }
        Ok(line)
    }

    /// Reads the line as a struct that has all its fields.
    fn fields<T: DeserializeOwned>(&self) -> Result<T, String> {
        let parsed = self.read::<T>()?;
        let known = field_names::<T>();
        let all = self.read::<BTreeMap<String, IgnoredAny>>()?;
        match all.keys().find(|name| *name != "type" && !known.contains(&name.as_str())) {
            Some(name) => Err(self.wrong(&format!("{0}: unknown field `{0}`", plain(name)))),
            None => Ok(parsed),
        }
    }

    fn read<T: DeserializeOwned>(&self) -> Result<T, String> {
        let mut json = serde_json::Deserializer::from_slice(&self.text);
        let parsed = serde_path_to_error::deserialize(&mut json).and_then(|value| {
            json.end().map(|()| value).map_err(|error| serde_path_to_error::Error::new(no_path(), error))
        });
        parsed.map_err(|error| {
            let path = error.path().to_string();
            // The position within the line tells people less than the field.
            let inner = error.inner().to_string();
            let what = inner.split(" at line ").next().unwrap_or_default();
            let what = if path == "." { plain(what) } else { format!("{path}: {}", plain(what)) };
            self.wrong(&what)
        })
    }
}

/// The names of the fields of a struct. A listing may have others, the file may not.
fn field_names<T: DeserializeOwned>() -> &'static [&'static str] {
    struct Probe<'a>(&'a mut &'static [&'static str]);
    impl<'de> Deserializer<'de> for Probe<'_> {
        type Error = NoValue;
        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, NoValue> {
            Err(NoValue::custom("only the names are asked for"))
        }
        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, NoValue> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }
        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }
    let mut names: &'static [&'static str] = &[];
    // The probe has no value.
    let _ = T::deserialize(Probe(&mut names));
    names
}

/// The path of the whole line.
fn no_path() -> serde_path_to_error::Path {
    serde_path_to_error::Track::new().path()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        r#"{"type":"export","version":1,"program":"duewheel 0.1.0","at":"2026-01-01T00:00:00.000Z"}"#;
    const QUEUE: &str = r#"{"type":"queue","queue":"q","config":{"lease_ms":5},"paused":true}"#;
    const MESSAGE: &str = r#"{"type":"message","queue":"q","id":"7","body":"b","headers":{"z":"1","a":"2"},"state":"leased","due_at":"2026-01-01T00:00:00.000Z","enqueued_at":"2026-01-01T00:00:00.000Z","max_attempts":3}"#;
    // Story: without a schedule, the line had no number of schedules.
    const END: &str = r#"{"type":"end","queues":1,"schedules":0,"messages":1}"#;

    fn read(text: &str) -> Result<Vec<ExportLine>, String> {
        let mut reader = ExportReader::new(text.as_bytes());
        let mut lines = Vec::new();
        while let Some(line) = reader.next()? {
            lines.push(line);
        }
        Ok(lines)
    }

    #[test]
    fn export_file_round_trips() {
        let text = format!("{HEAD}\n{QUEUE}\n{MESSAGE}\n{END}\n");
        let lines = read(&text).unwrap();
        let again: Vec<String> = lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        assert_eq!(again[0], HEAD);
        assert_eq!(again[1], QUEUE);
        assert!(again[2].contains(r#""headers":{"z":"1","a":"2"},"state":"leased""#), "{}", again[2]);
        assert_eq!(again[3], END);
        assert_eq!(read(text.trim_end()).unwrap().len(), 4, "the last newline may be missing");
    }

    /// Whatever is missing at the end, nobody takes the file for a whole one.
    #[test]
    fn truncated_export_file_is_refused() {
        let text = format!("{HEAD}\n{QUEUE}\n{MESSAGE}\n{END}\n");
        for cut in 0..text.len() - 1 {
            let error = read(&text[..cut]).expect_err("it is cut");
            assert!(error.starts_with("the file is cut off behind line "), "{cut}: {error}");
        }
    }

    #[test]
    fn wrong_export_line_names_its_field() {
        let told = |line: &str| read(&format!("{HEAD}\n{line}\n{END}\n")).expect_err("wrong");
        for (line, says) in [
            ("{}", "line 2: missing field `type`"),
            ("[1]", "line 2: "),
            ("", "line 2: is empty"),
            ("{\"type\":\"job\"}", "line 2: type: must be"),
            (&*MESSAGE.replace("\"q\"", "\"-q\""), "line 2: queue: "),
            (&*MESSAGE.replace("\"leased\"", "\"gone\""), "line 2: state: unknown variant `gone`"),
            (&*MESSAGE.replace(":3}", ":\"3\"}"), "line 2: max_attempts: invalid type"),
            (&*MESSAGE.replace("\"body\":\"b\",", ""), "line 2: body: is missing"),
            (&*MESSAGE.replace("\"z\":\"1\"", "\"z\":1"), "line 2: headers.z: invalid type"),
            (&*MESSAGE.replace("\"id\"", "\"extra\":1,\"id\""), "line 2: extra: unknown field `extra`"),
            (&*format!("{MESSAGE}{MESSAGE}"), "line 2: trailing characters"),
            (QUEUE, "line 3: counts 1 queues, 0 schedules and 1 messages, and there are 1, 0 and 0"),
        ] {
            let error = told(line);
            assert!(error.starts_with(says), "{line}: {error}");
        }
        assert!(
            read("{\"type\":\"end\",\"queues\":0,\"messages\":0}\n").unwrap_err().contains("begins with")
        );
        let newer = HEAD.replace(":1,", ":2,");
        assert!(read(&format!("{newer}\n")).unwrap_err().contains("version 2"), "{newer}");
        let more = read(&format!("{HEAD}\n{QUEUE}\n{MESSAGE}\n{END}\n{MESSAGE}\n")).unwrap_err();
        assert!(more.starts_with("line 5: follows the last line"), "{more}");
    }
}
