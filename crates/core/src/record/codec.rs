//! The bytes of a record. `docs/format.md` describes them; change both together, and add a golden test.
//!
//! Each structure that may grow ends with a section of tagged fields ([`super::fields`]).

use std::sync::Arc;

use bytes::Bytes;

use super::fields::{FieldKnown, Form, Reader, StoredForm, Writer, codes, in_order, section};
use super::head::{LifeHead, PUT, StageKind};
use super::{
    ClockPair, Created, DecodeError, Decoded, DedupeRow, EnqueueDefaults, Gone, Pause, Record, Totals, Was,
};
use crate::answers::{AnswerLog, AnswerPosition, AnswerSpan};
use crate::id::IdSet;
use crate::id::{LeaseToken, Lsn, MessageId};
use crate::message::{
    DeadReason, DoneOutcome, Ended, Expiry, Kind, Lease, Life, MaxAttempts, MessageContent, Options,
    PastAttempt, QueueLimit, Row, Stage, State,
};
use crate::name::{Key, QueueName};
use crate::policy::{
    Backoff, GrantRate, Lasting, OnExpiry, QueueSettings, ReadyOrder, SECONDS_PER_HOUR, TraceMode,
};
use crate::time::{Class, Due, EngineMs, WallMs};

/// The kinds of records, each with its number and its fields in order. Those with a name end with a section of tagged
/// fields that has none yet.
macro_rules! records {
    ($($code:tt $kind:ident { $($field:ident),* } $($what:literal)?;)*) => {
        impl StoredForm for Record {
            fn write(&self, to: &mut Writer) {
                match self {
                    $(Record::$kind { $($field),* } => {
                        to.byte($code);
                        $($field.write(to);)*
                        $({ let _: &str = $what; to.no_fields(); })?
                    })*
                    Record::Deduped(row) => {
                        to.byte(7);
                        row.write(to);
                    }
                }
            }
            fn read(from: &mut Reader) -> Decoded<Self> {
                Ok(match from.byte()? {
                    $($code => {
                        $(let $field = from.get()?;)*
                        $(from.no_fields($what)?;)?
                        Record::$kind { $($field),* }
                    })*
                    7 => Record::Deduped(from.get()?),
                    _ => return Err(DecodeError::Unknown("record kind")),
                })
            }
        }
    };
}
records! {
    PUT Put { message, life, was };
    2 Changed { id, life, was };
    3 Granted { id, attempt, lease, was };
    4 Removed { id, why, was };
    5 Queue { name, settings, pause } "queue";
    6 Purged { queue, before, purged, keep } "purge";
    8 AnswersForgotten { queue, upto } "forgotten answers";
}

codes! {
    Gone, "cause of removal": 0 Acked, 1 Cancelled, 2 Replaced, 3 Expired, 4 Superseded;
    DeadReason, "reason of death": 0 MaxAttempts, 1 Buried, 2 Expired, 3 Done(DoneOutcome::Acked),
        4 Done(DoneOutcome::Cancelled), 5 Done(DoneOutcome::Replaced), 6 Done(DoneOutcome::Expired),
        7 Done(DoneOutcome::Superseded);
    State, "state of a message": 0 Scheduled, 1 Ready, 2 Leased, 3 Dead, 4 Done;
    Ended, "end of an attempt": 0 Nacked, 1 LeaseExpired, 2 Released, 3 Buried;
    ReadyOrder, "order of grants": 0 Due, 1 Arrival;
    Lasting, "how long settings last": 0 Always, 1 WhileUsed;
    OnExpiry, "effect of an expiry": 0 DeliverLate, 1 Dead, 2 Drop;
    TraceMode, "how traces belong to each other": 0 Link, 1 Child;
    QueueLimit, "limit of the queue": 0 Yields, 1 Wins;
}

