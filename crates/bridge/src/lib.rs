//! Bridges: consumers and producers of the library that connect it to the stack that people have.

pub mod outbox;
