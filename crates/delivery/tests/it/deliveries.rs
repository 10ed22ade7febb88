//! Single deliveries to a receiver on loopback.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use duewheel_delivery::{
    NetworkSettings, PushClass, PushClient, PushOutcome, PushRequest, PushTarget, PushVerdict, SigningSecret,
    TargetSettings, TraceContext,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::receiver::{Answer, Names, Receiver, local, request, status};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

fn client(settings: &TargetSettings) -> PushClient {
    PushClient::new(Arc::new(PushTarget::new(settings).unwrap()))
}

async fn deliver(settings: &TargetSettings) -> PushOutcome {
    client(settings).deliver(&request()).await
}

#[tokio::test]
async fn a_request_as_it_goes_out() {
    let receiver = Receiver::new(|_, _| status(200, "", "thanks")).await;
    let shared = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let private = "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
    let mut settings = receiver.target();
    settings.url += "?a=b";
    settings.method = Some("PUT".into());
    settings.secrets = vec![shared.into(), private.into()];
    settings.headers.insert("Authorization".into(), "Bearer x".into());
    settings.headers.insert("content-type".into(), "text/plain".into());
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = [
        ("Content-Type", "application/json"),
        ("traceparent", traceparent),
        ("customer", "7 of 9"),
        ("Größe", "1"),
        ("note", "schön\r\nhost: evil"),
        ("host", "evil"),
    ];
    let sent = PushRequest {
        key: Some("order 42/ä".into()),
        queue: "close-review".into(),
        attempt: 3,
        headers: headers.map(|(name, value)| (name.into(), value.into())).to_vec(),
        body: Bytes::from_static(b"\0\xff{}"),
        ..request()
    };

    let outcome = client(&settings).deliver(&sent).await;

    assert_eq!((outcome.verdict, outcome.class), (PushVerdict::Delivered, PushClass::Status(200)));
    assert_eq!(outcome.answer, "thanks");
    let [got] = &receiver.requests()[..] else { panic!() };
    assert_eq!(got.line, "PUT /hook?a=b HTTP/1.1");
    assert_eq!(got.body, b"\0\xff{}");
    let sign =
        |secret: &str| SigningSecret::new(secret).unwrap().sign("dw_s1_17_1", 1_614_265_330, b"\0\xff{}");
    let signatures = format!("{} {}", sign(shared), sign(private));
    assert!(signatures.starts_with("v1,") && signatures.contains(" v1a,"));
    let host = receiver.address.to_string();
    let version = format!("duewheel/{}", env!("CARGO_PKG_VERSION"));
    let mut expected = vec![
        ("authorization", "Bearer x"),
        ("content-length", "4"),
        ("content-type", "application/json"),
        ("duewheel-attempt", "3"),
        ("duewheel-due-at", "2021-02-25T15:02:09.000Z"),
        ("duewheel-h-customer", "7 of 9"),
        ("duewheel-h-gr%c3%b6%c3%9fe", "1"),
        ("duewheel-h-host", "evil"),
        ("duewheel-h-note*", "UTF-8''sch%C3%B6n%0D%0Ahost%3A%20evil"),
        ("duewheel-key", "order%2042%2F%C3%A4"),
        ("duewheel-queue", "close-review"),
        ("host", &host),
        ("traceparent", traceparent),
        ("user-agent", &version),
        ("webhook-id", "dw_s1_17_1"),
        ("webhook-signature", &signatures),
        ("webhook-timestamp", "1614265330"),
    ];
    expected.sort_unstable();
    let mut headers: Vec<(&str, &str)> = got.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    headers.sort_unstable();
    assert_eq!(headers, expected);
}

#[tokio::test]
async fn a_target_without_secrets_signs_nothing() {
    let receiver = Receiver::new(|_, _| status(204, "", "")).await;
    let sent = PushRequest { headers: vec![("traceparent".into(), "nonsense".into())], ..request() };
    client(&receiver.target()).deliver(&sent).await;
    let [got] = &receiver.requests()[..] else { panic!() };
    assert_eq!(got.header("webhook-signature"), None);
    assert_eq!(got.header("content-type"), None);
    // What names no span is an ordinary header, and the request gets a trace of its own.
    assert_eq!(got.header("duewheel-h-traceparent"), Some("nonsense"));
    let fresh = got.header("traceparent").and_then(|text| TraceContext::new(text, None));
    assert!(fresh.is_some_and(|context| !context.is_sampled()), "{got:?}");
}

