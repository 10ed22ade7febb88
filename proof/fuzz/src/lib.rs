//! The bodies of the fuzz targets of `fuzz/`. They build on stable, so that the corpora are replayed with the other
//! tests; `docs/testing.md` lists what each target asserts.
//!
//! A target takes any bytes, and panics when the code handles them wrongly.

mod base;
mod beanstalk;
mod choices;
mod cron;
mod cuts;
mod disk;
mod edits;
mod engine;
mod folder;
mod http;
mod pieces;
mod record;
mod text;
mod wild;
mod wire;

// The engine's rig and its model, shared with its own tests.
#[path = "../../../crates/core/tests/engine/harness.rs"]
#[allow(dead_code, missing_docs, missing_debug_implementations, unreachable_pub)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
mod harness;
#[path = "../../../crates/core/tests/engine/model.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::cast_possible_truncation)]
mod model;

pub use beanstalk::{beanstalk, beanstalk_answers};
pub use cron::cron;
pub use engine::engine;
pub use folder::{journal, manifest, run_file, state};
pub use http::{http, http_answers};
pub use record::record;
pub use text::text;
pub use wire::wire;

/// A target, as `cargo fuzz run` and the replay know it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its corpus.
    pub name: &'static str,
    /// The function that handles an input.
    pub run: fn(&[u8]),
    /// The largest useful length of an input.
    pub max_len: usize,
}

/// All targets.
pub const TARGETS: [Target; 11] = [
    Target { name: "journal", run: journal, max_len: 1_024 },
    Target { name: "run_file", run: run_file, max_len: 1_024 },
    Target { name: "manifest", run: manifest, max_len: 512 },
    Target { name: "state", run: state, max_len: 1_024 },
    Target { name: "record", run: record, max_len: 1_024 },
    Target { name: "engine", run: engine, max_len: 768 },
    Target { name: "beanstalk", run: beanstalk, max_len: 1_024 },
    Target { name: "http", run: http, max_len: 1_024 },
    Target { name: "text", run: text, max_len: 1_024 },
    Target { name: "wire", run: wire, max_len: 1_024 },
    Target { name: "cron", run: cron, max_len: 300 },
];
