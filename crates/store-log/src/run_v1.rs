//! Runs: immutable, sorted files. In this version there is at most one, the newest checkpoint, with everything that was
//! pending at its LSN.
//!
//! | part | |
//! |---|---|
//! | head | which run, up to which LSN |
//! | blocks of queues | by name |
//! | blocks of messages | by id |
//! | blocks of remembered answers | by queue and id |
//! | end block | counters, the clock pair, and how many of each |

pub(crate) mod block;
pub(crate) mod reader;
pub(crate) mod writer;
