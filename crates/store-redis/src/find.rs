//! Finds messages by id and by key, and remembered answers: one round for the look-ups, and one more for the messages
//! of keys.

use std::collections::{BTreeMap, BTreeSet};

use duewheel_core::message::{Kind, Row};
use duewheel_core::store::{DEAD_FOUND, FOUND_AHEAD, Found, Ledger, Lookups, StoreError};
use duewheel_core::{Key, MessageId, QueueName};
use redis::{Pipeline, Value};

use crate::keys::Keys;
use crate::shared::RedisShared;
use crate::{fault, lex, text, value};

/// Number of fields of one command, so that other clients are served in between.
const FIELDS: usize = 1_000;
/// Largest number of dead messages of a key that are examined when a purge may have removed some.
const MOST_DEAD: usize = 10_000;

/// Finds everything that was asked for, or what the first look-ups of each list ask for if the messages found would
/// weigh more than [`Lookups::bytes`]; as of everything that was sent before.
pub(crate) fn find(
    shared: &RedisShared,
    ledger: &Ledger,
    lookups: &Lookups,
    found: &mut Found,
) -> Result<(), StoreError> {
    if lookups.is_empty() {
        return Ok(());
    }
    let (keys, marks) = (&shared.keys, shared.marks());
    let asked: BTreeSet<MessageId> = lookups.ids.iter().copied().collect();
    let mut by_queue: BTreeMap<&QueueName, Vec<&Key>> = BTreeMap::new();
    for (queue, key) in &lookups.keys {
        by_queue.entry(queue).or_default().push(key);
    }

    let mut ask = Pipeline::new();
    // Few messages are requested at once; of many, the sizes are requested first.
    let at_once = asked.len() <= FOUND_AHEAD || lookups.bytes == usize::MAX;
    let ids: Vec<MessageId> = if at_once { asked.iter().copied().collect() } else { Vec::new() };
    ask_rows(&mut ask, keys, &ids);
    let mut with_dead = BTreeSet::new();
    for (queue, of_queue) in &by_queue {
        for some in of_queue.chunks(FIELDS) {
            let cmd = ask.cmd("HMGET").arg(keys.held_keys(queue));
            some.iter().for_each(|key| {
                cmd.arg(escaped(key));
            });
        }
        if ledger.tally(queue).is_none_or(|tally| tally.part(Kind::Dead).count == 0) {
            continue;
        }
        with_dead.insert(*queue);
        let most = if marks.contains_key(*queue) { MOST_DEAD } else { DEAD_FOUND };
        for key in of_queue {
            let word = escaped(key);
            let bound = |end: &[u8]| [b"[", &word[..], end].concat();
            ask.cmd("ZREVRANGEBYLEX").arg(keys.dead_keys(queue)).arg(bound(b"!")).arg(bound(b" "));
            ask.arg("LIMIT").arg(0).arg(most);
        }
    }
    for some in lookups.answers.chunks(FIELDS) {
        let cmd = ask.cmd("HMGET").arg(&keys.answers);
        some.iter().for_each(|(queue, id)| {
            cmd.arg(text::answer_name(queue, id));
        });
    }
    let replies = if ask.is_empty() { Vec::new() } else { shared.ask(ask)? };
    let mut replies = replies.into_iter();

    let mut rows = read_rows(keys, &ids, &mut replies)?;
    // The ids of the messages with this key: the holder, and the dead ones.
    let mut wanted: BTreeMap<MessageId, (&QueueName, &Key)> = BTreeMap::new();
    for (queue, of_queue) in &by_queue {
        for some in of_queue.chunks(FIELDS) {
            let holders = value::bytes_list(next(&mut replies)?, "HMGET")?;
            for (key, holder) in some.iter().zip(holders) {
                if let Some(holder) = holder {
                    let id = std::str::from_utf8(&holder).ok().and_then(|id| id.parse().ok());
                    let what = "it is not an id";
                    let id = id.ok_or_else(|| fault::damaged(&keys.held_keys(queue), key, what))?;
                    wanted.insert(MessageId(id), (queue, key));
                }
            }
        }
        if with_dead.contains(queue) {
            for key in of_queue {
                let members = value::bytes_list(next(&mut replies)?, "ZREVRANGEBYLEX")?;
                let mut newest = 0;
                for member in members.into_iter().flatten() {
                    let id = member.rsplit(|b| *b == b' ').next().and_then(lex::read);
                    let Some((id, [])) = id else {
                        return Err(fault::damaged(&keys.dead_keys(queue), key, "a member of another form"));
                    };
                    if newest < DEAD_FOUND && !RedisShared::is_purged(&marks, queue, MessageId(id)) {
                        wanted.insert(MessageId(id), (queue, key));
                        newest += 1;
                    }
                }
            }
        }
    }
    for some in lookups.answers.chunks(FIELDS) {
        let answers = value::bytes_list(next(&mut replies)?, "HMGET")?;
        for ((queue, id), answer) in some.iter().zip(answers) {
            if let Some(answer) = answer {
                let row = text::read_answer(queue, id, &answer);
                found.answers.push(row.map_err(|what| fault::damaged(&keys.answers, id, what))?);
            }
        }
    }

    let made = if at_once { &lookups.ids[..] } else { &[][..] };
    let plan = measure(shared, lookups, made, &wanted)?;
    (found.left.ids, found.left.keys) = (lookups.ids.len() - plan.ids, lookups.keys.len() - plan.keys);
    if !plan.wanted.is_empty() {
        let mut ask = Pipeline::new();
        let more: Vec<MessageId> = plan.wanted.iter().copied().collect();
        ask_rows(&mut ask, keys, &more);
        let read = read_rows(keys, &more, &mut shared.ask(ask)?.into_iter())?;
        rows.extend(read.into_iter().filter(|row| {
            asked.contains(&row.message.id)
                || wanted.get(&row.message.id).is_some_and(|(queue, key)| {
                    row.message.queue == **queue && row.message.key.as_ref() == Some(*key)
                })
        }));
    }
    rows.retain(|row| !RedisShared::is_purged(&marks, &row.message.queue, row.message.id));
    found.rows.append(&mut rows);
    Ok(())
}

