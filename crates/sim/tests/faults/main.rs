//! The real server under faults from outside, judged by the checker: system calls that fail (`trace`), a full disk
//! (`full_disk`), pauses (`pause`), and more load than it is allowed to take (`soak`).
//!
//! Each test is a run as that of `kill9`: its clients work, something is done to the server, everything is drained, what is
//! left is listed, and the history is judged. A run counts only if its faults provably happened. A test that the machine does
//! not permit says `NOT RUN` and why; `scripts/torture` does not count it as passed.
//!
//! | variable | |
//! |---|---|
//! | `DUEWHEEL_INJECTIONS` (2) | of each system call the first so many fail, one after the other |
//! | `DUEWHEEL_CYCLES` (2) | how often the disk is full |
//! | `DUEWHEEL_PAUSES` (3) | how often the server is stopped |
//! | `DUEWHEEL_SOAK_SECONDS` (30) | how long there is too much load |
//! | `DUEWHEEL_SEED` | the decisions of another run |
//! | `DUEWHEEL_BIN`, `DUEWHEEL_KEEP=1` | as for `kill9` |

mod full_disk;
mod pause;
mod soak;
mod stage;
mod trace;
