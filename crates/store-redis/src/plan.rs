//! Converts groups to the commands of the script: few commands, each with as many words as possible.

use duewheel_core::message::{Kind, Stage};
use duewheel_core::record::{DedupeRow, Record, Was};
use duewheel_core::time::{Class, Due};
use duewheel_core::{MessageId, QueueName};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use redis::Cmd;
use roaring::RoaringTreemap;

use crate::fold::{Folded, Net, Standing};
use crate::keys::Keys;
use crate::mark::Mark;
use crate::{lex, span, text};

/// Largest number of words of a command: Lua passes at most some 8,000 values to a function at once.
const MOST_WORDS: usize = 6_000;
/// The greatest number up to which every whole number is an exact score.
pub(crate) const MOST_SCORE: u64 = 1 << 53;

/// Words, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct WordList {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl WordList {
    pub(crate) fn push(&mut self, word: &[u8]) {
        self.bytes.extend_from_slice(word);
        self.ends.push(self.bytes.len());
    }

    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn number(&mut self, n: u64) {
        self.write(|out| lex::push_decimal(out, n));
    }

    pub(crate) fn place(&mut self, time: u64, id: MessageId) {
        self.write(|out| lex::push_place(out, time, id));
    }

    /// Appends the start of the span of a time, and the member for an id.
    fn start_and_member(&mut self, time: u64, id: MessageId) {
        self.number(span::start(time));
        self.id(id);
    }

    fn id_and_member(&mut self, id: MessageId) {
        self.number(id.0);
        self.id(id);
    }

    pub(crate) fn id(&mut self, id: MessageId) {
        self.write(|out| lex::push(out, id.0));
    }

    fn tail(&mut self, id: MessageId, queue: &QueueName) {
        self.write(|out| lex::push_tail(out, id, queue.as_str()));
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn words(&self, from: usize, to: usize) -> impl Iterator<Item = &[u8]> {
        (from..to).map(|i| {
            let start = if i == 0 { 0 } else { self.ends[i - 1] };
            &self.bytes[start..self.ends[i]]
        })
    }
}

/// Members that leave a set, and members that are added, with their scores.
#[derive(Debug, Default)]
struct SetMoves {
    rem: WordList,
    add: WordList,
}

impl SetMoves {
    fn place(&mut self, time: u64, id: MessageId) {
        self.add.push(b"0");
        self.add.place(time, id);
    }
}

/// Messages of a queue that leave the index by due time, and those that are added to it.
#[derive(Debug, Default)]
struct DueIndexChanges {
    away: WordList,
    come: Vec<(u64, MessageId)>,
}

impl DueIndexChanges {
    /// Writes the additions of one class: many of one span go to its list, few to the sorted set unless there is a
    /// list, because a list has a fixed cost.
    fn write(&self, to: &mut Commands<'_>, keys: &Keys, class: Class, queue: &QueueName, dense: usize) {
        let (singles, spans, live) =
            (keys.singles(class, queue), keys.spans(class, queue), keys.live(class, queue));
        let lists = keys.lists(class);
        to.many(&["@away", &singles, &spans, &live, &lists, queue.as_str()], &self.away, 2);
        // Added in the order of the set: neighbours share most of the search path.
        let mut sorted = self.come.clone();
        sorted.sort_unstable();
        let mut add = WordList::default();
        for of_span in sorted.chunk_by(|a, b| span::start(a.0) == span::start(b.0)) {
            // Looking for a list that does not exist costs about as much as adding one member.
            if of_span.len() < dense.min(2) || of_span[0].0 > MOST_SCORE {
                for (time, id) in of_span {
                    add.number(span::score(*time));
                    add.id(*id);
                }
                continue;
            }
            let start = span::start(of_span[0].0);
            let mut places = WordList::default();
            of_span.iter().for_each(|(time, id)| places.place(*time, *id));
            let (list, start, dense) = (keys.list(class, start, queue), start.to_string(), dense.to_string());
            to.many(&["@come", &singles, &spans, &live, &list, &start, &dense], &places, 1);
        }
        to.many(&["ZADD", &singles], &add, 2);
    }
}

