//! Tests of the permitted addresses of listeners, and of their requirements.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use super::*;

fn options(toml: &str) -> Options {
    toml::from_str(toml).unwrap()
}

#[test]
fn public_listener_must_be_named_insecure() {
    let at = |http: &str, insecure: &str| {
        let (http, insecure) = (Some(http.parse().unwrap()), Some(insecure.parse().unwrap()));
        Options { http, insecure, ..Options::default() }.settings().unwrap().http_address()
    };
    assert!(at("127.0.0.1:0", "none").unwrap().is_some());
    assert!(at("[::1]:0", "none").unwrap().is_some());
    assert!(at("off", "none").unwrap().is_none());
    for open in ["0.0.0.0:7788", "[::]:7788", "192.0.2.1:7788"] {
        assert!(at(open, "none").unwrap_err().to_string().contains("--insecure http "), "{open}");
        assert!(at(open, "peer,beanstalk").is_err());
        assert!(at(open, "http").unwrap().is_some());
    }
    let peer = |toml: &str| {
        let redis = "store = 'redis://127.0.0.1:1'\nnode = 'n'\n";
        options(&format!("{redis}{toml}"))
            .settings()
            .unwrap()
            .peer_address()
            .map(|at| at.map(|a| a.to_string()))
    };
    assert_eq!(peer("advertise = '127.0.0.2:7'").unwrap().as_deref(), Some("127.0.0.2:7"));
    // The name of --advertise is meant for others: it is not resolved here.
    let other = peer("advertise = 'node.invalid:7'\npeer_listen = '127.0.0.3:8'");
    assert_eq!(other.unwrap().as_deref(), Some("127.0.0.3:8"));
    let open = "advertise = '127.0.0.1:7'\npeer_listen = '0.0.0.0:8'";
    let why = peer(open).unwrap_err().to_string();
    assert!(why.contains("--peer-listen 0.0.0.0:8") && why.contains("--insecure peer "), "{why}");
    assert!(peer(&format!("{open}\ninsecure = 'http,beanstalk'")).is_err());
    assert!(peer(&format!("{open}\ninsecure = 'peer'")).unwrap().is_some());
}

#[test]
fn tokens_disable_beanstalk_by_default() {
    let at = |toml: &str| options(toml).settings().unwrap().beanstalk;
    assert_eq!(at(""), Listen::At("127.0.0.1:11300".into()));
    assert_eq!(at("tokens = '/t'"), Listen::Off);
    assert_eq!(at("tokens = '/t'\nbeanstalk = '127.0.0.1:1'"), Listen::At("127.0.0.1:1".into()));
    assert_eq!(at("tokens = '/t'\nbeanstalk = 'unix:/b'"), Listen::Unix("/b".into()));
}

#[test]
fn beanstalk_options_must_fit_its_listener() {
    let tls = "tls_cert = '/c'\ntls_key = '/k'\n";
    for (toml, says) in [
        ("beanstalk_client_ca = '/a'".to_owned(), "--beanstalk-client-ca needs --tls-cert"),
        (format!("{tls}beanstalk_client_ca = '/a'\nbeanstalk = 'unix:/b'"), "--beanstalk-client-ca is for"),
        (format!("{tls}beanstalk_client_ca = '/a'\nbeanstalk = 'off'"), "--beanstalk-client-ca is for"),
        ("beanstalk_socket_mode = '660'".to_owned(), "--beanstalk-socket-mode is for"),
    ] {
        let why = options(&toml).settings().unwrap_err().to_string();
        assert!(why.contains(says), "{toml}: {why}");
    }
    let open = format!("{tls}beanstalk_client_ca = '/a'\nbeanstalk = '0.0.0.0:1'");
    assert!(options(&open).settings().unwrap().beanstalk_address().unwrap().is_some());
    for bad in
        ["beanstalk_queues = []", "beanstalk_queues = ['']", "beanstalk_socket_mode = '6'", "insecure = true"]
    {
        assert!(toml::from_str::<Options>(bad).is_err(), "{bad}");
    }
}

#[test]
fn public_http_needs_tokens_and_tls() {
    let with =
        |toml: &str| options(&format!("http = '0.0.0.0:7788'\n{toml}")).settings().unwrap().http_address();
    let (tokens, tls) = ("tokens = '/t'\n", "tls_cert = '/c'\ntls_key = '/k'\n");
    for (toml, says, not) in [
        (String::new(), "--tokens, and --tls-cert", "the clear"),
        (tokens.to_owned(), "--tls-cert with --tls-key", "--tokens"),
        (tls.to_owned(), "--tokens", "--tls-cert"),
    ] {
        let why = with(&toml).unwrap_err().to_string();
        assert!(why.contains(says) && !why.contains(not) && why.contains("--insecure"), "{toml}: {why}");
    }
    assert!(with(&format!("{tokens}{tls}")).unwrap().is_some());
    let both = format!("{tokens}{tls}beanstalk = '0.0.0.0:11300'");
    let why = options(&both).settings().unwrap().beanstalk_address().unwrap_err().to_string();
    assert!(why.contains("neither authenticates clients") && why.contains("--insecure"), "{why}");
    assert!(options("tls_cert = '/c'").settings().unwrap_err().to_string().contains("--tls-key"));
    assert!(options("tls_key = '/k'").settings().unwrap_err().to_string().contains("--tls-cert"));
    assert!("7788".parse::<Listen>().is_err());
    let ports = "http = ':7799'\nbeanstalk = ':7798'\nstore = 'redis://h:1'\nnode = 'n'\nadvertise = 'h:1'\npeer_listen = ':7797'";
    let settings = options(ports).settings().unwrap();
    assert_eq!(
        (settings.http, settings.beanstalk),
        (Listen::At("127.0.0.1:7799".into()), Listen::At("127.0.0.1:7798".into()))
    );
    assert_eq!(
        settings.store.node().and_then(|node| node.peer_listen.clone()).as_deref(),
        Some("127.0.0.1:7797")
    );
    for wrong in [":", ":x", ":70000", ":7788:"] {
        assert!(wrong.parse::<Listen>().is_err(), "{wrong}");
    }
}
