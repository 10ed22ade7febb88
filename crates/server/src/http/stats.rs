//! `GET /v1/stats` and `GET /v1/stats/stream`: figures of the whole server, once or every second.
//!
//! The stream is one for all its readers: the first one starts it, and it ends after the last one.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use duewheel::core::engine::{Histogram, LATENESS_MS, Op, Stats, WheelView};
use duewheel::core::{QueueName, WallMs};
use http_body_util::channel::{Channel, Sender};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::watch;

use super::call::Call;
use super::queue_view::{CountsAnswer, TotalsAnswer};
use super::{Answer, App, answer, reply};
use crate::auth::Scope;
use crate::error::Problem;
use crate::json::{Elements, InstantText, written};
use crate::rfc3339;

/// The time between two events of the stream.
const INTERVAL: Duration = Duration::from_secs(1);
/// The rings of later turns are counted again after this number of events, because they change slowly.
const LATER_EVERY: u64 = 5;
/// The number of segments of the first ring.
const SEGMENTS: usize = 120;
const HOUR_MS: u64 = 3_600_000;
/// The rings of later turns: how far each reaches from now, and its columns.
const LATER: [(u64, usize); 3] = [(24 * HOUR_MS, 48), (30 * 24 * HOUR_MS, 60), (3_650 * 24 * HOUR_MS, 40)];

pub(crate) async fn stats(call: Call) -> Answer {
    let later = later(&call.app).await?;
    let (stats, wheel) = now(&call.app).await?;
    Ok(reply(StatusCode::OK, &StatsAnswer::of(call.app.client.now().wall, &stats, &wheel, &later)))
}

