//! The examples with curl, against a real server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::process::{Process, text};

/// Runs a script of `examples/curl`, which must succeed; what it prints.
fn script(name: &str, server: &Process, variables: &[(&str, &str)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/curl").join(name);
    let mut command = Command::new("bash");
    command.arg(path).env("DUEWHEEL", &server.url).envs(variables.iter().copied());
    let output = command.output().expect("bash");
    assert!(output.status.success(), "{name}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn server(dir: &TempDir) -> Process {
    Process::start(&dir.path().join("data"), &[])
}

#[test]
fn unpaid_order_is_closed() {
    let dir = TempDir::new().expect("dir");
    let server = server(&dir);
    let says = script("order_timeout.sh", &server, &[("TIMEOUT", "200ms")]);
    assert!(says.contains("\"result\":\"cancelled\"") && says.contains("closing order-43\n"), "{says}");
    assert!(says.ends_with("\"durability\":\"fsync\"}\n") && !says.contains("closing order-42"), "{says}");
    let (_, stats) = server.call("GET", "/v1/stats", "");
    let totals = &stats["totals"];
    assert_eq!((&totals["acked"], &totals["cancelled"]), (&json!(1), &json!(1)));
}

#[test]
fn campaign_starts_at_one_instant() {
    let dir = TempDir::new().expect("dir");
    let server = server(&dir);
    let says = script("campaign.sh", &server, &[("COUNT", "1200"), ("SPREAD", "1s")]);
    assert!(says.starts_with("1200 messages are due from ") && says.ends_with("1200 were sent\n"), "{says}");
    assert_eq!(server.call("GET", "/v1/stats", "").1["totals"]["acked"], 1_200);
}

#[test]
fn request_retries_until_it_succeeds() {
    let dir = TempDir::new().expect("dir");
    let server = server(&dir);
    let service = TcpListener::bind("127.0.0.1:0").expect("bind");
    let url = format!("http://{}/hook", service.local_addr().expect("address"));
    let bodies = std::thread::spawn(move || {
        let answer = |status: &u16| {
            let (mut stream, _) = service.accept().expect("a request");
            let mut reader = BufReader::new(stream.try_clone().expect("clone"));
            let mut length = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).expect("head");
                if let Some((name, value)) = line.split_once(':')
                    && name.eq_ignore_ascii_case("content-length")
                {
                    length = value.trim().parse().expect("length");
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("body");
            write!(stream, "HTTP/1.1 {status} -\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                .expect("answer");
            text(&body)
        };
        [503, 503, 200].iter().map(answer).collect::<Vec<_>>()
    });
    let says = script("retry_http.sh", &server, &[("URL", &url)]);
    assert_eq!(bodies.join().expect("service"), [r#"{"order": 42, "paid": true}"#; 3]);
    assert_eq!(says.matches("\"result\":\"again\"").count(), 2, "{says}");
    assert!(says.contains("\"result\":\"acked\""), "{says}");
}