in_order! {
    LeaseToken { epoch, counter }
    Lease { token, until, session, granted_at }
    PastAttempt { attempt, granted_at, ended_at, how, note }
    Backoff { min_ms, max_ms }
    AnswerPosition { nth, at }
    AnswerSpan { last, until, count, bytes }
    ClockPair { engine, wall }
    Row { message, life }
}

section! { "message", put_options, take_options (options: Options, dedupe_id: Option<Box<str>>)
    1 => options.lease_ms;
    2 => options.max_attempts;
    3 => options.backoff;
    4 => options.spread_ms;
    5 => match options.expiry { Some(Expiry::In(ms)) => Some(ms), Some(Expiry::At(_)) | None => None },
        ms => options.expiry = Some(Expiry::In(ms));
    6 => match options.expiry { Some(Expiry::At(at)) => Some(at), Some(Expiry::In(_)) | None => None },
        at => match options.expiry {
            Some(_) => return Err(DecodeError::Unknown("expiry")),
            None => options.expiry = Some(Expiry::At(at)),
        };
    7 => *dedupe_id; // of the enqueue, which is no option
    8 => Some(options.queue_limit).filter(|limit| *limit != QueueLimit::Yields),
        limit => options.queue_limit = limit;
}

section! { "message", put_life, take_life (life: Life)
    1 => life.priority;
    2 => life.marks.timeouts;
    3 => life.marks.releases;
    4 => life.marks.burials;
    5 => life.marks.fires;
    6 => life.marks.delay_ms;
    7 => match life.marks.asked { Some(Due::At(at)) => Some(at), Some(Due::After(_)) | None => None },
        at => life.marks.asked = Some(Due::At(at));
    8 => match life.marks.asked { Some(Due::After(at)) => Some(at), Some(Due::At(_)) | None => None },
        after => match life.marks.asked {
            Some(_) => return Err(DecodeError::Unknown("due time")),
            None => life.marks.asked = Some(Due::After(after)),
        };
    9 => life.marks.limit;
    10 => match &life.stage { Stage::Dead { at, .. } => at.engine(), Stage::Waiting { .. } | Stage::Leased(_) => None },
        engine => match &mut life.stage {
            Stage::Dead { at, .. } => *at = at.since(engine),
            Stage::Waiting { .. } | Stage::Leased(_) => return Err(DecodeError::Unknown("time of death")),
        };
    11 => life.history;
    // The token of the lease whose end was the death.
    12 => match &life.stage { Stage::Dead { token, .. } => *token, Stage::Waiting { .. } | Stage::Leased(_) => None },
        lapsed => match &mut life.stage {
            Stage::Dead { token, .. } => *token = Some(lapsed),
            Stage::Waiting { .. } | Stage::Leased(_) => {
                return Err(DecodeError::Unknown("token of a dead message"));
            }
        };
    13 => life.marks.losses;
    14 => life.marks.superseded_by;
    15 => life.detail;
}

section! { "message", put_was, take_was (was: Was)
    1 => was.detail;
    2 => was.past;
    3 => was.unweighed;
}

/// The rates of a queue as they are stored: whole grants a second, and the grants an hour beyond them.
#[derive(Default)]
struct StoredRates {
    rate: Option<u64>,
    rate_rest: Option<u64>,
    burst: Option<u32>,
    catchup: Option<u64>,
    catchup_rest: Option<u64>,
}

section! { "queue", put_settings, take_settings (s: QueueSettings, rates: StoredRates)
    1 => s.lease_ms;
    2 => s.max_attempts;
    3 => s.priority;
    4 => s.backoff;
    5 => s.dedupe_window_ms;
    6 => s.dead_ttl_ms;
    7 => s.order;
    8 => Some(s.lasting).filter(|lasting| *lasting != Lasting::Always), lasting => s.lasting = lasting;
    9 => rates.rate;
    10 => rates.burst;
    11 => rates.catchup;
    12 => s.limits.concurrency;
    13 => s.expires_in_ms;
    14 => s.on_expiry;
    15 => s.keep_done_ms;
    16 => s.trace;
    17 => rates.rate_rest;
    18 => rates.catchup_rest;
}

