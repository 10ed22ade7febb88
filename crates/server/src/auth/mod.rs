//! Authorization over HTTP: bearer tokens with scopes, queues and an expiry, kept as hashes in a file.
//!
//! ```text
//!   tokens.toml ──read at the start, at SIGHUP and when it changes──▶ Table ──▶ Guard ── who is this? ──▶ Caller ── may it? ──▶ the handler
//! ```
//!
//! Without a file every client that reaches the listener is trusted; then it must be on loopback, or `--insecure http`
//! must be given.

mod guard;
mod host;
mod scope;
mod table;
mod token;

pub use guard::{Caller, Guard};
pub use host::Hosts;
pub use scope::Scope;
pub(crate) use scope::{About, AccessRule, Audit};
pub use table::{Prefixes, TokenEntry, TokenTable, TokensError, block};
pub use token::{Hash, generate};
