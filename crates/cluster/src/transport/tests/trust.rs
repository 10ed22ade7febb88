//! Which nodes are accepted over TLS, what others see of a connection, and which version is spoken.

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::handshake::{EARLIER_MAGIC, Hello, MAGIC, NodeIdentity, Welcome};
use super::*;
use crate::transport::wire::{MAX_GREETING, NEXT, PROTOCOL, greeting, read_greeting};

/// Passes bytes on to an address, and keeps what it has seen in both directions.
async fn tap(to: String) -> (String, Arc<Mutex<Vec<u8>>>, AbortHandle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let seen: Arc<Mutex<Vec<u8>>> = Arc::default();
    let keeps = seen.clone();
    let tapping = tokio::spawn(async move {
        let (mut a, _) = listener.accept().await.unwrap();
        let mut b = TcpStream::connect(to).await.unwrap();
        let ((mut from_a, mut to_a), (mut from_b, mut to_b)) = (a.split(), b.split());
        let (mut one, mut other) = (vec![0; 10_000], vec![0; 10_000]);
        loop {
            tokio::select! {
                n = from_a.read(&mut one) => {
                    let bytes = &one[..n.unwrap()];
                    keeps.lock().unwrap().extend(bytes);
                    to_b.write_all(bytes).await.unwrap();
                }
                n = from_b.read(&mut other) => {
                    let bytes = &other[..n.unwrap()];
                    keeps.lock().unwrap().extend(bytes);
                    to_a.write_all(bytes).await.unwrap();
                }
            }
        }
    });
    (address, seen, tapping.abort_handle())
}

fn enqueue(body: &[u8]) -> Op {
    let queue = duewheel_core::QueueName::new("a-queue-to-look-for").unwrap();
    Op::Enqueue(Box::new(duewheel_core::engine::Enqueue::new(queue, body.to_vec())))
}

#[tokio::test]
async fn messages_between_nodes_are_encrypted() {
    // Story: nodes knew each other by a secret, and said everything else in the clear.
    let (owner, _, mut to, listening) = owner(&SECRET).await;
    let (address, seen, tapping) = tap(to.advertise.to_string()).await;
    to.advertise = address.into();
    let (peer, running) = ask(to, &SECRET);
    until("they are connected", || peer.is_up()).await;
    let body = b"a body that is to be looked for".repeat(100);
    let asked = peer.ask(HERE, WhenBusy::Refuse, &[enqueue(&body)]).unwrap();
    let came = next(&owner).await.pop().unwrap();
    assert_eq!(came.ops, [enqueue(&body)]);
    came.answer.send(vec![Err(CallError::Overloaded)]).unwrap();
    assert!(matches!(asked.await.unwrap(), PeerOutcome::Answered(_)));
    let seen = seen.lock().unwrap().clone();
    assert!(seen.len() > body.len(), "all of it went this way");
    for secret in [&body[..31], b"a-queue-to-look-for", b"owner", b"asker", &MAGIC] {
        assert!(
            !seen.windows(secret.len()).any(|part| part == secret),
            "{}",
            String::from_utf8_lossy(secret)
        );
    }
    for task in [running, listening, tapping] {
        task.abort();
    }
}

#[tokio::test]
async fn tls_relay_is_refused_by_both() {
    // On a busy machine a greeting takes long; it must not end for that.
    let pace = TransportTimings {
        greet: Duration::from_secs(3_600),
        ..TransportTimings::of(Duration::from_secs(600))
    };
    let patient = |me| TransportConfig { pace, ..terms(me, &SECRET) };
    let (_owner, terms, mut to, listening) = owner_by(patient).await;
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let real = std::mem::replace(&mut to.advertise, between.local_addr().unwrap().to_string().into());
    let (peer, running) = ask_by(to.clone(), patient(node("asker", 1, "")));
    let (near, _) = between.accept().await.unwrap();
    let (mut near, binding_near) = PeerTls::generate().unwrap().accept(near).await.unwrap();
    let far = TcpStream::connect(&*real).await.unwrap();
    let (mut far, binding_far) = PeerTls::generate().unwrap().connect(far, &real).await.unwrap();
    assert_ne!(binding_near, binding_far);
    // The asker's two words, as they came.
    let heard = LastReceived::now(&clock());
    let mut frames = FrameReader::new(&mut near);
    for _ in 0..2 {
        let word = frames.next(MAX_GREETING, &heard).await.unwrap().unwrap();
        far.write_all(&(word.len() as u32).to_le_bytes()).await.unwrap();
        far.write_all(&word).await.unwrap();
    }
    far.flush().await.unwrap();
    let answer = FrameReader::new(&mut far).next(MAX_GREETING, &heard).await.unwrap().unwrap();
    assert_eq!(
        read_greeting::<Welcome>(&answer),
        Ok(Welcome::Stranger),
        "the owner knows the asker by its session"
    );
    // An owner that is asked over this session would prove it for this session alone.
    let proof = [9; 32];
    let come = Welcome::Come { version: PROTOCOL, takes: terms.limits, proof };
    near.write_all(&greeting(&come).unwrap()).await.unwrap();
    near.flush().await.unwrap();
    assert!(refusal(&peer).await.contains("does not know the cluster's secret"));
    running.abort();
    listening.abort();
}

