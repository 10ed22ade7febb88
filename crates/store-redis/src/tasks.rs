//! What a store does beside its owner: keeps the lease, loads pages, sweeps what purges have taken, forgets answers that are over.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use duewheel_core::message::{Kind, Stage};
use duewheel_core::store::{ErrorKind, Sequence, StoreError};
use duewheel_core::time::{Due, EngineMs, WallMs};
use duewheel_core::{MessageId, QueueName};
use redis::Pipeline;
use roaring::RoaringTreemap;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::load::{Order, Range, Request, Source};
use crate::mark::Mark;
use crate::plan::{Commands, List, Plan};
use crate::shared::Shared;
use crate::wire::Wire;
use crate::{find, load, open, reign, script, value};

/// Messages that a slice of a sweep looks at.
const SLICE: usize = 500;
/// Answers that are forgotten at once.
const ANSWERS: usize = 500;
/// How often answers that are over are looked for, while there are any.
const FORGET: Duration = Duration::from_secs(1);
/// How often the server's memory is looked at when it is limited.
const MEMORY: Duration = Duration::from_millis(500);

/// Starts them all.
pub(crate) fn start(
    shared: &Arc<Shared>,
    control: Wire,
    loads: mpsc::UnboundedReceiver<Request>,
) -> Vec<JoinHandle<()>> {
    vec![
        tokio::spawn(keep_lease(Arc::clone(shared), control)),
        tokio::spawn(load_pages(Arc::clone(shared), loads)),
        tokio::spawn(sweep(Arc::clone(shared))),
        tokio::spawn(forget(Arc::clone(shared))),
    ]
}

