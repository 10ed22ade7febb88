//! Schedules as JSON: what requests say, and what answers show.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use duewheel::core::WallMs;
use duewheel_delivery::{
    Occurrence, OccurrenceEnd, OccurrenceNote, PastOccurrence, PastOccurrences, RecurrenceSettings,
    ScheduleBlock, ScheduleCounts, ScheduleListed, ScheduleSettings, ScheduleState, ScheduleView,
};
use schemars::JsonSchema;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::answer;
use super::line::{body, headers};
use super::strict::{Members, Strings, Text, Whole};
use crate::error::Problem;
use crate::json::InstantText;
use crate::schema::{AnyJsonSchema, Base64Schema, HeadersSchema, InstantSchema, QueueSchema};

/// A schedule. Exactly one of `cron`, `every` and `at`, and at most one of `body`, `body_base64` and `json`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Schedule")]
pub(crate) struct ScheduleRequest<'a> {
    /// The queue that occurrences enter.
    #[serde(borrow)]
    #[schemars(with = "Option<QueueSchema>")]
    queue: Option<Text<'a>>,
    /// A cron expression: minute, hour, day, month, weekday; seconds before and a year behind them are optional.
    #[schemars(length(max = 256))]
    cron: Option<Text<'a>>,
    /// An interval of elapsed time, at least `1s`, from `start`, else from the creation.
    every: Option<Text<'a>>,
    /// Instants, at most 1,000.
    #[schemars(with = "Option<Vec<InstantSchema>>")]
    at: Option<Vec<Text<'a>>>,
    /// The time zone of `cron`, by its IANA name; `UTC` by default.
    zone: Option<Text<'a>>,
    /// Nothing occurs before.
    #[schemars(with = "Option<InstantSchema>")]
    start: Option<Text<'a>>,
    /// Nothing occurs after.
    #[schemars(with = "Option<InstantSchema>")]
    end: Option<Text<'a>>,
    /// By how much messages may be due later than their occurrence, at most `24h`.
    jitter: Option<Text<'a>>,
    /// `shift` (default) or `skip`: a fixed hour that is missing because clocks are put forward.
    dst_gap: Option<Text<'a>>,
    /// `first` (default) or `both`: a fixed hour that comes twice because clocks are put back.
    dst_fold: Option<Text<'a>>,
    /// The body of each message, if it is UTF-8 text.
    body: Option<Text<'a>>,
    /// The body of each message, if it is not UTF-8 text.
    #[schemars(with = "Option<Base64Schema>")]
    body_base64: Option<Text<'a>>,
    /// The body of each message as a JSON value: its bytes as they are sent here. Messages get the header `content-type:
    /// application/json`, unless `headers` has a content type.
    #[serde(borrow)]
    #[schemars(with = "Option<AnyJsonSchema>")]
    json: Option<&'a RawValue>,
    headers: Option<Strings>,
    /// `none`, `last` (default) or `all`: which of the occurrences enter that were missed.
    missed: Option<Text<'a>>,
    /// How late a missed occurrence still enters; `24h` by default.
    catchup: Option<Text<'a>>,
    /// `allow` (default), `skip` or `buffer_one`: what happens while the previous message is not settled.
    overlap: Option<Text<'a>>,
    /// How many occurrences enter from now on; without it there is no limit.
    remaining: Option<Whole>,
    paused: Option<bool>,
    /// Words for people, at most 1,024 bytes.
    note: Option<Text<'a>>,
    /// `keep`: a schedule of which no occurrence is to come is taken; `refuse` (default): it is an error.
    past: Option<SchedulePastWord>,
}

/// Whether a schedule is taken of which all occurrences have passed.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SchedulePastWord {
    /// The schedule is refused.
    #[default]
    Refuse,
    /// The schedule is taken.
    Keep,
}

impl From<SchedulePastWord> for PastOccurrences {
    fn from(word: SchedulePastWord) -> Self {
        match word {
            SchedulePastWord::Refuse => PastOccurrences::Refuse,
            SchedulePastWord::Keep => PastOccurrences::Keep,
        }
    }
}

/// What a preview is of: a schedule, and a span.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Preview")]
pub(crate) struct PreviewRequest {
    /// Occurrences after this instant; now by default.
    #[schemars(with = "Option<InstantSchema>")]
    from: Option<String>,
    /// The number of occurrences, 10 by default.
    #[schemars(range(min = 1, max = 1000))]
    count: Option<u64>,
    /// The fields of a schedule.
    #[schemars(flatten, with = "BTreeMap<String, Value>")]
    pub(super) schedule: Members,
}

impl<'de> Deserialize<'de> for PreviewRequest {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = PreviewRequest;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PreviewRequest, A::Error> {
                let (mut from, mut count) = (None, None);
                let mut schedule = Members::default();
                while let Some(name) = map.next_key::<String>()? {
                    let is_twice = match &*name {
                        "from" => from.replace(map.next_value()?).is_some(),
                        "count" => count.replace(map.next_value()?).is_some(),
                        _ => schedule.0.insert(name.clone(), map.next_value()?).is_some(),
                    };
                    if is_twice {
                        return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
                    }
                }
                Ok(PreviewRequest { from: from.flatten(), count: count.flatten(), schedule })
            }
        }
        d.deserialize_map(V)
    }
}