/// The request belongs to the span of its attempt; what the message says of its creation has a name of its own.
#[tokio::test]
async fn traced_attempt_carries_span_and_creation() {
    let receiver = Receiver::new(|_, _| status(204, "", "")).await;
    let creation = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let headers = |all: &[(&str, &str)]| -> Vec<(String, String)> {
        all.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    };
    let both = headers(&[("Traceparent", creation), ("tracestate", "a=1")]);
    let span = TraceContext::new(own, Some("b=2"));
    let client = client(&receiver.target());
    for sent in [
        PushRequest { headers: both.clone(), ..request() },
        PushRequest { headers: both, span: span.clone(), ..request() },
        PushRequest { headers: Vec::new(), span, ..request() },
        PushRequest { headers: headers(&[("tracestate", "a=1")]), ..request() },
    ] {
        client.deliver(&sent).await;
    }
    let seen: Vec<_> = receiver
        .requests()
        .iter()
        .map(|got| {
            let names =
                ["traceparent", "tracestate", "duewheel-creation-traceparent", "duewheel-h-tracestate"];
            // A fresh one differs each time.
            let shown = |text: &str| if [creation, own].contains(&text) { text } else { "other" }.to_owned();
            names.map(|name| match got.header(name) {
                Some(text) if name == "traceparent" => Some(shown(text)),
                text => text.map(str::to_owned),
            })
        })
        .collect();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        seen,
        [
            [some(creation), some("a=1"), None, None],
            [some(own), some("b=2"), some(creation), None],
            [some(own), some("b=2"), None, None],
            [some("other"), None, None, some("a=1")],
        ]
    );
}

/// hyper leaves `content-length` out when there is no body; receivers such as Python's `http.server` then do not know
/// whether there is one (RFC 9110, section 8.6, wants it for POST).
#[tokio::test]
async fn an_empty_body_has_a_length() {
    let receiver = Receiver::new(|_, _| status(200, "", "")).await;
    let sent = PushRequest { body: Bytes::new(), ..request() };
    assert_eq!(client(&receiver.target()).deliver(&sent).await.verdict, PushVerdict::Delivered);
    assert_eq!(receiver.requests()[0].header("content-length"), Some("0"));
}

#[tokio::test]
async fn one_connection_serves_many() {
    let receiver = Receiver::new(|_, _| status(200, "", "ok")).await;
    let client = client(&receiver.target());
    for _ in 0..5 {
        assert_eq!(client.deliver(&request()).await.verdict, PushVerdict::Delivered);
    }
    assert_eq!((receiver.requests().len(), receiver.connections()), (5, 1));
}

#[tokio::test]
async fn headers_of_the_answer_count() {
    let receiver = Receiver::new(|_, _| status(503, "Retry-After: 7\r\n", "busy")).await;
    let outcome = deliver(&receiver.target()).await;
    assert_eq!(outcome.verdict, PushVerdict::Slowed(Duration::from_secs(7)));
    assert_eq!((outcome.class.to_string().as_str(), outcome.answer.as_str()), ("status_503", "busy"));
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let other = Receiver::new(|_, _| status(200, "", "")).await;
    let place = other.address;
    for code in [301, 302, 303, 307, 308] {
        let receiver = Receiver::new(move |_, _| {
            status(code, &format!("Location: http://{place}/?token=x\r\n"), "moved")
        })
        .await;
        let outcome = deliver(&receiver.target()).await;
        assert_eq!(outcome.answer, format!("(location: http://{place}/?…) moved"));
        assert_eq!((outcome.verdict, outcome.class), (PushVerdict::Failed, PushClass::Status(code)));
    }
    assert_eq!(other.connections(), 0);
}

#[tokio::test]
async fn failures_have_a_class() {
    // A port that is taken, and where nobody listens.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let taken = socket.local_addr().unwrap();
    let nobody = TargetSettings { networks: local(), ..TargetSettings::new(format!("http://{taken}/")) };
    assert_eq!(deliver(&nobody).await.class, PushClass::ConnectionRefused);

    let plain = |bytes: &'static [u8]| Receiver::new(move |_, _| Answer::Bytes(bytes.to_vec()));
    for (receiver, class) in [
        (Receiver::new(|_, _| Answer::Close).await, PushClass::ConnectionReset),
        (plain(b"SSH-2.0-OpenSSH_9.2\r\n\r\n").await, PushClass::BadAnswer),
        (plain(b"HTTP/1.1 200 x\r\ncontent-length: many\r\n\r\n").await, PushClass::BadAnswer),
        (Receiver::new(|_, _| Answer::Hang).await, PushClass::Timeout),
        // The deadline is one for everything: an answer that drips does not extend it.
        (
            Receiver::new(|_, _| {
                Answer::Endless(b"HTTP/1.1 100 x\r\n\r\n".into(), b"HTTP/1.1 100 x\r\n\r\n")
            })
            .await,
            PushClass::Timeout,
        ),
    ] {
        let mut settings = receiver.target();
        if class == PushClass::Timeout {
            settings.timeout_ms = Some(200);
        }
        let outcome = deliver(&settings).await;
        assert_eq!((outcome.verdict, outcome.class), (PushVerdict::Failed, class));
        assert_eq!(outcome.answer, "");
    }
}

