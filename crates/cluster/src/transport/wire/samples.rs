//! Arbitrary operations and answers, for round trips.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small

use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::engine::*;
use duewheel_core::event::{EventKind, EventReason, MessageEvent};
use duewheel_core::id::{Epoch, LeaseToken, Lsn, MessageId, SessionId, ShardId};
use duewheel_core::message::{
    DeadReason, DoneOutcome, Ended, Expiry, Marks, MaxAttempts, MessageContent, Options, PastAttempt,
    QueueLimit, State,
};
use duewheel_core::name::{Key, QueueName};
use duewheel_core::policy::{
    Backoff, GrantLimits, GrantRate, Lasting, OnExpiry, QueueSettings, ReadyOrder, TraceMode,
};
use duewheel_core::record::{Created, Pause, Totals};
use duewheel_core::store::{ErrorKind, EventPage, Level, More, StoreError};
use duewheel_core::time::{EngineMs, WallMs};
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::Answers;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

fn name() -> impl Strategy<Value = QueueName> {
    "[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,30}".prop_map(|name| QueueName::new(&name).unwrap())
}

fn key() -> impl Strategy<Value = Key> {
    "\\PC{1,20}".prop_map(|key| Key::new(&key).unwrap())
}

fn text() -> impl Strategy<Value = Box<str>> {
    "\\PC{0,20}".prop_map(Into::into)
}

fn body() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..60).prop_map(Bytes::from)
}

fn id() -> impl Strategy<Value = MessageId> {
    any::<u64>().prop_map(MessageId)
}

fn session() -> impl Strategy<Value = SessionId> {
    any::<u64>().prop_map(SessionId)
}

fn wall() -> impl Strategy<Value = WallMs> {
    any::<u64>().prop_map(WallMs)
}

fn size() -> impl Strategy<Value = usize> {
    select(vec![0, 1, 77, 1 << 20, usize::MAX])
}

fn ms() -> impl Strategy<Value = Option<u64>> {
    of(any::<u64>())
}

fn token() -> impl Strategy<Value = LeaseToken> {
    any::<(u32, u64)>().prop_map(|(epoch, counter)| LeaseToken { epoch: Epoch(epoch), counter })
}

fn lsn() -> impl Strategy<Value = Lsn> {
    any::<u64>().prop_map(Lsn)
}

fn event() -> impl Strategy<Value = MessageEvent> {
    let reason = prop_oneof![
        select(DeadReason::ALL.to_vec()).prop_map(EventReason::Dead),
        select(vec![Ended::Nacked, Ended::Released]).prop_map(EventReason::Ended),
        Just(EventReason::Asked),
    ];
    let first = (lsn(), wall(), name(), select(EventKind::ALL.to_vec()), of(id()));
    let then = (of(key()), of(wall()), any::<Option<u32>>(), of(reason), ms());
    (first, then).prop_map(|(first, (key, due_at, attempt, reason, count))| {
        let (position, at, queue, kind, id) = first;
        MessageEvent { position, at, queue, kind, id, key, due_at, attempt, reason, count }
    })
}

fn events() -> impl Strategy<Value = ShardEvents> {
    let more = select(vec![More::Yes, More::No]);
    (lsn(), lsn(), more, vec(event(), 0..3), any::<u64>()).prop_map(|(from, upto, more, events, fired)| {
        ShardEvents { page: EventPage { ticket: 0, from, upto, more, events }, fired }
    })
}

fn proof() -> impl Strategy<Value = Proof> {
    prop_oneof![token().prop_map(Proof::Token), session().prop_map(Proof::Session)]
}

fn backoff() -> impl Strategy<Value = Backoff> {
    any::<(u64, u64)>().prop_map(|(min_ms, max_ms)| Backoff { min_ms, max_ms })
}

fn max_attempts() -> impl Strategy<Value = MaxAttempts> {
    (1..=u32::MAX).prop_map(|n| MaxAttempts::new(n).unwrap())
}

fn headers() -> impl Strategy<Value = Vec<(Box<str>, Box<str>)>> {
    vec((text(), text()), 0..3)
}

fn message_options() -> impl Strategy<Value = Options> {
    let expiry = prop_oneof![any::<u64>().prop_map(Expiry::In), wall().prop_map(Expiry::At)];
    (ms(), of(max_attempts()), of(backoff()), ms(), of(expiry)).prop_map(
        |(lease_ms, max_attempts, backoff, spread_ms, expiry)| Options {
            lease_ms,
            max_attempts,
            queue_limit: QueueLimit::Wins,
            backoff,
            spread_ms,
            expiry,
        },
    )
}