impl PreviewRequest {
    pub(super) fn count(&self) -> Result<usize, Problem> {
        let most = 1_000;
        match self.count.unwrap_or(10) {
            n @ 1..=1_000 => Ok(usize::try_from(n).unwrap_or(most)),
            _ => Err(Problem::field("count", format_args!("must be a whole number from 1 to {most}"))),
        }
    }

    pub(super) fn from(&self) -> Result<Option<SystemTime>, Problem> {
        self.from.as_deref().map(|text| instant("from", text)).transpose()
    }
}

/// An instant of a request.
pub(super) fn instant(field: &'static str, text: &str) -> Result<SystemTime, Problem> {
    let read = crate::rfc3339::parse(text);
    read.map(WallMs::to_system_time).map_err(|_| Problem::field(field, "must be an instant by RFC 3339"))
}

impl ScheduleRequest<'_> {
    /// The settings, the number of occurrences that remain, and whether all of them may have passed.
    pub(super) fn into_settings(self) -> Result<(ScheduleSettings, Option<u64>, PastOccurrences), Problem> {
        let own = |text: Option<Text<'_>>| text.map(|text| text.0.into_owned());
        let queue = own(self.queue).ok_or_else(|| Problem::field("queue", "is missing"))?;
        let body = body(self.body, self.json, self.body_base64)?;
        let headers = headers(self.headers.map(|headers| headers.0).unwrap_or_default(), self.json);
        let at = self.at.unwrap_or_default().into_iter().map(|text| text.0.into_owned()).collect();
        let settings = ScheduleSettings {
            queue,
            recurrence: RecurrenceSettings {
                cron: own(self.cron),
                every: own(self.every),
                at,
                zone: own(self.zone),
                dst_gap: own(self.dst_gap),
                dst_fold: own(self.dst_fold),
                start: own(self.start),
                end: own(self.end),
                jitter: own(self.jitter),
            },
            body: body.unwrap_or_default(),
            headers: headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            missed: own(self.missed),
            catchup: own(self.catchup),
            overlap: own(self.overlap),
            paused: self.paused.unwrap_or(false),
            note: own(self.note),
        };
        Ok((settings, self.remaining.map(|left| left.0), self.past.unwrap_or_default().into()))
    }
}

/// The settings as a request would have them.
pub(super) fn as_request(settings: &ScheduleSettings) -> Map<String, Value> {
    let fields = ScheduleFields::of(settings);
    match serde_json::to_value(&fields) {
        Ok(Value::Object(map)) => map,
        Ok(_) | Err(_) => Map::new(),
    }
}

answer! {
    /// The fields of a schedule.
    #[schemars(rename = "ScheduleFields")]
    ScheduleFields of (settings: &ScheduleSettings) with {
        let own = settings.clone();
        let (body, body_base64) = match String::from_utf8(own.body.to_vec()) {
            Ok(text) => (Some(text), None),
            Err(_) => (None, Some(STANDARD.encode(&own.body))),
        };
    } {
        #[schemars(with = "QueueSchema")]
        queue: String = own.queue,
        #[serde(flatten)]
        recurrence: RecurrenceSettings = own.recurrence,
        /// The body, if it is UTF-8 text.
        ?body: String = body,
        /// The body, if it is not UTF-8 text.
        #[schemars(with = "Option<Base64Schema>")]
        ?body_base64: String = body_base64,
        #[schemars(with = "HeadersSchema")]
        headers: BTreeMap<String, String> = own.headers.into_iter().collect(),
        ?missed: String = own.missed,
        ?catchup: String = own.catchup,
        ?overlap: String = own.overlap,
        paused: bool = own.paused,
        ?note: String = own.note,
    }
}

impl ScheduleFields {
    /// The settings with the defaults filled in. Only cron expressions have a zone.
    fn with_defaults(self) -> Self {
        let or = |own: Option<String>, default: &str| Some(own.unwrap_or_else(|| default.to_owned()));
        let is_cron = self.recurrence.cron.is_some();
        let or_of_cron = |own: Option<String>, default| if is_cron { or(own, default) } else { own };
        ScheduleFields {
            recurrence: RecurrenceSettings {
                zone: or_of_cron(self.recurrence.zone, "UTC"),
                dst_gap: or_of_cron(self.recurrence.dst_gap, "shift"),
                dst_fold: or_of_cron(self.recurrence.dst_fold, "first"),
                ..self.recurrence
            },
            missed: or(self.missed, "last"),
            catchup: or(self.catchup, "24h"),
            overlap: or(self.overlap, "allow"),
            ..self
        }
    }
}

