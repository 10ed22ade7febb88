//! `--beanstalk-max-job-size`.

use serde_json::json;
use tempfile::TempDir;

use super::client::Client;
use super::start;

#[test]
fn job_size_limit_spares_http_messages() {
    let dir = TempDir::new().expect("dir");
    let (server, address) = start(dir.path(), &["--beanstalk-max-job-size", "10"]);
    let mut client = Client::connect(&address);
    assert_eq!(client.field("stats", "max-job-size").as_deref(), Some("10"));
    let id = client.put("put 0 0 60", "0123456789");
    assert_eq!(client.ask("reserve"), format!("RESERVED {id} 10\r\n0123456789"));
    for line in ["put 0 0 60", "put-key k 0 0 60"] {
        assert_eq!(client.ask_put(line, "0123456789a"), "JOB_TOO_BIG", "{line}");
    }
    let body = "x".repeat(100_000);
    let message = json!({"body": body, "delay_ms": 0}).to_string();
    let (status, done) = server.call("POST", "/v1/queues/default/messages", &message);
    assert_eq!(status, 201, "{done}");
    assert_eq!(
        client.ask("reserve"),
        format!("RESERVED {} 100000\r\n{body}", done["id"].as_str().expect("id"))
    );
}

#[test]
fn large_job_survives_restart() {
    const SIZE: usize = 8 * 1024 * 1024;
    let dir = TempDir::new().expect("dir");
    let limit = ["--beanstalk-max-job-size", &SIZE.to_string()];
    let (mut server, address) = start(dir.path(), &limit);
    // Each eight bytes are others; every byte occurs, CRLF too.
    let body: Vec<u8> =
        (0..SIZE as u64 / 8).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    let mut client = Client::connect(&address);
    client.send(format!("put 0 0 60 {SIZE}\r\n"));
    client.send(&body);
    client.send("\r\n");
    let id = client.reply().strip_prefix("INSERTED ").expect("id").to_owned();
    client.send(format!("put 0 0 60 {}\r\n", SIZE + 1));
    client.send(&body);
    assert_eq!(client.ask("x"), "JOB_TOO_BIG");
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));

    let (_server, address) = start(dir.path(), &limit);
    let mut client = Client::connect(&address);
    client.send("reserve-with-timeout 0\r\n");
    let expected = [format!("RESERVED {id} {SIZE}\r\n").as_bytes(), &body, b"\r\n"].concat();
    assert!(client.reply_bytes() == expected, "other bytes");
    assert_eq!(client.ask(&format!("delete {id}")), "DELETED");
}
