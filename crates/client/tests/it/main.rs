//! The cases that every client runs, `clients/cases.json`, which `clients/README.md` describes: against the real
//! server, and against `clients/scripted_server.py`. `DUEWHEEL_BIN` names the binary; else it is the one that was built
//! with this.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod calls;
mod cases;
mod edges;
mod processes;
mod signatures;
mod workers;