answer! {
    /// A schedule as it is.
    #[schemars(rename = "ScheduleState")]
    ScheduleAnswer of (view: &ScheduleView) with {
        let state = &view.record.state;
        let message = |at: WallMs| state.pending.iter().find(|entry| entry.at == at.0)?.id.map(|id| id.to_string());
        let next = |occurrence: &Occurrence| {
            let answer = OccurrenceAnswer::of(occurrence);
            OccurrenceAnswer { message: message(answer.at.0), ..answer }
        };
    } {
        name: String = view.name.clone(),
        /// The settings of the schedule, with the defaults filled in.
        #[serde(flatten)]
        fields: ScheduleFields = ScheduleFields::of(&view.record.settings).with_defaults(),
        created_at: InstantText = wall(view.record.created),
        /// How many occurrences may still enter; `null` without a limit.
        remaining: Option<u64> = view.remaining,
        /// The next ten occurrences, without those whose message a caller has removed before it was due.
        next: Vec<OccurrenceAnswer> = view.next.iter().map(next).collect(),
        /// The latest ten occurrences, oldest first, without those that are not due yet.
        latest: Vec<PastOccurrenceAnswer> = view.latest.iter().map(PastOccurrenceAnswer::of).collect(),
        counts: ScheduleCounts = view.counts.clone(),
        /// Why an occurrence waits that its queue has refused.
        ?waits: OccurrenceWaits = OccurrenceWaits::of(state),
        /// Why the schedule does not run.
        ?error: String = view.error.as_ref().map(ToString::to_string),
    }
}

answer! {
    /// One occurrence that is to come.
    #[schemars(rename = "Occurrence")]
    OccurrenceAnswer of (occurrence: &Occurrence) {
        at: InstantText = InstantText(WallMs::from_system_time_up(occurrence.at)),
        /// Seconds that the zone's clock is ahead of UTC then.
        offset: i32 = occurrence.offset,
        /// `shifted`: its civil time is missing that day; `repeated`: its civil time comes for the second time.
        ?note: &'static str = occurrence.note.map(|note| match note {
            OccurrenceNote::Shifted => "shifted",
            OccurrenceNote::Repeated => "repeated",
        }),
        /// The message of the occurrence, if that is put ahead already.
        ?message: String = None,
    }
}

answer! {
    /// The end of an occurrence.
    #[schemars(rename = "PastOccurrence")]
    PastOccurrenceAnswer of (past: &PastOccurrence) {
        at: InstantText = wall(past.at),
        /// `entered`, `missed`, `skipped`, or `unsure` if the answer was lost for longer than it is remembered.
        #[schemars(with = "String")]
        outcome: OccurrenceEnd = past.end,
        /// The message of the occurrence.
        ?message: String = past.id.map(|id| id.to_string()),
    }
}

/// Why an occurrence waits.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "OccurrenceWaits")]
pub(crate) struct OccurrenceWaits {
    /// The occurrence that waits.
    pub(super) at: InstantText,
    pub(super) why: String,
    /// When it is tried again; missing if it waits for the previous message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<InstantText>,
}

impl OccurrenceWaits {
    fn of(state: &ScheduleState) -> Option<Self> {
        let of_previous = |at: u64| OccurrenceWaits {
            at: wall(at),
            why: "the message of the previous occurrence is not settled".to_owned(),
            until: None,
        };
        let of_block = |block: &ScheduleBlock| OccurrenceWaits {
            at: wall(block.at),
            why: block.why.clone(),
            until: Some(wall(block.until)),
        };
        state.block.as_ref().map(of_block).or_else(|| state.buffered.map(of_previous))
    }
}

answer! {
    /// A schedule in a list.
    #[schemars(rename = "ListedSchedule")]
    ListedSchedule of (listed: ScheduleListed) with {
        let (view, unreadable) = match listed.view {
            Ok(view) => (Some(view), None),
            Err(why) => (None, Some(why)),
        };
        let view = view.as_ref();
        let settings = view.map(|view| &view.record.settings);
        let error = view.and_then(|view| view.error.as_ref()).map(ToString::to_string);
    } {
        name: String = listed.name,
        /// `null` if its record cannot be read.
        #[schemars(with = "Option<QueueSchema>")]
        queue: Option<String> = settings.map(|settings| settings.queue.clone()),
        paused: bool = settings.is_some_and(|settings| settings.paused),
        /// When it occurs next.
        next: Option<InstantText> = view.and_then(|view| view.next.first()).map(|next| OccurrenceAnswer::of(next).at),
        counts: ScheduleCounts = view.map(|view| view.counts.clone()).unwrap_or_default(),
        /// Why it does not run.
        ?error: String = unreadable.or(error),
    }
}

/// A page of schedules, by name.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Schedules")]
pub(crate) struct SchedulesAnswer {
    pub(super) schedules: Vec<ListedSchedule>,
    /// The `after` of the next page; `null` on the last one.
    pub(super) next: Option<String>,
    /// Where the data of time zones comes from, and its version.
    pub(super) zone_data: String,
}

/// The next occurrences of a schedule.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Previewed")]
pub(crate) struct PreviewAnswer {
    pub(super) next: Vec<OccurrenceAnswer>,
    /// Where the data of time zones comes from, and its version.
    pub(super) zone_data: String,
}

fn wall(at: u64) -> InstantText {
    InstantText(WallMs(at))
}
