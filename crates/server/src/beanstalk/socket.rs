//! Sockets in the file system: the file's permissions determine who may use the server.

use std::fmt;
use std::fs::{Permissions, set_permissions, symlink_metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tokio::net::{UnixListener, UnixSocket, UnixStream};

/// Number of connections that the system accepts in advance, as in the standard library.
const BACKLOG: u32 = 1_024;

/// The permissions of a socket file. Every user who may write to it may use the server: by default its owner alone.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketMode(u32);

impl Default for SocketMode {
    fn default() -> Self {
        SocketMode(0o600)
    }
}

impl FromStr for SocketMode {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let mode = u32::from_str_radix(s, 8).ok().filter(|mode| *mode <= 0o777 && mode & 0o600 == 0o600);
        mode.map(SocketMode).ok_or_else(|| format!("{s:?} is not a mode: octal, from 600 to 777, as in 660"))
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:03o}", self.0)
    }
}

impl TryFrom<String> for SocketMode {
    type Error = String;

    fn try_from(s: String) -> Result<Self, String> {
        s.parse()
    }
}

impl From<SocketMode> for String {
    fn from(mode: SocketMode) -> String {
        mode.to_string()
    }
}

/// Device and inode of a file.
pub(super) fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let meta = symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

/// Listens at a path. An unused socket file is replaced.
pub(super) async fn listen(path: &Path, mode: SocketMode) -> io::Result<UnixListener> {
    match make(path, mode) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = symlink_metadata(path)?.file_type().is_socket();
            let connected = UnixStream::connect(path).await;
            let is_dead = connected.is_err_and(|why| why.kind() == io::ErrorKind::ConnectionRefused);
            if !is_socket || !is_dead {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            make(path, mode)
        }
        made => made,
    }
}

fn make(path: &Path, SocketMode(mode): SocketMode) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    // The file may be open to others until now, but nobody can connect to a socket that does not listen.
    set_permissions(path, Permissions::from_mode(mode))?;
    socket.listen(BACKLOG)
}
