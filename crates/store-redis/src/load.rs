//! Pages of a sequence: members of sorted sets and entries of lists first, then the messages that they name.
//!
//! Dead messages are in one set of their queue, all others in a set or in lists of their queue, by due time. A page of
//! all queues is merged from those that have something in the range according to the ledger.

use std::collections::{BTreeMap, VecDeque};

use duewheel_core::message::Kind;
use duewheel_core::store::{Cursor, Ledger, Load, Loaded, More, Sequence, StoreError, Which, place_in};
use duewheel_core::time::Class;
use duewheel_core::{Lsn, MessageId, QueueName};
use redis::{Pipeline, Value};
use std::sync::atomic::Ordering::SeqCst;

use crate::find::{ask_rows, read_rows};
use crate::keys::Keys;
use crate::mark::Mark;
use crate::shared::RedisShared;
use crate::span::{self, Windows};
use crate::{fault, lex, value};

/// Approximate number of members that are examined for one page; so a page ends early when it skips many.
const SCANNED: usize = 10_000;
/// Smallest number of members of each queue that are examined.
const LEAST: usize = 16;
/// Number of messages of the first request of a page; later ones depend on the size of these.
const FIRST_ROWS: usize = 100;
/// Largest number of messages of one request.
const MOST_ROWS: usize = 1_000;
/// Number of sets that are read in one request.
const AT_ONCE: usize = 500;
/// The number of further reads of the sources that limit a page.
const DEEPER: usize = 8;
/// Number of spans of a queue that are read in one request.
const SPANS: usize = 16;

/// A source of a sequence.
#[derive(Clone, Debug)]
pub(crate) struct SequenceSource {
    /// The key of the sorted set.
    pub(crate) key: String,
    pub(crate) order: SequenceOrder,
    /// The queue of all its members; `None`: the members contain it.
    pub(crate) queue: Option<QueueName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SequenceOrder {
    /// Members contain time and id.
    ByMember,
    /// The score is the time, of this class.
    ByScore(Class),
    /// Members are spans, each of which has a list.
    Spans(Class),
}

/// A requested page.
#[derive(Debug)]
pub(crate) struct SequenceRequest {
    load: Load,
    as_of: Lsn,
    sources: Vec<SequenceSource>,
    skip: Skip,
}

/// Members that need not be read although they are in the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skip {
    Nothing,
    /// Leased messages: half a million of them may be in front of the ready ones.
    Leased,
}

/// A range of a set: behind a position, up to and including a time, with a largest number of members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// Positions before this one are no longer needed.
    pub(crate) since: Option<Cursor>,
    pub(crate) after: Option<Cursor>,
    pub(crate) until: u64,
    pub(crate) most: usize,
}

/// The content of a range.
#[derive(Default)]
pub(crate) struct Scanned {
    /// The positions, with the queue if members contain it.
    pub(crate) places: Vec<(Cursor, Box<str>)>,
    /// Their last position; `None`: the range is complete.
    pub(crate) upto: Option<Cursor>,
}

impl SequenceSource {
    /// The dead messages of a queue.
    pub(crate) fn dead(keys: &Keys, queue: &QueueName) -> Self {
        SequenceSource { key: keys.dead(queue), order: SequenceOrder::ByMember, queue: Some(queue.clone()) }
    }

    /// All other messages of a queue, by due time.
    pub(crate) fn due(keys: &Keys, class: Class, queue: &QueueName) -> [Self; 2] {
        let of = |key, order| SequenceSource { key, order, queue: Some(queue.clone()) };
        [
            of(keys.singles(class, queue), SequenceOrder::ByScore(class)),
            of(keys.spans(class, queue), SequenceOrder::Spans(class)),
        ]
    }
}

