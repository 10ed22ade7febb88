//! The address of a server.

/// Host and port.
pub(crate) type HostPort = (String, u16);
