//! The tasks of a store beside its owner: renewing the lease, loading pages, sweeping purged messages, deleting expired
//! answers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use duewheel_core::message::Kind;
use duewheel_core::store::{Cursor, ErrorKind, StoreError};
use duewheel_core::time::{Class, Due};
use duewheel_core::{MessageId, QueueName};
use redis::Pipeline;
use roaring::RoaringTreemap;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::keeping::Keeping;
use crate::load::{Range, SequenceOrder, SequenceRequest, SequenceSource};
use crate::mark::Mark;
use crate::memory::KEEPING;
use crate::plan::{Commands, ScriptPlan, WordList};
use crate::shared::RedisShared;
use crate::span::Windows;
use crate::wire::Wire;
use crate::{find, load, open, reign, script, value};

/// Number of messages that a slice of a sweep examines.
const SLICE: usize = 500;
/// Number of answers that are deleted at once.
const ANSWERS: usize = 500;
/// Time between two searches for expired answers, while there are answers.
const FORGET: Duration = Duration::from_secs(1);
/// How long parts of lists are kept when no page is requested.
const WINDOWS: Duration = Duration::from_secs(10);
/// Time between two checks of the server's memory when it is limited.
const MEMORY: Duration = Duration::from_millis(500);

/// Starts all tasks.
pub(crate) fn start(
    shared: &Arc<RedisShared>,
    control: Wire,
    loads: mpsc::UnboundedReceiver<SequenceRequest>,
) -> Vec<JoinHandle<()>> {
    vec![
        tokio::spawn(keep_lease(Arc::clone(shared), control)),
        tokio::spawn(load_pages(Arc::clone(shared), loads)),
        tokio::spawn(sweep(Arc::clone(shared))),
        tokio::spawn(forget(Arc::clone(shared))),
    ]
}

/// Renews the lease, and ends the store as soon as the lease is uncertain.
async fn keep_lease(shared: Arc<RedisShared>, control: Wire) {
    let lease = shared.options().lease;
    let mut control = Some(control);
    while !shared.is_over() {
        // The settings of the master are read with each renewal: an answer must not claim for long a level that no
        // longer holds.
        let most = if shared.memory.max() > 0 { MEMORY } else { KEEPING };
        let pause = (lease / 3).min(most);
        tokio::time::sleep(pause.min(Duration::from_millis(shared.fence.left()))).await;
        if shared.check().is_err() {
            return; // the lease has run out
        }
        let left = Duration::from_millis(shared.fence.left());
        match tokio::time::timeout(left, renew(&shared, &mut control)).await {
            Ok(Ok(())) => {}
            // Another owner has the shard, or an operator must act.
            Ok(Err(error)) if error.kind() != ErrorKind::Unavailable => return shared.end(error),
            Ok(Err(_)) => {
                control = None;
                tokio::time::sleep((lease / 20).min(Duration::from_millis(shared.fence.left()))).await;
            }
            Err(_) => {
                let _ = shared.check();
            }
        }
    }
}

async fn renew(shared: &RedisShared, control: &mut Option<Wire>) -> Result<(), StoreError> {
    let wire = match control {
        Some(wire) => wire,
        None => {
            let slots = shared.servers.slots().await?;
            let connection = shared.servers.connect(slots.master_of(&shared.keys.owner)?).await?;
            control.insert(Wire::new(connection))
        }
    };
    let mut ask = Pipeline::new();
    ask.add_command(reign::renewal(&shared.keys, &shared.reign, shared.options().lease));
    ask.cmd("INFO").arg("memory");
    let asked = reign::boot_ms();
    let landed = shared.memory.landed();
    let mut reply = wire.call(ask).await?.into_iter();
    let mut next = || value::some(reply.next(), "renew");
    reign::judge(next()?)?;
    shared.fence.renewed(asked);
    shared.counts.renewals.fetch_add(1, SeqCst);
    if shared.memory.is_keeping_due() {
        shared.memory.note_keeping(&Keeping::ask(wire).await?);
    }
    let room = shared.memory.room();
    let (used, max) = open::read_memory(next()?)?;
    shared.memory.note(used, max, landed);
    if shared.memory.room() != room {
        shared.wake();
    }
    Ok(())
}

async fn load_pages(shared: Arc<RedisShared>, mut loads: mpsc::UnboundedReceiver<SequenceRequest>) {
    let mut windows = Windows::new(shared.options().reading);
    loop {
        // Pages follow each other at once, or there are none for long.
        let next = if windows.is_empty() {
            loads.recv().await
        } else if let Ok(next) = tokio::time::timeout(WINDOWS, loads.recv()).await {
            next
        } else {
            windows = Windows::new(shared.options().reading);
            shared.counts.list_places.store(0, SeqCst);
            continue;
        };
        let Some(request) = next else { return };
        let page = load::page(&shared, &mut windows, request).await;
        if let Err(error) = &page {
            shared.end_behind(error.clone()).await;
        }
        shared.counts.pages.fetch_add(1, SeqCst);
        crate::shared::locked(&shared.pages).push_back(page);
        shared.wake();
    }
}

/// Deletes purged messages, in slices between which other requests are served.
async fn sweep(shared: Arc<RedisShared>) {
    loop {
        let rung = shared.sweep.notified();
        if shared.is_over() {
            return;
        }
        let next = shared.marks().iter().next().map(|(queue, mark)| (queue.clone(), mark.clone()));
        let Some((queue, mark)) = next else {
            rung.await;
            continue;
        };
        if let Err(error) = sweep_queue(&shared, &queue, &mark).await {
            return shared.end_behind(error).await;
        }
        shared.unset_mark(&queue, &mark);
    }
}

