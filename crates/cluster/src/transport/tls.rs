//! TLS between nodes: version 1.3 alone, by rustls with ring. Without certificates each process draws a key of its own.
//!
//! A key that was drawn says nothing about who has it, and neither does a certificate say that its node is one of this
//! cluster. So in both cases [`super::handshake`] follows, which is bound to the TLS session: nobody between two nodes can
//! pass it on.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, PoisonError, RwLock};

use ring::signature::Ed25519KeyPair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::ring::default_provider;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, DigitallySignedStruct, InvalidMessage, RootCertStore, ServerConfig, SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// What both sides derive of a TLS session that nobody else can: RFC 9266.
pub(super) type Binding = [u8; 32];

const BINDING_LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// The first byte of a TLS connection: a record of the handshake.
pub(super) const FIRST_BYTE: u8 = 0x16;

/// A certificate and key of a node, and the authority that the certificates of all nodes are from.
///
/// The certificate is shown to other nodes whether this one asks or is asked, so it must be good for servers and for
/// clients, and name the host of [`FleetOptions::advertise`](crate::FleetOptions::advertise). All clones are one: what
/// takes the place of one, takes that of all.
#[derive(Clone)]
pub struct PeerCertificates(PeerTls);

impl fmt::Debug for PeerCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerCertificates")
    }
}

/// The part of a node's certificates that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificatePart {
    /// The certificate.
    Certificate,
    /// Its private key.
    Key,
    /// The authority of all nodes.
    Authority,
}

/// Why certificates cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{why}")]
pub struct BadCertificate {
    /// The fault.
    pub part: CertificatePart,
    why: String,
}

impl PeerCertificates {
    /// Reads all three in PEM.
    ///
    /// # Errors
    /// When one of them is not in its text, or the key is not that of the certificate.
    pub fn from_pem(certificate: &[u8], key: &[u8], authority: &[u8]) -> Result<Self, BadCertificate> {
        let bad = |part, why: String| BadCertificate { part, why };
        let all = |part, pem| match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
            Ok(all) if all.is_empty() => Err(bad(part, "there is no certificate in it (PEM)".to_owned())),
            Ok(all) => Ok(all),
            Err(why) => Err(bad(part, why.to_string())),
        };
        let chain = all(CertificatePart::Certificate, certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
            bad(CertificatePart::Key, "there is no private key in it (PEM, not encrypted)".to_owned())
        })?;
        let mut roots = RootCertStore::empty();
        for authority in all(CertificatePart::Authority, authority)? {
            roots.add(authority).map_err(|why| bad(CertificatePart::Authority, why.to_string()))?;
        }
        let of_key = |why: rustls::Error| match why {
            rustls::Error::InconsistentKeys(_) => {
                bad(CertificatePart::Key, "it is not the key of the certificate".to_owned())
            }
            other => bad(CertificatePart::Certificate, other.to_string()),
        };
        let of_roots =
            |why: rustls::server::VerifierBuilderError| bad(CertificatePart::Authority, why.to_string());
        let (provider, roots) = (Arc::new(default_provider()), Arc::new(roots));
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let clients = clients.build().map_err(of_roots)?;
        let servers = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
        let servers = servers.map_err(of_roots)?;
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .and_then(|config| {
                config.with_client_cert_verifier(clients).with_single_cert(chain.clone(), key.clone_key())
            })
            .map_err(of_key)?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .and_then(|config| config.with_webpki_verifier(servers).with_client_auth_cert(chain, key))
            .map_err(of_key)?;
        Ok(PeerCertificates(PeerTls::new(server, client, HostCheck::Checked)))
    }

    /// From now on these are shown to other nodes, and theirs are checked by their authority. Connections that are there
    /// go on as they were made.
    pub fn replace(&self, others: &PeerCertificates) {
        let sides = others.0.sides();
        *self.0.0.write().unwrap_or_else(PoisonError::into_inner) = sides;
    }

    pub(crate) fn tls(&self) -> PeerTls {
        self.0.clone()
    }
}

