//! The journal: every change in commit order.
//!
//! | file | noun |
//! |---|---|
//! | `segment` | the bytes of one file, and its known state; the bytes of one group or mark |
//! | `writer` | where the next frame goes; groups that wait for the next segment; the driver's own |
//! | `syncer` | how far the journal is durable |
//! | `workers` | make the journal durable, and read events out of a journal in use |
//! | `preparer` | the segments that come next, and room |
//! | `replay` | the content of a journal that is read |
//! | `events` | requests for events, and their results |
//! | `reign` | the takeover by a new owner |

pub(crate) mod events;
pub(crate) mod preparer;
pub(crate) mod reign;
pub(crate) mod replay;
pub(crate) mod segment;
pub(crate) mod syncer;
pub(crate) mod workers;
pub(crate) mod writer;
