//! `duewheel top`, and other commands, in a pseudo-terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::json;
use vt100::Parser;

use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process, serve};
use crate::shell::Shell;

/// A terminal with `duewheel top` in it.
struct TopTerminal {
    master: Option<File>,
    child: Child,
    screen: Option<Arc<Mutex<Parser>>>,
}

/// Waits a little for output.
fn poll_in(master: &File) -> rustix::io::Result<usize> {
    let mut fds = [PollFd::new(master, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 }))
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl TopTerminal {
    fn start(server: &str, size: (u16, u16), more: &[(&str, &str)]) -> TopTerminal {
        TopTerminal::with(server, size, more, &["top", "--interval", "100ms"])
    }

    fn with(server: &str, (columns, rows): (u16, u16), more: &[(&str, &str)], args: &[&str]) -> TopTerminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a pseudo-terminal");
        grantpt(&master).expect("grant");
        unlockpt(&master).expect("unlock");
        let name = ptsname(&master, Vec::new()).expect("name");
        tcsetwinsize(&master, size(columns, rows)).expect("size");
        let slave = open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
            .expect("open");
        let end = || Stdio::from(slave.try_clone().expect("clone"));
        // It makes the terminal the controlling one, so that a change of its size is signalled.
        let mut command = Command::new("setsid");
        command.args(["-c", BINARY]).args(args).env("DUEWHEEL_SERVER", server);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR").envs(more.iter().copied());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("spawn");
        drop(slave);
        let screen = Arc::new(Mutex::new(Parser::new(rows, columns, 0)));
        let master = File::from(master);
        let mut output = master.try_clone().expect("clone");
        let parser = Arc::downgrade(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            // It ends with the picture, so that the terminal can be closed while a command runs in it.
            while let Some(parser) = parser.upgrade() {
                if let Ok(1..) = poll_in(&output) {
                    let Ok(n @ 1..) = output.read(&mut bytes) else { return };
                    parser.lock().expect("parser").process(&bytes[..n]);
                }
            }
        });
        TopTerminal { master: Some(master), child, screen: Some(screen) }
    }

    fn text(&self) -> String {
        self.screen().lock().expect("parser").screen().contents()
    }

    fn screen(&self) -> &Mutex<Parser> {
        self.screen.as_ref().expect("it was not closed")
    }

    fn master(&self) -> &File {
        self.master.as_ref().expect("it was not closed")
    }

    /// Closes the other end; both descriptors of it.
    fn hangs_up(mut self) -> Option<i32> {
        drop(self.screen.take());
        drop(self.master.take());
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end");
    }

    fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        while !is_so(&self.text()) {
            assert!(begun.elapsed() < PATIENCE, "never: {what}:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A picture comes in pieces, so all that it shows is waited for.
    fn shows(&self, words: &str) {
        self.until(words, |text| text.contains(words));
    }

    fn press(&mut self, keys: &str) {
        self.master().write_all(keys.as_bytes()).expect("write");
    }

    fn resize(&self, columns: u16, rows: u16) {
        self.screen().lock().expect("parser").screen_mut().set_size(rows, columns);
        tcsetwinsize(self.master(), size(columns, rows)).expect("size");
    }

    fn ends(mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status.code();
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn colours(&self) -> bool {
        let screen = self.screen().lock().expect("parser");
        let (rows, columns) = screen.screen().size();
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        cells
            .filter_map(|(row, column)| screen.screen().cell(row, column))
            .any(|cell| cell.fgcolor() != vt100::Color::Default || cell.bgcolor() != vt100::Color::Default)
    }
}

impl Drop for TopTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn filled() -> Shell {
    let shell = Shell::new();
    for delay in ["10m", "20m", "30h", "0s"] {
        shell.ok(&["enqueue", "orders", "x", "--delay", delay]);
    }
    shell.ok(&["enqueue", "sms", "x"]);
    let lease = shell.json(&["reserve", "sms", "--json"])["messages"][0].take();
    let (id, token) = (lease["id"].as_str().expect("id"), lease["lease_token"].as_str().expect("token"));
    shell.ok(&["nack", id, token, "--dead"]);
    shell
}

#[test]
fn top_handles_keys_resize_and_exit() {
    let shell = filled();
    let mut top = TopTerminal::start(&shell.server.url, (100, 30), &[]);
    top.shows("scheduled 3  ready 1  leased 0  dead 1");
    top.shows(" due within 1d");
    top.shows("later 1 ");
    top.shows("lateness of 1 first grants");
    top.until("queues, keys and colours", |text| {
        text.contains("orders") && text.contains("q end") && top.colours()
    });
    shell.ok(&["enqueue", "later", "x", "--delay", "1h"]);
    top.shows("scheduled 4");
    top.press("d");
    top.until("only queues with dead messages", |text| text.contains("sms") && !text.contains("orders"));
    top.press("dh");
    top.shows(" due within 30d");
    // Narrow and low: no ring, fewer columns.
    top.resize(50, 16);
    top.until("a narrow screen", |text| {
        text.contains("DEAD") && !text.contains("OVERDUE") && !text.contains("lateness")
    });
    top.resize(30, 4);
    top.shows("duewheel http");
    top.resize(120, 40);
    top.shows("OVERDUE");
    top.press("p");
    top.shows("paused; p goes on");
    top.press("q");
    assert_eq!(top.ends(), Some(0));
}

#[test]
fn top_reports_server_loss_and_return() {
    let shell = Shell::with(&[]);
    shell.ok(&["enqueue", "orders", "x", "--delay", "10m"]);
    let top = TopTerminal::start(&shell.server.url, (140, 30), &[("NO_COLOR", "1")]);
    top.shows("scheduled 1");
    assert!(!top.colours(), "NO_COLOR");
    let (data, address) = (shell.dir.path().join("data"), shell.server.url.replace("http://", ""));
    shell.server.kill();
    top.until("that there is no server, and the last figures", |text| {
        text.contains("no server at http://") && text.contains("scheduled 1")
    });
    let mut again = serve();
    again.args(["--http", &address, "--data"]).arg(&data);
    let _again = Process::spawn(again);
    top.shows("the server is back");
    let id = top.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
    assert_eq!(top.ends(), Some(0));
}

#[test]
fn top_requires_token_and_prints_json() {
    let dir = tempfile::TempDir::new().expect("dir");
    let tokens = dir.path().join("tokens.toml");
    let new = |scope: &str| {
        let args = ["token", "new", "--name", scope, "--scope", scope];
        let output =
            Command::new(BINARY).args(args).env("DUEWHEEL_TOKENS", &tokens).output().expect("output");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    };
    let (metrics, enqueue) = (new("metrics"), new("enqueue"));
    let shell = Shell::with(&["--durability", "memory", "--tokens", tokens.to_str().expect("path")]);
    let top = TopTerminal::start(&shell.server.url, (100, 30), &[("DUEWHEEL_TOKEN", &metrics)]);
    top.shows("scheduled 0");
    assert_eq!(shell.json(&["top", "--json", "--token", &metrics])["stats"]["counts"]["dead"], json!(0));
    assert!(shell.fails(&["top", "--token", &enqueue], 6).contains("forbidden"));
    assert!(shell.fails(&["top", "--token", &metrics], 2).contains("this is none"));
    assert!(shell.fails(&["top", "--token", &metrics, "--interval", "1ms"], 2).contains("--interval"));
}

/// Story: `duewheel enqueue QUEUE` looked as if it hung.
#[test]
fn enqueue_says_that_it_reads() {
    let shell = Shell::new();
    let mut enqueue = TopTerminal::with(&shell.server.url, (100, 30), &[], &["enqueue", "typed"]);
    enqueue.shows("reading the body from standard input; end with Ctrl-D");
    enqueue.press("hello\n\u{4}");
    assert_eq!(enqueue.ends(), Some(0));
    assert_eq!(shell.json(&["list", "typed", "--json"])["messages"][0]["body"], "hello\n");
    let mut lines = TopTerminal::with(&shell.server.url, (100, 30), &[], &["enqueue", "typed", "--lines"]);
    lines.shows("reading a message a line from standard input; end with Ctrl-D");
    lines.press("\u{4}");
    assert_eq!(lines.ends(), Some(0));
}

/// Story: without its terminal `top` read the end of its input again and again, with a full core, and SIGTERM did not end
/// it.
#[test]
fn interactive_commands_end_with_their_terminal() {
    let shell = filled();
    let in_terminal = |args: &[&str]| TopTerminal::with(&shell.server.url, (100, 30), &[], args);
    for (args, shows) in [
        (&["top"][..], "scheduled 3"),
        (&["tail"], "orders"),
        (&["purge", "orders"], "Type yes"),
        (&["work", "empty", "--", "true"], "waiting for messages of empty"),
        (&["demo"], "a server runs"),
    ] {
        let terminal = in_terminal(args);
        terminal.until(shows, |text| {
            shell.ok(&["enqueue", "orders", "for tail"]);
            text.contains(shows)
        });
        terminal.hangs_up();
    }
    let figures = shell.json(&["top", "--json"]);
    assert_eq!(figures["stats"]["counts"]["scheduled"], json!(3), "nothing was purged");
}

#[test]
fn work_prints_each_outcome_on_a_terminal() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "q", "x"]);
    shell.ok(&["enqueue", "r", "x", "--priority", "1"]);
    let args = ["work", "q", "r", "--count", "2", "--", "sh", "-c", "test $DUEWHEEL_QUEUE = r || exit 100"];
    let work = TopTerminal::with(&shell.server.url, (100, 30), &[], &args);
    work.shows("waiting for messages of q, r");
    work.shows("r  2  acked");
    work.shows("q  1  dead: buried (exit status 100)");
    assert_eq!(work.ends(), Some(0));
}