fn limits() -> impl Strategy<Value = GrantLimits> {
    let some = || any::<Option<u32>>();
    (some(), some(), some(), some()).prop_map(|(per_second, burst, catchup_rate, concurrency)| GrantLimits {
        rate: per_second.map(|per_second| GrantRate { per_second, burst }),
        catchup_rate,
        concurrency,
    })
}

fn order() -> impl Strategy<Value = ReadyOrder> {
    select(vec![ReadyOrder::Due, ReadyOrder::Arrival])
}

fn settings() -> impl Strategy<Value = QueueSettings> {
    let on_expiry = select(vec![OnExpiry::DeliverLate, OnExpiry::Dead, OnExpiry::Drop]);
    let first = (ms(), of(max_attempts()), any::<Option<u32>>(), of(backoff()), ms(), ms());
    let trace = select(vec![None, Some(TraceMode::Link), Some(TraceMode::Child)]);
    let then = (of(order()), any::<bool>(), limits(), ms(), of(on_expiry), ms(), trace);
    (first, then).prop_map(
        |(first, (order, always, limits, expires_in_ms, on_expiry, keep_done_ms, trace))| QueueSettings {
            lease_ms: first.0,
            max_attempts: first.1,
            priority: first.2,
            backoff: first.3,
            dedupe_window_ms: first.4,
            dead_ttl_ms: first.5,
            order,
            lasting: if always { Lasting::Always } else { Lasting::WhileUsed },
            limits,
            expires_in_ms,
            on_expiry,
            keep_done_ms,
            trace,
        },
    )
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        any::<u64>().prop_map(When::After),
        any::<u32>().prop_map(When::Seconds),
        (wall(), select(vec![Past::Refuse, Past::Fire, Past::Keep]))
            .prop_map(|(due_at, past)| When::At { due_at, past }),
    ]
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        id().prop_map(Target::Id),
        (name(), key()).prop_map(|(queue, key)| Target::Key(queue, key)),
        id().prop_map(Target::Own),
    ]
}

fn state() -> impl Strategy<Value = State> {
    select([&State::ALL[..], &[State::Done]].concat())
}

fn hold() -> impl Strategy<Value = Hold> {
    select(vec![Hold::Use, Hold::Watch, Hold::Keep])
}

fn cursor() -> impl Strategy<Value = ListCursor> {
    (of((any::<u64>(), id())), of((any::<u64>(), id()))).prop_map(|(at, after)| ListCursor { at, after })
}

fn enqueue() -> impl Strategy<Value = Enqueue> {
    let what = (name(), of(key()), body(), headers(), when(), of(text()));
    let exists = select(vec![IfExists::Reject, IfExists::Keep, IfExists::Replace, IfExists::Supersede]);
    let begins = select(vec![InitialState::Waiting, InitialState::Dead]);
    let how = (exists, of(text()), any::<Option<u32>>(), message_options(), begins, of(order()), ms());
    (what, how).prop_map(|((queue, key, body, headers, when, due_words), how)| Enqueue {
        queue,
        key,
        body,
        headers,
        when,
        due_words,
        if_exists: how.0,
        dedupe_id: how.1,
        dedupe_window_ms: how.6,
        priority: how.2,
        options: how.3,
        begins: how.4,
        order_if_new: how.5,
    })
}

fn reserve() -> impl Strategy<Value = Reserve> {
    let queues = (vec(name(), 0..4), vec((name(), size()), 0..3));
    let terms = (ms(), any::<Option<u32>>());
    (any::<u64>(), queues, size(), size(), any::<u64>(), terms, session(), ms()).prop_map(
        |(waiter, (queues, max_of), max, max_bytes, wait_ms, (lease_ms, n), session, deadline_margin_ms)| {
            Reserve {
                max_attempts: n.and_then(MaxAttempts::new),
                waiter: WaiterId(waiter),
                queues,
                max_of,
                max,
                max_bytes,
                wait_ms,
                lease_ms,
                session,
                deadline_margin_ms,
            }
        },
    )
}

