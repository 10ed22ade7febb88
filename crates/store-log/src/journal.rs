//! The journal: every change in commit order.
//!
//! | file | noun |
//! |---|---|
//! | `frame` | the bytes of one group or mark |
//! | `segment` | the bytes of one file, and what is known of it |
//! | `writer` | where the next frame goes; the driver's own |
//! | `turn` | groups that wait for the next segment |
//! | `syncer` | how far it is durable |
//! | `preparer` | the segments that come next, and room |
//! | `replay` | what a journal says when it is read |
//! | `reign` | how a new owner starts where the last one stopped |

pub(crate) mod frame;
pub(crate) mod preparer;
pub(crate) mod reign;
pub(crate) mod replay;
pub(crate) mod segment;
pub(crate) mod syncer;
pub(crate) mod turn;
pub(crate) mod writer;
