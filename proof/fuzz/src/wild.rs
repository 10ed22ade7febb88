//! Valid records that no engine would write.

use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::answers::AnswerPosition;
use duewheel_core::message::{
    DeadReason, Died, Ended, Expiry, Kind, Lease, Life, Marks, MaxAttempts, MessageContent, Options,
    PastAttempt, QueueLimit, Stage, State,
};
use duewheel_core::policy::{
    Backoff, GrantLimits, GrantRate, Lasting, OnExpiry, QueueSettings, ReadyOrder, TraceMode,
};
use duewheel_core::record::{Created, DedupeRow, Gone, Pause, Record, Was};
use duewheel_core::{Due, EngineMs, Epoch, Key, LeaseToken, Lsn, MessageId, QueueName, SessionId, WallMs};

use crate::choices::Choices;

/// Any record, mostly about queues, keys and ids of the healthy folders.
pub(crate) fn record(c: &mut Choices<'_>) -> Record {
    match c.below(8) {
        0 | 1 => {
            let was = c.once_in(3).then(|| was(c));
            let message = MessageContent {
                id: id(c),
                queue: queue(c),
                key: c.once_in(2).then(|| key(c)),
                body: Bytes::copy_from_slice(c.bytes(40)),
                headers: (0..c.below(3)).map(|n| (format!("h{n}").into(), "v".into())).collect(),
                options: Options {
                    lease_ms: maybe(c),
                    max_attempts: max_attempts(c),
                    queue_limit: if c.once_in(4) { QueueLimit::Wins } else { QueueLimit::Yields },
                    backoff: backoff(c),
                    spread_ms: maybe(c),
                    expiry: match c.below(4) {
                        0 => Some(Expiry::In(c.number())),
                        1 => Some(Expiry::At(WallMs(c.number()))),
                        _ => None,
                    },
                },
                dedupe_id: c.once_in(3).then(|| format!("once-{}", c.below(60)).into()),
                enqueued_at: WallMs(c.number()),
            };
            Record::Put { message: Arc::new(message), life: life(c), was }
        }
        2 => Record::Changed { id: id(c), life: life(c), was: was(c) },
        3 => Record::Granted { id: id(c), attempt: c.number32(), lease: lease(c), was: was(c) },
        4 => {
            let why =
                *c.pick(&[Gone::Acked, Gone::Cancelled, Gone::Replaced, Gone::Expired, Gone::Superseded]);
            Record::Removed { id: id(c), why, was: was(c) }
        }
        5 => Record::Queue { name: queue(c), settings: settings(c), pause: pause(c) },
        6 => Record::Purged {
            queue: queue(c),
            keep: (0..c.below(4)).map(|_| id(c)).collect(),
            before: id(c),
            purged: c.number(),
        },
        _ => Record::Deduped(DedupeRow {
            defaults: None,
            queue: queue(c),
            dedupe_id: format!("once-{}", c.below(60)).into(),
            content: u128::from(c.number()),
            until: EngineMs(c.number()),
            id: id(c),
            key: c.once_in(2).then(|| key(c)),
            due_at: WallMs(c.number()),
            generation: c.number32(),
            created: match c.below(4) {
                0 => Created::New,
                1 => Created::Kept,
                2 => Created::Superseding(id(c)),
                _ => Created::Replacing(id(c)),
            },
            kept: c.once_in(2).then_some(State::Leased),
            position: c.once_in(2).then(|| AnswerPosition { nth: Lsn(c.number()), at: EngineMs(c.number()) }),
        }),
    }
}

fn id(c: &mut Choices<'_>) -> MessageId {
    MessageId(c.number())
}

fn queue(c: &mut Choices<'_>) -> QueueName {
    QueueName::new(&format!("queue/{}", c.below(6))).expect("a good name")
}

fn key(c: &mut Choices<'_>) -> Key {
    Key::new(&format!("key-{}", c.below(40))).expect("a good key")
}

fn maybe(c: &mut Choices<'_>) -> Option<u64> {
    c.once_in(4).then(|| c.number())
}

fn max_attempts(c: &mut Choices<'_>) -> Option<MaxAttempts> {
    maybe(c).and_then(|n| MaxAttempts::new(u32::try_from(n).unwrap_or(u32::MAX)))
}