fn edit() -> impl Strategy<Value = Edit> {
    let content = (of(body()), of(headers()));
    (of(when()), content, any::<Option<u32>>(), any::<Option<u32>>(), ms()).prop_map(
        |(when, (body, headers), priority, max, lease_ms)| Edit {
            when,
            body,
            headers,
            priority,
            max_attempts: max.and_then(MaxAttempts::new),
            lease_ms,
        },
    )
}

fn attempt() -> impl Strategy<Value = Attempt> {
    prop_oneof![Just(Attempt::Failed), Just(Attempt::NotYet), max_attempts().prop_map(Attempt::FailedOf)]
}

/// An arbitrary operation: all kinds are equally likely.
pub(crate) fn op() -> impl Strategy<Value = Op> {
    let hand = prop_oneof![
        enqueue().prop_map(|e| Op::Enqueue(Box::new(e))),
        reserve().prop_map(Op::Reserve),
        (id(), session(), ms()).prop_map(|(id, session, lease_ms)| Op::ReserveOne { id, session, lease_ms }),
        any::<u64>().prop_map(|waiter| Op::CancelReserve { waiter: WaiterId(waiter) }),
        vec((id(), token()), 0..4).prop_map(|leases| Op::Undelivered { leases }),
    ];
    let settle = prop_oneof![
        (id(), proof()).prop_map(|(id, proof)| Op::Ack { id, proof }),
        (id(), proof(), attempt(), ms(), any::<Option<u32>>(), text()).prop_map(
            |(id, proof, attempt, delay_ms, priority, note)| Op::Nack {
                id,
                proof,
                attempt,
                delay_ms,
                priority,
                note
            }
        ),
        (id(), proof(), any::<Option<u32>>(), text()).prop_map(|(id, proof, priority, note)| Op::Bury {
            id,
            proof,
            priority,
            note
        }),
        (id(), session()).prop_map(|(id, session)| Op::Delete { id, session }),
        (id(), proof(), ms()).prop_map(|(id, proof, lease_ms)| Op::Extend { id, proof, lease_ms }),
    ];
    let change = prop_oneof![
        (target(), select(vec![DedupeId::Stays, DedupeId::Freed]))
            .prop_map(|(target, dedupe_id)| Op::Cancel { target, dedupe_id }),
        (target(), edit(), any::<Option<u32>>()).prop_map(|(target, edit, if_generation)| Op::Postpone {
            target,
            edit: Box::new(edit),
            if_generation
        }),
        target().prop_map(|target| Op::Fire { target }),
        (name(), size()).prop_map(|(queue, max)| Op::FireMany { queue, max }),
        (id(), of(any::<u64>())).prop_map(|(id, delay_ms)| Op::Redrive { id, delay_ms }),
        (name(), size()).prop_map(|(queue, max)| Op::RedriveMany { queue, max }),
        (id(), wall()).prop_map(|(id, died)| Op::RemoveDead { id, died }),
    ];
    let look = prop_oneof![
        target().prop_map(|target| Op::Get { target }),
        target().prop_map(|target| Op::Recall { target }),
        id().prop_map(|id| Op::Outline { id }),
        (name(), state()).prop_map(|(queue, state)| Op::Peek { queue, state }),
        (name(), of(state()), of(cursor()), size(), of(wall()))
            .prop_map(|(queue, state, after, limit, from)| Op::List { queue, state, after, limit, from }),
        name().prop_map(|queue| Op::Queue { queue }),
        (of(name()), size()).prop_map(|(after, limit)| Op::Queues { after, limit }),
        (of(name()), wall(), wall(), size()).prop_map(|(queue, from, to, columns)| Op::Histogram {
            queue,
            from,
            to,
            columns
        }),
        Just(Op::Wheel),
        Just(Op::Stats),
        session().prop_map(|session| Op::SessionDeadline { session }),
        Just(Op::NextDue),
        Just(Op::Quotas),
        (any::<u32>(), of(lsn()), size(), ms()).prop_map(|(shard, after, limit, fired_after)| {
            Op::Events { shard: ShardId(shard), after, limit, fired_after }
        }),
    ];
    let rule = prop_oneof![
        (name(), settings()).prop_map(|(queue, settings)| Op::Configure { queue, settings }),
        (name(), ms()).prop_map(|(queue, for_ms)| Op::Pause { queue, for_ms }),
        name().prop_map(|queue| Op::Resume { queue }),
        name().prop_map(|queue| Op::Purge { queue }),
        (name(), hold()).prop_map(|(queue, how)| Op::Hold { queue, how }),
        (name(), hold()).prop_map(|(queue, how)| Op::LetGo { queue, how }),
        session().prop_map(|session| Op::SessionClosed { session }),
    ];
    prop_oneof![5 => hand.boxed(), 5 => settle.boxed(), 7 => change.boxed(), 11 => look.boxed(), 7 => rule.boxed()]
}

