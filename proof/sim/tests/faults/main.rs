//! The real server under faults from outside, judged by the checker: system calls that fail (`trace`), a full disk
//! (`full_disk`), pauses (`pause`), more load than it is allowed to take (`soak`), and kill -9 amid pushes (`pushes`).
//!
//! Each test is a run as that of `kill9`: its clients work, something is done to the server, everything is drained,
//! what is left is listed, and the history is judged. A run counts only if its faults provably happened. A stage that
//! the machine does not permit fails, unless `DUEWHEEL_LEAVE_OUT` names it; `scripts/torture` does not count a stage
//! that was left out as passed.
//!
//! | variable | |
//! |---|---|
//! | `DUEWHEEL_INJECTIONS` (1) | of each system call the first so many fail, one after the other |
//! | `DUEWHEEL_CYCLES` (5) | how often the disk is full, each time in another of five ways; `DUEWHEEL_FIRST_CYCLE` (0) says where to begin |
//! | `DUEWHEEL_PAUSES` (3) | how often the server is stopped |
//! | `DUEWHEEL_PUSH_KILLS` (6) | how often the server is killed while it pushes |
//! | `DUEWHEEL_SOAK_SECONDS` (30) | how long there is too much load |
//! | `DUEWHEEL_LEAVE_OUT` | stages that may be left out where the machine does not permit them: `syscalls`, `fulldisk`, with commas between them |
//! | `DUEWHEEL_SEED` | the decisions of another run |
//! | `DUEWHEEL_BIN`, `DUEWHEEL_KEEP=1` | as for `kill9` |

mod fill;
mod full_disk;
mod pause;
mod pushes;
mod soak;
mod stage;
mod trace;
