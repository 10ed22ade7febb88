//! duewheel's pure engine: every decision, no clock, no I/O.
