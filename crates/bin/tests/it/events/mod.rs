//! The stream of events: over HTTP with virtual time, over crashes of real processes, and on the command line.

mod over_http;
mod processes;
mod stream;
