//! duewheel's server and command line.