impl SequenceRequest {
    /// Chooses the sets. Called by the owner, who knows the content of the queues.
    pub(crate) fn new(keys: &Keys, ledger: &Ledger, load: Load) -> Self {
        let all = |key: &str, class| SequenceSource {
            key: key.into(),
            order: SequenceOrder::ByScore(class),
            queue: None,
        };
        let mut sources = match load.sequence {
            Sequence::Leased => vec![all(&keys.leased, Class::After)],
            Sequence::AllAt => vec![all(&keys.held_at, Class::At)],
            Sequence::AllAfter => vec![all(&keys.held_after, Class::After)],
            Sequence::At | Sequence::After | Sequence::Dead => Vec::new(),
        };
        let class = match load.sequence {
            Sequence::At | Sequence::AllAt => Class::At,
            _ => Class::After,
        };
        let from = load.after.map_or(0, |(time, _)| time);
        let has_some = |queue: &QueueName| {
            let Some(tally) = ledger.tally(queue) else { return false };
            let first = tally.due.reach(class, from, 1).map(|end| end.saturating_sub(tally.due.width_ms()));
            let waits = tally.part(Kind::Waiting).count > 0 && first.is_some_and(|first| first <= load.until);
            match load.sequence {
                Sequence::Dead => tally.part(Kind::Dead).count > 0,
                Sequence::At | Sequence::After => waits,
                // The ledger does not count when leased messages were due.
                _ => waits || tally.part(Kind::Leased).count > 0,
            }
        };
        let own = |queue: &QueueName| match load.sequence {
            Sequence::Dead => vec![SequenceSource::dead(keys, queue)],
            _ => SequenceSource::due(keys, class, queue).to_vec(),
        };
        if load.sequence != Sequence::Leased {
            match &load.which {
                Which::One(queue) if has_some(queue) => sources.extend(own(queue)),
                Which::One(_) => {}
                Which::All | Which::AllBut(_) => {
                    let but: &[QueueName] = if let Which::AllBut(but) = &load.which { but } else { &[] };
                    let wanted = ledger.tallies().map(|(queue, _)| queue);
                    let wanted = wanted.filter(|queue| but.binary_search(queue).is_err());
                    sources.extend(wanted.filter(|queue| has_some(queue)).flat_map(own));
                }
            }
        }
        let waiting = matches!(load.sequence, Sequence::At | Sequence::After);
        let mut queues = sources.iter().filter_map(|source| ledger.tally(source.queue.as_ref()?));
        let skip = if waiting && queues.any(|tally| tally.part(Kind::Leased).count > 0) {
            Skip::Leased
        } else {
            Skip::Nothing
        };
        SequenceRequest { as_of: ledger.applied(), load, sources, skip }
    }
}

/// The positions of a page, in order, and their end if the range is not complete.
async fn places(
    shared: &RedisShared,
    windows: &mut Windows,
    SequenceRequest { load, sources, skip, .. }: &SequenceRequest,
    marks: &BTreeMap<QueueName, Mark>,
) -> Result<(Vec<Cursor>, Option<Cursor>), StoreError> {
    // One more than wanted shows whether there is more; some are skipped.
    let whole = load.rows.saturating_add(1).clamp(64, SCANNED);
    let part = if sources.len() > 1 { (2 * whole / sources.len()).clamp(LEAST, whole) } else { whole };
    let mut range = Range { since: load.after, after: load.after, until: load.until, most: part };
    windows.begin(sources.iter().filter(|source| matches!(source.order, SequenceOrder::Spans(_))).count());
    let mut places: Vec<Cursor> = Vec::new();
    let mut uptos: Vec<Option<Cursor>> = vec![None; sources.len()];
    let mut at: Vec<usize> = (0..sources.len()).collect();
    let (mut bound, mut looked) = (None, 0);
    for deep in 0..=DEEPER {
        for some in at.chunks(AT_ONCE) {
            let of: Vec<SequenceSource> = some.iter().map(|at| sources[*at].clone()).collect();
            let mut scanned = scan(shared, windows, &of, range).await?;
            looked += scanned.iter().map(|scanned| scanned.places.len()).sum::<usize>();
            if *skip == Skip::Leased {
                skip_leased(shared, &of, &mut scanned).await?;
            }
            for ((at, source), scanned) in some.iter().zip(&of).zip(scanned) {
                uptos[*at] = scanned.upto;
                let wanted = scanned.places.into_iter().filter(|((_, id), queue)| {
                    let queue = source.queue.as_ref().map_or(&**queue, QueueName::as_str);
                    is_wanted(&load.which, queue, *id, marks)
                });
                places.extend(wanted.map(|(place, _)| place));
            }
        }
        places.sort_unstable();
        // A message that was removed and came back is named twice.
        places.dedup();
        bound = uptos.iter().flatten().min().copied();
        let known = bound.map_or(places.len(), |bound| places.partition_point(|place| *place <= bound));
        if bound.is_none() || known > load.rows || looked >= SCANNED {
            break;
        }
        // The source with most of the next messages is read further than its share.
        at = (0..sources.len()).filter(|at| uptos[*at] == bound).collect();
        range = Range { after: bound, most: (whole << deep).min(SCANNED), ..range };
    }
    if let Some(bound) = bound {
        places.retain(|place| *place <= bound);
    }
    Ok((places, bound))
}

