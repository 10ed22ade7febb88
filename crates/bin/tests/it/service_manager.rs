//! The real binary under a service manager: sockets that are given to it, and what it says of itself (`sd_notify`).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process, run, text};

/// The server with this socket as its third file, as systemd gives it. The shell becomes the server, so the process id
/// is right.
fn given(socket: &TcpListener, name: &str, data: &Path, more: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = "LISTEN_PID=$$; export LISTEN_PID; exec 3<&0 0</dev/null; exec \"$0\" serve \"$@\"";
    command.args(["-c", script, BINARY, "--data"]).arg(data).args(more);
    command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", name).env("DUEWHEEL_BEANSTALK", "off");
    command.stdin(Stdio::from(OwnedFd::from(socket.try_clone().expect("socket"))));
    command
}

/// One enqueue on a connection of its own; the status.
fn enqueue(address: &str, n: u64) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = format!("{{\"body\": \"{n}\", \"delay\": \"1h\", \"key\": \"k{n}\"}}");
    let length = body.len();
    write!(
        stream,
        "POST /v1/queues/orders/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

/// An upgrade under systemd: the old server ends, the new one starts, the socket stays. A client that opens a connection
/// for each message sees no refusal, no reset and no 503.
#[test]
fn upgrade_on_given_socket_loses_nothing() {
    let dir = TempDir::new().expect("dir");
    let socket = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = socket.local_addr().expect("address").to_string();
    let mut first = Process::spawn(given(&socket, "http", dir.path(), &[]));
    assert_eq!(first.url, format!("http://{address}"));
    let (end, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..2)
        .map(|client| {
            let (end, done, address) = (Arc::clone(&end), Arc::clone(&done), address.clone());
            thread::spawn(move || {
                let mut accepted = 0;
                while !end.load(Ordering::Relaxed) {
                    let answer = enqueue(&address, client * 1_000_000 + accepted).expect("an answer");
                    assert_eq!(answer, "HTTP/1.1 201 Created");
                    accepted += 1;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                accepted
            })
        })
        .collect();
    let more = |than: u64| {
        let begun = Instant::now();
        while done.load(Ordering::Relaxed) <= than && clients.iter().all(|client| !client.is_finished()) {
            assert!(begun.elapsed() < PATIENCE, "no message is accepted");
            thread::sleep(Duration::from_millis(1));
        }
    };
    more(20);
    first.signal("-TERM");
    assert!(first.wait().success());
    let before = done.load(Ordering::Relaxed);
    let second = Process::spawn(given(&socket, "http", dir.path(), &[]));
    more(before + 20);
    end.store(true, Ordering::Relaxed);
    let accepted: u64 = clients.into_iter().map(|client| client.join().expect("no refusal")).sum();
    let (_, queue) = second.call("GET", "/v1/queues/orders", "");
    assert_eq!(queue["counts"]["scheduled"], accepted, "{queue}");
}

/// A given socket is judged like an address of `--http`: it does not open a server to other machines.
#[test]
fn exposed_socket_needs_tokens_and_tls() {
    let dir = TempDir::new().expect("dir");
    let socket = TcpListener::bind("0.0.0.0:0").expect("bind");
    let output = run_given(&mut given(&socket, "http", dir.path(), &[]));
    assert!(output.contains("other machines reach this address; it needs --tokens"), "{output}");
    let second = TempDir::new().expect("dir");
    let open = Process::spawn(given(&socket, "http", second.path(), &["--insecure", "http"]));
    assert!(open.url.starts_with("http://0.0.0.0:"), "{}", open.url);
}

fn run_given(command: &mut Command) -> String {
    let output = command.output().expect("output");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    text(&output.stderr)
}

#[test]
fn given_socket_must_name_own_listener() {
    let dir = TempDir::new().expect("dir");
    let socket = TcpListener::bind("127.0.0.1:0").expect("bind");
    let output = given(&socket, "smtp", dir.path(), &[]).output().expect("output");
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("LISTEN_FDNAMES: \"smtp\""), "{said}");
    assert!(said.contains("http, beanstalk"), "{said}");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--print-config"]).env("LISTEN_FDS", "1").env("LISTEN_PID", "1");
    assert!(run(&mut command).status.success());
}

/// Reads states until one has this line; all of them.
fn until(socket: &UnixDatagram, line: &str) -> Vec<String> {
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let mut states = Vec::new();
    loop {
        let mut bytes = [0; 4_096];
        let n = socket.recv(&mut bytes).unwrap_or_else(|error| panic!("no {line}: {error}: {states:?}"));
        states.push(text(&bytes[..n]));
        if states.last().is_some_and(|state| state.lines().any(|one| one == line)) {
            return states;
        }
    }
}

#[test]
fn service_manager_receives_state_notifications() {
    let dir = TempDir::new().expect("dir");
    let at = dir.path().join("notify");
    let manager = UnixDatagram::bind(&at).expect("bind");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--http", "127.0.0.1:0", "--data"]).arg(dir.path().join("data"));
    command.env("NOTIFY_SOCKET", &at).env("WATCHDOG_USEC", "60000");
    let mut server = Process::spawn(command);
    let states = until(&manager, "READY=1");
    let ready = states.last().expect("a state");
    assert!(ready.contains(&format!("STATUS=listening on {}", server.url)), "{states:?}");
    assert!(states[..states.len() - 1].iter().all(|state| state.contains("STATUS=starting: ")), "{states:?}");
    for _ in 0..3 {
        until(&manager, "WATCHDOG=1");
    }
    server.signal("-TERM");
    let stopping = until(&manager, "STOPPING=1").pop().expect("a state");
    assert!(stopping.contains("EXTEND_TIMEOUT_USEC=30000000"), "{stopping}");
    assert!(server.wait().success());
}
