//! Details that are sent beside operations and answers, because an earlier version does not have them.
//!
//! | beside | bytes | from version |
//! |---|---|--:|
//! | a reserve | its `max_of` in postcard: a list of names and numbers | 5 |
//! | an accepted enqueue | its `answered` in postcard | 5 |
//! | a reserve | its `max_attempts` in postcard | 6 |
//! | an enqueue | spread and expiry of its message | 6 |
//! | a change of a queue's settings | its limits of grants, its expiry, how long done messages are kept, and its traces | 6 |
//! | a redrive | its delay | 6 |
//! | a list | from which due time | 6 |
//! | an answer with messages | the number of each that has any of these, its spread and expiry, when it expires, whether it is late | 6 |
//! | an answer with queues | the number of each that has any of these, its settings as above, how many of its messages are done, and its counts of expired ones | 6 |
//!
//! A node of an earlier version is not sent what it cannot do: an enqueue with a spread or an expiry, settings with
//! limits of grants, done messages or traces, and a redrive with a delay are refused. If a list shall begin at a due
//! time, such a node is asked for all of it, and the caller leaves out what comes before. Answers to such a node leave
//! out these details and done messages, and replace words that it does not know ([`in_dialect`]).

use std::borrow::Cow;
use std::sync::Arc;

use duewheel_core::engine::{
    Attempt, ChangeRefusal, Enqueued, ExpiredCounts, Grant, HeldBack, Limit, Op, Page, QueueView,
    RefusedPart, Reply, Reserved, SettingsRefusal, Settled, View,
};
use duewheel_core::message::{DeadReason, Expiry, MessageContent, Options, State};
use duewheel_core::policy::{GrantLimits, OnExpiry, QueueSettings, TraceMode};
use duewheel_core::time::WallMs;
use serde::{Deserialize, Serialize};

use super::dialect::{DetailsOnWire, Dialect};
use super::part::{WireError, push, take};

/// The options of a message that are beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct MoreOptions {
    spread_ms: Option<u64>,
    expiry: Option<Expiry>,
}

impl MoreOptions {
    fn of(options: &Options) -> Self {
        MoreOptions { spread_ms: options.spread_ms, expiry: options.expiry }
    }

    fn put(self, options: &mut Options) {
        (options.spread_ms, options.expiry) = (self.spread_ms, self.expiry);
    }
}

/// What is beside one message of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct MoreOfMessage {
    options: MoreOptions,
    expires_at: Option<WallMs>,
    late: bool,
}

/// The settings of a queue that are beside the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct MoreSettings {
    limits: GrantLimits,
    expires_in_ms: Option<u64>,
    on_expiry: Option<OnExpiry>,
    keep_done_ms: Option<u64>,
    trace: Option<TraceMode>,
}

impl MoreSettings {
    fn of(settings: &QueueSettings) -> Self {
        let QueueSettings { limits, expires_in_ms, on_expiry, keep_done_ms, trace, .. } = *settings;
        MoreSettings { limits, expires_in_ms, on_expiry, keep_done_ms, trace }
    }

    fn put(self, settings: &mut QueueSettings) {
        let MoreSettings { limits, expires_in_ms, on_expiry, keep_done_ms, trace } = self;
        (settings.limits, settings.expires_in_ms) = (limits, expires_in_ms);
        (settings.on_expiry, settings.keep_done_ms) = (on_expiry, keep_done_ms);
        settings.trace = trace;
    }
}

/// What is beside one queue of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct MoreOfQueue {
    settings: MoreSettings,
    done: u64,
    expired: ExpiredCounts,
}

impl MoreOfQueue {
    fn of(view: &QueueView) -> Self {
        MoreOfQueue { settings: MoreSettings::of(&view.settings), done: view.done, expired: view.expired }
    }

    fn put(self, view: &mut QueueView) {
        self.settings.put(&mut view.settings);
        (view.done, view.expired) = (self.done, self.expired);
    }
}

/// What is beside the items of an answer: for each item that has more than the default, its number and that.
type Sparse<T> = Vec<(u32, T)>;

fn sparse<T: Default + PartialEq>(all: impl Iterator<Item = T>) -> Sparse<T> {
    (0..).zip(all).filter(|(_, more)| *more != T::default()).collect()
}