/// Loads a page.
pub(crate) async fn page(
    shared: &RedisShared,
    windows: &mut Windows,
    request: SequenceRequest,
) -> Result<Loaded, StoreError> {
    let marks = shared.marks();
    let (places, bound) = places(shared, windows, &request, &marks).await?;
    let SequenceRequest { load, as_of, .. } = request;
    let (mut rows, mut bytes, mut upto) = (Vec::new(), 0, None);
    let mut at = 0;
    while at < places.len() && rows.len() < load.rows && (rows.is_empty() || bytes < load.bytes) {
        let each = bytes.checked_div(rows.len());
        // A message that no longer exists has no size.
        let fits = each.map_or(FIRST_ROWS.max(at), |each| (load.bytes - bytes) / (each + 1) + 1);
        let most = fits.clamp(1, MOST_ROWS).min(load.rows - rows.len()).min(places.len() - at);
        let some = &places[at..at + most];
        let ids: Vec<MessageId> = some.iter().map(|(_, id)| *id).collect();
        let mut ask = Pipeline::new();
        ask_rows(&mut ask, &shared.keys, &ids);
        let mut replies = shared.wire.call(ask).await?.into_iter();
        let mut found = read_rows(&shared.keys, &ids, &mut replies)?.into_iter();
        let mut row = found.next();
        for place in some {
            if bytes >= load.bytes && !rows.is_empty() {
                break;
            }
            at += 1;
            upto = Some(*place);
            // A message that was removed or moved to another position meanwhile has a later state, which the page need
            // not show.
            if let Some(is) = row.take_if(|row| row.message.id == place.1) {
                row = found.next();
                if place_in(load.sequence, &is) == Some(*place)
                    && !RedisShared::is_purged(&marks, &is.message.queue, is.message.id)
                {
                    bytes += is.message.weight();
                    rows.push(is);
                }
            }
        }
    }
    shared.counts.list_places.store(windows.rest() as u64, SeqCst);
    let more = if at < places.len() {
        More::Yes
    } else if bound.is_some() {
        upto = bound;
        More::Yes
    } else {
        More::No
    };
    Ok(Loaded { load, as_of, rows, upto, more })
}

fn is_wanted(which: &Which, queue: &str, id: MessageId, marks: &BTreeMap<QueueName, Mark>) -> bool {
    let skipped = match which {
        Which::All => false,
        Which::One(one) => one.as_str() != queue,
        Which::AllBut(queues) => queues.binary_search_by(|q| q.as_str().cmp(queue)).is_ok(),
    };
    !skipped && (marks.is_empty() || marks.get(queue).is_none_or(|mark| !mark.hides(id)))
}

/// Removes leased messages, without reading more of them.
async fn skip_leased(
    shared: &RedisShared,
    sources: &[SequenceSource],
    scanned: &mut [Scanned],
) -> Result<(), StoreError> {
    let mut ask = Pipeline::new();
    for (source, scanned) in sources.iter().zip(&*scanned) {
        if let (Some(queue), false) = (&source.queue, scanned.places.is_empty()) {
            let cmd = ask.cmd("ZMSCORE").arg(&shared.keys.leased);
            for ((_, id), _) in &scanned.places {
                let mut member = Vec::new();
                lex::push_tail(&mut member, *id, queue.as_str());
                cmd.arg(member);
            }
        }
    }
    if ask.is_empty() {
        return Ok(());
    }
    let mut replies = shared.wire.call(ask).await?.into_iter();
    for (source, scanned) in sources.iter().zip(scanned) {
        if source.queue.is_some() && !scanned.places.is_empty() {
            let scores = value::bytes_list(value::some(replies.next(), "ZMSCORE")?, "ZMSCORE")?;
            let mut scores = scores.into_iter();
            scanned.places.retain(|_| scores.next().flatten().is_none());
        }
    }
    Ok(())
}

