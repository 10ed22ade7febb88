//! `--beanstalk unix:PATH`.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use tempfile::TempDir;

use super::client::Client;
use crate::peer::wire::Address;
use crate::process::{Process, run, serve, text};

fn start(folder: &Path, data: &str) -> Process {
    let socket = folder.join("socket");
    let mut server =
        Process::start(&folder.join(data), &["--beanstalk", &format!("unix:{}", socket.display())]);
    assert_eq!(server.line(), format!("listening on beanstalk+unix:{}", socket.display()));
    server
}

fn connect(folder: &Path) -> Client {
    Client::open(&Address::Unix(folder.join("socket")))
}

/// A server that must not start at this path. What it says.
fn refused(folder: &Path) -> String {
    let listen = format!("unix:{}", folder.join("socket").display());
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--beanstalk", &listen, "--data"]).arg(folder.join("refused"));
    let output = run(&mut command);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""));
    text(&output.stderr)
}

#[test]
fn unix_socket_is_removed_at_shutdown() {
    let dir = TempDir::new().expect("dir");
    let mut server = start(dir.path(), "data");
    let (mut one, mut two) = (connect(dir.path()), connect(dir.path()));
    let id = one.put("put 0 0 60", "a");
    assert_eq!(two.ask("reserve"), format!("RESERVED {id} 1\r\na"));
    assert_eq!(server.call("GET", &format!("/v1/messages/{id}"), "").1["state"], "leased");
    one.send("reserve\r\n");
    two.until("stats", "current-waiting", "1");
    server.signal("-TERM");
    assert_eq!(one.reply(), "TIMED_OUT");
    two.is_closed();
    assert_eq!(server.wait().code(), Some(0));
    assert!(!dir.path().join("socket").exists());
}

#[test]
fn stale_socket_file_is_replaced() {
    let dir = TempDir::new().expect("dir");
    let server = start(dir.path(), "data");
    let id = connect(dir.path()).put("put 0 0 60", "a");
    server.kill();
    assert!(dir.path().join("socket").exists(), "a killed server removes nothing");
    let _server = start(dir.path(), "data");
    assert_eq!(connect(dir.path()).ask("reserve"), format!("RESERVED {id} 1\r\na"));
}

#[test]
fn non_socket_file_is_preserved() {
    let dir = TempDir::new().expect("dir");
    let path = dir.path().join("socket");
    std::fs::write(&path, "precious").expect("file");
    let stderr = refused(dir.path());
    assert!(stderr.contains("--beanstalk unix:") && !stderr.contains("panicked"), "{stderr}");
    assert_eq!(std::fs::read_to_string(&path).expect("file"), "precious");
    std::fs::remove_file(&path).expect("remove");
    std::fs::create_dir(&path).expect("folder");
    assert!(refused(dir.path()).contains("--beanstalk unix:"));
    assert!(path.is_dir());
}

#[test]
fn live_server_socket_is_preserved() {
    let dir = TempDir::new().expect("dir");
    let path = dir.path().join("socket");
    let _server = start(dir.path(), "data");
    let before = std::fs::symlink_metadata(&path).expect("socket");
    assert!(refused(dir.path()).contains("--beanstalk unix:"));
    let after = std::fs::symlink_metadata(&path).expect("socket");
    assert!(after.file_type().is_socket());
    assert_eq!(after.ino(), before.ino());
    connect(dir.path()).put("put 0 0 60", "a");
}