fn message() -> impl Strategy<Value = Arc<MessageContent>> {
    (id(), name(), of(key()), body(), headers(), message_options(), of(text()), wall()).prop_map(
        |(id, queue, key, body, headers, options, dedupe_id, enqueued_at)| {
            Arc::new(MessageContent { id, queue, key, body, headers, options, dedupe_id, enqueued_at })
        },
    )
}

fn grant() -> impl Strategy<Value = Grant> {
    (message(), token(), any::<[u32; 3]>(), any::<[u64; 4]>()).prop_map(|(message, token, small, large)| {
        Grant {
            message,
            attempt: small[0],
            priority: small[1],
            due_at: WallMs(large[0]),
            token,
            lease_until: WallMs(large[1]),
            lease_ms: large[2],
            lateness_ms: large[3],
            generation: small[2],
            late: small[0] % 2 == 1,
        }
    })
}

fn dead_reason() -> impl Strategy<Value = DeadReason> {
    let done = DoneOutcome::ALL.map(DeadReason::Done);
    select([&DeadReason::ALL[..], &done].concat())
}

fn view() -> impl Strategy<Value = View> {
    let ended = select(vec![Ended::Nacked, Ended::LeaseExpired, Ended::Released, Ended::Buried]);
    let past = (any::<u32>(), any::<[u64; 2]>(), ended, text()).prop_map(|(attempt, at, how, note)| {
        PastAttempt { attempt, granted_at: WallMs(at[0]), ended_at: WallMs(at[1]), how, note }
    });
    let marks = (any::<[u32; 4]>(), ms(), of(id())).prop_map(|(n, delay_ms, superseded_by)| Marks {
        timeouts: n[0],
        releases: n[1],
        burials: n[2],
        fires: n[3],
        delay_ms,
        asked: None,
        limit: None,
        losses: 0,
        superseded_by,
    });
    let rest = (of(wall()), of((dead_reason(), wall())), marks, vec(past, 0..3));
    (message(), state(), any::<[u32; 5]>(), any::<[u64; 4]>(), rest).prop_map(
        |(message, state, small, large, (lease_until, dead, marks, history))| View {
            message,
            state,
            due_at: WallMs(large[0]),
            due_in_ms: large[1],
            attempt: small[0],
            generation: small[1],
            priority: small[2],
            lease_ms: large[2],
            max_attempts: small[3],
            forgiven: small[4],
            lease_until,
            dead,
            marks,
            delay_ms: large[3],
            history,
            expires_at: (small[0] % 2 == 1).then_some(WallMs(large[3])),
        },
    )
}

fn outline() -> impl Strategy<Value = Outline> {
    view().prop_map(|view| Outline {
        id: view.message.id,
        queue: view.message.queue.clone(),
        key: view.message.key.clone(),
        state: view.state,
        due_at: view.due_at,
        due_in_ms: view.due_in_ms,
        attempt: view.attempt,
        generation: view.generation,
        priority: view.priority,
        lease_ms: view.lease_ms,
        max_attempts: view.max_attempts,
        enqueued_at: view.message.enqueued_at,
        dead: view.dead,
    })
}

fn counts() -> impl Strategy<Value = Counts> {
    (any::<[u64; 4]>(), any::<bool>()).prop_map(|([scheduled, ready, leased, dead], estimated)| Counts {
        scheduled,
        ready,
        leased,
        dead,
        estimated,
    })
}

fn totals() -> impl Strategy<Value = Totals> {
    any::<[u64; 10]>().prop_map(|n| Totals {
        enqueued: n[0],
        granted: n[1],
        acked: n[2],
        cancelled: n[3],
        replaced: n[4],
        purged: n[5],
        died: n[6],
        expired: n[7],
        paused: n[8],
        superseded: n[9],
    })
}

