//! The files of the dashboard, and the figures that it reads.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::fixture::{Answer, PATIENCE, Server};

const BROWSER: &str = "accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn root_serves_dashboard_to_browsers_only() {
    let server = Server::start().await;
    let list = server.raw("GET", "/", "accept: */*\r\n", b"").await;
    assert!(String::from_utf8_lossy(&list.body).contains("POST    /v1/queues/{queue}/messages"), "{list:?}");
    assert_eq!(
        (list.header("vary"), list.header("x-content-type-options")),
        (Some("accept"), Some("nosniff"))
    );
    let page = server.raw("GET", "/", BROWSER, b"").await;
    let text = String::from_utf8_lossy(&page.body).into_owned();
    assert!(page.status == 200 && text.contains("/ui/main.js"), "{page:?}");
    let policy = page.header("content-security-policy").expect("a policy");
    let rules: Vec<&str> = policy.split(';').map(str::trim).collect();
    for rule in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ] {
        assert!(rules.contains(&rule), "{rule}: {policy}");
    }
    assert_eq!(rules.len(), 10, "a rule that this test does not know: {policy}");
    for word in ["unsafe", "data:", "*"] {
        assert!(!policy.contains(word), "{policy}");
    }
    assert_safe(&page, "/");

    for path in text.split('"').filter(|word| word.starts_with("/ui/")) {
        let file = server.raw("GET", path, "", b"").await;
        assert!(file.status == 200 && !file.body.is_empty(), "{path}: {file:?}");
        assert_safe(&file, path);
        assert_eq!(file.header("content-security-policy"), Some(policy), "{path}");
        let etag = file.header("etag").expect("a validator");
        let again = server.raw("GET", path, &format!("if-none-match: {etag}\r\n"), b"").await;
        assert!(again.status == 304 && again.body.is_empty(), "{path}: {again:?}");
    }
    assert_eq!(server.raw("GET", "/ui/nothing.js", "", b"").await.status, 404);
    assert_eq!(server.raw("POST", "/ui/main.js", "", b"").await.status, 405);
}

/// Neither is a type guessed, nor does another server learn an address, nor is there a cookie.
fn assert_safe(answer: &Answer, path: &str) {
    let of = |name| answer.header(name);
    assert_eq!(
        (of("x-content-type-options"), of("referrer-policy"), of("set-cookie")),
        (Some("nosniff"), Some("no-referrer"), None),
        "{path}"
    );
}

/// The events of a stream, one after the other; `None` at its end.
async fn next_event(stream: &mut TcpStream, rest: &mut String) -> Option<Value> {
    let read = async {
        loop {
            while let Some((event, behind)) = rest.split_once("\n\n") {
                let data = event.split("data: ").nth(1).map(str::to_owned);
                *rest = behind.to_owned();
                if let Some(data) = data {
                    return Some(serde_json::from_str(&data).unwrap_or_else(|e| panic!("{e}: {data}")));
                }
            }
            let mut bytes = [0; 8_192];
            let n = stream.read(&mut bytes).await.expect("read");
            if n == 0 {
                return None;
            }
            // The sizes of chunks stand on lines of their own.
            let text = String::from_utf8_lossy(&bytes[..n]).replace("\r\n", "\r");
            let is_size = |line: &&str| u32::from_str_radix(line, 16).is_ok();
            rest.push_str(&text.split('\r').filter(|line| !is_size(line)).collect::<String>());
        }
    };
    timeout(PATIENCE, read).await.expect("an event every second")
}

async fn open(server: &Server) -> TcpStream {
    let mut stream = server.connect().await;
    let request =
        format!("GET /v1/stats/stream HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", server.address);
    stream.write_all(request.as_bytes()).await.expect("write");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_stream_updates_until_shutdown() {
    let server = Server::start().await;
    let (mut one, mut two) = (open(&server).await, open(&server).await);
    let (mut of_one, mut of_two) = (String::new(), String::new());
    let first = next_event(&mut one, &mut of_one).await.expect("an event");
    assert_eq!(first["counts"]["scheduled"], 0, "{first}");
    server.enqueue("a", r#"{"body": "x", "delay": "30s"}"#).await;
    server.enqueue("b", r#"{"body": "y", "delay": "26h"}"#).await;
    loop {
        let event = next_event(&mut one, &mut of_one).await.expect("an event");
        if event["counts"]["scheduled"] == 2 {
            let sum = |value: &Value| {
                value.as_array().expect("a list").iter().filter_map(Value::as_u64).sum::<u64>()
            };
            assert!(sum(&event["ring"]["segments"]) >= 1, "{event}");
            assert_eq!(event["totals"]["enqueued"], 2, "{event}");
            break;
        }
    }
    // Another reader sees the same, and who reads late sees the latest.
    while next_event(&mut two, &mut of_two).await.expect("an event")["counts"]["scheduled"] != 2 {}
    let now = server.ok("GET", "/v1/stats", "").await;
    assert_eq!((&now["counts"]["scheduled"], &now["queues"]), (&2.into(), &2.into()), "{now}");
    let later = now["later"].as_array().expect("later turns");
    let month: u64 = later[1]["counts"].as_array().expect("counts").iter().filter_map(Value::as_u64).sum();
    assert_eq!(month, 2, "{now}");

    // A server that stops waits for no reader.
    server.app.set_draining();
    while next_event(&mut one, &mut of_one).await.is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn histogram_sums_all_queues() {
    let server = Server::start().await;
    for (queue, delay) in [("a", "1h"), ("a", "2h"), ("b", "2h"), ("c", "400h")] {
        server.enqueue(queue, &format!(r#"{{"body": "x", "delay": "{delay}"}}"#)).await;
    }
    let all = server.ok("GET", "/v1/histogram", "").await;
    let sum: u64 =
        all["buckets"].as_array().expect("buckets").iter().filter_map(|b| b["count"].as_u64()).sum();
    assert_eq!((sum, &all["after"]), (3, &1.into()), "{all}");
}

#[tokio::test(flavor = "multi_thread")]
async fn open_server_reports_itself_open() {
    let server = Server::start().await;
    assert_eq!(server.ok("GET", "/v1/token", "").await, serde_json::json!({"open": true, "token": null}));
    assert_eq!(server.ok("GET", "/v1/tokens", "").await, serde_json::json!({"tokens": []}));
}
