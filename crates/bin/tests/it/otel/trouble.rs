//! A collector that is away, hangs, refuses, or asks who calls; and settings that are wrong.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tempfile::TempDir;

use super::collector::{Collector, parsed};
use super::{Traced, caller, traced};
use crate::fixture::PATIENCE;
use crate::hook::{Hook, read};
use crate::process::{Process, run, serve, text};

/// Waits until a figure is what it must become.
fn until(server: &Traced, name: &str, so: impl Fn(u64) -> bool) -> u64 {
    let begun = Instant::now();
    loop {
        let value = server.figure(name);
        if so(value) {
            return value;
        }
        assert!(begun.elapsed() < PATIENCE, "never: {name}: {value}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Enqueues, sees the drops, and stops.
fn works_and_stops(mut server: Traced, messages: u64) {
    for _ in 0..messages {
        server.enqueue("orders", "", &json!({"body": "x"}));
    }
    until(&server, "duewheel_otel_spans_dropped_total", |dropped| dropped > 0);
    assert_eq!(server.figure("duewheel_otel_spans_exported_total"), 0);
    server.server.signal("-TERM");
    assert!(server.server.wait().success());
}

#[test]
fn unreachable_collector_delays_nothing() {
    // Nobody listens at a port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("address");
    let server = Traced::with(&format!("http://{address}"), &[]);
    server.enqueue("orders", "", &json!({"body": "x"}));
    until(&server, "duewheel_otel_export_failures_total", |failures| failures > 0);
    works_and_stops(server, 3);
}

#[test]
fn hung_collector_delays_nothing() {
    let hook = Hook::new(|_, _| {
        loop {
            std::thread::park();
        }
    });
    let few = [("OTEL_BSP_MAX_QUEUE_SIZE", "5"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")];
    let server = Traced::with(&format!("http://{}", hook.address), &few);
    server.enqueue("orders", "", &json!({"body": "x"}));
    hook.until("an export hangs", |got| !got.is_empty());
    works_and_stops(server, 20);
}

#[test]
fn export_timeout_counts_as_failure() {
    let hook = Hook::new(|_, _| {
        loop {
            std::thread::park();
        }
    });
    let server = Traced::with(&format!("http://{}", hook.address), &[("OTEL_EXPORTER_OTLP_TIMEOUT", "50")]);
    server.enqueue("orders", "", &json!({"body": "x"}));
    until(&server, "duewheel_otel_export_failures_total", |failures| failures > 0);
    assert_eq!(server.figure("duewheel_otel_spans_dropped_total"), 1);
}

/// A collector that says that it is busy is asked again, as OTLP wants it.
#[test]
fn busy_collector_is_retried() {
    let hook = Hook::new(|n, _| if n == 1 { "503" } else { "200" }.to_owned());
    let collector = Collector { hook };
    let server = Traced::start(&collector);
    let id = server.enqueue("orders", "", &json!({"body": "x"}));
    assert_eq!(until(&server, "duewheel_otel_spans_exported_total", |exported| exported > 0), 1);
    collector.of("send orders", &id);
    assert!(collector.hook.requests().len() > 1);
    assert_eq!(server.figure("duewheel_otel_spans_dropped_total"), 0);
    assert_eq!(server.figure("duewheel_otel_spans_waiting"), 0);
}

#[test]
fn last_spans_are_exported_at_stop() {
    let collector = Collector::start();
    let mut server = Traced::with(&collector.url(), &[("OTEL_BSP_SCHEDULE_DELAY", "3600000")]);
    let id = server.enqueue("orders", &caller("01"), &json!({"body": "x"}));
    assert_eq!(server.figure("duewheel_otel_spans_waiting"), 1);
    server.server.signal("-TERM");
    assert!(server.server.wait().success());
    let spans = collector.spans();
    assert!(spans.iter().any(|span| span.attribute("messaging.message.id") == Some(&id)), "{spans:#?}");
}

/// The collector gets the headers; the log has them at no level, and neither the figures nor the configuration do.
#[test]
fn the_secrets_of_headers_appear_nowhere() {
    for answer in ["200", "401"] {
        let (hook, data) = (Hook::new(|_, _| answer.to_owned()), TempDir::new().expect("folder"));
        let log = data.path().join("log");
        let secret = [("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hunter2,x-team=shop")];
        let url = format!("http://{}", hook.address);
        let mut command = traced(&url, &data, &secret);
        command.args(["--log", "trace,ureq_proto::util=trace"]);
        let file = File::create(&log).expect("a log");
        let mut server = Traced {
            server: Process::spawn_logged(command, Stdio::from(file)),
            _data: TempDir::new().expect("folder"),
        };
        server.enqueue("orders", "", &json!({"body": "x"}));
        let got = hook.until("an export", |got| !got.is_empty()).remove(0);
        assert_eq!((got.header("authorization"), got.header("x-team")), ("Bearer hunter2", "shop"));
        let figure = match answer {
            "200" => "duewheel_otel_spans_exported_total",
            _ => "duewheel_otel_export_failures_total",
        };
        until(&server, figure, |n| n > 0);
        let figures = server.server.text("/metrics");
        server.server.signal("-TERM");
        assert!(server.server.wait().success());
        let mut printed = traced(&url, &data, &secret);
        let printed = text(&run(printed.arg("--print-config")).stdout);
        let logged = std::fs::read_to_string(&log).expect("the log");
        assert!(logged.contains(&url), "{logged}");
        assert_eq!(logged.contains("does not take spans"), answer == "401", "{logged}");
        for (place, text) in [("log", &logged), ("figures", &figures), ("configuration", &printed)] {
            assert!(!text.contains("hunter2"), "{place}: {text}");
        }
    }
}

#[test]
fn wrong_variables_are_named() {
    let data = TempDir::new().expect("folder");
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/dev/null"),
    ] {
        let output = run(&mut traced("http://127.0.0.1:1", &data, &[(name, value)]));
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(name), "{name}={value}: {said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--data"]).arg(data.path());
    let output = run(command.args(["--otlp-endpoint", "collector"]));
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("--otlp-endpoint"), "{said}");
}

#[test]
fn otlp_option_wins_over_variable() {
    let (wanted, other) = (Collector::start(), Collector::start());
    let data = TempDir::new().expect("folder");
    let mut command = traced(&other.url(), &data, &[]);
    command.args(["--otlp-endpoint", &wanted.url()]);
    let server = Traced { server: Process::spawn(command), _data: data };
    let id = server.enqueue("orders", "", &json!({"body": "x"}));
    wanted.of("send orders", &id);
    assert!(other.hook.requests().is_empty());
    let off = Traced::with(&other.url(), &[("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_SAMPLER", "?")]);
    assert!(!off.server.text("/metrics").contains("duewheel_otel"));
}

/// Over TLS, with an authority that the operator names, at an address that is not public.
#[test]
fn a_collector_behind_tls_is_checked() {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("an authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).expect("an authority");
    let issuer = Issuer::new(params, key);
    let own = KeyPair::generate().expect("a key");
    let cert = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a certificate");
    let cert = cert.signed_by(&own, &issuer).expect("a certificate");
    let folder = TempDir::new().expect("folder");
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).expect("written");

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![cert.der().clone()],
            PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.serialize_der())),
        )
        .expect("a server");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let url = format!("https://{}", listener.local_addr().expect("address"));
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let config = Arc::new(config);
        for stream in listener.incoming().flatten() {
            let tls = rustls::ServerConnection::new(config.clone()).expect("a connection");
            let mut reader = BufReader::new(rustls::StreamOwned::new(tls, stream));
            while let Some(request) = read(&mut reader) {
                let _ = send.send(request);
                let _ = reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            }
            let _ = reader.get_mut().read(&mut []);
        }
    });

    let stranger = Traced::with(&url, &[]);
    stranger.enqueue("orders", "", &json!({"body": "x"}));
    until(&stranger, "duewheel_otel_export_failures_total", |failures| failures > 0);
    let known = Traced::with(&url, &[("OTEL_EXPORTER_OTLP_CERTIFICATE", ca.to_str().expect("a path"))]);
    known.enqueue("orders", "", &json!({"body": "x"}));
    let request = receive.recv_timeout(PATIENCE).expect("an export");
    assert_eq!(parsed(&request)[0].name, "send orders");
}
