//! HTTPS at a real server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use super::{Told, connect, listen, peak, request, say, until};
use crate::fixture::PATIENCE;
use crate::process::{BINARY, Process, run, serve, text};

/// An authority of our own.
pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn new() -> Authority {
        let mut params = CertificateParams::new([]).expect("names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("key");
        Authority { issuer: CertifiedIssuer::self_signed(params, key).expect("authority") }
    }

    pub(super) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Writes a certificate for `localhost` and 127.0.0.1, and its key, which only its owner may read.
    pub(super) fn write(&self, dir: &Path) -> (PathBuf, PathBuf) {
        let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let own = KeyPair::generate().expect("key");
        let signed =
            CertificateParams::new(names).expect("names").signed_by(&own, &self.issuer).expect("signed");
        std::fs::write(&cert, signed.pem()).expect("cert");
        super::write_private(&key, &own.serialize_pem());
        (cert, key)
    }

    /// A certificate for a client, and its key.
    fn identity(&self) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let own = KeyPair::generate().expect("key");
        let params = CertificateParams::new(["shop".to_owned()]).expect("names");
        let signed = params.signed_by(&own, &self.issuer).expect("signed");
        (signed.der().clone(), PrivateKeyDer::try_from(own.serialize_der()).expect("key"))
    }

    /// A connection of a client that shows a certificate of this authority; the server's is of `self`.
    pub(super) fn connect_as(
        &self,
        address: &str,
        signer: Option<&Authority>,
    ) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let config = self.trusting();
        let config = match signer.map(Authority::identity) {
            None => config.with_no_client_auth(),
            Some((cert, key)) => config.with_client_auth_cert(vec![cert], key).expect("identity"),
        };
        Self::shake_hands(config, address)
    }

    fn trusting(&self) -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(self.pem().as_bytes()).expect("pem");
        roots.add(root).expect("root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        config.expect("versions").with_root_certificates(roots)
    }

    /// A connection whose handshake is done, if it can be.
    fn connect(
        &self,
        address: &str,
        protocols: &[&str],
    ) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let mut config = self.trusting().with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        Self::shake_hands(config, address)
    }

    fn shake_hands(
        config: ClientConfig,
        address: &str,
    ) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let name = ServerName::try_from("localhost").expect("name");
        let client = ClientConnection::new(Arc::new(config), name).expect("client");
        let mut stream = StreamOwned::new(client, connect(address));
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(stream)
    }

    pub(super) fn say(&self, address: &str, bytes: &[u8]) -> std::io::Result<Told> {
        let mut stream = self.connect(address, &["http/1.1"])?;
        stream.write_all(bytes)?;
        Ok(listen(&mut stream).expect("an answer"))
    }
}

struct Https {
    server: Process,
    address: String,
    dir: TempDir,
}

impl Https {
    fn start(authority: &Authority, more: &[&str]) -> Https {
        let dir = TempDir::new().expect("dir");
        let (cert, key) = authority.write(dir.path());
        let log = std::fs::File::create(dir.path().join("log")).expect("log");
        let mut command = serve();
        command.args(["--http", "127.0.0.1:0", "--durability", "memory", "--log", "debug", "--data"]);
        command.arg(dir.path().join("data")).arg("--tls-cert").arg(cert).arg("--tls-key").arg(key).args(more);
        let server = Process::spawn_logged(command, Stdio::from(log));
        let address =
            server.url.strip_prefix("https://").unwrap_or_else(|| panic!("{}", server.url)).to_owned();
        Https { server, address, dir }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).expect("log")
    }
}

fn health() -> String {
    request("GET", "/healthz", "", "")
}