fn backoff(c: &mut Choices<'_>) -> Option<Backoff> {
    c.once_in(4).then(|| Backoff { min_ms: c.number(), max_ms: c.number() })
}

fn due(c: &mut Choices<'_>) -> Due {
    if c.once_in(2) { Due::At(WallMs(c.number())) } else { Due::After(EngineMs(c.number())) }
}

fn was(c: &mut Choices<'_>) -> Was {
    let kind = *c.pick(&[Kind::Waiting, Kind::Leased, Kind::Dead]);
    Was { queue: queue(c), kind, due: due(c), weight: c.number(), detail: 0, past: 0, unweighed: 0 }
}

fn lease(c: &mut Choices<'_>) -> Lease {
    Lease {
        token: LeaseToken { epoch: Epoch(c.number32()), counter: c.number() },
        until: EngineMs(c.number()),
        session: SessionId(c.number()),
        granted_at: WallMs(c.number()),
    }
}

fn life(c: &mut Choices<'_>) -> Life {
    let mut life = Life::new(due(c), c.once_in(4).then(|| c.number32()));
    if c.once_in(2) {
        (life.generation, life.attempt, life.forgiven) = (c.number32(), c.number32(), c.number32());
        life.stage = match c.below(4) {
            0 => Stage::Waiting { token: None },
            1 => Stage::Waiting { token: Some(lease(c).token) },
            2 => Stage::Leased(lease(c)),
            _ => Stage::Dead {
                reason: *c.pick(&DeadReason::ALL),
                at: if c.once_in(2) {
                    Died::from_raw(c.number())
                } else {
                    Died::from_raw(c.number()).since(EngineMs(c.number()))
                },
                token: c.once_in(2).then(|| lease(c).token),
            },
        };
    }
    if c.once_in(4) {
        life.marks = Marks {
            timeouts: c.number32(),
            releases: c.number32(),
            burials: c.number32(),
            fires: c.number32(),
            losses: c.number32(),
            delay_ms: maybe(c),
            asked: c.once_in(2).then(|| due(c)),
            limit: if c.once_in(2) { MaxAttempts::new(c.number32()) } else { None },
            superseded_by: c.once_in(4).then(|| id(c)),
        };
        life.history.push(PastAttempt {
            attempt: c.number32(),
            granted_at: WallMs(c.number()),
            ended_at: WallMs(c.number()),
            how: *c.pick(&[Ended::Nacked, Ended::LeaseExpired, Ended::Released, Ended::Buried]),
            note: "a note".into(),
        });
    }
    life
}

fn settings(c: &mut Choices<'_>) -> QueueSettings {
    let mut settings = QueueSettings {
        lease_ms: maybe(c),
        max_attempts: max_attempts(c),
        priority: c.once_in(4).then(|| c.number32()),
        backoff: backoff(c),
        dedupe_window_ms: maybe(c),
        dead_ttl_ms: maybe(c),
        order: c.once_in(2).then(|| *c.pick(&[ReadyOrder::Due, ReadyOrder::Arrival])),
        lasting: *c.pick(&[Lasting::Always, Lasting::WhileUsed]),
        limits: GrantLimits {
            rate: c
                .once_in(4)
                .then(|| GrantRate { per_hour: u64::from(c.number32()) * 1_200, burst: some32(c) }),
            catchup_per_hour: some32(c).map(u64::from),
            concurrency: some32(c),
        },
        expires_in_ms: maybe(c),
        on_expiry: c.once_in(2).then(|| *c.pick(&[OnExpiry::DeliverLate, OnExpiry::Dead, OnExpiry::Drop])),
        keep_done_ms: None,
        trace: None,
    };
    // No bytes of their own, so that inputs that were found before mean what they meant.
    settings.keep_done_ms = settings.expires_in_ms.filter(|ms| ms % 2 == 1);
    settings.trace = settings.dead_ttl_ms.and_then(|ms| match ms % 4 {
        1 => Some(TraceMode::Link),
        3 => Some(TraceMode::Child),
        _ => None,
    });
    settings
}

fn some32(c: &mut Choices<'_>) -> Option<u32> {
    c.once_in(4).then(|| c.number32())
}

fn pause(c: &mut Choices<'_>) -> Pause {
    match c.below(3) {
        0 => Pause::Running,
        1 => Pause::Paused,
        _ => Pause::Until { end: EngineMs(c.number()), length_ms: c.number() },
    }
}