section! { "answer", put_answer, take_answer
    (defaults: Option<EnqueueDefaults>, nth: Option<Lsn>, at: Option<EngineMs>, kept: Option<State>)
    1 => *nth;
    2 => *at;
    3 => *defaults;
    4 => *kept;
}

section! { "queue", put_answer_log, take_answer_log (log: Option<AnswerLog>)
    1 => *log;
}

section! { "queue", put_totals, take_totals (t: Totals)
    1 => t.enqueued;
    2 => t.granted;
    3 => t.acked;
    4 => t.cancelled;
    5 => t.replaced;
    6 => t.purged;
    7 => t.died;
    8 => t.expired;
    9 => t.paused;
    10 => t.superseded;
}

impl StoredForm for QueueName {
    fn write(&self, to: &mut Writer) {
        to.blob(self.as_str().as_bytes());
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        QueueName::stored(&from.text("queue name")?).map_err(|_| DecodeError::Unknown("queue name"))
    }
}

/// A key is never empty.
impl StoredForm for Option<Key> {
    fn write(&self, to: &mut Writer) {
        to.blob(self.as_ref().map_or(&[], |key| key.as_str().as_bytes()));
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        let text = from.text("key")?;
        if text.is_empty() {
            return Ok(None);
        }
        Key::new(&text).map(Some).map_err(|_| DecodeError::Unknown("key"))
    }
}

impl StoredForm for MaxAttempts {
    const FORM: Form = Form::Number;

    fn write(&self, to: &mut Writer) {
        self.count().write(to);
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        MaxAttempts::new(from.get()?).ok_or(DecodeError::Unknown("max_attempts"))
    }
}

/// The ids that a purge keeps: each as its difference from the one before.
impl StoredForm for IdSet {
    fn write(&self, to: &mut Writer) {
        to.varint(self.len() as u64);
        let mut last = 0;
        for id in self.iter() {
            to.varint(id.0 - last);
            last = id.0;
        }
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        let mut last = 0u64;
        let ids = (0..from.count()?).map(|_| {
            last = last.checked_add(from.varint()?).ok_or(DecodeError::Unknown("kept id"))?;
            Ok(MessageId(last))
        });
        ids.collect()
    }
}

impl StoredForm for Was {
    fn write(&self, to: &mut Writer) {
        self.queue.write(to);
        to.byte(self.kind as u8 | (self.due.class() as u8) << 2);
        to.varint(self.due.raw());
        to.varint(self.weight);
        put_was(to, self);
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        let queue = from.get()?;
        let stood = from.byte()?;
        let kind = match stood & 3 {
            0 => Kind::Waiting,
            1 => Kind::Leased,
            2 => Kind::Dead,
            _ => return Err(DecodeError::Unknown("stage")),
        };
        let class = match stood >> 2 {
            0 => Class::At,
            1 => Class::After,
            _ => return Err(DecodeError::Unknown("clock class")),
        };
        let (due, weight) = (Due::from_raw(class, from.varint()?), from.varint()?);
        let mut was = Was { queue, kind, due, weight, detail: 0, past: 0, unweighed: 0 };
        take_was(from, &mut was)?;
        Ok(was)
    }
}

impl StoredForm for Option<Was> {
    fn write(&self, to: &mut Writer) {
        to.byte(u8::from(self.is_some()));
        self.iter().for_each(|was| was.write(to));
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        match from.byte()? {
            0 => Ok(None),
            1 => from.get().map(Some),
            _ => Err(DecodeError::Unknown("presence byte")),
        }
    }
}

impl StoredForm for Arc<MessageContent> {
    fn write(&self, to: &mut Writer) {
        self.id.write(to);
        self.queue.write(to);
        self.key.write(to);
        to.content(self);
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        let (id, queue, key) = (from.get()?, from.get()?, from.get()?);
        from.content(id, queue, key)
    }
}

