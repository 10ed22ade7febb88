//! duewheel's embedded log store: a journal with group commit.