/// Reads the same range of several sources.
pub(crate) async fn scan(
    shared: &RedisShared,
    windows: &mut Windows,
    sources: &[SequenceSource],
    range: Range,
) -> Result<Vec<Scanned>, StoreError> {
    if sources.is_empty() {
        return Ok(Vec::new());
    }
    let mut ask = Pipeline::with_capacity(sources.len());
    for SequenceSource { key, order, .. } in sources {
        match order {
            SequenceOrder::ByMember => {
                let (min, max) = (lex::behind(range.after), lex::up_to(range.until));
                ask.cmd("ZRANGEBYLEX").arg(key).arg(min).arg(max);
            }
            SequenceOrder::ByScore(_) => {
                let from = range.after.map_or(0, |(time, _)| time);
                ask.cmd("ZRANGEBYSCORE").arg(key).arg(from).arg(range.until).arg("WITHSCORES");
            }
            SequenceOrder::Spans(_) => {
                ask_spans(&mut ask, key, range.after.map_or(0, |(time, _)| span::start(time)), range.until);
                continue;
            }
        }
        ask.arg("LIMIT").arg(0).arg(range.most);
    }
    let replies = shared.wire.call(ask).await?;
    let mut all = Vec::with_capacity(sources.len());
    let mut lists = Vec::new();
    for (at, (source, reply)) in sources.iter().zip(replies).enumerate() {
        if let (SequenceOrder::Spans(class), Some(queue)) = (source.order, &source.queue) {
            let mut of_queue = Lists { at, source, class, queue, starts: VecDeque::new(), last: None };
            of_queue.take(reply)?;
            lists.push(of_queue);
            all.push(Scanned::default());
            continue;
        }
        let mut members = read(source, reply)?;
        let mut is_all = members.len() < range.most;
        behind(&mut members, range.after);
        if let (true, false, Some(after)) = (members.is_empty(), is_all, range.after) {
            // More members than were read have the cursor's own time.
            (members, is_all) = scan_ties(shared, source, range, after).await?;
        }
        let upto = members.last().filter(|_| !is_all).map(|(place, _)| *place);
        all.push(Scanned { places: members, upto });
    }
    scan_lists(shared, windows, lists, range, &mut all).await?;
    Ok(all)
}

/// The lists of one queue that were not read yet.
struct Lists<'a> {
    /// Index among the sources.
    at: usize,
    source: &'a SequenceSource,
    class: Class,
    queue: &'a QueueName,
    starts: VecDeque<u64>,
    /// There may be more spans behind this one.
    last: Option<u64>,
}

impl Lists<'_> {
    /// Takes in the reply to [`ask_spans`].
    fn take(&mut self, reply: Value) -> Result<(), StoreError> {
        for member in value::bytes_list(reply, "ZRANGEBYSCORE")?.into_iter().flatten() {
            let start = std::str::from_utf8(&member).ok().and_then(|start| start.parse().ok());
            let odd =
                || fault::damaged(&self.source.key, String::from_utf8_lossy(&member), "it is not a number");
            self.starts.push_back(start.ok_or_else(odd)?);
        }
        self.last = self.starts.back().copied().filter(|_| self.starts.len() == SPANS);
        Ok(())
    }

    fn key(&self, keys: &Keys, start: u64) -> String {
        keys.list(self.class, start, self.queue)
    }
}

fn ask_spans(ask: &mut Pipeline, key: &str, from: u64, until: u64) {
    ask.cmd("ZRANGEBYSCORE").arg(key).arg(from).arg(until).arg("LIMIT").arg(0).arg(SPANS);
}

/// Reads a range of the lists of several queues, each queue's one after the other: the first ones of all in one
/// request, then more of those that need more.
async fn scan_lists(
    shared: &RedisShared,
    windows: &mut Windows,
    mut lists: Vec<Lists<'_>>,
    range: Range,
    all: &mut [Scanned],
) -> Result<(), StoreError> {
    let mut depth = 1;
    while !lists.is_empty() {
        let keys: Vec<String> = lists
            .iter()
            .flat_map(|list| list.starts.iter().take(depth).map(|start| list.key(&shared.keys, *start)))
            .collect();
        windows.read(shared, &keys, range).await?;
        let mut rest = Vec::new();
        for mut list in lists {
            let scanned = &mut all[list.at];
            for _ in 0..depth {
                let Some(start) = list.starts.pop_front() else { break };
                let part = windows.part(shared, &list.key(&shared.keys, start), range).await?;
                let end = part.places.partition_point(|(time, _)| *time <= range.until);
                let room = range.most - scanned.places.len();
                let some = &part.places[..end.min(room)];
                scanned.places.extend(some.iter().map(|place| (*place, Box::default())));
                if end >= room {
                    // There may be more, in this list or in the next one.
                    scanned.upto = some.last().copied();
                    break;
                }
                scanned.upto = part.upto.filter(|(time, _)| *time <= range.until);
                if scanned.upto.is_some() {
                    break;
                }
            }
            if scanned.upto.is_none() && (!list.starts.is_empty() || list.last.is_some()) {
                rest.push(list);
            }
        }
        lists = rest;
        let mut ask = Pipeline::new();
        for list in lists.iter().filter(|list| list.starts.is_empty()) {
            ask_spans(&mut ask, &list.source.key, list.last.map_or(u64::MAX, |last| last + 1), range.until);
        }
        if !ask.is_empty() {
            let mut replies = shared.wire.call(ask).await?.into_iter();
            for list in lists.iter_mut().filter(|list| list.starts.is_empty()) {
                list.take(value::some(replies.next(), "ZRANGEBYSCORE")?)?;
            }
            lists.retain(|list| !list.starts.is_empty());
        }
        depth = (2 * depth).min(SPANS);
    }
    Ok(())
}