/// Fields that leave a hash, and fields that are added, with their values.
#[derive(Debug, Default)]
struct HashMoves {
    del: WordList,
    set: WordList,
}

/// The changes of one queue.
#[derive(Debug)]
struct OfQueue<'a> {
    name: &'a QueueName,
    /// The changes of the index by due time, by class.
    places: [DueIndexChanges; 2],
    dead: SetMoves,
    keys: WordList,
    dead_keys: WordList,
    gone: WordList,
    rots: WordList,
    dies: WordList,
    turns: WordList,
    rises: WordList,
}

/// The work of a script call.
#[derive(Debug)]
pub(crate) struct ScriptPlan<'a> {
    keys: &'a Keys,
    unkeyed: &'a RoaringTreemap,
    /// The number of messages of one span from which on a list is made.
    dense: usize,
    queues: Vec<OfQueue<'a>>,
    places: HashMap<&'a QueueName, usize, FixedState>,
    last: usize,
    leased: SetMoves,
    held: [SetMoves; 2],
    messages: HashMoves,
    lives: HashMoves,
    leases: HashMoves,
    answers: WordList,
    answer_ends: WordList,
    purges: WordList,
}

impl<'a> ScriptPlan<'a> {
    /// An empty plan. `unkeyed` are messages that are known to have no key: the script checks the others.
    pub(crate) fn new(keys: &'a Keys, unkeyed: &'a RoaringTreemap, dense: usize) -> Self {
        ScriptPlan {
            keys,
            unkeyed,
            dense,
            queues: Vec::new(),
            places: HashMap::default(),
            last: 0,
            leased: SetMoves::default(),
            held: Default::default(),
            messages: HashMoves::default(),
            lives: HashMoves::default(),
            leases: HashMoves::default(),
            answers: WordList::default(),
            answer_ends: WordList::default(),
            purges: WordList::default(),
        }
    }

    /// Adds a group.
    pub(crate) fn take(&mut self, folded: &Folded<'a>) {
        for net in &folded.nets {
            self.net(net);
        }
        for record in &folded.others {
            match record {
                Record::Deduped(row) => self.answer(row),
                Record::Purged { queue, keep, before, .. } => {
                    self.purges.push(queue.as_str().as_bytes());
                    self.purges.push(&Mark { before: *before, keep: keep.iter().collect() }.text());
                }
                // The ledger keeps this record.
                Record::Queue { .. }
                | Record::Put { .. }
                | Record::Changed { .. }
                | Record::Granted { .. }
                | Record::Removed { .. } => {}
            }
        }
    }

    fn answer(&mut self, row: &DedupeRow) {
        let name = text::answer_name(&row.queue, &row.dedupe_id);
        self.answers.push(&name);
        self.answers.push(&text::answer(row));
        self.answer_ends.number(row.until.0.min(MOST_SCORE));
        self.answer_ends.push(&name);
    }

