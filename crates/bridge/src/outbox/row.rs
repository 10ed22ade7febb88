//! A row of the outbox as an operation, and its answer as a verdict.

use std::fmt;

use duewheel::core::engine::{
    Answered, Ask, ChangeRefusal, Edit, Enqueue, EnqueueRefusal, IfExists, Op, Past, Reply, RowOutcome,
    Target, When,
};
use duewheel::core::message::{Headers, ROW_HEADER};
use duewheel::core::policy::OWN_DEDUPE;
use duewheel::core::time::WallMs;
use duewheel::core::{Key, QueueName};
use duewheel_api::error_code::ErrorCode;
use duewheel_delivery::MessageUrl;
use tokio_postgres::Row;

/// How long a queue waits whose quota is used up, at least and at most, in ms.
const WAITS_MS: (u64, u64) = (250, 5_000);

/// Identifies a row: its place in the order, and the id that no other row ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RowName {
    pub(super) seq: i64,
    pub(super) id: u128,
}

/// A row, as [`OutboxRow::COLUMNS`] have it.
#[derive(Debug)]
pub(super) struct OutboxRow {
    pub(super) name: RowName,
    pub(super) queue: String,
    pub(super) key: Option<String>,
    id: String,
    op: String,
    body: Option<Vec<u8>>,
    when: Option<When>,
    /// The delay that was asked for, in seconds: repeated calls are compared by it.
    delay: Option<String>,
    if_exists: Option<String>,
    headers: Option<String>,
    dedupe_id: Option<String>,
}

/// The outcome of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RowVerdict {
    /// The effect is durable, now or since an earlier try.
    Applied(Answered),
    /// The row can never be applied, for this reason.
    Rejected(&'static str, String),
    /// The row was not applied: its queue waits for this many ms.
    QueueWaits(u64),
    /// The row was not applied: all queues wait for a moment.
    AllWait,
}

impl RowName {
    /// A row with this id, as PostgreSQL writes it.
    pub(super) fn read(seq: i64, id: &str) -> Self {
        let digits: String = id.chars().filter(char::is_ascii_hexdigit).collect();
        RowName { seq, id: u128::from_str_radix(&digits, 16).unwrap_or(0) }
    }
}

impl OutboxRow {
    /// The columns that are read. The rest of a delay is computed by PostgreSQL's clock, which has made the due time.
    pub(super) const COLUMNS: &'static str = "seq, id::text, op, queue, key, body, if_exists, headers::text, dedupe_id, \
        delay_s::text, ceil(extract(epoch FROM due_at) * 1000)::bigint, \
        ceil(extract(epoch FROM due_at - clock_timestamp()) * 1000)::bigint";

    pub(super) fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let id: String = row.try_get(1)?;
        let delay: Option<String> = row.try_get(9)?;
        let (at, rest): (Option<i64>, Option<i64>) = (row.try_get(10)?, row.try_get(11)?);
        let ms = |ms: i64| u64::try_from(ms).unwrap_or(0);
        let when = match (&delay, at, rest) {
            (Some(_), _, Some(rest)) => Some(When::After(ms(rest))),
            (_, Some(at), _) => Some(When::At { due_at: WallMs(ms(at)), past: Past::Fire }),
            (_, None, _) => None,
        };
        Ok(OutboxRow {
            name: RowName::read(row.try_get(0)?, &id),
            queue: row.try_get(3)?,
            key: row.try_get(4)?,
            id,
            op: row.try_get(2)?,
            body: row.try_get(5)?,
            when,
            delay,
            if_exists: row.try_get(6)?,
            headers: row.try_get(7)?,
            dedupe_id: row.try_get(8)?,
        })
    }

    /// The operation, if its queue begins with one of these prefixes.
    pub(super) fn to_op(&self, prefixes: Option<&[QueueName]>) -> Result<Op, RowVerdict> {
        let queue = QueueName::new(&self.queue).map_err(|what| bad("queue", what))?;
        if prefixes.is_some_and(|all| !all.iter().any(|one| queue.as_str().starts_with(one.as_str()))) {
            let what = "the queue does not begin with a prefix that this database may use";
            return Err(rejected(ErrorCode::Forbidden, what));
        }
        let key = self.key.as_deref().map(Key::new).transpose().map_err(|what| bad("key", what))?;
        match (&*self.op, key) {
            ("enqueue", key) => self.enqueue(queue, key),
            ("cancel", Some(key)) => Ok(Op::cancel(Target::Key(queue, key)).into_op()),
            ("postpone", Some(key)) => {
                let edit = Edit { when: self.when, ..Edit::default() };
                Ok(Op::postpone(Target::Key(queue, key), Box::new(edit), None).into_op())
            }
            (_, _) => Err(bad("op", "is none that this version knows")),
        }
    }

    fn enqueue(&self, queue: QueueName, key: Option<Key>) -> Result<Op, RowVerdict> {
        let if_exists = match self.if_exists.as_deref() {
            None | Some("reject") => IfExists::Reject,
            Some("keep") => IfExists::Keep,
            Some("replace") => IfExists::Replace,
            Some("supersede") => IfExists::Supersede,
            Some(_) => return Err(bad("if_exists", "must be reject, keep, replace or supersede")),
        };
        let dedupe_id = self.dedupe_id.as_ref().unwrap_or(&self.id).as_str();
        if dedupe_id.starts_with(OWN_DEDUPE) {
            return Err(bad("dedupe_id", "must not begin with U+0001: such ids are duewheel's own"));
        }
        Ok(Op::Enqueue(Box::new(Enqueue {
            key,
            headers: self.headers()?,
            when: self.when.unwrap_or(When::After(0)),
            due_words: self.delay.as_deref().map(Into::into),
            if_exists,
            dedupe_id: Some(dedupe_id.into()),
            ..Enqueue::new(queue, self.body.clone().unwrap_or_default())
        })))
    }

    fn headers(&self) -> Result<Headers, RowVerdict> {
        let given =
            self.headers.as_deref().map(serde_json::from_str::<std::collections::BTreeMap<String, String>>);
        let given = given.transpose().map_err(|_| bad("headers", "must be an object of strings"))?;
        let mut headers: Headers = vec![(ROW_HEADER.into(), self.id.as_str().into())];
        for (name, value) in given.into_iter().flatten() {
            if name.eq_ignore_ascii_case(ROW_HEADER) || MessageUrl::is_its_header(&name) {
                return Err(bad("headers", format_args!("{name} is set by duewheel")));
            }
            headers.push((name.into(), value.into()));
        }
        Ok(headers)
    }
}

