//! Tests of the scripts that choose the tests to run: input that they cannot read must not look like success.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(script: &str, arguments: &[&str], input: &str) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(script);
    let mut command = Command::new(script);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a script of the repository");
    // A script that has failed reads no further.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("its output")
}

fn message(profile: &str) -> String {
    format!(
        r#"{{"reason":"compiler-artifact","manifest_path":"/r/crates/core/Cargo.toml","target":{{"kind":["lib"],"name":"core"}},{profile},"executable":"/t/core-1"}}"#
    ) + "\n"
}

/// Story: a line of Cargo's messages that did not match was left out, and so were the tests of that binary.
#[test]
fn unreadable_cargo_message_is_error() {
    let good = message(r#""profile":{"opt_level":"0","test":true}"#);
    let other = r#"{"reason":"build-finished","success":true}"#;
    let read = run("binaries", &["--read"], &format!("{good}{other}\n"));
    assert!(read.status.success());
    assert_eq!(String::from_utf8_lossy(&read.stdout), "/r/crates/core\tlib\tcore\t/t/core-1\n");
    let unknown = message(r#""profile":{"opt_level":"0","tests":"yes"}"#);
    let read = run("binaries", &["--read"], &format!("{good}{unknown}{good}"));
    assert_eq!(read.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&read.stderr).contains("cannot be read"), "{read:?}");
}

#[test]
fn overlong_commit_subject_is_error() {
    let (most, more) = ("ä".repeat(72), "ä".repeat(73));
    let read = run("subjects", &["--read"], &format!("0a1b {most}\n2c3d Short\n"));
    assert!(read.status.success(), "{read:?}");
    assert_eq!(String::from_utf8_lossy(&read.stdout), "2 subjects of commits\n");
    let read = run("subjects", &["--read"], &format!("0a1b {more}\n2c3d Short\n"));
    assert_eq!(read.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&read.stderr).starts_with("0a1b: a subject of 73 characters"),
        "{read:?}"
    );
}

/// Story: a filter that named no test, or a binary without tests, passed.
#[test]
fn test_binary_without_tests_is_error() {
    let own = std::env::current_exe().expect("this binary");
    let own = own.to_str().expect("a path in UTF-8");
    assert!(run("has-tests", &[own, "test_binary_without_tests"], "").status.success());
    let none = run("has-tests", &[own, "no test has this name"], "");
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&none.stderr).contains("there is no test in"), "{none:?}");
}
