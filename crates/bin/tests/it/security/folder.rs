//! The data folder, and every file in it, is its owner's alone, whatever the umask is.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::process::{BINARY, Process, run, text};

fn all(folder: &Path, found: &mut Vec<(PathBuf, u32, bool)>) {
    let meta = std::fs::metadata(folder).expect("meta");
    found.push((folder.to_owned(), meta.permissions().mode() & 0o777, meta.is_dir()));
    if meta.is_dir() {
        for entry in std::fs::read_dir(folder).expect("folder") {
            all(&entry.expect("entry").path(), found);
        }
    }
}

fn check(folder: &Path, at_least: usize) {
    let mut found = Vec::new();
    all(folder, &mut found);
    assert!(found.len() >= at_least, "{found:?}");
    for (path, mode, is_folder) in found {
        let wanted = if is_folder { 0o700 } else { 0o600 };
        assert_eq!(mode, wanted, "{} has {mode:o}", path.display());
    }
}

/// `duewheel` with a umask that takes nothing away.
fn open_handed(args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"umask 000; exec "$0" "$@""#, BINARY]).args(args);
    command
}

#[test]
fn folders_are_0700_and_files_0600() {
    let dir = TempDir::new().expect("dir");
    let path = |name: &str| dir.path().join(name).to_str().expect("path").to_owned();
    let data = path("a/b/data");
    let args = [
        "serve",
        "--http",
        "127.0.0.1:0",
        "--journal-bytes",
        "1048576",
        "--memory-messages",
        "100",
        "--data",
        &data,
    ];
    let mut server = Process::spawn(open_handed(&args));
    let body = "x".repeat(10_000);
    let lines: String = (0..300)
        .map(|n| format!("{{\"body\": \"{n}{body}\", \"delay\": \"1h\", \"key\": \"{n}\"}}\n"))
        .collect();
    let runs = Path::new(&data).join("runs");
    // Until there are files of each kind.
    super::until("a run", || {
        server.lines("q", &lines.replace("\"key\"", "\"dedupe_id\""));
        std::fs::read_dir(&runs).is_ok_and(|files| files.count() > 0)
    });
    check(Path::new(&data), 6);
    let copy = path("copy");
    std::fs::create_dir(&copy).expect("folder");
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o700)).expect("chmod");
    let (status, answer) = server.call("POST", "/v1/backup", &format!("{{\"dest\": \"{copy}\"}}"));
    assert_eq!(status, 200, "{answer}");
    check(Path::new(&copy), 4);
    server.signal("-TERM");
    assert!(server.wait().success());
    check(Path::new(&data), 6);
    let restored = path("restored");
    let output = run(&mut open_handed(&["restore", &copy, &restored]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    check(Path::new(&restored), 4);
}

/// A folder that was there keeps its rights, which are its operator's matter; what is in it is the owner's alone all
/// the same, and the log says what could be better.
#[test]
fn readable_data_folder_is_logged() {
    let dir = TempDir::new().expect("dir");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("folder");
    std::fs::set_permissions(&data, PermissionsExt::from_mode(0o755)).expect("chmod");
    let log = std::fs::File::create(dir.path().join("log")).expect("log");
    let command = open_handed(&["serve", "--http", "127.0.0.1:0", "--data", data.to_str().expect("path")]);
    let server = Process::spawn_logged(command, log.into());
    server.call("POST", "/v1/queues/q/messages", r#"{"body": "a", "delay": "1h"}"#);
    let mut found = Vec::new();
    all(&data, &mut found);
    for (path, mode, is_folder) in &found[1..] {
        assert_eq!(*mode, if *is_folder { 0o700 } else { 0o600 }, "{}", path.display());
    }
    let log = std::fs::read_to_string(dir.path().join("log")).expect("log");
    assert!(log.contains("others may look into the data folder") && log.contains("755"), "{log}");
}
