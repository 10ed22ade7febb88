//! Where a backup may go. A client names a folder, and the server writes there with rights that the client may not
//! have: so nobody who may write to folders of this machine can have the server overwrite its own files.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process, run, text};

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: TempDir::new().expect("dir") }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn folder(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.at(name);
        fs::create_dir(&path).expect("folder");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("chmod");
        path
    }

    fn serve(&self, more: &[&str]) -> Process {
        let server = Process::start(&self.at("data"), more);
        let (status, answer) =
            server.call("POST", "/v1/queues/q/messages", r#"{"body": "kept", "delay": "1h", "key": "k"}"#);
        assert_eq!(status, 201, "{answer}");
        server
    }
}

fn backup(server: &Process, dest: &Path) -> (u16, Value) {
    server.call("POST", "/v1/backup", &json!({ "dest": dest }).to_string())
}

fn refused(server: &Process, dest: &Path, says: &str) {
    let (status, answer) = backup(server, dest);
    assert_eq!((status, &answer["field"]), (400, &json!("dest")), "{}: {answer}", dest.display());
    let detail = answer["detail"].as_str().expect("detail");
    assert!(detail.contains(says), "{}: {detail}", dest.display());
}

/// A good copy with the one message.
fn check(copy: &Path) {
    let output = run(Command::new(BINARY).args(["verify", "--json"]).arg(copy));
    let report: Value = serde_json::from_str(&text(&output.stdout)).expect("json");
    assert_eq!((&report["problems"], &report["messages"]), (&json!([]), &json!(1)), "{report}");
}

fn all_files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            files.extend(all_files(&path));
        } else if path.extension().is_none_or(|ending| ending != "log") {
            let bytes = fs::read(&path).expect("file");
            files.push((path, bytes));
        }
    }
    files.sort();
    files
}

/// Story: a backup opened files by path, with truncation, in whatever folder it was told. Whoever may write to that
/// folder, `/tmp/copy` for example, put a link to the server's own `MANIFEST` there, and the server emptied it.
#[test]
fn backup_requires_private_empty_folder() {
    let place = Place::new();
    let server = place.serve(&[]);
    let data = place.at("data");
    // What is prepared in the background after a start is done.
    let mut before = all_files(&data);
    let deadline = Instant::now() + PATIENCE;
    let mut looks_alike = 0;
    while looks_alike < 5 {
        std::thread::sleep(Duration::from_millis(300));
        let now = all_files(&data);
        looks_alike = if now == before { looks_alike + 1 } else { 0 };
        assert!(Instant::now() < deadline, "the folder never comes to rest");
        before = now;
    }

    refused(&server, &place.at("missing"), "mkdir -m 700");
    for mode in [0o755, 0o777, 0o1777, 0o750] {
        let open = place.folder(&format!("open-{mode:o}"), mode);
        refused(&server, &open, &format!("mode {mode:o}"));
    }
    let private = place.folder("private", 0o700);
    symlink(&private, place.at("link")).expect("link");
    for name in ["link", "link/", "link/."] {
        refused(&server, &place.at(name), "symbolic link");
    }
    symlink(place.at("nothing"), place.at("dangling")).expect("link");
    refused(&server, &place.at("dangling"), "symbolic link");
    symlink(&data, place.at("around")).expect("link");
    refused(&server, &place.at("around/state"), "inside of the data folder");
    for (name, to) in [("MANIFEST.tmp", "MANIFEST"), ("MANIFEST", "MANIFEST"), ("journal", "journal")] {
        let planted = place.folder(&format!("planted-{name}-{to}"), 0o700);
        symlink(data.join(to), planted.join(name)).expect("link");
        refused(&server, &planted, "not empty");
    }
    fs::write(place.at("file"), "x").expect("file");
    refused(&server, &place.at("file"), "ot a directory");
    // Root's own folder for everybody else; for root a folder of somebody else.
    let foreign = place.folder("foreign", 0o700);
    match chown(&foreign, Some(12_345), None) {
        Ok(()) => refused(&server, &foreign, "belongs to the user 12345"),
        Err(_) => refused(&server, Path::new("/"), "belongs to the user 0"),
    }
    assert!(all_files(&data) == before, "something of the server's own was written to");
    assert!(fs::read_dir(&private).expect("folder").next().is_none() && !place.at("nothing").exists());

    let (status, answer) = backup(&server, &private);
    assert_eq!(status, 200, "{answer}");
    check(&private);
}

