//! Converts between the judge's types and the engine's: calls to operations, replies to answers.

use bytes::Bytes;
use duewheel::CallError;
use duewheel::Outcome::{NotApplied, Unknown};
use duewheel_core::engine::{
    self, Attempt, ChangeRefusal, Edit, EnqueueRefusal, Op, Past, Reply, Reserved, SettleRefusal, Settled,
    View,
};
use duewheel_core::id::Epoch;
use duewheel_core::message::{DeadReason, Expiry, MaxAttempts, Options};
use duewheel_core::policy::{GrantLimits, GrantRate, OnExpiry, QueueSettings};
use duewheel_core::record::{Created, Totals};
use duewheel_core::{Key, LeaseToken, MessageId, QueueName, WallMs};
use duewheel_judge::history;
use duewheel_judge::history::{
    Answer, Call, Death, Grant, Held, IfExists, MsgId, OpId, Payload, Proof, QueueLimits, Refusal, Seen,
    State, Target, Token, What, When, body,
};

use super::style::RULES;

/// A body for a request.
pub(super) fn payload(tag: history::Tag, len: usize) -> Payload {
    Payload::of(tag, body(tag, len).as_bytes())
}

fn bytes(payload: &Payload) -> Bytes {
    // The length of a body with this tag is always the same.
    Bytes::from(body(payload.tag, usize::try_from(payload.len).unwrap_or(0)))
}

/// The operation for a call; a reserve is submitted in another way.
pub(super) fn op(call: &Call) -> Op {
    match call {
        Call::Enqueue(e) => Op::Enqueue(Box::new(engine::Enqueue {
            key: e.key.as_deref().map(key),
            when: when(&e.when),
            if_exists: match e.if_exists {
                IfExists::Reject => engine::IfExists::Reject,
                IfExists::Keep => engine::IfExists::Keep,
                IfExists::Replace => engine::IfExists::Replace,
                IfExists::Supersede => engine::IfExists::Supersede,
            },
            dedupe_id: e.dedupe_id.as_deref().map(Into::into),
            options: Options {
                spread_ms: (e.spread_ms > 0).then_some(e.spread_ms),
                expiry: e.expiry.map(|expiry| match expiry {
                    history::Expiry::InMs(ms) => Expiry::In(ms),
                    history::Expiry::AtMs(ms) => Expiry::At(WallMs(ms)),
                }),
                lease_ms: e.lease_ms,
                max_attempts: e
                    .max_attempts
                    .and_then(|n| MaxAttempts::new(u32::try_from(n).unwrap_or(u32::MAX))),
                ..Options::default()
            },
            ..engine::Enqueue::new(queue(&e.queue), bytes(&e.body))
        })),
        Call::Cancel(t) => {
            Op::Cancel { keep: None, dedupe_id: duewheel_core::engine::DedupeId::Stays, target: target(t) }
        }
        Call::Postpone { target: t, when: w, body } => Op::Postpone {
            target: target(t),
            edit: Box::new(Edit { body: body.as_ref().map(bytes), ..Edit::due(when(w)) }),
            if_generation: None,
        },
        Call::Fire(t) => Op::Fire { target: target(t) },
        Call::Get(t) => Op::Get { target: target(t) },
        Call::Ack(p) => Op::Ack { id: MessageId(p.id.0), proof: proof(p), result: None },
        Call::Nack { proof: p, delay_ms } => Op::Nack {
            id: MessageId(p.id.0),
            proof: proof(p),
            attempt: Attempt::Failed,
            delay_ms: *delay_ms,
            priority: None,
            note: "".into(),
        },
        Call::Extend { proof: p, lease_ms } => {
            Op::Extend { id: MessageId(p.id.0), proof: proof(p), lease_ms: Some(*lease_ms) }
        }
        Call::Bury(p) => Op::Bury { id: MessageId(p.id.0), proof: proof(p), priority: None, note: "".into() },
        Call::Redrive(id) => Op::Redrive { id: MessageId(id.0), delay_ms: None, died: None },
        Call::Purge { queue: q } => Op::Purge { at_most: None, queue: queue(q) },
        Call::Limit { queue: q, limits } => Op::Configure { queue: queue(q), settings: settings(limits) },
        Call::Reserve { queue: q, .. } => Op::Queue { queue: queue(q) },
    }
}