pub(super) fn queue_view() -> impl Strategy<Value = QueueView> {
    let pause = prop_oneof![
        Just(Pause::Running),
        Just(Pause::Paused),
        any::<[u64; 2]>().prop_map(|[end, length_ms]| Pause::Until { end: EngineMs(end), length_ms }),
    ];
    let attended = select(vec![Attended::Yes, Attended::No]);
    let first = (name(), counts(), any::<u64>(), of(wall()), size(), any::<[u32; 2]>());
    let then = (attended, totals(), any::<[u64; 3]>(), settings(), pause, (ms(), any::<[u64; 3]>()));
    (first, then).prop_map(|(first, then)| QueueView {
        name: first.0,
        counts: first.1,
        urgent: first.2,
        oldest_ready: first.3,
        waiters: first.4,
        using: first.5[0],
        watching: first.5[1],
        attended: then.0,
        totals: then.1,
        rates: Rates { enqueued_milli: then.2[0], granted_milli: then.2[1], acked_milli: then.2[2] },
        settings: then.3,
        pause: then.4,
        pause_left_ms: then.5.0,
        done: then.5.1[0],
        expired: ExpiredCounts { late: then.5.1[1], dead: then.5.1[2] },
        lateness: QueueLateness::default(),
    })
}

fn part() -> impl Strategy<Value = RefusedPart> {
    let all = [
        RefusedPart::Body,
        RefusedPart::Headers,
        RefusedPart::DedupeId,
        RefusedPart::Lease,
        RefusedPart::MaxAttempts,
        RefusedPart::Backoff,
        RefusedPart::DedupeWindow,
        RefusedPart::Spread,
        RefusedPart::ExpiresIn,
        RefusedPart::ExpiresAt,
    ];
    select(all.to_vec())
}

fn limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        any::<u64>().prop_map(Limit::Messages),
        any::<u64>().prop_map(Limit::Bytes),
        any::<u64>().prop_map(Limit::Queues),
        any::<u64>().prop_map(Limit::Answers),
        Just(Limit::Leases),
        any::<u64>().prop_map(Limit::GrantRate),
    ]
}

fn change_refusal() -> impl Strategy<Value = ChangeRefusal> {
    prop_oneof![
        select(vec![
            ChangeRefusal::NotFound,
            ChangeRefusal::Leased,
            ChangeRefusal::Dead,
            ChangeRefusal::NotDead,
            ChangeRefusal::InThePast,
            ChangeRefusal::Paused,
            ChangeRefusal::DiskFull,
            ChangeRefusal::Busy,
        ]),
        key_holder().prop_map(ChangeRefusal::KeyExists),
        any::<u32>().prop_map(ChangeRefusal::GenerationMismatch),
        any::<u64>().prop_map(ChangeRefusal::TooFar),
        Just(ChangeRefusal::NothingToChange),
        limit().prop_map(ChangeRefusal::Overloaded),
        (part(), size()).prop_map(|(part, max)| ChangeRefusal::TooLarge(part, max)),
        part().prop_map(ChangeRefusal::OutOfRange),
        any::<u64>().prop_map(ChangeRefusal::LeaseTooLong),
        over_quota().prop_map(ChangeRefusal::OverQuota),
    ]
}

fn enqueue_refusal() -> impl Strategy<Value = EnqueueRefusal> {
    prop_oneof![
        key_holder().prop_map(EnqueueRefusal::KeyExists),
        id().prop_map(EnqueueRefusal::Leased),
        Just(EnqueueRefusal::InThePast),
        Just(EnqueueRefusal::Expired),
        any::<u64>().prop_map(EnqueueRefusal::TooFar),
        id().prop_map(EnqueueRefusal::DedupeMismatch),
        (part(), size()).prop_map(|(part, max)| EnqueueRefusal::TooLarge(part, max)),
        part().prop_map(EnqueueRefusal::OutOfRange),
        limit().prop_map(EnqueueRefusal::Overloaded),
        Just(EnqueueRefusal::Busy),
        Just(EnqueueRefusal::DiskFull),
        over_quota().prop_map(EnqueueRefusal::OverQuota),
    ]
}

fn over_quota() -> impl Strategy<Value = Box<OverQuota>> {
    (text(), select(&Resource::ALL[..]), any::<[u64; 2]>(), ms()).prop_map(
        |(quota, resource, [limit, used], retry_ms)| {
            Box::new(OverQuota { quota, resource, limit, used, retry_ms })
        },
    )
}