pub(crate) async fn stream(call: Call) -> Answer {
    let events = subscribe(&call.app);
    let (sender, body) = Channel::<Bytes>::new(1);
    tokio::spawn(send(sender, events, call.app.clone(), call.headers().clone()));
    let mut response: Response = Body::new(body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Sends events to one reader until it disconnects, the stream ends, or its token is no longer valid. A slow reader
/// misses events.
async fn send(mut sender: Sender<Bytes>, mut events: watch::Receiver<Bytes>, app: App, headers: HeaderMap) {
    while events.changed().await.is_ok() {
        let caller = app.guard.caller(&headers, app.client.now().wall);
        if caller.need(Scope::Metrics).and_then(|()| caller.need_all_queues()).is_err() {
            return;
        }
        let event = events.borrow_and_update().clone();
        if !event.is_empty() && sender.send_data(event).await.is_err() {
            return;
        }
    }
}

/// A reader of the stream, which is started if it does not run.
fn subscribe(app: &App) -> watch::Receiver<Bytes> {
    let (receiver, is_first) = app.feed.subscribe();
    if is_first {
        tokio::spawn(feed(app.clone()));
    }
    receiver
}

/// Sends an event every second, until there are no readers or the server stops.
async fn feed(app: App) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut turns = Vec::new();
    for event in 0_u64.. {
        ticks.tick().await;
        if event.is_multiple_of(LATER_EVERY)
            && let Ok(found) = later(&app).await
        {
            turns = found;
        }
        let made = now(&app).await.map(|(stats, wheel)| {
            let answer = StatsAnswer::of(app.client.now().wall, &stats, &wheel, &turns);
            let mut text = b"event: stats\ndata: ".to_vec();
            text.extend_from_slice(&written(4_096, &answer));
            text.extend_from_slice(b"\n\n");
            Bytes::from(text)
        });
        // Without an answer of the engine the readers see at least that the server is alive: a comment keeps the
        // connection in use.
        let event = made.unwrap_or_else(|_| Bytes::from_static(b": no figures\n\n"));
        if app.refuses_new() && !app.drain.is_on() {
            return app.feed.end();
        }
        if !app.feed.publish(event) {
            return;
        }
    }
}

/// The present figures.
async fn now(app: &App) -> Result<(Stats, WheelView), Problem> {
    Ok((app.ask(Op::stats()).await?, app.ask(Op::wheel()).await?))
}

/// The counts of later turns.
async fn later(app: &App) -> Result<Vec<Histogram>, Problem> {
    let from = app.client.now().wall;
    let mut found = Vec::with_capacity(LATER.len());
    for (reach, columns) in LATER {
        let to = WallMs(from.0.saturating_add(reach));
        let columns = columns.min(app.policy.max_histogram);
        found.push(app.ask(Op::histogram(None, from, to, columns)).await?);
    }
    Ok(found)
}

answer! {
    /// Figures of the whole server; in a cluster of all its nodes.
    #[schemars(rename = "Stats")]
    StatsAnswer of (at: WallMs, stats: &Stats, wheel: &WheelView, turns: &[Histogram]) {
        at: InstantText = InstantText(at),
        counts: CountsAnswer = CountsAnswer::of(stats.counts),
        /// Bytes of all unsettled messages.
        bytes: u64 = stats.bytes,
        /// Messages in memory.
        resident: u64 = stats.resident,
        /// Queues; in a cluster one that is in several shards counts in each.
        queues: u64 = stats.queues,
        /// Reserves that wait for a message.
        waiters: u64 = stats.waiters,
        /// Counters since the start.
        totals: TotalsAnswer = TotalsAnswer::of(&stats.totals),
        /// Leases that ran out since the start.
        lease_expired: u64 = stats.lease_expired,
        lateness: LatenessAnswer = LatenessAnswer::of(stats),
        ring: RingAnswer = RingAnswer::of(wheel),
        /// Messages due behind the ring in memory: in the next day, the next month, the next ten years.
        later: Vec<LaterAnswer> = turns.iter().map(LaterAnswer::of).collect(),
    }
}

answer! {
    /// The lateness of first grants since the start.
    #[schemars(rename = "Lateness")]
    LatenessAnswer of (stats: &Stats) {
        /// The upper edges of the columns in ms; one more column is for everything above.
        edges_ms: Vec<u64> = LATENESS_MS.to_vec(),
        counts: Vec<u64> = stats.lateness.clone(),
        /// The sum of all latenesses.
        sum_ms: u64 = stats.lateness_sum_ms,
    }
}

answer! {
    /// The ring in memory, from its pointer on.
    #[schemars(rename = "Ring")]
    RingAnswer of (wheel: &WheelView) with {
        let slots = wheel.slots.max(1);
        let parts = SEGMENTS.min(slots);
        let mut segments = vec![0; parts];
        for (occupied, pointer) in wheel.occupied.iter().zip(wheel.pointers) {
            for &(slot, messages) in occupied {
                let ahead = (slot + slots - pointer % slots) % slots;
                segments[ahead * parts / slots] += messages;
            }
        }
    } {
        slots: u64 = wheel.slots as u64,
        tick_ms: u64 = wheel.tick_ms,
        /// The slot that the pointer has reached.
        pointer: u64 = wheel.pointers[0] as u64,
        /// Messages in the ring.
        messages: u64 = wheel.messages,
        /// The ring in equal parts, the first one behind the pointer: the number of messages of each.
        segments: Vec<u64> = segments,
    }
}

answer! {
    /// Messages by due time, from now on.
    #[schemars(rename = "Later")]
    LaterAnswer of (found: &Histogram) {
        from: InstantText = InstantText(found.from),
        /// The width of a column.
        width_ms: u64 = found.width_ms,
        counts: Vec<u64> = found.counts.clone(),
        /// Messages due behind the last column.
        after: u64 = found.after,
    }
}

const DAY_MS: u64 = 86_400_000;
/// The number of buckets by default.
pub(crate) const COLUMNS: usize = 48;

pub(crate) async fn histogram(call: Call) -> Answer {
    let queue = call.queue()?;
    histogram_of(call, Some(queue)).await
}

/// The histogram over all queues.
pub(crate) async fn histogram_of_all(call: Call) -> Answer {
    histogram_of(call, None).await
}

async fn histogram_of(call: Call, queue: Option<QueueName>) -> Answer {
    let from = instant(&call, "from")?.unwrap_or(call.app.client.now().wall);
    let to = instant(&call, "to")?.unwrap_or(WallMs(from.0.saturating_add(DAY_MS)));
    let columns = call.count_param("buckets", COLUMNS, call.app.policy.max_histogram)?;
    if to <= from {
        return Err(Problem::field("to", "must be after from"));
    }
    let found = call.app.ask(Op::histogram(queue, from, to, columns)).await?;
    Ok(reply(StatusCode::OK, &HistogramAnswer::of(&found)))
}

answer! {
    /// Scheduled and ready messages by due time.
    #[schemars(rename = "Histogram")]
    HistogramAnswer of (found: &Histogram) with {
        let starts = std::iter::successors(Some(found.from.0), |at| Some(at.saturating_add(found.width_ms)));
        let bucket = |(from, count): (u64, &u64)| BucketAnswer { from: InstantText(WallMs(from)), count: *count };
    } {
        /// The start of the first bucket.
        from: InstantText = InstantText(found.from),
        /// The width of a bucket.
        width_ms: u64 = found.width_ms,
        /// A message that is due closer than this to the edge of a bucket may be counted in the next one.
        resolution_ms: u64 = found.resolution_ms,
        /// Messages due before the first bucket: if that begins now, the overdue ones.
        before: u64 = found.before,
        /// Messages due after the last bucket.
        after: u64 = found.after,
        buckets: Vec<BucketAnswer> = starts.zip(&found.counts).map(bucket).collect(),
    }
}

/// The messages that are due in one bucket.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Bucket")]
pub(crate) struct BucketAnswer {
    pub(super) from: InstantText,
    pub(super) count: u64,
}

pub(super) fn instant(call: &Call, field: &'static str) -> Result<Option<WallMs>, Problem> {
    call.param(field)?
        .map(|text| rfc3339::parse(&text).map_err(|what| Problem::field(field, what)))
        .transpose()
}

pub(crate) async fn wheel(call: Call) -> Answer {
    let wheel = call.app.ask(Op::wheel()).await?;
    Ok(reply(StatusCode::OK, &WheelAnswer::of(&wheel)))
}

answer! {
    /// The rings in memory: one for messages due at an instant (`at`), one for messages due after a delay (`after`).
    #[schemars(rename = "Wheel")]
    WheelAnswer<'a> of (wheel: &'a WheelView) {
        /// Slots of each ring.
        slots: u64 = wheel.slots as u64,
        tick_ms: u64 = wheel.tick_ms,
        /// Messages on both rings.
        messages: u64 = wheel.messages,
        pointer: PointersAnswer = PointersAnswer::of(wheel),
        occupied: OccupiedAnswer<'a> = OccupiedAnswer::of(wheel),
    }
}