    fn queue(&mut self, name: &'a QueueName) -> &mut OfQueue<'a> {
        // Usually the queue of the message before.
        if self.queues.get(self.last).is_some_and(|queue| queue.name == name) {
            return &mut self.queues[self.last];
        }
        let known = self.places.get(name).copied();
        let place = known.unwrap_or_else(|| {
            self.places.insert(name, self.queues.len());
            self.queues.push(OfQueue {
                name,
                places: Default::default(),
                dead: SetMoves::default(),
                keys: WordList::default(),
                dead_keys: WordList::default(),
                gone: WordList::default(),
                rots: WordList::default(),
                dies: WordList::default(),
                turns: WordList::default(),
                rises: WordList::default(),
            });
            self.queues.len() - 1
        });
        self.last = place;
        &mut self.queues[place]
    }

    fn net(&mut self, net: &Net<'a>) {
        match (net.was, &net.is) {
            (None, None) => {}
            (None, Some(is)) => self.put(net, is),
            (Some(was), None) => self.remove(net.id, net.queue, was),
            (Some(was), Some(is)) => self.change(net, was, is),
        }
    }

    fn put(&mut self, net: &Net<'a>, is: &Standing<'a>) {
        let (Some(message), Some(life)) = (is.message, is.life) else { return };
        let id = net.id;
        self.messages.set.number(id.0);
        self.messages.set.push(&text::message(message, life));
        if !text::is_untouched(life) {
            self.lives.set.number(id.0);
            self.lives.set.push(&text::life(life));
        }
        self.lease(id, is);
        if let Some(key) = &message.key {
            let queue = self.queue(net.queue);
            let escaped = |out: &mut Vec<u8>| text::escape(out, key.as_str());
            if is.kind == Kind::Dead {
                queue.dead_keys.push(b"0");
                queue.dead_keys.write(|out| {
                    escaped(out);
                    out.push(b' ');
                    lex::push(out, id.0);
                });
            } else {
                queue.keys.write(escaped);
                queue.keys.number(id.0);
            }
        }
        self.place(net, is, None);
    }

    /// Removes a message.
    pub(crate) fn remove(&mut self, id: MessageId, name: &'a QueueName, was: &Was) {
        for hash in [&mut self.messages, &mut self.lives] {
            hash.del.number(id.0);
        }
        if was.kind == Kind::Dead {
            self.queue(name).rots.id_and_member(id);
        } else if !self.unkeyed.contains(id.0) {
            self.queue(name).gone.id_and_member(id);
        }
        if was.kind == Kind::Leased {
            self.leases.del.number(id.0);
        }
        self.displace(id, name, was, None);
    }

    fn change(&mut self, net: &Net<'a>, was: &Was, is: &Standing<'a>) {
        let id = net.id;
        if let (Some(message), Some(life)) = (is.message, is.life) {
            self.messages.set.number(id.0);
            self.messages.set.push(&text::message(message, life));
            if text::is_untouched(life) {
                self.lives.del.number(id.0);
            }
        }
        if let Some(life) = is.life
            && !(is.message.is_some() && text::is_untouched(life))
        {
            self.lives.set.number(id.0);
            self.lives.set.push(&text::life(life));
        }
        if is.lease.is_none() && was.kind == Kind::Leased {
            self.leases.del.number(id.0);
        }
        self.lease(id, is);
        let queue = self.queue(net.queue);
        match (was.kind == Kind::Dead, is.kind == Kind::Dead) {
            (false, false) => {}
            (false, true) => queue.dies.id_and_member(id),
            (true, true) => queue.turns.id_and_member(id),
            (true, false) => queue.rises.id_and_member(id),
        }
        self.displace(id, net.queue, was, Some(is));
        self.place(net, is, Some(was));
    }

    fn lease(&mut self, id: MessageId, is: &Standing<'a>) {
        if let Some((attempt, lease)) = is.lease {
            self.leases.set.number(id.0);
            self.leases.set.push(&text::lease(attempt, lease));
        }
    }

    /// Removes a message from its former index; the script itself handles the queue's dead messages.
    fn displace(&mut self, id: MessageId, name: &'a QueueName, was: &Was, is: Option<&Standing<'a>>) {
        let class = was.due.class() as usize;
        if was.kind == Kind::Leased && is.is_none_or(|is| is.kind != Kind::Leased) {
            self.leased.rem.tail(id, name);
        }
        if was.kind == Kind::Dead {
            // Another time in the same set needs only another score.
            let stays = |is: &Standing<'a>| is.kind == Kind::Dead && is.due.class() == was.due.class();
            if !is.is_some_and(stays) {
                self.held[class].rem.tail(id, name);
            }
        } else if !is.is_some_and(|is| is.kind != Kind::Dead && is.due == was.due) {
            self.queue(name).places[class].away.start_and_member(was.due.raw(), id);
        }
    }

    /// Adds a message to its new index.
    fn place(&mut self, net: &Net<'a>, is: &Standing<'a>, was: Option<&Was>) {
        let (id, name) = (net.id, net.queue);
        let (time, class) = (is.due.raw(), is.due.class() as usize);
        let same = was.filter(|was| was.due == is.due);
        if let (Kind::Leased, Some((_, lease))) = (is.kind, is.lease) {
            self.leased.add.number(lease.until.0.min(MOST_SCORE));
            self.leased.add.tail(id, name);
        }
        if is.kind != Kind::Dead {
            if same.is_none_or(|was| was.kind == Kind::Dead) {
                self.queue(name).places[class].come.push((time, id));
            }
            return;
        }
        if let Some(Stage::Dead { at, .. }) = is.life.map(|life| &life.stage) {
            self.queue(name).dead.place(at.raw(), id);
        }
        if same.is_none_or(|was| was.kind != Kind::Dead) {
            self.held[class].add.number(span::score(time));
            self.held[class].add.tail(id, name);
        }
    }

    /// Removes a purged message of which only the position is known.
    pub(crate) fn sweep(&mut self, id: MessageId, name: &'a QueueName, kind: Kind, due: Due) {
        self.remove(id, name, &Was { queue: name.clone(), kind, due, weight: 0 });
    }

    /// Writes all commands behind the words of the script itself.
    pub(crate) fn write(&self, to: &mut Commands<'_>) {
        let keys = self.keys;
        for queue in &self.queues {
            let name = queue.name;
            let moves = [
                ("@gone", &queue.gone),
                ("@rots", &queue.rots),
                ("@dies", &queue.dies),
                ("@turns", &queue.turns),
                // Keys are given up before they are taken.
                ("@rises", &queue.rises),
            ];
            if moves.iter().any(|(_, list)| list.len() > 0) {
                let (held, of_dead) = (keys.held_keys(name), keys.dead_keys(name));
                let dead = keys.dead(name);
                for (command, list) in moves {
                    let words = [command, &keys.messages, &keys.lives, &held, &of_dead, &dead];
                    to.many(&words, list, 2);
                }
            }
            for (class, places) in [Class::At, Class::After].into_iter().zip(&queue.places) {
                if places.away.len() + places.come.len() > 0 {
                    places.write(to, keys, class, name, self.dense);
                }
            }
            if queue.dead.add.len() > 0 {
                to.set(&keys.dead(name), &queue.dead.rem, &queue.dead.add);
            }
            if queue.keys.len() > 0 {
                to.many(&["HSET", &keys.held_keys(name)], &queue.keys, 2);
            }
            if queue.dead_keys.len() > 0 {
                to.many(&["ZADD", &keys.dead_keys(name)], &queue.dead_keys, 2);
            }
        }
        for (key, moves) in [
            (&keys.leased, &self.leased),
            (&keys.held_at, &self.held[Class::At as usize]),
            (&keys.held_after, &self.held[Class::After as usize]),
        ] {
            to.set(key, &moves.rem, &moves.add);
        }
        for (key, moves) in
            [(&keys.messages, &self.messages), (&keys.lives, &self.lives), (&keys.leases, &self.leases)]
        {
            to.many(&["HDEL", key], &moves.del, 1);
            to.many(&["HSET", key], &moves.set, 2);
        }
        to.many(&["HSET", &keys.answers], &self.answers, 2);
        to.many(&["ZADD", &keys.answer_ends], &self.answer_ends, 2);
        to.many(&["HSET", &keys.purges], &self.purges, 2);
    }
}

/// Commands behind the words of the script itself.
#[derive(Debug)]
pub(crate) struct Commands<'c>(pub(crate) &'c mut Cmd);

impl Commands<'_> {
    fn set(&mut self, key: &str, rem: &WordList, add: &WordList) {
        self.many(&["ZREM", key], rem, 1);
        self.many(&["ZADD", key], add, 2);
    }

    /// Writes a command for all words of a list, or several commands; a unit of words is not split.
    pub(crate) fn many(&mut self, words: &[&str], list: &WordList, unit: usize) {
        let most = MOST_WORDS / unit * unit;
        let mut from = 0;
        while from < list.len() {
            let to = list.len().min(from + most);
            self.0.arg(words.len() + to - from);
            for word in words {
                self.0.arg(*word);
            }
            for word in list.words(from, to) {
                self.0.arg(word);
            }
            from = to;
        }
    }

    /// Writes one command.
    pub(crate) fn one(&mut self, words: &[&[u8]]) {
        self.0.arg(words.len());
        for word in words {
            self.0.arg(*word);
        }
    }
}
