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
//! | `block` | the bytes around everything: head, blocks, footer; the file, read in whole blocks |
//! | `index` | sorted entries of numbers: their leaves, how one is found, how they are sorted in bounded memory |
//! | `filter` | excludes keys that a run does not have; the hashes of keys and dedupe ids |
//! | `writer` | makes a run |
//! | `opened` | a run that is open for queries, its live rows; one message, not decoded |
//! | `find`, `scan` | the queries |
//! | `verify` | reads every byte |

pub(crate) mod block;
pub(crate) mod filter;
mod find;
mod index;
pub(crate) mod opened;
mod scan;
mod verify;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use block::Blocking;
pub(crate) use find::{KeyLookup, Newer, NewerTables, ReadAllowance};
pub(crate) use opened::{Live, Mask, RawRow, Run, RunAnswers, RunQueue, share};
pub(crate) use scan::{AnswerScan, RunScan, before};
pub(crate) use verify::verify;
pub(crate) use writer::RunWriter;