#[tokio::test]
async fn nodes_without_common_version_are_refused() {
    let by = |speaks| move |me: Node| TransportConfig { speaks, ..terms(me, &SECRET) };
    let (this, both) = (SupportedVersions::default(), NEXT);
    let later = SupportedVersions { lowest: NEXT.highest, highest: NEXT.highest };
    for (asks, owns, version) in [
        (this, this, Some(PROTOCOL)),
        (this, both, Some(PROTOCOL)),
        (both, this, Some(PROTOCOL)),
        (both, both, Some(PROTOCOL + 1)),
        (later, both, Some(PROTOCOL + 1)),
        (this, later, None),
        (later, this, None),
    ] {
        let (owner, _, me, listening) = owner_by(by(owns)).await;
        let (peer, running) = ask_by(me, by(asks)(node("asker", 1, "")));
        if let Some(version) = version {
            until("they are connected", || peer.is_up()).await;
            assert_eq!(peer.version(), Some(version));
            let asked = peer.ask(HERE, WhenBusy::Refuse, &[Op::Stats]).unwrap();
            next(&owner).await.pop().unwrap().answer.send(vec![Ok(Reply::Count(5.into()))]).unwrap();
            assert!(matches!(asked.await.unwrap(), PeerOutcome::Answered(_)));
        } else {
            let said = format!("it speaks {owns} of the nodes' protocol, this one {asks}");
            let why = refusal(&peer).await;
            assert!(why.contains(&said), "{why}");
        }
        running.abort();
        listening.abort();
    }
}

/// The answer to a node that knows the secret and greets with these words, and others behind them.
async fn greeted(to: &Node, magic: [u8; 8], versions: SupportedVersions) -> Welcome {
    let stream = TcpStream::connect(&*to.advertise).await.unwrap();
    let (mut stream, binding) = PeerTls::generate().unwrap().connect(stream, &to.advertise).await.unwrap();
    let from = NodeIdentity { name: "other".into(), number: 7 };
    let hello = Hello { magic, versions, takes: limits(), from, to: NodeIdentity::from(to) };
    let hello = greeting(&(&hello, "and what later versions say besides")).unwrap();
    let proofs = Keyring::from(&secrets(&SECRET)).prove_all(&binding, &hello[LENGTH..]);
    stream.write_all(&[hello, greeting(&proofs).unwrap()].concat()).await.unwrap();
    stream.flush().await.unwrap();
    let heard = LastReceived::now(&clock());
    let answer = FrameReader::new(&mut stream).next(MAX_GREETING, &heard).await.unwrap().unwrap();
    read_greeting(&answer).unwrap()
}

#[tokio::test]
async fn appended_hello_fields_are_ignored() {
    let (_owner, _, me, listening) = owner(&SECRET).await;
    let answer = greeted(&me, MAGIC, SupportedVersions { lowest: PROTOCOL, highest: 9 }).await;
    assert!(matches!(answer, Welcome::Come { version: PROTOCOL, .. }), "{answer:?}");
    listening.abort();
}

/// Its answer has a form that such a node shows.
#[tokio::test]
async fn prerelease_node_is_refused() {
    let (_owner, terms, me, listening) = owner(&SECRET).await;
    let answer = greeted(&me, EARLIER_MAGIC, SupportedVersions { lowest: 1, highest: 6 }).await;
    assert_eq!(answer, Welcome::OtherVersions(terms.speaks));
    listening.abort();
}

/// An authority for tests, and certificates of it.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    fn certificates(&self, name: &str) -> PeerCertificates {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        PeerCertificates::from_pem(pem.as_bytes(), key.serialize_pem().as_bytes(), self.pem.as_bytes())
            .unwrap()
    }
}