impl StoredForm for Life {
    fn write(&self, to: &mut Writer) {
        to.life_head(self);
        to.life_rest(self);
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        let head = from.life_head()?;
        from.life_rest(head)
    }
}

impl StoredForm for Pause {
    fn write(&self, to: &mut Writer) {
        match self {
            Pause::Running => to.byte(0),
            Pause::Paused => to.byte(1),
            Pause::Until { end, length_ms } => {
                to.byte(2);
                end.write(to);
                length_ms.write(to);
            }
        }
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        match from.byte()? {
            0 => Ok(Pause::Running),
            1 => Ok(Pause::Paused),
            2 => Ok(Pause::Until { end: from.get()?, length_ms: from.get()? }),
            _ => Err(DecodeError::Unknown("pause")),
        }
    }
}

impl StoredForm for Created {
    fn write(&self, to: &mut Writer) {
        let (code, old) = match self {
            Created::New => (0, None),
            Created::Replacing(old) => (1, Some(old)),
            Created::Kept => (2, None),
            Created::Superseding(old) => (3, Some(old)),
        };
        to.byte(code);
        old.iter().for_each(|old| old.write(to));
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        Ok(match from.byte()? {
            0 => Created::New,
            1 => Created::Replacing(from.get()?),
            2 => Created::Kept,
            3 => Created::Superseding(from.get()?),
            _ => return Err(DecodeError::Unknown("answer of an enqueue")),
        })
    }
}

impl StoredForm for EnqueueDefaults {
    fn write(&self, to: &mut Writer) {
        let EnqueueDefaults { priority, lease_ms, max_attempts, backoff, expires_in_ms } = self;
        ((*priority, *lease_ms), (*max_attempts, *backoff)).write(to);
        to.varint(expires_in_ms.unwrap_or(0)); // never 0 if there is one
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        let ((priority, lease_ms), (max_attempts, backoff)) = from.get()?;
        let expires_in_ms = Some(from.get()?).filter(|ms| *ms > 0);
        Ok(EnqueueDefaults { priority, lease_ms, max_attempts, backoff, expires_in_ms })
    }
}

/// The fingerprint of a content.
impl StoredForm for u128 {
    fn write(&self, to: &mut Writer) {
        to.bytes.extend_from_slice(&self.to_le_bytes());
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        let raw = from.take(size_of::<u128>())?;
        Ok(raw.iter().rev().fold(0, |number, byte| number << 8 | u128::from(*byte)))
    }
}

impl StoredForm for DedupeRow {
    fn write(&self, to: &mut Writer) {
        self.queue.write(to);
        self.dedupe_id.write(to);
        self.content.write(to);
        self.until.write(to);
        self.id.write(to);
        self.key.write(to);
        self.due_at.write(to);
        self.generation.write(to);
        self.created.write(to);
        let (nth, at) = self.position.map(|position| (position.nth, position.at)).unzip();
        put_answer(to, &self.defaults, &nth, &at, &self.kept);
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        let mut row = DedupeRow {
            queue: from.get()?,
            dedupe_id: from.get()?,
            content: from.get()?,
            until: from.get()?,
            id: from.get()?,
            key: from.get()?,
            due_at: from.get()?,
            generation: from.get()?,
            created: from.get()?,
            kept: None,
            defaults: None,
            position: None,
        };
        let (mut nth, mut at) = (None, None);
        take_answer(from, &mut row.defaults, &mut nth, &mut at, &mut row.kept)?;
        row.position = match (nth, at) {
            (Some(nth), Some(at)) => Some(AnswerPosition { nth, at }),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return Err(DecodeError::Unknown("position of an answer")),
        };
        Ok(row)
    }
}

impl StoredForm for AnswerLog {
    fn write(&self, to: &mut Writer) {
        self.forgotten().write(to);
        self.spans().to_vec().write(to);
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        Ok(AnswerLog::restored(from.get()?, from.get()?))
    }
}