async fn sweep_queue(shared: &RedisShared, queue: &QueueName, mark: &Mark) -> Result<(), StoreError> {
    let due = [Class::At, Class::After].map(|class| SequenceSource::due(&shared.keys, class, queue));
    let dead = SequenceSource::dead(&shared.keys, queue);
    let mut windows = Windows::new(shared.options().reading);
    for source in due.into_iter().flatten().chain([dead]) {
        let source = [source];
        let mut after = None;
        loop {
            let range = Range { since: after, after, until: u64::MAX, most: SLICE };
            let scanned = load::scan(shared, &mut windows, &source, range).await?.pop().unwrap_or_default();
            let places = scanned.places.into_iter().map(|(place, _)| place);
            let gone: Vec<_> = places.filter(|(_, id)| mark.hides(*id)).collect();
            // The reply came behind the one to the purge itself: a purge that Redis refused never happened, and has
            // ended the store by now.
            shared.check()?;
            if !gone.is_empty() {
                let removed = remove(shared, queue, &source[0], &gone).await?;
                shared.counts.swept.fetch_add(removed, SeqCst);
            }
            if scanned.upto.is_none() {
                break;
            }
            after = scanned.upto;
            windows.rest();
        }
    }
    let mut call = shared.fenced(script::settle(), None, None, None);
    let (name, text) = (queue.as_str().as_bytes(), mark.text());
    Commands(&mut call).one(&[b"@unset", shared.keys.purges.as_bytes(), name, &text]);
    run(shared, call).await
}

/// Deletes a slice of hidden messages; returns their number.
async fn remove(
    shared: &RedisShared,
    queue: &QueueName,
    source: &SequenceSource,
    gone: &[Cursor],
) -> Result<u64, StoreError> {
    let unkeyed = RoaringTreemap::new(); // it is not known which
    let mut plan = ScriptPlan::new(&shared.keys, &unkeyed, shared.options().dense);
    let mut removed = 0;
    let mut members = WordList::default();
    match source.order {
        // The set of single messages names each of them, and no others.
        SequenceOrder::ByScore(class) => {
            for (time, id) in gone {
                plan.sweep(*id, queue, Kind::Waiting, Due::from_raw(class, *time));
                members.id(*id);
                removed += 1;
            }
        }
        // A list may name messages that have left it, and some twice. The due time of the message itself decides where
        // it belongs.
        SequenceOrder::Spans(_) | SequenceOrder::ByMember => {
            let ids: BTreeSet<MessageId> = gone.iter().map(|(_, id)| *id).collect();
            let ids: Vec<MessageId> = ids.into_iter().collect();
            let mut ask = Pipeline::new();
            find::ask_rows(&mut ask, &shared.keys, &ids);
            let mut replies = shared.wire.call(ask).await?.into_iter();
            for row in find::read_rows(&shared.keys, &ids, &mut replies)? {
                let (id, due, kind) = (row.message.id, row.life.due, row.life.stage.kind());
                if (kind == Kind::Dead) == (source.order == SequenceOrder::ByMember)
                    && row.message.queue == *queue
                {
                    plan.sweep(id, queue, kind, due);
                    removed += 1;
                }
            }
            if source.order == SequenceOrder::ByMember {
                gone.iter().for_each(|(time, id)| members.place(*time, *id));
            }
        }
    }
    let mut call = shared.fenced(script::settle(), None, None, None);
    let mut commands = Commands(&mut call);
    plan.write(&mut commands);
    // Even if other keys of such a message are missing, the next sweep must not find it again.
    commands.many(&["ZREM", &source.key], &members, 1);
    run(shared, call).await?;
    Ok(removed)
}

/// Deletes expired answers.
async fn forget(shared: Arc<RedisShared>) {
    loop {
        tokio::time::sleep(FORGET).await;
        if shared.is_over() {
            return;
        }
        while shared.answers.load(SeqCst) && !shared.is_over() {
            match forget_some(&shared).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return shared.end_behind(error).await,
            }
        }
    }
}

/// Deletes some expired answers; returns whether there are more.
async fn forget_some(shared: &RedisShared) -> Result<bool, StoreError> {
    let keys = &shared.keys;
    let now = shared.engine.load(SeqCst);
    // This precedes the count: a task that adds an answer afterwards sets it again.
    shared.answers.store(false, SeqCst);
    let mut ask = Pipeline::new();
    ask.cmd("ZCOUNT").arg(&keys.answer_ends).arg("-inf").arg(now);
    ask.cmd("ZCARD").arg(&keys.answer_ends);
    let mut reply = shared.wire.call(ask).await?.into_iter();
    let mut next = || value::some(reply.next(), "ZCOUNT");
    let (over, all) = (value::number(next()?, "ZCOUNT")?, value::number(next()?, "ZCARD")?);
    if all != Some(0) {
        shared.answers.store(true, SeqCst);
    }
    let over = over.unwrap_or(0);
    if over == 0 {
        return Ok(false);
    }
    let mut call = shared.fenced(script::settle(), None, None, None);
    let (now, most) = (now.to_string(), ANSWERS.to_string());
    let words = ["@forget", &keys.answers, &keys.answer_ends, &now, &most];
    Commands(&mut call).one(&words.map(str::as_bytes));
    run(shared, call).await?;
    shared.counts.forgets.fetch_add(over.min(ANSWERS as u64), SeqCst);
    Ok(over > ANSWERS as u64)
}

async fn run(shared: &RedisShared, call: redis::Cmd) -> Result<(), StoreError> {
    let mut ask = Pipeline::new();
    ask.add_command(call);
    reign::judge(value::some(shared.wire.call(ask).await?.into_iter().next(), "apply")?)
}
