//! Client commands against a real server process.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{BINARY, Process};

/// A server, and a folder for commands against it.
pub(crate) struct Shell {
    pub(crate) server: Process,
    pub(crate) dir: TempDir,
}

impl Shell {
    pub(crate) fn new() -> Shell {
        Shell::with(&["--durability", "memory"])
    }

    /// With other options of the server.
    pub(crate) fn with(more: &[&str]) -> Shell {
        let dir = TempDir::new().expect("dir");
        let server = Process::start(&dir.path().join("data"), more);
        Shell { server, dir }
    }

    /// A server whose time stands.
    pub(crate) fn on_virtual_clock() -> Shell {
        let dir = TempDir::new().expect("dir");
        let mut command = Command::new(BINARY);
        command.args(["serve", "--virtual-clock", "--http", "127.0.0.1:0"]).current_dir(dir.path());
        Shell { server: Process::spawn(command), dir }
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(args).env("DUEWHEEL_SERVER", &self.server.url).current_dir(self.dir.path());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.run_with(args, b"")
    }

    pub(crate) fn run_with(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("spawn");
        let mut stdin = child.stdin.take().expect("stdin");
        let input = input.to_vec();
        // A command may end without reading.
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().expect("output");
        let _ = writer.join().expect("writer");
        output
    }

    /// Runs a command that must succeed; its standard output.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        self.ok_with(args, b"")
    }

    pub(crate) fn ok_with(&self, args: &[&str], input: &[u8]) -> String {
        let output = self.run_with(args, input);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).expect("json")
    }

    /// Runs a command that must fail; its standard error.
    pub(crate) fn fails(&self, args: &[&str], code: i32) -> String {
        let output = self.run(args);
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        stderr
    }
}