fn quota_use() -> impl Strategy<Value = QuotaUse> {
    let limits = (ms(), ms(), ms(), ms(), ms(), ms());
    (text(), limits, any::<[u64; 5]>(), any::<[u64; 5]>()).prop_map(|(prefix, limits, used, refused)| {
        let (messages, bytes, leases, enqueues_per_second, burst, answers) = limits;
        let quota = Quota { prefix, messages, bytes, leases, enqueues_per_second, burst, answers };
        QuotaUse { quota, used, refused }
    })
}

fn key_holder() -> impl Strategy<Value = KeyHolder> {
    (id(), select(&State::ALL[..])).prop_map(|(id, state)| KeyHolder { id, state })
}

fn settle_refusal() -> impl Strategy<Value = SettleRefusal> {
    prop_oneof![
        Just(SettleRefusal::LeaseLost),
        Just(SettleRefusal::NeverIssued),
        any::<u64>().prop_map(SettleRefusal::TooLong),
        key_holder().prop_map(SettleRefusal::KeyExists),
    ]
}

fn result<T: std::fmt::Debug, E: std::fmt::Debug>(
    ok: impl Strategy<Value = T>,
    err: impl Strategy<Value = E>,
) -> impl Strategy<Value = Result<T, E>> {
    prop_oneof![ok.prop_map(Ok), err.prop_map(Err)]
}

fn level() -> impl Strategy<Value = Level> {
    prop_oneof![
        Just(Level::Memory),
        Just(Level::Buffered),
        Just(Level::Fsync),
        Just(Level::BestEffortReplicated),
        Just(Level::Quorum),
    ]
}

fn applied<T: std::fmt::Debug>(what: impl Strategy<Value = T>) -> impl Strategy<Value = Applied<T>> {
    (what, level()).prop_map(|(what, level)| Applied { what, level })
}

/// An arbitrary answer: all kinds are equally likely.
pub(super) fn reply() -> impl Strategy<Value = Reply> {
    let created = prop_oneof![
        Just(Created::New),
        id().prop_map(Created::Replacing),
        Just(Created::Kept),
        id().prop_map(Created::Superseding),
    ];
    let answered = select(vec![Answered::Now, Answered::Before]);
    let kept = proptest::option::of(select(&State::ALL[..]));
    let enqueued = (id(), wall(), any::<u32>(), created, kept, answered, level()).prop_map(
        |(id, due_at, generation, created, kept, answered, level)| Enqueued {
            id,
            due_at,
            generation,
            created,
            kept,
            answered,
            level,
        },
    );
    let reserved = prop_oneof![
        vec(grant(), 0..4).prop_map(Reserved::Grants),
        Just(Reserved::HeldBack(HeldBack::Leases)),
        Just(Reserved::DeadlineSoon),
        Just(Reserved::TooManyQueues),
        Just(Reserved::Overloaded),
        Just(Reserved::HeldBack(HeldBack::Rate)),
    ];
    let settled = applied(prop_oneof![
        Just(Settled::Acked),
        name().prop_map(|queue| Settled::Already { queue }),
        wall().prop_map(Settled::Again),
        dead_reason().prop_map(Settled::Dead),
        Just(Settled::Superseded),
    ]);
    let settings_refusal = prop_oneof![
        (select(vec!["lease_ms", "backoff", "dedupe_window_ms", "dead_ttl_ms"]), any::<u64>())
            .prop_map(|(field, max)| SettingsRefusal::OutOfRange(field, max)),
        Just(SettingsRefusal::Overloaded),
        over_quota().prop_map(SettingsRefusal::OverQuota),
        any::<u32>().prop_map(|least| SettingsRefusal::BelowShards("concurrency", least)),
    ];
    let histogram = (any::<[u64; 5]>(), vec(any::<u64>(), 0..9)).prop_map(|(n, counts)| Histogram {
        from: WallMs(n[0]),
        width_ms: n[1],
        counts,
        before: n[2],
        after: n[3],
        resolution_ms: n[4],
    });
    let slots = || vec((size(), any::<u64>()), 0..4);
    let wheel = (size(), any::<[u64; 2]>(), size(), size(), slots(), slots()).prop_map(
        |(slots, [tick_ms, messages], at, after, a, b)| WheelView {
            slots,
            tick_ms,
            pointers: [at, after],
            messages,
            occupied: [a, b],
        },
    );
    let stats = (counts(), any::<[u64; 10]>(), totals(), vec(any::<u64>(), 0..15)).prop_map(
        |(counts, n, totals, lateness)| Stats {
            counts,
            urgent: n[0],
            bytes: n[1],
            resident: n[2],
            resident_bytes: n[3],
            queues: n[4],
            waiters: n[5],
            totals,
            lease_expired: n[6],
            lease_lost: n[7],
            held_back: n[9],
            lateness,
            lateness_sum_ms: n[8],
        },
    );
    let page = (vec(view(), 0..3), of(cursor()), vec(cursor(), 0..3))
        .prop_map(|(views, next, behind)| Page { views, next, behind });
    let hand = prop_oneof![
        result(enqueued, enqueue_refusal()).prop_map(Reply::Enqueue),
        reserved.prop_map(Reply::Reserve),
        result(grant().prop_map(Box::new), change_refusal()).prop_map(Reply::ReserveOne),
        result(settled, settle_refusal()).prop_map(Reply::Settle),
        result(applied(wall()), settle_refusal()).prop_map(Reply::Extend),
        result(applied(outline().prop_map(Box::new)), change_refusal()).prop_map(Reply::Change),
    ];
    let look = prop_oneof![
        of(view().prop_map(Box::new)).prop_map(Reply::View),
        page.prop_map(Reply::Page),
        vec(queue_view(), 0..3).prop_map(Reply::Queues),
        settings_refusal.prop_map(Reply::Configure),
        histogram.prop_map(Reply::Histogram),
        wheel.prop_map(|wheel| Reply::Wheel(Box::new(wheel))),
        stats.prop_map(|stats| Reply::Stats(Box::new(stats))),
        applied(any::<u64>()).prop_map(Reply::Count),
        ms().prop_map(Reply::Deadline),
        of(wall()).prop_map(Reply::NextDue),
        vec(quota_use(), 0..3).prop_map(Reply::Quotas),
        Just(Reply::Done),
        applied(of(queue_view().prop_map(Box::new))).prop_map(Reply::Configured),
        events().prop_map(|events| Reply::Events(Box::new(events))),
    ];
    // Boxed, because the tree of all kinds together would fill the stack of a test's thread.
    prop_oneof![6 => hand.boxed(), 14 => look.boxed()]
}