impl RowVerdict {
    pub(super) fn of(reply: &Reply) -> Self {
        match reply {
            Reply::Enqueue(Ok(done)) => RowVerdict::Applied(done.answered),
            Reply::Enqueue(Err(refusal)) => of_enqueue(refusal),
            Reply::Recorded(RowOutcome::Applied) => RowVerdict::Applied(Answered::Before),
            Reply::Recorded(RowOutcome::Refused(refusal)) => {
                let what = "refused before the delete of its row was confirmed".to_owned();
                RowVerdict::Rejected(refusal.as_str(), what)
            }
            // Nothing is there to be changed: the application's change of mind came too late, or was not needed.
            Reply::Change(Ok(_) | Err(ChangeRefusal::NotFound)) => RowVerdict::Applied(Answered::Now),
            Reply::Change(Err(refusal)) => of_change(refusal),
            other => rejected(ErrorCode::Internal, format!("a bug in duewheel: {other:?}")),
        }
    }
}

fn rejected(code: ErrorCode, why: impl Into<String>) -> RowVerdict {
    RowVerdict::Rejected(code.as_str(), why.into())
}

fn bad(field: &str, what: impl fmt::Display) -> RowVerdict {
    rejected(ErrorCode::BadRequest, format!("{field}: {what}"))
}

/// A refusal whose code says it all.
fn plain(code: ErrorCode) -> RowVerdict {
    rejected(code, code.summary())
}

fn queue_waits(retry_ms: Option<u64>) -> RowVerdict {
    let (least, most) = WAITS_MS;
    RowVerdict::QueueWaits(retry_ms.unwrap_or(least).clamp(least, most))
}

fn of_enqueue(refusal: &EnqueueRefusal) -> RowVerdict {
    match refusal {
        EnqueueRefusal::KeyExists(holder) => rejected(
            ErrorCode::KeyExists,
            format!("message {} has this key, and is {}", holder.id, holder.state.as_str()),
        ),
        EnqueueRefusal::Leased(id) => rejected(
            ErrorCode::Leased,
            format!("message {id} has this key, is leased to a consumer and cannot be replaced"),
        ),
        EnqueueRefusal::InThePast | EnqueueRefusal::Expired => plain(ErrorCode::InThePast),
        EnqueueRefusal::TooFar(ms) => bad("delay", format_args!("must be at most {ms} ms")),
        EnqueueRefusal::DedupeMismatch(id) => rejected(
            ErrorCode::DedupeMismatch,
            format!("message {id} was enqueued with this dedupe_id and another content"),
        ),
        EnqueueRefusal::TooLarge(part, most) => too_large(part.as_str(), *most),
        EnqueueRefusal::OutOfRange(part) => bad(part.as_str(), "is out of its range"),
        EnqueueRefusal::OverQuota(over) => queue_waits(over.retry_ms),
        EnqueueRefusal::Overloaded(_) => queue_waits(None),
        EnqueueRefusal::Busy | EnqueueRefusal::DiskFull => RowVerdict::AllWait,
    }
}

fn of_change(refusal: &ChangeRefusal) -> RowVerdict {
    match refusal {
        ChangeRefusal::NotFound => RowVerdict::Applied(Answered::Now),
        ChangeRefusal::Leased => plain(ErrorCode::Leased),
        ChangeRefusal::Dead => plain(ErrorCode::Dead),
        ChangeRefusal::NotDead => plain(ErrorCode::NotDead),
        ChangeRefusal::KeyExists(_) => plain(ErrorCode::KeyExists),
        ChangeRefusal::GenerationMismatch(_) => plain(ErrorCode::GenerationMismatch),
        ChangeRefusal::InThePast => plain(ErrorCode::InThePast),
        ChangeRefusal::Paused => plain(ErrorCode::Paused),
        ChangeRefusal::TooFar(ms) | ChangeRefusal::LeaseTooLong(ms) => {
            bad("delay", format_args!("must be at most {ms} ms"))
        }
        ChangeRefusal::TooLarge(part, most) => too_large(part.as_str(), *most),
        ChangeRefusal::OutOfRange(part) => bad(part.as_str(), "is out of its range"),
        ChangeRefusal::NothingToChange => bad("delay", "must be given, or due_at"),
        ChangeRefusal::OverQuota(over) => queue_waits(over.retry_ms),
        ChangeRefusal::Overloaded(_) => queue_waits(None),
        ChangeRefusal::Busy | ChangeRefusal::DiskFull => RowVerdict::AllWait,
    }
}

fn too_large(part: &str, most: usize) -> RowVerdict {
    let code = if part == "body" { ErrorCode::BodyTooLarge } else { ErrorCode::BadRequest };
    rejected(code, format!("{part}: must have at most {most} bytes"))
}
