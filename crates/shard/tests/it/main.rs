//! Tests of the driver, most of them stepped by hand, in one binary.
#![allow(unreachable_pub)] // one binary of several modules
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small

mod driver;
mod groups;
mod lent;
mod pages;
mod parked;
mod parts;
mod quotas;
mod refused;
mod stuck;