/// Adds an operation to a frame.
pub(super) fn push_op(frame: Vec<u8>, op: &Op, dialect: &Dialect) -> Result<Vec<u8>, WireError> {
    let at = frame.len();
    if let (Op::Recall { target }, DetailsOnWire::Reserves) = (op, dialect.details) {
        // Its node keeps no done messages.
        return push(frame, &Op::Get { target: target.clone() });
    }
    if let (Op::Nack { attempt: Attempt::FailedOf(_), .. }, DetailsOnWire::Reserves) = (op, dialect.details) {
        // Its node knows the limit of the queue alone.
        let mut older = op.clone();
        if let Op::Nack { attempt, .. } = &mut older {
            *attempt = Attempt::Failed;
        }
        return push(frame, &older);
    }
    let frame = push(frame, op)?;
    if !dialect.knows(&frame[at..]) {
        return Err(WireError::NotKnown);
    }
    match op {
        Op::Reserve(reserve) => {
            let frame = push(frame, &reserve.max_of)?;
            match dialect.details {
                DetailsOnWire::Limits => push(frame, &reserve.max_attempts),
                // Its node knows the limit of the queue alone.
                DetailsOnWire::Reserves => Ok(frame),
            }
        }
        Op::Enqueue(e) => push_more(frame, &MoreOptions::of(&e.options), dialect),
        Op::Configure { settings, .. } => push_more(frame, &MoreSettings::of(settings), dialect),
        Op::Redrive { delay_ms, .. } => push_more(frame, delay_ms, dialect),
        Op::List { state: Some(State::Done), .. } if dialect.details == DetailsOnWire::Reserves => {
            Err(WireError::NotKnown)
        }
        // Who asks leaves out by itself what is due before.
        Op::List { from, .. } if dialect.details == DetailsOnWire::Limits => push(frame, from),
        _ => Ok(frame),
    }
}

/// Adds what must not be left out.
fn push_more<T: Default + PartialEq + Serialize>(
    frame: Vec<u8>,
    more: &T,
    dialect: &Dialect,
) -> Result<Vec<u8>, WireError> {
    match dialect.details {
        DetailsOnWire::Limits => push(frame, more),
        DetailsOnWire::Reserves if *more == T::default() => Ok(frame),
        DetailsOnWire::Reserves => Err(WireError::NotKnown),
    }
}

/// Reads an operation.
pub(super) fn take_op<'a>(bytes: &'a [u8], dialect: &Dialect) -> Result<(Op, &'a [u8]), WireError> {
    let (mut op, mut rest) = take::<Op>(bytes)?;
    match (&mut op, dialect.details) {
        (Op::Reserve(reserve), details) => {
            (reserve.max_of, rest) = take(rest)?;
            if details == DetailsOnWire::Limits {
                (reserve.max_attempts, rest) = take(rest)?;
            }
        }
        (Op::Enqueue(e), DetailsOnWire::Limits) => {
            let (more, behind) = take::<MoreOptions>(rest)?;
            more.put(&mut e.options);
            rest = behind;
        }
        (Op::Configure { settings, .. }, DetailsOnWire::Limits) => {
            let (more, behind) = take::<MoreSettings>(rest)?;
            more.put(settings);
            rest = behind;
        }
        (Op::Redrive { delay_ms, .. }, DetailsOnWire::Limits) => (*delay_ms, rest) = take(rest)?,
        (Op::List { from, .. }, DetailsOnWire::Limits) => (*from, rest) = take(rest)?,
        _ => {}
    }
    Ok((op, rest))
}

/// The answer in words that `dialect` has.
pub(super) fn in_dialect<'a>(reply: &'a Reply, dialect: &Dialect) -> Cow<'a, Reply> {
    match dialect.details {
        DetailsOnWire::Limits => Cow::Borrowed(reply),
        DetailsOnWire::Reserves => before_limits(reply).map_or(Cow::Borrowed(reply), Cow::Owned),
    }
}

/// The answer in the words of version 5; `None` if it needs no other ones.
fn before_limits(reply: &Reply) -> Option<Reply> {
    // Version 5 has no word for expired; it shows the nearest one that says that nobody has buried the message.
    let newer = |reason| matches!(reason, DeadReason::Expired | DeadReason::Done(_));
    let is_new = |dead: Option<(DeadReason, WallMs)>| dead.is_some_and(|(reason, _)| newer(reason));
    let older = |dead: Option<(DeadReason, WallMs)>| {
        dead.map(|(reason, at)| (if newer(reason) { DeadReason::MaxAttempts } else { reason }, at))
    };
    let is_done = |view: &View| view.state == State::Done;
    let refusal = |refusal: &ChangeRefusal| match refusal {
        ChangeRefusal::Overloaded(Limit::GrantRate(_)) => Some(ChangeRefusal::Overloaded(Limit::Leases)),
        ChangeRefusal::OutOfRange(RefusedPart::Spread | RefusedPart::ExpiresIn | RefusedPart::ExpiresAt) => {
            Some(ChangeRefusal::TooFar(0))
        }
        _ => None,
    };
    let older_view = |view: &View| View { dead: older(view.dead), ..view.clone() };
    match reply {
        Reply::Reserve(Reserved::HeldBack(HeldBack::Rate)) => {
            Some(Reply::Reserve(Reserved::HeldBack(HeldBack::Leases)))
        }
        Reply::ReserveOne(Err(why)) => refusal(why).map(|why| Reply::ReserveOne(Err(why))),
        Reply::Change(Err(why)) => refusal(why).map(|why| Reply::Change(Err(why))),
        Reply::Change(Ok(applied)) if is_new(applied.what.dead) => {
            let mut applied = applied.clone();
            applied.what.dead = older(applied.what.dead);
            Some(Reply::Change(Ok(applied)))
        }
        Reply::Settle(Ok(applied)) if matches!(applied.what, Settled::Dead(reason) if newer(reason)) => {
            let mut applied = applied.clone();
            applied.what = Settled::Dead(DeadReason::MaxAttempts);
            Some(Reply::Settle(Ok(applied)))
        }
        Reply::View(Some(view)) if is_done(view) => Some(Reply::View(None)),
        Reply::View(Some(view)) if is_new(view.dead) => Some(Reply::View(Some(Box::new(older_view(view))))),
        Reply::Page(page) if page.views.iter().any(|view| is_new(view.dead) || is_done(view)) => {
            let known = page.views.iter().zip(&page.behind).filter(|(view, _)| !is_done(view));
            let (views, behind) = known.map(|(view, behind)| (older_view(view), *behind)).unzip();
            Some(Reply::Page(Page { views, behind, next: page.next }))
        }
        Reply::Configure(SettingsRefusal::BelowShards(field, least)) => {
            Some(Reply::Configure(SettingsRefusal::OutOfRange(field, u64::from(*least))))
        }
        _ => None,
    }
}