impl StoredForm for Totals {
    fn write(&self, to: &mut Writer) {
        put_totals(to, self);
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        let mut totals = Totals::default();
        take_totals(from, &mut totals)?;
        Ok(totals)
    }
}

impl StoredForm for Options {
    fn write(&self, to: &mut Writer) {
        put_options(to, self, &None);
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        let mut options = Options::default();
        take_options(from, &mut options, &mut None)?;
        Ok(options)
    }
}

impl StoredForm for QueueSettings {
    fn write(&self, to: &mut Writer) {
        let (rate, catchup) = (self.limits.rate.map(|rate| rate.per_hour), self.limits.catchup_per_hour);
        let whole = |hourly: Option<u64>| hourly.map(|n| n / SECONDS_PER_HOUR);
        let rest = |hourly: Option<u64>| hourly.map(|n| n % SECONDS_PER_HOUR).filter(|n| *n > 0);
        let rates = StoredRates {
            rate: whole(rate),
            rate_rest: rest(rate),
            burst: self.limits.rate.and_then(|rate| rate.burst),
            catchup: whole(catchup),
            catchup_rest: rest(catchup),
        };
        put_settings(to, self, &rates);
    }
    fn read(from: &mut Reader) -> Decoded<Self> {
        let (mut settings, mut rates) = (QueueSettings::default(), StoredRates::default());
        take_settings(from, &mut settings, &mut rates)?;
        let StoredRates { rate, rate_rest, burst, catchup, catchup_rest } = rates;
        settings.limits.rate = hourly(rate, rate_rest)?.map(|per_hour| GrantRate { per_hour, burst });
        settings.limits.catchup_per_hour = hourly(catchup, catchup_rest)?;
        if burst.is_some() && rate.is_none() {
            return Err(DecodeError::Unknown("burst"));
        }
        Ok(settings)
    }
}

/// A rate an hour from its whole grants a second and the rest.
fn hourly(whole: Option<u64>, rest: Option<u64>) -> Decoded<Option<u64>> {
    let is_rest = |rest: u64| whole.is_some() && (1..SECONDS_PER_HOUR).contains(&rest);
    if whole.is_some_and(|n| n > u64::from(u32::MAX)) {
        return Err(DecodeError::Unknown("32-bit number"));
    }
    if rest.is_some_and(|rest| !is_rest(rest)) {
        return Err(DecodeError::Unknown("rate"));
    }
    Ok(whole.map(|n| n * SECONDS_PER_HOUR + rest.unwrap_or(0)))
}

