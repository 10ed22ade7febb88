//! Which messages of a queue are meant; and dead messages, counted by the reason of their death.

use std::collections::{BTreeMap, HashMap};

use duewheel::core::engine::View;
use duewheel::core::message::{DeadReason, State};
use duewheel::core::name::{Key, QueueName};
use duewheel::core::time::WallMs;
use duewheel::{CallError, Client};
use duewheel_shard::listing::{ListPositions, ListRequest, Listing};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Messages that one page of a filtered list, or of counts by reason, looks at, at most.
const LOOKED_AT: usize = 20_000;

/// Which messages are meant: those for which everything holds that is given.
///
/// ```
/// use duewheel_delivery::BulkFilter;
/// let filter = BulkFilter { key_prefix: Some("order-".into()), ..BulkFilter::default() };
/// assert!(!filter.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BulkFilter {
    /// Due at this instant or later, in ms since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_from: Option<u64>,
    /// Due before this instant, in ms since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_to: Option<u64>,
    /// The key begins with this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_prefix: Option<String>,
    /// Each of these headers is there with this value.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The state.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "write_state",
        deserialize_with = "read_state"
    )]
    pub state: Option<State>,
    /// Dead messages with this reason.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "write_reason",
        deserialize_with = "read_reason"
    )]
    pub dead_reason: Option<DeadReason>,
    /// Dead messages whose last attempt has exactly this note; an empty one for those that had no attempt, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_note: Option<String>,
    /// Dead messages whose last attempt has this in its note, in capitals or not; an empty one as `dead_note`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Whether a note has this part, in capitals or not. Without a part the note is to be empty.
fn has_part(note: &str, part: &str) -> bool {
    note == part || (!part.is_empty() && note.to_lowercase().contains(&part.to_lowercase()))
}

/// The note of the last attempt of a message; empty if there is none.
fn last_note(view: &View) -> &str {
    view.history.last().map_or("", |past| &past.note)
}

impl BulkFilter {
    /// Whether every message is meant.
    pub fn is_empty(&self) -> bool {
        *self == BulkFilter::default()
    }

    /// Whether a message is meant.
    pub fn matches(&self, view: &View) -> bool {
        let has = |(name, value): (&String, &String)| {
            view.message.headers.iter().any(|(n, v)| n.eq_ignore_ascii_case(name) && **v == **value)
        };
        self.due_from.is_none_or(|from| view.due_at.0 >= from)
            && self.due_to.is_none_or(|to| view.due_at.0 < to)
            && self.state.is_none_or(|state| view.state == state)
            && self.key_prefix.as_ref().is_none_or(|prefix| {
                view.message.key.as_ref().map(Key::as_str).is_some_and(|key| key.starts_with(&**prefix))
            })
            && self.headers.iter().all(has)
            && self.dead_reason.is_none_or(|reason| view.dead.is_some_and(|(is, _)| is == reason))
            && self.dead_note.as_ref().is_none_or(|note| view.dead.is_some() && last_note(view) == &**note)
            && self.note.as_ref().is_none_or(|part| view.dead.is_some() && has_part(last_note(view), part))
    }

    /// Whether a reason of death is asked for, which only dead messages have.
    pub(super) fn asks_for_dead(&self) -> bool {
        self.dead_reason.is_some() || self.dead_note.is_some() || self.note.is_some()
    }

    /// The state of the messages that are meant, if it is one.
    pub(super) fn only(&self) -> Option<State> {
        self.state.or(self.asks_for_dead().then_some(State::Dead))
    }

    /// Whether neither this message nor any behind it in a list of `state` is meant. Dead and done messages are listed in
    /// the order in which they died and ended.
    fn ends_at(&self, state: Option<State>, view: &View) -> bool {
        !matches!(state, Some(State::Dead | State::Done)) && self.due_to.is_some_and(|to| view.due_at.0 >= to)
    }

    fn from(&self) -> Option<WallMs> {
        self.due_from.map(WallMs)
    }
}

/// One page of a list, of which a filter is applied.
pub(super) struct FilterStep {
    /// The messages that the filter means. Nothing that it means comes behind a page without a `next`.
    pub(super) found: Listing,
    /// The number of messages that were looked at.
    pub(super) walked: usize,
}

/// Lists a page of messages in `state` and leaves out what the filter does not mean.
pub(super) async fn filter_step(
    client: &Client,
    queue: &QueueName,
    state: Option<State>,
    filter: &BulkFilter,
    after: Option<ListPositions>,
    limit: usize,
) -> Result<FilterStep, CallError> {
    let from = filter.from();
    let mut found = client.list_from(ListRequest { queue: queue.clone(), state, after, limit, from }).await?;
    let walked = found.views.len();
    if found.views.last().is_some_and(|last| filter.ends_at(state, last)) {
        found.next = None;
    }
    found.views.retain(|view| filter.matches(view));
    Ok(FilterStep { found, walked })
}