/// Renews the lease, and ends the store as soon as it is not sure any more.
async fn keep_lease(shared: Arc<Shared>, control: Wire) {
    let lease = shared.options().lease;
    let mut control = Some(control);
    while !shared.is_over() {
        let pause = if shared.memory.max() > 0 { (lease / 3).min(MEMORY) } else { lease / 3 };
        tokio::time::sleep(pause.min(Duration::from_millis(shared.fence.left()))).await;
        if shared.check().is_err() {
            return; // the lease has run out
        }
        let left = Duration::from_millis(shared.fence.left());
        match tokio::time::timeout(left, renew(&shared, &mut control)).await {
            Ok(Ok(())) => {}
            // Others have the shard, or a person must look.
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

async fn renew(shared: &Shared, control: &mut Option<Wire>) -> Result<(), StoreError> {
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
    let mut reply = wire.call(ask).await?.into_iter();
    let mut next = || value::some(reply.next(), "renew");
    reign::judge(next()?)?;
    shared.fence.renewed(asked);
    shared.counts.renewals.fetch_add(1, SeqCst);
    let room = shared.memory.room();
    let (used, max) = open::read_memory(next()?)?;
    shared.memory.note(used, max);
    if shared.memory.room() != room {
        shared.wake();
    }
    Ok(())
}

async fn load_pages(shared: Arc<Shared>, mut loads: mpsc::UnboundedReceiver<Request>) {
    while let Some(request) = loads.recv().await {
        let page = load::page(&shared, request).await;
        if let Err(error) = &page {
            shared.end(error.clone());
        }
        shared.counts.pages.fetch_add(1, SeqCst);
        crate::shared::locked(&shared.pages).push_back(page);
        shared.wake();
    }
}

/// Deletes what purges have taken, in slices between which others have their turn.
async fn sweep(shared: Arc<Shared>) {
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
            return shared.end(error);
        }
        shared.unset_mark(&queue, &mark);
    }
}

async fn sweep_queue(shared: &Shared, queue: &QueueName, mark: &Mark) -> Result<(), StoreError> {
    for sequence in [Sequence::At, Sequence::After, Sequence::Dead] {
        let order = if sequence == Sequence::Dead { Order::ByMember } else { Order::ByScore };
        let source =
            [Source { key: shared.keys.of_queue(sequence, queue), order, queue: Some(queue.clone()) }];
        let mut after = None;
        loop {
            let range = Range { after, until: u64::MAX, most: SLICE };
            let scanned = load::scan(shared, &source, range).await?.pop();
            let places: Vec<_> = scanned.iter().flat_map(|s| &s.places).map(|(place, _)| *place).collect();
            let is_last = places.is_empty();
            after = places.last().copied().or(after);
            let gone: Vec<_> = places.into_iter().filter(|(_, id)| mark.hides(*id)).collect();
            if !gone.is_empty() {
                remove(shared, queue, sequence, &gone).await?;
                shared.counts.swept.fetch_add(gone.len() as u64, SeqCst);
            }
            if is_last {
                break;
            }
        }
    }
    let mut call = shared.fenced(script::settle(), None, None, None);
    let (name, text) = (queue.as_str().as_bytes(), mark.text());
    Commands(&mut call).one(&[b"@unset", shared.keys.purges.as_bytes(), name, &text]);
    run(shared, call).await
}

/// Deletes a slice of messages that nobody sees any more.
async fn remove(
    shared: &Shared,
    queue: &QueueName,
    sequence: Sequence,
    gone: &[(u64, MessageId)],
) -> Result<(), StoreError> {
    let mut dues = Vec::with_capacity(gone.len());
    if sequence == Sequence::Dead {
        // Their places among the held ones say when they were due.
        let ids: Vec<MessageId> = gone.iter().map(|(_, id)| *id).collect();
        let mut ask = Pipeline::new();
        find::ask_rows(&mut ask, &shared.keys, &ids);
        let mut replies = shared.wire.call(ask).await?.into_iter();
        for row in find::read_rows(&shared.keys, &ids, &mut replies)? {
            if matches!(row.life.stage, Stage::Dead { .. }) {
                dues.push((row.message.id, row.life.due));
            }
        }
    } else {
        dues.extend(gone.iter().map(|(time, id)| {
            let due = match sequence {
                Sequence::At => Due::At(WallMs(*time)),
                _ => Due::After(EngineMs(*time)),
            };
            (*id, due)
        }));
    }
    let kind = if sequence == Sequence::Dead { Kind::Dead } else { Kind::Waiting };
    let unkeyed = RoaringTreemap::new(); // it is not known which
    let mut plan = Plan::new(&shared.keys, &unkeyed);
    for (id, due) in dues {
        plan.sweep(id, queue, kind, due);
    }
    let mut call = shared.fenced(script::settle(), None, None, None);
    let mut commands = Commands(&mut call);
    plan.write(&mut commands);
    // Whatever else is missing of such a message, the next sweep must not find it again.
    let mut members = List::default();
    for (time, id) in gone {
        if sequence == Sequence::Dead {
            members.place(*time, *id);
        } else {
            members.id(*id);
        }
    }
    commands.many(&["ZREM", &shared.keys.of_queue(sequence, queue)], &members, 1);
    run(shared, call).await
}

/// Forgets answers that are over.
async fn forget(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(FORGET).await;
        if shared.is_over() {
            return;
        }
        while shared.answers.load(SeqCst) && !shared.is_over() {
            match forget_some(&shared).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return shared.end(error),
            }
        }
    }
}

/// Whether more are over.
async fn forget_some(shared: &Shared) -> Result<bool, StoreError> {
    let keys = &shared.keys;
    let now = shared.engine.load(SeqCst);
    let mut ask = Pipeline::new();
    ask.cmd("ZCOUNT").arg(&keys.answer_ends).arg("-inf").arg(now);
    ask.cmd("ZCARD").arg(&keys.answer_ends);
    let mut reply = shared.wire.call(ask).await?.into_iter();
    let mut next = || value::some(reply.next(), "ZCOUNT");
    let (over, all) = (value::number(next()?, "ZCOUNT")?, value::number(next()?, "ZCARD")?);
    if all == Some(0) {
        // Set again before the next answer goes out.
        shared.answers.store(false, SeqCst);
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

async fn run(shared: &Shared, call: redis::Cmd) -> Result<(), StoreError> {
    let mut ask = Pipeline::new();
    ask.add_command(call);
    reign::judge(value::some(shared.wire.call(ask).await?.into_iter().next(), "apply")?)
}