/// An arbitrary error of a call.
pub(super) fn error() -> impl Strategy<Value = CallError> {
    let kind = select(vec![
        ErrorKind::Fenced,
        ErrorKind::Unavailable,
        ErrorKind::Full,
        ErrorKind::Corrupt,
        ErrorKind::Closed,
    ]);
    let outcome = select(vec![Outcome::NotApplied, Outcome::Unknown]);
    prop_oneof![
        Just(CallError::Overloaded),
        Just(CallError::Draining),
        Just(CallError::Closed("said")),
        Just(CallError::Lost("said")),
        (kind, text(), outcome).prop_map(|(kind, text, outcome)| CallError::Store {
            error: StoreError::new(kind, text),
            outcome
        }),
    ]
}

/// Arbitrary answers of a submission.
pub(super) fn answers() -> impl Strategy<Value = Answers> {
    vec(result(reply(), error()), 0..5)
}

/// The number of an operation's kind, as it is in frames.
pub(super) fn kind_of_op(op: &Op) -> u32 {
    postcard::take_from_bytes(&postcard::to_allocvec(op).unwrap()).unwrap().0
}

/// The number of an answer's kind.
pub(super) fn kind_of_reply(reply: &Reply) -> u32 {
    match reply {
        Reply::Enqueue(_) => 0,
        Reply::Reserve(_) => 1,
        Reply::ReserveOne(_) => 2,
        Reply::Settle(_) => 3,
        Reply::Extend(_) => 4,
        Reply::Change(_) => 5,
        Reply::View(_) => 6,
        Reply::Page(_) => 7,
        Reply::Queues(_) => 8,
        Reply::Configure(_) => 9,
        Reply::Histogram(_) => 10,
        Reply::Wheel(_) => 11,
        Reply::Stats(_) => 12,
        Reply::Count(_) => 13,
        Reply::Deadline(_) => 14,
        Reply::NextDue(_) => 15,
        Reply::Done => 16,
        Reply::Quotas(_) => 17,
        Reply::Configured(_) => 18,
        Reply::Events(_) => 19,
    }
}
