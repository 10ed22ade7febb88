//! The journal: every change in commit order.
//!
//! | file | noun |
//! |---|---|
//! | `frame` | the bytes of one group or mark |
//! | `segment` | the bytes of one file, and its known state |
//! | `writer` | where the next frame goes; the driver's own |
//! | `waiting` | groups that wait for the next segment |
//! | `syncer` | how far the journal is durable |
//! | `syncing` | makes the journal durable |
//! | `preparer` | the segments that come next, and room |
//! | `replay` | the content of a journal that is read |
//! | `event_pages` | requests for events, and their results |
//! | `events` | reads events out of a journal in use |
//! | `reign` | the takeover by a new owner |

pub(crate) mod event_pages;
pub(crate) mod events;
pub(crate) mod frame;
pub(crate) mod preparer;
pub(crate) mod reign;
pub(crate) mod replay;
pub(crate) mod segment;
pub(crate) mod syncer;
pub(crate) mod syncing;
pub(crate) mod waiting;
pub(crate) mod writer;
