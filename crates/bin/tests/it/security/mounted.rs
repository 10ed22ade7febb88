//! Secrets as Kubernetes mounts them: files of root that a group of the server may read, behind links that are
//! exchanged.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;

use super::tls::Authority;
use super::{bearer, new_token, request, until};
use crate::process::{Process, run, serve, text};

/// Puts a new version of the files into place: `..data` is a link to a folder, the names are links into it.
fn mount(dir: &Path, version: &str, fill: impl FnOnce(&Path)) {
    let folder = dir.join(version);
    std::fs::create_dir(&folder).expect("folder");
    fill(&folder);
    for entry in std::fs::read_dir(&folder).expect("folder").map(|entry| entry.expect("entry")) {
        std::fs::set_permissions(entry.path(), PermissionsExt::from_mode(0o440)).expect("chmod");
        let name = dir.join(entry.file_name());
        if name.symlink_metadata().is_err() {
            symlink(Path::new("..data").join(entry.file_name()), name).expect("link");
        }
    }
    symlink(version, dir.join("next")).expect("link");
    std::fs::rename(dir.join("next"), dir.join("..data")).expect("rename");
}

#[test]
fn mounted_tokens_and_keys_reload() {
    let dir = TempDir::new().expect("dir");
    let (old, new) = (Authority::new(), Authority::new());
    let (mut first, mut second) = (String::new(), String::new());
    mount(dir.path(), "..1", |folder| {
        old.write(folder);
        first = new_token(&folder.join("tokens.toml"), &["--name", "first", "--scope", "metrics"]);
    });
    let log = std::fs::File::create(dir.path().join("log")).expect("log");
    let mut command = serve();
    command.current_dir(dir.path()).args([
        "--http",
        "127.0.0.1:0",
        "--durability",
        "memory",
        "--data",
        "data",
    ]);
    command.args(["--tokens", "tokens.toml", "--tls-cert", "cert.pem", "--tls-key", "key.pem"]);
    let server = Process::spawn_logged(command, Stdio::from(log));
    let address = server.url.trim_start_matches("https://").to_owned();
    let status = |authority: &Authority, token: &str| {
        let ask = request("GET", "/v1/queues", &bearer(token), "");
        authority.say(&address, ask.as_bytes()).map(|told| told.status).ok()
    };
    assert_eq!(status(&old, &first), Some(200));
    mount(dir.path(), "..2", |folder| {
        new.write(folder);
        second = new_token(&folder.join("tokens.toml"), &["--name", "second", "--scope", "metrics"]);
    });
    until("the new certificate and token", || status(&new, &second) == Some(200));
    assert_eq!((status(&new, &first), status(&old, &second)), (Some(401), None));
}

/// Only root can give files to others, so only then this shows anything.
#[test]
fn foreign_secret_file_is_refused() {
    let dir = TempDir::new().expect("dir");
    let file = dir.path().join("tokens.toml");
    new_token(&file, &["--name", "n", "--scope", "metrics"]);
    let (_, key) = Authority::new().write(dir.path());
    let start = |option: &str, file: &PathBuf| {
        let mut command = serve();
        command
            .current_dir(dir.path())
            .args(["--http", "127.0.0.1:0", "--durability", "memory", option])
            .arg(file);
        if option == "--tls-key" {
            command.args(["--tls-cert", "cert.pem"]);
        }
        let output = run(&mut command);
        (output.status.code(), text(&output.stderr))
    };
    if chown(&file, Some(12_345), None).is_err() {
        return; // not root: the rules themselves are tested in `private.rs`
    }
    chown(&key, Some(12_345), None).expect("chown");
    for (option, file) in [("--tokens", &file), ("--tls-key", &key)] {
        let (code, stderr) = start(option, file);
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains("belongs to user 12345"), "{option}: {stderr}");
        chown(file, Some(0), Some(54_321)).expect("chown");
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o440)).expect("chmod");
        let (code, stderr) = start(option, file);
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains("may be read by group 54321"), "{option}: {stderr}");
    }
}