fn behind(members: &mut Vec<(Cursor, Box<str>)>, after: Option<Cursor>) {
    if let Some(after) = after {
        members.retain(|(place, _)| *place > after);
    }
}

fn read(source: &SequenceSource, reply: Value) -> Result<Vec<(Cursor, Box<str>)>, StoreError> {
    let odd = |member: &[u8]| fault::damaged(&source.key, String::from_utf8_lossy(member), "another form");
    match source.order {
        SequenceOrder::ByMember => {
            let members = value::bytes_list(reply, "ZRANGEBYLEX")?.into_iter().flatten();
            members
                .map(|member| {
                    let place = lex::read_place(&member).ok_or_else(|| odd(&member))?;
                    Ok((place, Box::default()))
                })
                .collect()
        }
        SequenceOrder::ByScore(_) | SequenceOrder::Spans(_) => {
            let members = value::pairs(reply, "ZRANGEBYSCORE")?.into_iter();
            members
                .map(|(member, score)| {
                    let (id, queue) = lex::read_tail(&member).ok_or_else(|| odd(&member))?;
                    let score = std::str::from_utf8(&score).ok().and_then(|score| score.parse().ok());
                    Ok(((score.ok_or_else(|| odd(&member))?, id), queue.into()))
                })
                .collect()
        }
    }
}

/// Reads a range that begins among very many members of one time: the cursor is searched by their ranks.
async fn scan_ties(
    shared: &RedisShared,
    source: &SequenceSource,
    range: Range,
    after: Cursor,
) -> Result<(Vec<(Cursor, Box<str>)>, bool), StoreError> {
    let of = "ZRANGE";
    let mut ask = Pipeline::new();
    ask.cmd("ZCOUNT").arg(&source.key).arg("-inf").arg(format!("({}", after.0));
    ask.cmd("ZCOUNT").arg(&source.key).arg("-inf").arg(after.0);
    let mut counts = shared.wire.call(ask).await?.into_iter();
    let mut count = || value::some(value::number(counts.next().unwrap_or_default(), of)?, of);
    // Members up to `low` are not behind the cursor, those from `high` on are.
    let (mut low, mut high) = (count()?, count()?);
    while low < high {
        let middle = low + (high - low) / 2;
        match ranks(shared, source, middle, middle).await?.first() {
            Some((place, _)) if *place <= after => low = middle + 1,
            Some(_) => high = middle,
            None => break, // there are fewer by now
        }
    }
    // Removals move the ranks meanwhile. So the member before the range is read, too: while that one is not behind the
    // cursor, nothing between it and the range was skipped, because both were read at one moment.
    let most = range.most as u64;
    loop {
        let from = low.saturating_sub(1);
        let mut members = ranks(shared, source, from, low + most - 1).await?;
        let is_joined = from == 0 || members.first().is_some_and(|(place, _)| *place <= after);
        if !is_joined {
            low = low.saturating_sub(most);
            continue;
        }
        let read = members.len() as u64;
        let last = members.last().map(|(place, _)| place.0);
        behind(&mut members, Some(after));
        if members.is_empty() && read > most {
            // This member was added before the cursor meanwhile.
            low += most;
            continue;
        }
        let is_all = read <= low + most - 1 - from || last.is_some_and(|time| time > range.until);
        members.retain(|((time, _), _)| *time <= range.until);
        return Ok((members, is_all));
    }
}

async fn ranks(
    shared: &RedisShared,
    source: &SequenceSource,
    from: u64,
    to: u64,
) -> Result<Vec<(Cursor, Box<str>)>, StoreError> {
    let mut ask = Pipeline::new();
    ask.cmd("ZRANGE").arg(&source.key).arg(from).arg(to).arg("WITHSCORES");
    read(source, value::some(shared.wire.call(ask).await?.into_iter().next(), "ZRANGE")?)
}