/// Adds the details of an answer behind it.
pub(super) fn push_reply(frame: Vec<u8>, reply: &Reply, dialect: &Dialect) -> Result<Vec<u8>, WireError> {
    if let Reply::Enqueue(Ok(Enqueued { answered, .. })) = reply {
        return push(frame, answered);
    }
    if dialect.details == DetailsOnWire::Reserves {
        return Ok(frame);
    }
    let of_view = |view: &View| MoreOfMessage {
        options: MoreOptions::of(&view.message.options),
        expires_at: view.expires_at,
        late: false,
    };
    let of_grant = |grant: &Grant| MoreOfMessage {
        options: MoreOptions::of(&grant.message.options),
        expires_at: None,
        late: grant.late,
    };
    match reply {
        Reply::Reserve(Reserved::Grants(grants)) => push(frame, &sparse(grants.iter().map(of_grant))),
        Reply::ReserveOne(Ok(grant)) => push(frame, &of_grant(grant)),
        Reply::View(Some(view)) => push(frame, &of_view(view)),
        Reply::Page(page) => push(frame, &sparse(page.views.iter().map(of_view))),
        Reply::Queues(queues) => push(frame, &sparse(queues.iter().map(MoreOfQueue::of))),
        Reply::Configured(applied) => match &applied.what {
            Some(view) => push(frame, &MoreOfQueue::of(view)),
            None => Ok(frame),
        },
        _ => Ok(frame),
    }
}

fn put_options(more: MoreOptions, message: &mut Arc<MessageContent>) {
    if more != MoreOptions::default() {
        more.put(&mut Arc::make_mut(message).options);
    }
}

/// Puts what was beside the items of an answer into them.
fn put_all<I, T>(items: &mut [I], all: Sparse<T>, put: impl Fn(T, &mut I)) -> Result<(), WireError> {
    for (at, more) in all {
        let item = usize::try_from(at).ok().and_then(|at| items.get_mut(at));
        put(more, item.ok_or(WireError::Damaged)?);
    }
    Ok(())
}

/// Reads the details of an answer behind it; returns the rest.
pub(super) fn take_reply<'a>(
    reply: &mut Reply,
    rest: &'a [u8],
    dialect: &Dialect,
) -> Result<&'a [u8], WireError> {
    if let Reply::Enqueue(Ok(Enqueued { answered, .. })) = reply {
        let (read, rest) = take(rest)?;
        *answered = read;
        return Ok(rest);
    }
    if dialect.details == DetailsOnWire::Reserves {
        return Ok(rest);
    }
    let of_view = |more: MoreOfMessage, view: &mut View| {
        put_options(more.options, &mut view.message);
        view.expires_at = more.expires_at;
    };
    let of_grant = |more: MoreOfMessage, grant: &mut Grant| {
        put_options(more.options, &mut grant.message);
        grant.late = more.late;
    };
    match reply {
        Reply::Reserve(Reserved::Grants(grants)) => {
            let (all, rest) = take(rest)?;
            put_all(grants, all, of_grant)?;
            Ok(rest)
        }
        Reply::ReserveOne(Ok(grant)) => {
            let (more, rest) = take(rest)?;
            of_grant(more, grant);
            Ok(rest)
        }
        Reply::View(Some(view)) => {
            let (more, rest) = take(rest)?;
            of_view(more, view);
            Ok(rest)
        }
        Reply::Page(page) => {
            let (all, rest) = take(rest)?;
            put_all(&mut page.views, all, of_view)?;
            Ok(rest)
        }
        Reply::Queues(queues) => {
            let (all, rest) = take(rest)?;
            put_all(queues, all, MoreOfQueue::put)?;
            Ok(rest)
        }
        Reply::Configured(applied) => {
            let Some(view) = &mut applied.what else { return Ok(rest) };
            let (more, rest) = take(rest)?;
            MoreOfQueue::put(more, view);
            Ok(rest)
        }
        _ => Ok(rest),
    }
}