#[test]
fn backup_folders_are_created_below_root() {
    let place = Place::new();
    let root = place.folder("backups", 0o755);
    let server = place.serve(&["--backup-root", root.to_str().expect("path")]);
    let (status, answer) = backup(&server, Path::new("2026/monday"));
    assert_eq!((status, &answer["dest"]), (200, &json!(root.join("2026/monday"))), "{answer}");
    check(&root.join("2026/monday"));
    assert_eq!(fs::metadata(root.join("2026/monday")).expect("meta").permissions().mode() & 0o7777, 0o700);
    assert_eq!(backup(&server, &root.join("tuesday")).0, 200, "an absolute path below it");
    check(&root.join("tuesday"));

    refused(&server, &root.join("tuesday"), "not empty");
    let private = place.folder("private", 0o700);
    for outside in [private.clone(), root.clone(), root.join("../private"), "../private".into(), "".into()] {
        refused(&server, &outside, "must be a folder below");
    }
    symlink(&private, root.join("link")).expect("link");
    for link in ["link", "link/x"] {
        refused(&server, Path::new(link), "symbolic link");
    }
    fs::create_dir(root.join("open")).expect("folder");
    fs::set_permissions(root.join("open"), Permissions::from_mode(0o777)).expect("chmod");
    refused(&server, Path::new("open"), "mode 777");
    assert!(fs::read_dir(&private).expect("folder").next().is_none());
    // The command needs nothing else, also where its user could make the folder.
    let output =
        run(Command::new(BINARY).arg("backup").arg(root.join("by/command")).args(["--server", &server.url]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    check(&root.join("by/command"));
}

#[test]
fn backup_command_creates_and_cleans_folder() {
    let place = Place::new();
    let server = place.serve(&[]);
    let command = |dest: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", r#"umask 000; exec "$0" "$@""#, BINARY, "backup", dest, "--server", &server.url]);
        run(command.current_dir(place.dir.path()))
    };
    let output = command("new/copy");
    assert!(output.status.success(), "{}", text(&output.stderr));
    for name in ["new", "new/copy"] {
        assert_eq!(
            fs::metadata(place.at(name)).expect("meta").permissions().mode() & 0o7777,
            0o700,
            "{name}"
        );
    }
    check(&place.at("new/copy"));
    place.folder("empty", 0o700);
    assert!(command("empty").status.success(), "one that is there");
    check(&place.at("empty"));

    let fails = |dest: &str, says: &str| {
        let output = command(dest);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{dest}: {stderr}");
        assert!(stderr.contains(says) && stderr.lines().count() == 1, "{dest}: {stderr}");
    };
    fails("new/copy", "not empty");
    fails("data/in/it", "inside of the data folder");
    assert!(!place.at("data/in").exists());
    place.folder("open", 0o777);
    fails("open", "mode 777");
    symlink(place.at("nothing"), place.at("link")).expect("link");
    fails("link", "symbolic link");
    assert!(!place.at("nothing").exists());
}

/// Siblings: what other commands make is not made through links either.
#[test]
fn restore_salvage_and_token_reject_links() {
    let place = Place::new();
    let mut server = place.serve(&[]);
    let copy = place.folder("copy", 0o700);
    assert_eq!(backup(&server, &copy).0, 200);
    server.signal("-TERM");
    assert!(server.wait().success());
    fs::write(place.at("victim"), "precious").expect("file");

    let fails = |args: &[&str], says: &str| {
        let output = run(Command::new(BINARY).args(args).current_dir(place.dir.path()));
        let stderr = text(&output.stderr);
        assert!(!output.status.success() && stderr.contains(says), "{args:?}: {stderr}");
    };
    let planted = place.folder("planted", 0o700);
    symlink(place.at("victim"), planted.join("MANIFEST.tmp")).expect("link");
    fails(&["restore", "copy", "planted"], "not empty");
    symlink(place.at("nothing"), place.at("dangling")).expect("link");
    fails(&["restore", "copy", "dangling"], "dangling");
    fails(&["salvage", "copy", "dangling"], "exists");
    fails(&["token", "new", "--name", "n", "--scope", "admin", "--tokens", "dangling"], "exists");
    symlink(place.at("nothing"), place.at("new.partial")).expect("link");
    fails(&["salvage", "copy", "new"], "partial");
    assert!(!place.at("nothing").exists());

    // A server does not take over what lies under the names of its own files.
    for name in ["MANIFEST.tmp", "RESERVE"] {
        let _ = fs::remove_file(place.at("data").join(name));
        symlink(place.at("victim"), place.at("data").join(name)).expect("link");
    }
    drop(Process::start(&place.at("data"), &[]));
    assert_eq!(fs::read(place.at("victim")).expect("file"), b"precious");
    fs::remove_file(place.at("data/LOCK")).expect("the lock");
    symlink(place.at("victim"), place.at("data/LOCK")).expect("link");
    fails(&["serve", "--http", "127.0.0.1:0", "--beanstalk", "off", "--data", "data"], "symbolic link");
    assert_eq!(fs::read(place.at("victim")).expect("file"), b"precious");
}