#[tokio::test]
async fn endless_answer_is_cut_off() {
    let first = b"HTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    let receiver = Receiver::new(move |_, _| Answer::Endless(first.clone(), b"4\r\nword\r\n")).await;
    let client = client(&receiver.target());
    for n in 1..=2 {
        let outcome = client.deliver(&request()).await;
        assert_eq!((outcome.verdict, outcome.class), (PushVerdict::Delivered, PushClass::Status(200)));
        assert_eq!(outcome.answer.len(), 1024);
        assert_eq!(receiver.connections(), n, "what is not read to its end is closed");
    }
}

#[tokio::test]
async fn a_compressed_answer_is_not_unpacked() {
    let receiver = Receiver::new(|_, _| status(200, "Content-Encoding: gzip\r\n", "\u{1f}x")).await;
    assert_eq!(deliver(&receiver.target()).await.answer, "\u{fffd}x");
    assert_eq!(receiver.requests()[0].header("accept-encoding"), None);
}

#[tokio::test]
async fn rebound_name_is_checked_each_time() {
    let receiver = Receiver::new(|_, _| {
        Answer::Bytes(b"HTTP/1.1 200 x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".into())
    })
    .await;
    let port = receiver.address.port();
    let settings = TargetSettings {
        networks: local(),
        ..TargetSettings::new(format!("http://rebound.example:{port}/"))
    };
    let target = Arc::new(PushTarget::new(&settings).unwrap());
    let names = Names::with(
        "rebound.example",
        &[&["127.0.0.1"], &["10.0.0.1"], &["127.0.0.1", "169.254.169.254"], &[], &["127.0.0.1"]],
    );
    let client = PushClient::with_resolver(target, names.clone());
    let mut classes = Vec::new();
    for _ in 0..5 {
        classes.push(client.deliver(&request()).await.class.to_string());
    }
    assert_eq!(classes, ["status_200", "address_refused", "address_refused", "dns_error", "status_200"]);
    // The address that was judged is the one that was connected to: there was no second look-up.
    assert_eq!(names.asked().len(), 5);
    assert_eq!(receiver.connections(), 2, "one of two addresses that is refused refuses both");
}

#[tokio::test]
async fn a_name_that_is_unknown() {
    let settings = TargetSettings::new("http://nowhere.example/");
    let target = Arc::new(PushTarget::new(&settings).unwrap());
    let outcome =
        PushClient::with_resolver(target, Names::with("other.example", &[])).deliver(&request()).await;
    assert_eq!((outcome.class, outcome.verdict), (PushClass::DnsError, PushVerdict::Failed));
}

#[tokio::test]
async fn public_target_cannot_reach_loopback() {
    let receiver = Receiver::new(|_, _| status(200, "", "")).await;
    let settings = TargetSettings::new(format!("http://here.example:{}/", receiver.address.port()));
    let target = Arc::new(PushTarget::new(&settings).unwrap());
    let names = Names::with("here.example", &[&["127.0.0.1"]]);
    let outcome = PushClient::with_resolver(target, names).deliver(&request()).await;
    assert_eq!(outcome.class, PushClass::AddressRefused);
    assert_eq!(receiver.connections(), 0);
}

/// An authority, and a certificate of it with its key, in PEM.
struct Certificates {
    authority: String,
    cert: String,
    key: String,
}

fn certificates(name: &str) -> Certificates {
    certificates_until(name, None)
}

fn certificates_until(name: &str, last_year: Option<i32>) -> Certificates {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut of_name = CertificateParams::new([name.to_owned()]).unwrap();
    if let Some(year) = last_year {
        of_name.not_after = rcgen::date_time_ymd(year, 1, 1);
    }
    let cert = of_name.signed_by(&key, &authority).unwrap();
    Certificates { authority: authority.pem(), cert: cert.pem(), key: key.serialize_pem() }
}

fn acceptor(of: &Certificates, clients: Option<&Certificates>) -> TlsAcceptor {
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(clients) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(clients.authority.as_bytes()).unwrap()).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            config.with_client_cert_verifier(verifier)
        }
    };
    let chain = vec![CertificateDer::from_pem_slice(of.cert.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(of.key.as_bytes()).unwrap();
    TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key).unwrap()))
}