/// Structures that other parts of a store contain.
macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident: $t:ty;)*) => {
        impl Writer {
            $(
                $(#[$doc])*
                pub fn $name(&mut self, value: &$t) {
                    value.write(self);
                }
            )*
        }

        #[expect(clippy::missing_errors_doc, reason = "the type lists the errors of all its methods")]
        impl Reader {
            $(
                $(#[$doc])*
                pub fn $name(&mut self) -> Decoded<$t> {
                    self.get()
                }
            )*
        }
    };
}
parts! {
    /// A record.
    record: Record;
    /// A message and its life, as a checkpoint holds them.
    row: Row;
    /// The name of a queue.
    queue_name: QueueName;
    /// A remembered answer.
    dedupe: DedupeRow;
    /// The options of a message.
    options: Options;
    /// A queue's settings.
    settings: QueueSettings;
    /// A queue's pause.
    pause: Pause;
    /// A queue's totals: those above 0, by their numbers.
    totals: Totals;
    /// Both clocks.
    clock: ClockPair;
}

impl Writer {
    /// The end of the books of a queue: a section with its log of answers, if it remembers any.
    pub fn answer_log(&mut self, log: &AnswerLog) {
        put_answer_log(self, &Some(log).filter(|log| !log.is_empty()).cloned());
    }

    /// A message without the name of its queue, and its life, as a run holds them. The fields that a scan needs come
    /// first ([`super::RowHead`]); no field is written twice.
    pub fn stored(&mut self, row: &Row) {
        let m = &row.message;
        m.id.write(self);
        self.life_head(&row.life);
        self.varint(row.weight() as u64);
        m.key.write(self);
        self.content(m);
        self.life_rest(&row.life);
    }

    /// The fields of a message after its key.
    fn content(&mut self, m: &MessageContent) {
        m.enqueued_at.write(self);
        put_options(self, &m.options, &m.dedupe_id);
        m.headers.write(self);
        self.blob(&m.body);
    }

    /// The *head* of a life, which scans read. A record has it and the rest together, a row of a run has weight, key
    /// and content between them.
    fn life_head(&mut self, life: &Life) {
        let (stage, when) = match &life.stage {
            Stage::Waiting { token: None } => (0, None),
            Stage::Waiting { token: Some(_) } => (1, None),
            Stage::Leased(lease) => (2, Some(lease.until.0)),
            Stage::Dead { at, .. } => (3, Some(at.raw())),
        };
        self.byte(life.due.class() as u8 | stage << 1);
        self.varint(life.due.raw());
        if let Some(when) = when {
            self.varint(when);
        }
    }

    fn life_rest(&mut self, life: &Life) {
        for n in [life.generation, life.attempt, life.forgiven] {
            n.write(self);
        }
        match &life.stage {
            Stage::Waiting { token } => token.iter().for_each(|token| token.write(self)),
            Stage::Leased(Lease { token, until: _, session, granted_at }) => {
                token.write(self);
                session.write(self);
                granted_at.write(self);
            }
            Stage::Dead { reason, .. } => reason.write(self),
        }
        put_life(self, life);
    }
}

impl Reader {
    /// The end of the books of a queue: a section with its log of answers, if it remembers any.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn answer_log(&mut self) -> Decoded<AnswerLog> {
        let mut log = None;
        take_answer_log(self, &mut log)?;
        Ok(log.unwrap_or_default())
    }

    /// Reads what [`Writer::stored`] has written for a message of this queue.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn stored(&mut self, queue: QueueName) -> Decoded<Row> {
        let id = self.get()?;
        let head = self.life_head()?;
        self.varint()?; // the weight follows from the rest
        let key = self.get()?;
        let message = self.content(id, queue, key)?;
        Ok(Row { message, life: self.life_rest(head)? })
    }

    /// The fields of a message after its key.
    fn content(&mut self, id: MessageId, queue: QueueName, key: Option<Key>) -> Decoded<Arc<MessageContent>> {
        let enqueued_at: WallMs = self.get()?;
        let (mut options, mut dedupe_id) = (Options::default(), None);
        take_options(self, &mut options, &mut dedupe_id)?;
        let headers = self.get()?;
        let body = Bytes::copy_from_slice(&self.blob()?); // a slice would keep the whole segment in memory
        Ok(Arc::new(MessageContent { id, queue, key, enqueued_at, options, dedupe_id, headers, body }))
    }

    fn life_head(&mut self) -> Decoded<LifeHead> {
        let mut rest = self.rest();
        let length = rest.len();
        let head = LifeHead::read(&mut rest)?;
        let read = length - rest.len();
        self.skip(read);
        Ok(head)
    }

    fn life_rest(&mut self, head: LifeHead) -> Decoded<Life> {
        let mut life = Life::new(head.due, None);
        (life.generation, life.attempt, life.forgiven) = (self.get()?, self.get()?, self.get()?);
        life.stage = match head.stands {
            StageKind::Waiting if head.has_token => Stage::Waiting { token: Some(self.get()?) },
            StageKind::Waiting => Stage::Waiting { token: None },
            StageKind::Leased { until } => {
                let (token, (session, granted_at)) = self.get()?;
                Stage::Leased(Lease { token, until, session, granted_at })
            }
            StageKind::Dead { at } => Stage::Dead { reason: self.get()?, at, token: None },
        };
        take_life(self, &mut life)?;
        Ok(life)
    }
}