/// A page of the messages that a filter means, in due order; dead ones, if only they are meant, in the order in which they
/// died. It has at most `limit` messages, and ends when they exceed `max_bytes`. It may have fewer although there are
/// more: see [`Listing::next`].
///
/// # Errors
/// See [`Client::list`].
///
/// # Cancel safety
/// Cancel safe.
pub async fn filtered_page(
    client: &Client,
    queue: &QueueName,
    filter: &BulkFilter,
    after: Option<ListPositions>,
    (limit, max_bytes): (usize, usize),
) -> Result<Listing, CallError> {
    let mut page = Listing { views: Vec::new(), next: after };
    let (mut walked, mut bytes) = (0, 0);
    loop {
        let wanted = limit.saturating_sub(page.views.len());
        let step = filter_step(client, queue, filter.only(), filter, page.next.take(), wanted).await?;
        walked += step.walked;
        bytes += step.found.views.iter().map(|view| view.message.weight()).sum::<usize>();
        page.views.extend(step.found.views);
        page.next = step.found.next;
        // A small rest of the page would cost as much as a whole one.
        let is_full = page.views.len() * 2 >= limit || bytes >= max_bytes;
        if page.next.is_none() || is_full || walked >= LOOKED_AT {
            return Ok(page);
        }
    }
}

fn write_state<S: Serializer>(state: &Option<State>, to: S) -> Result<S::Ok, S::Error> {
    state.map(State::as_str).serialize(to)
}

fn read_state<'de, D: Deserializer<'de>>(from: D) -> Result<Option<State>, D::Error> {
    let Some(word) = Option::<String>::deserialize(from)? else { return Ok(None) };
    let found = State::ALL.into_iter().find(|state| state.as_str() == word);
    found.map(Some).ok_or_else(|| serde::de::Error::custom("is no state of a message"))
}

fn write_reason<S: Serializer>(reason: &Option<DeadReason>, to: S) -> Result<S::Ok, S::Error> {
    reason.map(DeadReason::as_str).serialize(to)
}

fn read_reason<'de, D: Deserializer<'de>>(from: D) -> Result<Option<DeadReason>, D::Error> {
    let Some(word) = Option::<String>::deserialize(from)? else { return Ok(None) };
    let found = DeadReason::ALL.into_iter().find(|reason| reason.as_str() == word);
    found.map(Some).ok_or_else(|| serde::de::Error::custom("is no reason of a dead message"))
}

/// A page ends once it has so many reasons: consumers may give each message a reason of its own.
const REASONS: usize = 1_000;

/// The dead messages that died for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadByReason {
    /// The reason.
    pub reason: DeadReason,
    /// The note of their last attempt; empty if there is none.
    pub note: Box<str>,
    /// The number of dead messages.
    pub messages: u64,
}

/// A page of counts.
#[derive(Debug)]
pub struct DeadReasons {
    /// The reasons, the most frequent first.
    pub reasons: Vec<DeadByReason>,
    /// The dead messages that were counted.
    pub counted: u64,
    /// Where the next page begins; `None`: all are counted.
    pub next: Option<ListPositions>,
}

/// Counts dead messages that a filter means by reason and note, in the order in which they died: of a page of at most
/// 20,000 messages.
///
/// They are counted by a walk. A tally by reason would need the reason in each record about a dead message, and would
/// not tell `status_500` from `timeout`. So a count costs as much as a filtered list, and its pages are as bounded.
///
/// # Errors
/// See [`Client::list`].
///
/// # Cancel safety
/// Cancel safe.
pub async fn dead_reasons(
    client: &Client,
    queue: &QueueName,
    filter: &BulkFilter,
    after: Option<ListPositions>,
    limit: usize,
) -> Result<DeadReasons, CallError> {
    let mut by_reason: HashMap<(&'static str, Box<str>), (DeadReason, u64)> = HashMap::new();
    let (mut next, mut walked, mut counted) = (after, 0, 0);
    loop {
        let step = filter_step(client, queue, Some(State::Dead), filter, next.take(), limit).await?;
        walked += step.walked.max(1);
        for view in &step.found.views {
            let Some((reason, _)) = view.dead else { continue };
            counted += 1;
            by_reason.entry((reason.as_str(), last_note(view).into())).or_insert((reason, 0)).1 += 1;
        }
        next = step.found.next;
        if next.is_none() || walked >= LOOKED_AT || by_reason.len() >= REASONS {
            break;
        }
    }
    let one = |((_, note), (reason, messages))| DeadByReason { reason, note, messages };
    let mut reasons: Vec<DeadByReason> = by_reason.into_iter().map(one).collect();
    reasons.sort_by(|a, b| {
        let names = |one: &DeadByReason| (one.reason.as_str(), one.note.clone());
        b.messages.cmp(&a.messages).then_with(|| names(a).cmp(&names(b)))
    });
    Ok(DeadReasons { reasons, counted, next })
}