/// The settings of a queue with these limits.
pub(super) fn settings(limits: &QueueLimits) -> QueueSettings {
    let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let rate = limits
        .rate
        .map(|n| GrantRate { burst: limits.burst.map(number), ..GrantRate::per_second(number(n)) });
    QueueSettings {
        lease_ms: Some(RULES.lease_ms),
        limits: GrantLimits {
            rate,
            catchup_per_hour: limits.catchup_rate.map(|n| GrantRate::per_second(number(n)).per_hour),
            concurrency: limits.concurrency.map(number),
        },
        expires_in_ms: limits.expires_in_ms,
        on_expiry: Some(match limits.on_expiry {
            history::OnExpiry::DeliverLate => OnExpiry::DeliverLate,
            history::OnExpiry::Dead => OnExpiry::Dead,
            history::OnExpiry::Drop => OnExpiry::Drop,
        }),
        // What has ended is kept beside the rest, and seen by none of these operations.
        keep_done_ms: Some(20_000),
        ..QueueSettings::default()
    }
}

pub(super) fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("the simulation's queues have good names")
}

fn key(key: &str) -> Key {
    Key::new(key).expect("the simulation's keys are good")
}

fn when(when: &When) -> engine::When {
    match when {
        When::DelayMs(ms) => engine::When::After(*ms),
        When::AtMs(ms) => engine::When::At { due_at: WallMs(*ms), past: Past::Keep },
    }
}

fn target(target: &Target) -> engine::Target {
    match target {
        Target::Id(id) => engine::Target::Id(MessageId(id.0)),
        Target::Key { queue: q, key: k } => engine::Target::Key(queue(q), key(k)),
    }
}

fn proof(proof: &Proof) -> engine::Proof {
    let half = |range| u64::from_str_radix(proof.token.0.get(range).unwrap_or("0"), 16).unwrap_or(0);
    let token = LeaseToken { epoch: Epoch(u32::try_from(half(0..8)).unwrap_or(0)), counter: half(8..24) };
    engine::Proof::Token(token)
}

/// The event that a client records for this reply.
pub(super) fn heard(op: OpId, call: &Call, reply: Result<Reply, CallError>) -> What {
    match reply {
        Ok(reply) => match answer(call, reply) {
            Ok(answer) => What::Ok { op, answer },
            Err(refusal) => What::Fail { op, refusal },
        },
        Err(error) => match error.outcome() {
            NotApplied => What::Fail { op, refusal: Refusal::Other(error.to_string()) },
            Unknown => What::Info { op, why: error.to_string() },
        },
    }
}