#[tokio::test]
async fn mutual_tls_requires_authority_and_secret() {
    let (authority, other) = (Authority::new(), Authority::new());
    let by = |certificates: Option<PeerCertificates>, secret: [u8; 32]| {
        move |me: Node| match certificates {
            Some(certificates) => {
                TransportConfig { link: Connector::Tls(certificates.tls()), ..terms(me, &secret) }
            }
            None => terms(me, &secret),
        }
    };
    let good = || Some(authority.certificates("127.0.0.1"));
    for (asks, owns, said) in [
        (by(good(), SECRET), good(), None),
        (by(good(), [6; 32]), good(), Some("another secret")),
        (by(None, SECRET), good(), Some("TLS")),
        (by(good(), SECRET), None, Some("TLS")),
        (by(Some(other.certificates("127.0.0.1")), SECRET), good(), Some("TLS")),
        (by(good(), SECRET), Some(authority.certificates("10.0.0.1")), Some("not valid for name")),
    ] {
        let (_owner, _, me, listening) = owner_by(by(owns, SECRET)).await;
        let (peer, running) = ask_by(me, asks(node("asker", 1, "")));
        match said {
            None => until("they are connected", || peer.is_up()).await,
            Some(said) => {
                let why = refusal(&peer).await;
                assert!(why.contains(said), "{why}");
            }
        }
        running.abort();
        listening.abort();
    }
}

/// Story: certificates of nodes were read at the start alone, so each renewal was a rolling restart.
#[tokio::test]
async fn replaced_certificates_apply_to_new_connections() {
    let (old, new) = (Authority::new(), Authority::new());
    let by = |certificates: &PeerCertificates| {
        let tls = certificates.tls();
        move |me: Node| TransportConfig { link: Connector::Tls(tls.clone()), ..terms(me, &SECRET) }
    };
    let (asks, owns) = (old.certificates("127.0.0.1"), old.certificates("127.0.0.1"));
    let (owner, _, me, listening) = owner_by(by(&owns)).await;
    let (peer, running) = ask_by(me.clone(), by(&asks)(node("asker", 1, "")));
    until("they are connected", || peer.is_up()).await;
    owns.replace(&new.certificates("127.0.0.1"));
    // What stands goes on.
    let asked = peer.ask(HERE, WhenBusy::Refuse, &[Op::Stats]).unwrap();
    next(&owner).await.pop().unwrap().answer.send(vec![Ok(Reply::Done)]).unwrap();
    assert!(matches!(asked.await.unwrap(), PeerOutcome::Answered(_)));
    assert_eq!(peer.lives(), 1);
    // Who still has the old ones gets in no more.
    let (late, late_running) = ask_by(me.clone(), by(&asks)(node("asker", 1, "")));
    assert!(refusal(&late).await.contains("TLS"));
    late_running.abort();
    asks.replace(&new.certificates("127.0.0.1"));
    let (again, again_running) = ask_by(me, by(&asks)(node("asker", 1, "")));
    until("they are connected", || again.is_up()).await;
    for running in [running, again_running, listening] {
        running.abort();
    }
}

/// Story: with keys that are drawn nothing is said of a name, and yet an address had to be one that a certificate may
/// have. A name with an underscore, which resolvers know and DNS does not, kept two nodes apart for ever.
#[tokio::test]
async fn without_certificates_any_address_will_do() {
    for address in ["node_a:7600", "a..b:1", "[fe80::1%eth0]:7", "no port"] {
        let (_owner, _, me, listening) = owner(&SECRET).await;
        let stream = TcpStream::connect(&*me.advertise).await.unwrap();
        let connected = PeerTls::generate().unwrap().connect(stream, address).await;
        assert!(connected.is_ok(), "{address}: {:?}", connected.err());
        listening.abort();
    }
}

#[test]
fn unusable_certificates_name_their_part() {
    let (authority, key) = (Authority::new(), KeyPair::generate().unwrap());
    let certificate = CertificateParams::new(["a".to_owned()]).unwrap();
    let pem = certificate.signed_by(&key, &authority.issuer).unwrap().pem();
    let (key, other) = (key.serialize_pem(), KeyPair::generate().unwrap().serialize_pem());
    for (cert, key, ca, part) in [
        ("", &*key, &*authority.pem, CertificatePart::Certificate),
        (&*pem, "no key", &*authority.pem, CertificatePart::Key),
        (&*pem, &*other, &*authority.pem, CertificatePart::Key),
        (&*pem, &*key, "", CertificatePart::Authority),
    ] {
        let wrong = PeerCertificates::from_pem(cert.as_bytes(), key.as_bytes(), ca.as_bytes()).unwrap_err();
        assert_eq!(wrong.part, part, "{wrong}");
    }
    assert!(PeerCertificates::from_pem(pem.as_bytes(), key.as_bytes(), authority.pem.as_bytes()).is_ok());
}

#[tokio::test]
async fn tls_1_2_peer_is_refused() {
    let (_owner, _, me, listening) = owner(&SECRET).await;
    let stream = TcpStream::connect(&*me.advertise).await.unwrap();
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.retain(|suite| suite.tls13().is_none());
    let client = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
    let refused = tokio_rustls::TlsConnector::from(Arc::new(client)).connect(name, stream).await.unwrap_err();
    assert!(refused.to_string().contains("ProtocolVersion"), "{refused}");
    listening.abort();
}
