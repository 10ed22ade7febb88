//! What the HTTP interface, the command line and the configuration of duewheel have in common: the texts of instants
//! ([`rfc3339`]) and of lengths of time ([`span`]).

#![warn(clippy::missing_errors_doc)]

pub mod rfc3339;
pub mod span;
