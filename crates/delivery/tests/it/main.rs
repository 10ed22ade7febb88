//! Tests of delivery, in one binary.
#![allow(unreachable_pub)] // one binary of several modules
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small

mod acts;
mod answers;
mod bulk;
mod deliveries;
mod downtime;
mod edits;
mod occurrences;
mod pushers;
mod receiver;
mod schedule_model;
mod scheduled;
mod schedules;
mod spellings;
mod stored;
mod targets;
mod workers;
