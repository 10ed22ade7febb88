//! Delays at the edges of every integer, over both protocols of the real server: kept over a kill -9, or refused by
//! name; never delivered at once.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::PATIENCE;
use crate::process::Process;

/// In ms. The longest delay, 2^32 - 1 seconds, is less than 2^42.
const KEPT: [&str; 4] = ["2147483647", "2147483648", "4294967296", "68719476736"];
const REFUSED: [&str; 7] = [
    "-1",
    "9007199254740992",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1.5",
];

#[test]
fn http_delay_is_kept_or_refused() {
    let dir = TempDir::new().expect("dir");
    let data = dir.path().join("data");
    let server = Process::start(&data, &[]);
    let enqueue = |body: String| server.call("POST", "/v1/queues/q/messages", &body);
    for ms in KEPT {
        assert_eq!(enqueue(format!("{{\"body\": \"{ms}\", \"key\": \"{ms}\", \"delay_ms\": {ms}}}")).0, 201);
        let text = format!("{{\"body\": \"{ms}\", \"key\": \"t{ms}\", \"delay\": \"{ms}ms\"}}");
        assert_eq!(enqueue(text).0, 201, "{ms}");
    }
    for ms in REFUSED {
        let (status, said) = enqueue(format!("{{\"body\": \"x\", \"delay_ms\": {ms}}}"));
        assert_eq!(
            (status, &said["code"], &said["field"]),
            (400, &json!("bad_request"), &json!("delay_ms")),
            "{ms}: {said}"
        );
        // A text may have a fraction, which is rounded up.
        if !ms.contains('.') {
            let (status, said) = enqueue(format!("{{\"body\": \"x\", \"delay\": \"{ms}ms\"}}"));
            assert_eq!((status, &said["field"]), (400, &json!("delay")), "{ms}: {said}");
        }
        // A change is refused in the same way, and changes nothing.
        let (status, said) =
            server.call("PATCH", "/v1/queues/q/keys/2147483648", &format!("{{\"delay_ms\": {ms}}}"));
        assert_eq!((status, &said["field"]), (400, &json!("delay_ms")), "{ms}: {said}");
        // So is a line of many.
        let line = &server.lines("q", &format!("{{\"body\": \"x\", \"delay_ms\": {ms}}}\n"))[0];
        assert_eq!((&line["status"], &line["code"]), (&json!(400), &json!("bad_request")), "{ms}: {line}");
    }
    let address = server.url.trim_start_matches("http://").to_owned();
    let server = server.killed_and_restarted(&data, &address);
    for ms in KEPT {
        for key in [ms.to_owned(), format!("t{ms}")] {
            let (_, said) = server.call("GET", &format!("/v1/queues/q/keys/{key}"), "");
            assert_eq!(said["state"], "scheduled", "{said}");
            let left = said["due_in_ms"].as_u64().expect("due_in_ms");
            let asked: u64 = ms.parse().expect("a number");
            assert!(left <= asked && left + 60_000 > asked, "{ms}: {left} are left");
        }
    }
    let (_, none) = server.call("POST", "/v1/queues/q/reserve", r#"{"max": 100}"#);
    assert_eq!(none, json!({"messages": []}));
    // 0 is now. A message is not given back for longer than may be, either.
    let (status, _) = server.call("POST", "/v1/queues/now/messages", r#"{"body": "x", "delay_ms": 0}"#);
    assert_eq!(status, 201);
    let (_, grants) = server.call("POST", "/v1/queues/now/reserve", r#"{"wait_ms": 5000}"#);
    let grant = &grants["messages"][0];
    let path = format!("/v1/messages/{}/nack", grant["id"].as_str().expect("id"));
    for ms in REFUSED {
        let body = format!("{{\"lease_token\": {}, \"delay_ms\": {ms}}}", grant["lease_token"]);
        let (status, said): (u16, Value) = server.call("POST", &path, &body);
        assert_eq!((status, &said["field"]), (400, &json!("delay_ms")), "{ms}: {said}");
    }
}

/// In seconds, as there: up to 2^32 - 1.
#[test]
fn beanstalk_delay_is_kept_or_refused() {
    let dir = TempDir::new().expect("dir");
    let data = dir.path().join("data");
    let mut server = Process::start(&data, &["--beanstalk", "127.0.0.1:0"]);
    let mut client = Client::new(&server.beanstalk());
    let kept = ["1000", "2147483647", "2147483648", "4294967295"];
    let mut ids = Vec::new();
    for seconds in kept {
        let reply = client.ask(&format!("put 0 {seconds} 10 1\r\nx"));
        ids.push(reply.strip_prefix("INSERTED ").unwrap_or_else(|| panic!("{seconds}: {reply}")).to_owned());
    }
    for seconds in ["-1", "4294967296", "68719476736", "9007199254740992", "18446744073709551615", "1.5"] {
        let reply = client.ask(&format!("put 0 {seconds} 10 1"));
        assert_eq!(reply, "BAD_FORMAT", "{seconds}");
        // What was refused took no body, so that this is a command.
        assert_eq!(client.ask("x"), "UNKNOWN_COMMAND", "{seconds}");
    }
    drop(client);
    let mut server = {
        server.kill();
        Process::start(&data, &["--beanstalk", "127.0.0.1:0"])
    };
    let mut client = Client::new(&server.beanstalk());
    for (seconds, id) in kept.iter().zip(&ids) {
        let stats = client.yaml(&format!("stats-job {id}"));
        let line = |name: &str| {
            let found = stats.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            found.unwrap_or_else(|| panic!("{name}: {stats:?}")).to_owned()
        };
        assert_eq!((line("state"), &line("delay")[..]), ("delayed".to_owned(), *seconds));
        let (left, asked): (u64, u64) =
            (line("time-left").parse().expect("number"), seconds.parse().expect("number"));
        assert!(left <= asked && left + 60 > asked, "{seconds}: {left} are left");
    }
    assert_eq!(client.ask("reserve-with-timeout 0"), "TIMED_OUT");
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn new(address: &str) -> Client {
        let stream = TcpStream::connect(address).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        Client(BufReader::new(stream))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn ask(&mut self, command: &str) -> String {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).expect("write");
        self.line()
    }

    fn yaml(&mut self, command: &str) -> Vec<String> {
        let head = self.ask(command);
        assert!(head.starts_with("OK "), "{head}");
        let mut lines = Vec::new();
        loop {
            match self.line() {
                line if line.is_empty() => return lines,
                line => lines.push(line),
            }
        }
    }
}
