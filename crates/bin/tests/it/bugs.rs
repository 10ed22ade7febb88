//! A panic anywhere ends the real server, with a reason; what was accepted is there at the next start.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;

use crate::fixture::PATIENCE;
use crate::process::{Process, serve, text};

/// How each bug is met.
#[derive(Clone, Copy)]
enum Trigger {
    Http,
    Beanstalk,
    Backup,
    Drain,
}

/// Story: tasks are spawned and nobody looks at how they end. A panic in the accept loop left a server that listened
/// and answered nobody, one in a connection a client without an answer, and neither showed anywhere.
#[test]
fn task_panic_ends_server_with_reason() {
    for (place, trigger, code) in [
        ("driver", Trigger::Http, 1),
        ("http accept", Trigger::Http, 1),
        ("http connection", Trigger::Http, 1),
        ("http request", Trigger::Http, 1),
        ("beanstalk accept", Trigger::Beanstalk, 1),
        ("beanstalk connection", Trigger::Beanstalk, 1),
        ("backup", Trigger::Backup, 1),
        // The main task itself: Rust's own code.
        ("signals", Trigger::Drain, 101),
    ] {
        let dir = TempDir::new().expect("dir");
        let (data, flag) = (dir.path().join("data"), dir.path().join("now"));
        let mut command = serve();
        command.args(["--http", "127.0.0.1:0", "--beanstalk", "127.0.0.1:0", "--data"]).arg(&data);
        command.env("DUEWHEEL_TEST_PANIC", format!("{place}:{}", flag.display()));
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the server starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let mut address = |scheme: &str| {
            let line = lines.next().expect("a line").expect("a line");
            line.split_once(scheme).unwrap_or_else(|| panic!("{line}")).1.to_owned()
        };
        let (http, beanstalk) = (address("http://"), address("beanstalk://"));
        let enqueue = "POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 29\r\n\r\n\
                       {\"body\": \"a\", \"delay\": \"1h\"} ";
        assert!(say(&http, enqueue).contains("HTTP/1.1 201"), "{place}: not accepted");

        std::fs::write(&flag, "").expect("flag");
        match trigger {
            Trigger::Http => drop(say(&http, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")),
            Trigger::Beanstalk => drop(say(&beanstalk, "stats\r\n")),
            Trigger::Backup => {
                let body = format!("{{\"dest\": \"{}\"}}", dir.path().join("copy").display());
                let length = body.len();
                let head = format!("POST /v1/backup HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
                drop(say(&http, &(head + &body)));
            }
            Trigger::Drain => {
                let kill =
                    std::process::Command::new("kill").args(["-USR1", &child.id().to_string()]).status();
                assert!(kill.expect("kill").success());
            }
        }
        let status = crate::process::wait(&mut child);
        let output = child.wait_with_output().expect("output");
        let said = text(&output.stderr);
        assert_eq!(status.code(), Some(code), "{place}: {said}");
        assert!(said.contains("the test wants it"), "{place}: {said}");
        if code == 1 {
            let last = said.lines().last().unwrap_or_default();
            assert!(last.starts_with("duewheel: stopped: a bug in duewheel: "), "{place}: {said}");
        }
        assert_kept(&data, place);
    }
}

fn assert_kept(data: &Path, place: &str) {
    let server = Process::start(data, &[]);
    let (_, queue) = server.call("GET", "/v1/queues/q", "");
    assert_eq!(queue["counts"]["scheduled"], 1, "{place}: {queue}");
}

/// Says something, and reads the first line of what comes back; nothing if the connection ends.
fn say(address: &str, what: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let mut line = String::new();
    if stream.write_all(what.as_bytes()).is_ok() {
        let _ = BufReader::new(stream).read_line(&mut line);
    }
    line
}

/// However badly the server is stuck: the process ends.
#[test]
fn stuck_server_exits_after_panic() {
    let dir = TempDir::new().expect("dir");
    let flag = dir.path().join("now");
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--beanstalk", "off", "--drain-timeout", "1ms", "--data"]);
    command.arg(dir.path().join("data"));
    command.env("DUEWHEEL_TEST_PANIC", format!("http request,stuck:{}", flag.display()));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the server starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("line");
    let http = line.trim().split_once("http://").expect("address").1.to_owned();
    std::fs::write(&flag, "").expect("flag");
    let _ = say(&http, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
    let begun = std::time::Instant::now();
    let status = crate::process::wait(&mut child);
    let said = text(&child.wait_with_output().expect("output").stderr);
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("did not stop in time"), "{said}");
    assert!(begun.elapsed() >= Duration::from_secs(1), "it was given the time");
}