fn answer(call: &Call, reply: Reply) -> Result<Answer, Refusal> {
    match reply {
        Reply::Enqueue(Ok(enqueued)) => Ok(Answer::Enqueued {
            id: MsgId(enqueued.id.0),
            created: enqueued.created != Created::Kept,
            replaced: match enqueued.created {
                Created::Replacing(id) => Some(MsgId(id.0)),
                Created::New | Created::Kept | Created::Superseding(_) => None,
            },
            superseded: match enqueued.created {
                Created::Superseding(id) => Some(MsgId(id.0)),
                Created::New | Created::Kept | Created::Replacing(_) => None,
            },
            due_at_ms: Some(enqueued.due_at.0),
        }),
        Reply::Enqueue(Err(refusal)) => Err(match refusal {
            EnqueueRefusal::KeyExists(_) => Refusal::KeyExists,
            EnqueueRefusal::Leased(_) => Refusal::Leased,
            EnqueueRefusal::DedupeMismatch(_) => Refusal::DedupeMismatch,
            other => Refusal::Other(format!("{other:?}")),
        }),
        Reply::Change(Ok(outline)) => {
            let id = Some(MsgId(outline.id.0));
            Ok(if matches!(call, Call::Cancel(_)) { Answer::Cancelled(id) } else { Answer::Changed(id) })
        }
        Reply::Change(Err(refusal)) => Err(match refusal {
            ChangeRefusal::NotFound => Refusal::NotFound,
            ChangeRefusal::Leased => Refusal::Leased,
            ChangeRefusal::Dead => Refusal::Dead,
            ChangeRefusal::KeyExists(_) => Refusal::KeyExists,
            other => Refusal::Other(format!("{other:?}")),
        }),
        Reply::View(Some(view)) => Ok(Answer::Found(held(&view))),
        Reply::View(None) => Err(Refusal::NotFound),
        Reply::Settle(Ok(done)) if matches!(*done, Settled::Already { .. }) => Err(Refusal::AlreadyAcked),
        Reply::Settle(Ok(_)) | Reply::Extend(Ok(_)) => Ok(Answer::Settled),
        Reply::Settle(Err(refusal)) | Reply::Extend(Err(refusal)) => Err(match refusal {
            SettleRefusal::LeaseLost => Refusal::LeaseLost,
            SettleRefusal::NeverIssued => Refusal::NotFound,
            SettleRefusal::KeyExists(_) => Refusal::KeyExists,
            SettleRefusal::TooLong(_) => Refusal::Other(format!("{refusal:?}")),
        }),
        Reply::Reserve(Reserved::Grants(grants)) => Ok(Answer::Grants(grants.iter().map(grant).collect())),
        Reply::Reserve(Reserved::HeldBack(why)) => Ok(Answer::HeldBack(match why {
            engine::HeldBack::Rate => history::HeldBack::Rate,
            engine::HeldBack::Leases => history::HeldBack::Leases,
        })),
        Reply::Configured(_) => Ok(Answer::Limited),
        Reply::Count(purged) => Ok(Answer::Purged(*purged)),
        other => Err(Refusal::Other(format!("{other:?}"))),
    }
}

fn grant(grant: &engine::Grant) -> Grant {
    Grant {
        id: MsgId(grant.message.id.0),
        token: Token(grant.token.to_string()),
        attempt: u64::from(grant.attempt),
        key: grant.message.key.as_ref().map(|key| key.as_str().to_owned()),
        body: Seen::of(&grant.message.body),
        lateness_ms: grant.lateness_ms,
        late: grant.late,
    }
}

/// A message in the form of the history.
pub(super) fn held(view: &View) -> Held {
    Held {
        id: MsgId(view.message.id.0),
        key: view.message.key.as_ref().map(|key| key.as_str().to_owned()),
        state: match view.state {
            duewheel_core::State::Scheduled => State::Scheduled,
            duewheel_core::State::Ready => State::Ready,
            duewheel_core::State::Leased => State::Leased,
            duewheel_core::State::Dead => State::Dead,
            duewheel_core::State::Done => unreachable!("only a recall shows done messages"),
        },
        attempt: u64::from(view.attempt),
        body: Some(Seen::of(&view.message.body)),
        forgiven: Some(u64::from(view.forgiven)),
        death: view.dead.map(|(reason, _)| match reason {
            DeadReason::MaxAttempts => Death::MaxAttempts,
            DeadReason::Buried => Death::Buried,
            DeadReason::Expired => Death::Expired,
            DeadReason::Done(_) => unreachable!("only a recall shows done messages"),
        }),
    }
}

/// A queue's totals in the form of the history.
pub(super) fn totals(totals: &Totals) -> history::Totals {
    history::Totals {
        enqueued: totals.enqueued,
        acked: totals.acked,
        cancelled: totals.cancelled,
        replaced: totals.replaced,
        superseded: totals.superseded,
        purged: totals.purged,
        expired: totals.expired,
    }
}
