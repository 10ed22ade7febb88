//! `GET /v1/wheel`: the ring in memory.

use axum::http::StatusCode;
use duewheel::core::engine::{Op, Reply};

use super::call::Call;
use super::{Answer, object};
use crate::error::Problem;

/// The two rings: messages due at an instant, and messages due after a delay.
const RINGS: [&str; 2] = ["at", "after"];

pub(crate) async fn wheel(call: Call) -> Answer {
    match call.app.ask(Op::Wheel).await? {
        Reply::Wheel(wheel) => Ok(object(StatusCode::OK, |out| {
            out.number("slots", wheel.slots as u64);
            out.number("tick_ms", wheel.tick_ms);
            out.number("messages", wheel.messages);
            out.open_member("pointer");
            for (name, pointer) in RINGS.into_iter().zip(wheel.pointers) {
                out.number(name, pointer as u64);
            }
            out.close();
            out.open_member("occupied");
            for (name, occupied) in RINGS.into_iter().zip(&wheel.occupied) {
                out.open_list(name);
                for (slot, messages) in occupied {
                    out.open();
                    out.number("slot", *slot as u64);
                    out.number("messages", *messages);
                    out.close();
                }
                out.close_list();
            }
            out.close();
        })),
        _ => Err(Problem::internal()),
    }
}
