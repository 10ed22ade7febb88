//! The real binary on a real Redis that asks its clients for a certificate.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use duewheel_redis_rig::{Redis, Settings, Transport};

use crate::process::{BINARY, Process};

#[test]
fn redis_that_wants_a_certificate_is_shown_one_and_is_understood_without() {
    let settings = Settings { transport: Transport::TlsBothWays, ..Settings::default() };
    let redis = Redis::start(settings).expect("a redis-server");
    let certificates = redis.certificates().expect("certificates");
    let serve = || {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--http", "127.0.0.1:0", "--store", &redis.url(0), "--redis-ca"]);
        command.arg(certificates.authority());
        command
    };
    let [certificate, key] = certificates.client_files();
    let mut with = serve();
    with.arg("--redis-cert").arg(&certificate).arg("--redis-key").arg(&key);
    let server = Process::spawn(with);
    assert_eq!(server.call("POST", "/v1/queues/q/messages", r#"{"body": "a", "delay": "1h"}"#).0, 201);
    server.kill();

    // It tries for a minute, and says why in vain.
    let mut without = serve();
    without.env("DUEWHEEL_BEANSTALK", "off").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut server = without.spawn().expect("spawn");
    let log = BufReader::new(server.stderr.take().expect("stderr"));
    let said = log.lines().map_while(Result::ok).any(|line| line.contains("tls-auth-clients"));
    let _ = server.kill();
    let _ = server.wait();
    assert!(said, "nothing of a certificate in the log");
}