answer! {
    /// The slot that each ring has reached.
    #[schemars(rename = "Pointers")]
    PointersAnswer of (wheel: &WheelView) {
        at: u64 = wheel.pointers[0] as u64,
        after: u64 = wheel.pointers[1] as u64,
    }
}

answer! {
    /// The slots that are not empty.
    #[schemars(rename = "Occupied")]
    OccupiedAnswer<'a> of (wheel: &'a WheelView) {
        at: Elements<'a, (usize, u64), SlotAnswer> = Elements(&wheel.occupied[0], SlotAnswer::of),
        after: Elements<'a, (usize, u64), SlotAnswer> = Elements(&wheel.occupied[1], SlotAnswer::of),
    }
}

answer! {
    /// The number of messages on a slot.
    #[schemars(rename = "Slot")]
    SlotAnswer of (slot: &(usize, u64)) {
        slot: u64 = slot.0 as u64,
        messages: u64 = slot.1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_view_starts_at_pointer() {
        let wheel = WheelView {
            slots: 3_600,
            tick_ms: 1_000,
            pointers: [10, 3_590],
            messages: 10,
            occupied: [vec![(10, 1), (39, 2), (40, 3), (9, 4)], vec![(3_590, 100), (20, 200)]],
        };
        let ring = RingAnswer::of(&wheel);
        assert_eq!(ring.segments.len(), SEGMENTS);
        assert_eq!((ring.segments[0], ring.segments[1], ring.segments[119]), (103, 203, 4));
        assert_eq!(ring.segments.iter().sum::<u64>(), 310);
    }
}