#[test]
fn https_speaks_http_1_1_only() {
    let authority = Authority::new();
    let https = Https::start(&authority, &[]);
    let enqueue = request("POST", "/v1/queues/q/messages", "", r#"{"body": "a", "delay_ms": 0}"#);
    assert_eq!(authority.say(&https.address, enqueue.as_bytes()).expect("TLS").status, 201);
    let stream = authority.connect(&https.address, &["h2", "http/1.1"]).expect("TLS");
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    let refused = authority.connect(&https.address, &["h2"]);
    assert!(refused.is_err(), "HTTP/2 alone is refused");
    // Another authority's certificate would not do, so it is really this one that is shown.
    assert!(Authority::new().say(&https.address, health().as_bytes()).is_err());
    // In the clear: what the port is, and nothing else.
    let plain = say(&https.address, health().as_bytes()).expect("an answer");
    assert_eq!((plain.status, plain.code().as_str()), (400, "bad_request"));
    assert!(
        plain.body.contains("this is an HTTPS port") && plain.head.contains("connection: close"),
        "{plain:?}"
    );
    assert!(say(&https.address, b"no HTTP at all").is_none(), "an alert or the end");
    assert_eq!(authority.say(&https.address, health().as_bytes()).expect("TLS").status, 200);
}

/// Story: people who had mistaken a scheme, or made the certificate of an authority, read names of Rust types.
#[test]
fn tls_mistakes_are_explained() {
    let authority = Authority::new();
    let https = Https::start(&authority, &[]);
    let dir = TempDir::new().expect("dir");
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).expect("ca");
    let told = |server: &str, trusted: bool| {
        let mut command = Command::new(BINARY);
        command.args(["queues", "--server", server]);
        if trusted {
            command.arg("--ca-cert").arg(&ca);
        }
        let output = run(&mut command);
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let plain = told(&format!("http://{}", https.address), false);
    assert!(plain.contains("this is an HTTPS port: say https://"), "{plain}");
    let unknown = told(&https.server.url, false);
    assert!(
        unknown.contains("an authority that is not known here") && unknown.contains("--ca-cert"),
        "{unknown}"
    );
    let other_name = told(&https.server.url.replace("127.0.0.1", "127.0.0.2"), true);
    // It listens on one address alone, so this is no question of names.
    assert!(other_name.contains("no server at"), "{other_name}");
    let http = Process::start(&dir.path().join("data"), &["--durability", "memory"]);
    let tls = told(&http.url.replace("http://", "https://"), false);
    assert!(tls.contains("this is an HTTP port") && tls.contains("--server http://127"), "{tls}");

    // The certificate of an authority, used as a server's: `openssl req -x509` makes such ones.
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut params = CertificateParams::new(names).expect("names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let own = KeyPair::generate().expect("key");
    let made = params.self_signed(&own).expect("signed").pem();
    std::fs::write(&cert, &made).expect("cert");
    std::fs::write(&ca, &made).expect("ca");
    super::write_private(&key, &own.serialize_pem());
    let log = dir.path().join("log");
    let mut command = serve();
    command.args(["--http", "127.0.0.1:0", "--durability", "memory", "--data"]).arg(dir.path().join("other"));
    command.arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key);
    let server = Process::spawn_logged(command, Stdio::from(std::fs::File::create(&log).expect("log")));
    let of_authority = told(&server.url, true);
    assert!(
        of_authority.contains("the certificate is a CA's") && of_authority.contains("openssl req"),
        "{of_authority}"
    );
    let log = std::fs::read_to_string(log).expect("log");
    assert!(log.contains("is a CA's") && log.contains("CA:FALSE"), "{log}");
}

#[test]
fn sighup_reloads_only_valid_certificate() {
    let (old, new) = (Authority::new(), Authority::new());
    let https = Https::start(&old, &[]);
    let mut open = old.connect(&https.address, &["http/1.1"]).expect("TLS");
    let (cert, _) = new.write(https.dir.path());
    https.server.signal("-HUP");
    until("the new one", || new.say(&https.address, health().as_bytes()).is_ok());
    assert!(old.say(&https.address, health().as_bytes()).is_err());
    // A connection that was open goes on.
    open.write_all(health().as_bytes()).expect("write");
    assert_eq!(listen(&mut open).expect("an answer").status, 200);

    std::fs::write(&cert, "-----BEGIN CERTIFICATE-----\nnonsense").expect("cert");
    https.server.signal("-HUP");
    until("the error", || https.log().contains("certificate and key stay as they were"));
    assert_eq!(new.say(&https.address, health().as_bytes()).expect("as before").status, 200);
}

#[test]
fn invalid_certificate_or_key_names_option() {
    let dir = TempDir::new().expect("dir");
    let (cert, key) = Authority::new().write(dir.path());
    let other = TempDir::new().expect("dir");
    let (other_cert, other_key) = Authority::new().write(other.path());
    let nothing = dir.path().join("nothing.pem");
    super::write_private(&nothing, "");
    let open_key = dir.path().join("open.pem");
    std::fs::copy(&key, &open_key).expect("copy");
    std::fs::set_permissions(&open_key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("chmod");
    let none = dir.path().join("none.pem");
    for (cert, key, says) in [
        (&cert, &other_key, "is not the key of the certificate in"),
        (&other_cert, &key, "is not the key of the certificate in"),
        (&nothing, &key, "--tls-cert"),
        (&key, &key, "there is no certificate in it"),
        (&cert, &nothing, "there is no private key in it"),
        (&cert, &cert, "--tls-key"),
        (&none, &key, "--tls-cert"),
        (&cert, &none, "--tls-key"),
        (&cert, &open_key, "may be read by others than its owner (mode 644)"),
    ] {
        let mut command = serve();
        command.current_dir(dir.path()).args(["--http", "127.0.0.1:0", "--tls-cert"]).arg(cert);
        let output = run(command.arg("--tls-key").arg(key));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{says}: {stderr}");
        assert!(stderr.contains(says) && !stderr.contains("panicked"), "{says}: {stderr}");
        assert!(output.stdout.is_empty(), "{says}: said that it is ready");
    }
    for (option, other) in [("--tls-cert", "--tls-key"), ("--tls-key", "--tls-cert")] {
        let output = run(serve().arg(option).arg("x"));
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(other), "{}", text(&output.stderr));
    }
}

#[test]
fn stalled_tls_handshake_times_out() {
    let authority = Authority::new();
    let https = Https::start(&authority, &["--max-connections", "3", "--header-timeout", "1500ms"]);
    let mut slow: Vec<TcpStream> = (0..3).map(|_| connect(&https.address)).collect();
    // The beginning of a record of a handshake, and then nothing.
    for stream in &mut slow {
        stream.write_all(&[22, 3, 1, 2, 0, 1]).expect("write");
    }
    // All places are taken, so this one is closed before a handshake.
    until("one too many", || authority.connect(&https.address, &[]).is_err());
    for stream in &mut slow {
        let mut rest = Vec::new();
        let begun = Instant::now();
        let _ = stream.read_to_end(&mut rest);
        assert!(begun.elapsed() < PATIENCE, "the server hangs up");
    }
    until("a place", || authority.say(&https.address, health().as_bytes()).is_ok());
    assert!(https.log().contains("the handshake took too long"), "{}", https.log());
}

#[test]
fn garbage_on_tls_port_is_harmless() {
    let authority = Authority::new();
    let https = Https::start(&authority, &[]);
    assert_eq!(authority.say(&https.address, health().as_bytes()).expect("TLS").status, 200);
    let before = peak(&https.server);
    let mut open = Vec::new();
    for n in 0..400_usize {
        let mut stream = connect(&https.address);
        let junk: Vec<u8> =
            (0..4_096).map(|i| u8::try_from((i * 31 + n * 7) % 256).expect("a byte")).collect();
        let _ = stream.write_all(if n % 2 == 0 { &junk } else { &[22, 3, 1, 63, 255, 1, 0, 63, 251] });
        open.push(stream);
        if n % 50 == 0 {
            assert_eq!(authority.say(&https.address, health().as_bytes()).expect("TLS").status, 200);
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(authority.say(&https.address, health().as_bytes()).expect("TLS").status, 200);
    let grown = peak(&https.server) - before;
    assert!(grown < 48 * super::MIB, "{grown} bytes for 400 connections");
}