/// How this node speaks TLS. Clones are the same, also after [`PeerCertificates::replace`].
#[derive(Clone, Debug)]
pub(crate) struct PeerTls(Arc<RwLock<TlsConfigs>>);

/// The TLS configurations of both roles.
#[derive(Clone, Debug)]
struct TlsConfigs {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    names: HostCheck,
}

/// Whether the other node's key must be that of the host it was looked for at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostCheck {
    Checked,
    /// It says nothing of a name; so any address will do.
    Any,
}

impl PeerTls {
    fn new(mut server: ServerConfig, mut client: ClientConfig, names: HostCheck) -> Self {
        // Each connection stands for itself.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        client.resumption = Resumption::disabled();
        client.enable_sni = names == HostCheck::Checked;
        let sides = TlsConfigs { server: Arc::new(server), client: Arc::new(client), names };
        PeerTls(Arc::new(RwLock::new(sides)))
    }

    fn sides(&self) -> TlsConfigs {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// With a key that is drawn now.
    ///
    /// # Errors
    /// When the system gives no random numbers.
    pub(crate) fn drawn() -> io::Result<Self> {
        let random = ring::rand::SystemRandom::new();
        let key = Ed25519KeyPair::generate_pkcs8(&random)
            .map_err(|_| io::Error::other("the system gives no random numbers"))?;
        let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(key.as_ref())).map_err(io::Error::other)?;
        let public = key.public_key().ok_or_else(|| io::Error::other("a key has no public part"))?;
        let public = CertificateDer::from(public.as_ref().to_vec());
        let key = CertifiedKey::new(vec![public], key);
        let provider = Arc::new(default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(key))));
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyKey(provider)))
            .with_no_client_auth();
        Ok(PeerTls::new(server, client, HostCheck::Any))
    }

    /// Speaks TLS with the node at an address, `host:port`.
    pub(super) async fn connect(
        &self,
        stream: TcpStream,
        address: &str,
    ) -> io::Result<(tokio_rustls::client::TlsStream<TcpStream>, Binding)> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let TlsConfigs { client, names, .. } = self.sides();
        let name = match names {
            HostCheck::Checked => ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
            // Neither sent nor checked. Not every name that a resolver knows is one of DNS (`node_a`).
            HostCheck::Any => ServerName::IpAddress(Ipv4Addr::UNSPECIFIED.into()),
        };
        let stream = TlsConnector::from(client).connect(name, stream).await.map_err(in_words)?;
        let binding = stream.get_ref().1.export_keying_material([0; 32], BINDING_LABEL, None);
        Ok((stream, binding.map_err(io::Error::other)?))
    }

    /// Accepts TLS on a connection.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(tokio_rustls::server::TlsStream<TcpStream>, Binding)> {
        let stream = TlsAcceptor::from(self.sides().server).accept(stream).await.map_err(in_words)?;
        let binding = stream.get_ref().1.export_keying_material([0; 32], BINDING_LABEL, None);
        Ok((stream, binding.map_err(io::Error::other)?))
    }
}

/// What an operator can do about a handshake that failed.
fn in_words(error: io::Error) -> io::Error {
    let is_plain =
        error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).is_some_and(|inner| {
            matches!(inner, rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType))
        });
    if is_plain {
        return io::Error::other("it does not speak TLS: nodes of earlier versions do not");
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => io::Error::new(
            error.kind(),
            "it ended the connection before TLS began: it is of an earlier version, or has no place for others",
        ),
        _ => io::Error::new(error.kind(), format!("TLS: {error}")),
    }
}

/// Takes every key, and checks that the other side has its private half. Who that is, the proof that follows says.
#[derive(Debug)]
struct AnyKey(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("nodes speak TLS 1.3 alone".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(
            message,
            &key,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
