//! Pages of a sequence: members of sorted sets first, then the messages that they name.

use std::collections::BTreeMap;

use duewheel_core::store::{Cursor, Load, Loaded, More, Sequence, StoreError, Which, place_in};
use duewheel_core::{Lsn, MessageId, QueueName};
use redis::Pipeline;

use crate::find::{ask_rows, read_rows};
use crate::keys::Keys;
use crate::mark::Mark;
use crate::shared::Shared;
use crate::{fault, lex, value};

/// Members that are looked at for one page, at most; so a page ends early when it skips much.
const SCANNED: usize = 10_000;
/// Messages of the first request of a page; later ones depend on how large these were.
const FIRST_ROWS: usize = 100;
/// Messages of one request at most.
const MOST_ROWS: usize = 1_000;

/// A sorted set that a sequence is read from.
#[derive(Debug)]
struct Source {
    key: String,
    order: Order,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Members say time and id.
    ByMember,
    /// The score is the time.
    ByScore,
}

/// A place, and the queue if the member says it.
type Place = (Cursor, String);

fn sources(keys: &Keys, sequence: Sequence, which: &Which) -> Vec<Source> {
    let set = |key: &str| Source { key: key.into(), order: Order::ByMember };
    let own = |all: &str| match which {
        Which::One(queue) => set(&keys.of_queue(sequence, queue)),
        Which::All | Which::AllBut(_) => set(all),
    };
    match sequence {
        Sequence::At => vec![own(&keys.at)],
        Sequence::After => vec![own(&keys.after)],
        Sequence::Leased => vec![Source { key: keys.leased.clone(), order: Order::ByScore }],
        Sequence::Dead => vec![own(&keys.dead)],
        Sequence::AllAt => vec![own(&keys.at), set(&keys.held_at)],
        Sequence::AllAfter => vec![own(&keys.after), set(&keys.held_after)],
    }
}

/// Loads a page.
pub(crate) async fn page(shared: &Shared, load: Load, as_of: Lsn) -> Result<Loaded, StoreError> {
    let keys = &shared.keys;
    // One more than wanted tells whether there is more; some are skipped.
    let scan = load.rows.saturating_add(1).clamp(64, SCANNED);
    let mut places: Vec<Place> = Vec::new();
    let mut bound: Option<Cursor> = None;
    for source in sources(keys, load.sequence, &load.which) {
        let (found, is_all) = scan_source(shared, &source, &load, scan).await?;
        if let (false, Some((last, _))) = (is_all, found.last()) {
            bound = Some(bound.map_or(*last, |bound| bound.min(*last)));
        }
        places.extend(found);
    }
    places.sort_unstable_by_key(|(place, _)| *place);
    if let Some(bound) = bound {
        places.retain(|(place, _)| *place <= bound);
    }
    let marks = shared.marks();
    places.retain(|(place, queue)| is_wanted(&load.which, queue, place.1, &marks));

    let (mut rows, mut bytes, mut upto) = (Vec::new(), 0, None);
    let mut at = 0;
    while at < places.len() && rows.len() < load.rows && (rows.is_empty() || bytes < load.bytes) {
        let each = bytes.checked_div(rows.len());
        let fits = each.map_or(FIRST_ROWS, |each| (load.bytes - bytes) / (each + 1) + 1);
        let most = fits.clamp(1, MOST_ROWS).min(load.rows - rows.len()).min(places.len() - at);
        let some = &places[at..at + most];
        let ids: Vec<MessageId> = some.iter().map(|((_, id), _)| *id).collect();
        let mut ask = Pipeline::new();
        ask_rows(&mut ask, keys, &ids);
        let mut found = read_rows(keys, &ids, &mut shared.wire.call(ask).await?.into_iter())?.into_iter();
        let mut row = found.next();
        for (place, _) in some {
            if bytes >= load.bytes && !rows.is_empty() {
                break;
            }
            at += 1;
            upto = Some(*place);
            // What has changed its place or is gone meanwhile is a later state, which need not show.
            if let Some(is) = row.take_if(|row| row.message.id == place.1) {
                row = found.next();
                if place_in(load.sequence, &is) == Some(*place)
                    && !Shared::is_purged(&marks, &is.message.queue, is.message.id)
                {
                    bytes += is.message.weight();
                    rows.push(is);
                }
            }
        }
    }
    let more = if at < places.len() {
        More::Yes
    } else if let Some(bound) = bound {
        upto = Some(bound);
        More::Yes
    } else {
        More::No
    };
    Ok(Loaded { load, as_of, rows, upto, more })
}

fn is_wanted(which: &Which, queue: &str, id: MessageId, marks: &BTreeMap<QueueName, Mark>) -> bool {
    let skipped = match which {
        Which::All => false,
        // A set of the queue's own does not say it.
        Which::One(one) => !queue.is_empty() && one.as_str() != queue,
        Which::AllBut(queues) => queues.binary_search_by(|q| q.as_str().cmp(queue)).is_ok(),
    };
    let of = match which {
        Which::One(one) => one.as_str(),
        Which::All | Which::AllBut(_) => queue,
    };
    !skipped && (marks.is_empty() || marks.get(of).is_none_or(|mark| !mark.hides(id)))
}

/// The next members of a set, and whether these are all up to the end of the range.
async fn scan_source(
    shared: &Shared,
    source: &Source,
    load: &Load,
    scan: usize,
) -> Result<(Vec<Place>, bool), StoreError> {
    let odd = |member: &[u8]| fault::damaged(&source.key, String::from_utf8_lossy(member), "another form");
    if source.order == Order::ByMember {
        let mut ask = Pipeline::new();
        ask.cmd("ZRANGEBYLEX").arg(&source.key).arg(lex::behind(load.after)).arg(lex::up_to(load.until));
        ask.arg("LIMIT").arg(0).arg(scan);
        let reply = value::some(shared.wire.call(ask).await?.into_iter().next(), "ZRANGEBYLEX")?;
        let members = value::bytes_list(reply, "ZRANGEBYLEX")?;
        let is_all = members.len() < scan;
        let place = |member: Vec<u8>| {
            let (place, queue) = lex::read_place(&member).ok_or_else(|| odd(&member))?;
            Ok((place, queue.to_owned()))
        };
        let places = members.into_iter().flatten().map(place).collect::<Result<_, StoreError>>()?;
        return Ok((places, is_all));
    }
    let from = load.after.map_or(0, |(time, _)| time);
    let mut skip = 0;
    loop {
        let mut ask = Pipeline::new();
        ask.cmd("ZRANGEBYSCORE").arg(&source.key).arg(from).arg(load.until).arg("WITHSCORES");
        ask.arg("LIMIT").arg(skip).arg(scan);
        let reply = value::some(shared.wire.call(ask).await?.into_iter().next(), "ZRANGEBYSCORE")?;
        let members = value::pairs(reply, "ZRANGEBYSCORE")?;
        let is_all = members.len() < scan;
        let mut places = Vec::with_capacity(members.len());
        for (member, score) in members {
            let (id, queue) = lex::read_tail(&member).ok_or_else(|| odd(&member))?;
            let score = std::str::from_utf8(&score).ok().and_then(|score| score.parse().ok());
            let place = (score.ok_or_else(|| odd(&member))?, id);
            // Those of the cursor's own ms come again.
            if load.after.is_none_or(|after| place > after) {
                places.push((place, queue.to_owned()));
            }
        }
        if !places.is_empty() || is_all {
            return Ok((places, is_all));
        }
        skip += scan;
    }
}
