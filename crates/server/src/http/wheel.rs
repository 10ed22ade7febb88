//! `GET /v1/wheel`: the ring in memory.

use axum::http::StatusCode;
use duewheel::core::engine::Op;
use schemars::JsonSchema;
use serde::Serialize;

use super::call::Call;
use super::{Answer, reply};
use crate::json::Elements;

pub(crate) async fn wheel(call: Call) -> Answer {
    let wheel = call.app.ask(Op::wheel()).await?;
    let [at, after] = wheel.pointers.map(|pointer| pointer as u64);
    let [slots_at, slots_after] = &wheel.occupied;
    let answer = WheelAnswer {
        slots: wheel.slots as u64,
        tick_ms: wheel.tick_ms,
        messages: wheel.messages,
        pointer: PointersAnswer { at, after },
        occupied: OccupiedAnswer {
            at: Elements::new(slots_at, SlotAnswer::of),
            after: Elements::new(slots_after, SlotAnswer::of),
        },
    };
    Ok(reply(StatusCode::OK, &answer))
}

/// The rings in memory: one for messages due at an instant (`at`), one for messages due after a delay (`after`).
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Wheel")]
pub(crate) struct WheelAnswer<'a> {
    /// Slots of each ring.
    pub(super) slots: u64,
    pub(super) tick_ms: u64,
    /// Messages on both rings.
    pub(super) messages: u64,
    pub(super) pointer: PointersAnswer,
    pub(super) occupied: OccupiedAnswer<'a>,
}

/// The slot that each ring has reached.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Pointers")]
pub(crate) struct PointersAnswer {
    pub(super) at: u64,
    pub(super) after: u64,
}

/// The slots that are not empty.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Occupied")]
pub(crate) struct OccupiedAnswer<'a> {
    pub(super) at: Elements<'a, (usize, u64), SlotAnswer>,
    pub(super) after: Elements<'a, (usize, u64), SlotAnswer>,
}

/// The number of messages on a slot.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Slot")]
pub(crate) struct SlotAnswer {
    pub(super) slot: u64,
    pub(super) messages: u64,
}

impl SlotAnswer {
    fn of(&(slot, messages): &(usize, u64)) -> Self {
        SlotAnswer { slot: slot as u64, messages }
    }
}