/// The number of look-ups of each list that are made, and the messages that are read for them.
struct LookupPlan {
    ids: usize,
    keys: usize,
    wanted: BTreeSet<MessageId>,
}

/// Chooses the messages to read: all of them if they do not weigh more than the bound. `made` was read already;
/// `by_key` are the results of the keys.
fn measure(
    shared: &RedisShared,
    lookups: &Lookups,
    made: &[MessageId],
    by_key: &BTreeMap<MessageId, (&QueueName, &Key)>,
) -> Result<LookupPlan, StoreError> {
    let made: BTreeSet<MessageId> = made.iter().copied().collect();
    let all = || lookups.ids.iter().chain(by_key.keys()).copied().filter(|id| !made.contains(id));
    let wanted: BTreeSet<MessageId> = all().collect();
    if wanted.len() <= FOUND_AHEAD || lookups.bytes == usize::MAX {
        return Ok(LookupPlan { ids: lookups.ids.len(), keys: lookups.keys.len(), wanted });
    }
    let mut ask = Pipeline::new();
    for id in &wanted {
        ask.cmd("HSTRLEN").arg(&shared.keys.messages).arg(id.0);
    }
    let mut sizes: BTreeMap<MessageId, usize> = BTreeMap::new();
    for (id, reply) in wanted.iter().zip(shared.ask(ask)?) {
        sizes.insert(
            *id,
            usize::try_from(value::number(reply, "HSTRLEN")?.unwrap_or(0)).unwrap_or(usize::MAX),
        );
    }
    let mut of_key: BTreeMap<(&QueueName, &Key), Vec<MessageId>> = BTreeMap::new();
    for (id, name) in by_key {
        of_key.entry(*name).or_default().push(*id);
    }
    let mut chosen = BTreeSet::new();
    let mut bytes = 0usize;
    let mut choose = |id: MessageId| {
        if let Some(size) = sizes.get(&id).filter(|_| chosen.insert(id)) {
            bytes = bytes.saturating_add(*size);
        }
        bytes
    };
    let mut ids = 0;
    for id in &lookups.ids {
        ids += 1;
        if choose(*id) >= lookups.bytes && ids >= FOUND_AHEAD {
            break;
        }
    }
    let mut keys = 0;
    for (queue, key) in &lookups.keys {
        keys += 1;
        let bytes = of_key.get(&(queue, key)).into_iter().flatten().map(|id| choose(*id)).last();
        if bytes.is_some_and(|bytes| bytes >= lookups.bytes) && keys >= FOUND_AHEAD {
            break;
        }
    }
    Ok(LookupPlan { ids, keys, wanted: chosen })
}

fn escaped(key: &Key) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.as_str().len());
    text::escape(&mut out, key.as_str());
    out
}

fn next(replies: &mut impl Iterator<Item = Value>) -> Result<Value, StoreError> {
    value::some(replies.next(), "several commands")
}

/// Adds commands that read messages, all three parts of them.
pub(crate) fn ask_rows(ask: &mut Pipeline, keys: &Keys, ids: &[MessageId]) {
    for some in ids.chunks(FIELDS) {
        for key in [&keys.messages, &keys.lives, &keys.leases] {
            let cmd = ask.cmd("HMGET").arg(key);
            some.iter().for_each(|id| {
                cmd.arg(id.0);
            });
        }
    }
}

/// Reads the replies to [`ask_rows`]; missing messages are left out.
pub(crate) fn read_rows(
    keys: &Keys,
    ids: &[MessageId],
    replies: &mut impl Iterator<Item = Value>,
) -> Result<Vec<Row>, StoreError> {
    let mut rows = Vec::with_capacity(ids.len());
    for some in ids.chunks(FIELDS) {
        let mut part = || value::bytes_list(next(replies)?, "HMGET");
        let (messages, lives, leases) = (part()?, part()?, part()?);
        for (id, ((message, life), lease)) in some.iter().zip(messages.into_iter().zip(lives).zip(leases)) {
            if let Some(message) = message {
                let row = text::read_row(*id, message, life.as_deref(), lease.as_deref());
                rows.push(row.map_err(|what| fault::damaged(&keys.messages, id, what))?);
            }
        }
    }
    Ok(rows)
}
