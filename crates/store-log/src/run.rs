//! Runs: immutable, sorted files with the messages that are not in memory.
//!
//! | part of the file | |
//! |---|---|
//! | head | which run, up to which LSN |
//! | blocks of messages | in spans of disjoint due times; within a span by (queue, due, id) |
//! | blocks of remembered answers | by hash |
//! | leaves of the indexes | ids, keys, the spans of each queue, leased and dead messages |
//! | tail | names of queues, the table of spans, fences of the indexes, the filter of keys, the set of ids |
//! | footer | where these are, and how many |
//!
//! | module | noun |
//! |---|---|
//! | `block` | the bytes around everything: head, blocks, footer |
//! | `leaf`, `index` | sorted entries of numbers, and how one is found |
//! | `sorter` | sorts entries in bounded memory |
//! | `filter` | excludes keys that a run does not have |
//! | `hash` | the hashes of keys and dedupe ids, under the folder's seed |
//! | `live` | the live rows of a run |
//! | `row` | one message, not decoded |
//! | `writer` | makes a run |
//! | `opened` | a run that is open for queries |
//! | `find`, `scan`, `answers` | the queries |
//! | `verify` | reads every byte |

pub(crate) mod block;
mod file;
mod filter;
mod find;
pub(crate) mod hash;
mod index;
mod leaf;
mod live;
mod opened;
pub(crate) mod row;
mod scan;
mod sorter;
mod verify;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use file::Blocking;
pub(crate) use find::{KeyLookup, Newer, NewerTables, ReadAllowance};
pub(crate) use live::{Live, Mask, share};
pub(crate) use opened::{Run, RunAnswers, RunQueue};
pub(crate) use row::RawRow;
pub(crate) use scan::AnswerScan;
pub(crate) use scan::{RunScan, before};
pub(crate) use verify::verify;
pub(crate) use writer::RunWriter;
