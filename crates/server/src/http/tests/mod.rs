//! Tests of all routes together: their description, and which calls a token permits.

mod contract;
mod walk;