async fn https(of: &Certificates, clients: Option<&Certificates>) -> Receiver {
    let acceptor = acceptor(of, clients);
    Receiver::over(
        |_, _| status(200, "", ""),
        move |stream| {
            let acceptor = acceptor.clone();
            async move { acceptor.accept(stream).await.ok() }
        },
    )
    .await
}

#[tokio::test]
async fn tls_requires_trusted_and_client_certificates() {
    let (ours, theirs, clients) = (certificates("127.0.0.1"), certificates("127.0.0.1"), certificates("us"));
    let receiver = https(&ours, Some(&clients)).await;
    let settings = TargetSettings {
        networks: local(),
        ca_pem: Some(ours.authority.clone()),
        client_pem: Some(format!("{}{}", clients.cert, clients.key)),
        ..TargetSettings::new(format!("https://{}/", receiver.address))
    };
    assert_eq!(deliver(&settings).await.class, PushClass::Status(200));

    let unknown = (PushClass::TlsUnknownAuthority, "no known authority");
    for (refused, (class, says)) in [
        // Authorities of the web only.
        (TargetSettings { ca_pem: None, ..settings.clone() }, unknown),
        (TargetSettings { ca_pem: Some(theirs.authority), ..settings.clone() }, unknown),
        // The receiver wants a certificate.
        (
            TargetSettings { client_pem: None, ..settings.clone() },
            (PushClass::TlsError, "CertificateRequired"),
        ),
    ] {
        let outcome = deliver(&refused).await;
        assert_eq!((outcome.class, outcome.verdict), (class, PushVerdict::Failed));
        assert!(outcome.answer.contains(says), "{outcome:?}");
    }
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn certificate_for_another_name_is_refused() {
    let other = certificates("other.example");
    let receiver = https(&other, None).await;
    let port = receiver.address.port();
    let settings = |name: &str| TargetSettings {
        networks: Some(NetworkSettings::One("any".into())),
        ca_pem: Some(other.authority.clone()),
        ..TargetSettings::new(format!("https://{name}:{port}/"))
    };
    for (name, class, says) in [
        ("other.example", PushClass::Status(200), ""),
        ("this.example", PushClass::TlsWrongName, "not valid for name \"this.example\""),
    ] {
        let target = Arc::new(PushTarget::new(&settings(name)).unwrap());
        let client = PushClient::with_resolver(target, Names::with(name, &[&["127.0.0.1"]]));
        let outcome = client.deliver(&request()).await;
        assert_eq!(outcome.class, class, "{name}");
        assert!(outcome.answer.contains(says), "{outcome:?}");
    }
}

#[tokio::test]
async fn an_expired_certificate_has_a_class() {
    let old = certificates_until("127.0.0.1", Some(2020));
    let receiver = https(&old, None).await;
    let settings = TargetSettings {
        networks: local(),
        ca_pem: Some(old.authority.clone()),
        ..TargetSettings::new(format!("https://{}/", receiver.address))
    };
    let outcome = deliver(&settings).await;
    assert_eq!(outcome.class, PushClass::TlsExpired);
    assert!(outcome.answer.contains("expired"), "{outcome:?}");
}

#[tokio::test]
async fn plain_http_where_tls_is_expected() {
    let answer_at_once = |mut stream: tokio::net::TcpStream| async move {
        stream.write_all(b"HTTP/1.1 400 x\r\n\r\n").await.unwrap();
        // Read what comes, so that the answer is not lost by a reset.
        drop(tokio::io::copy(&mut stream, &mut tokio::io::sink()).await);
        None::<tokio::net::TcpStream>
    };
    let receiver = Receiver::over(|_, _| Answer::Close, answer_at_once).await;
    let url = format!("https://{}/", receiver.address);
    let settings = TargetSettings { networks: local(), ..TargetSettings::new(url) };
    assert_eq!(deliver(&settings).await.class, PushClass::TlsError);
}

/// A delivery lasts until its body is sent, also to a receiver that does not want it, and no longer than its time-out.
#[tokio::test]
async fn unread_request_body_is_released() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let settings = TargetSettings { networks: local(), timeout_ms: Some(4_000), ..TargetSettings::new(url) };
    // More than the buffers of both sockets hold.
    let sent = PushRequest { body: vec![0; 64 << 20].into(), ..request() };
    let client = client(&settings);
    let receiver = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        // An answer before its request would be no HTTP.
        stream.read_exact(&mut [0; 4]).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        stream
    };
    let (_unread, outcome) = tokio::join!(receiver, client.deliver(&sent));
    assert_eq!(outcome.class, PushClass::Status(200));
    drop(client);
    let tasks = tokio::runtime::Handle::current().metrics();
    let all_have_ended = async {
        while tasks.num_alive_tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(LONG, all_have_ended).await.is_ok(), "tasks of the client must end");
}
