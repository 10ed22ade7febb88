//! TLS 1.3 between nodes, by rustls with ring. Without certificates each process generates a key of its own.
//!
//! A generated key does not identify its owner, and a certificate does not show that its node belongs to this cluster.
//! So in both cases [`super::handshake`] follows. The handshake is bound to the TLS session: a machine between two
//! nodes cannot relay it.

use std::net::Ipv4Addr;
use std::sync::{Arc, PoisonError, RwLock};
use std::{fmt, io};

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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

#[cfg(any(test, feature = "testing"))]
use std::{future::Future, pin::Pin};

/// The channel binding of a TLS session, which only its two ends can derive: RFC 9266.
pub(super) type Binding = [u8; 32];

const BINDING_LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// The first byte of a TLS connection: the type of a handshake record.
pub(super) const FIRST_BYTE: u8 = 0x16;

/// The certificate and key of a node, and the authority that has signed the certificates of all nodes.
///
/// The certificate is presented for outgoing and incoming connections, so it must be valid for servers and for clients,
/// and name the host of [`FleetOptions::advertise`](crate::FleetOptions::advertise). Clones share their content:
/// replacing one replaces all.
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
    /// The private key of the certificate.
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
    /// Reads all three from PEM.
    ///
    /// # Errors
    /// A part is not in its text, or the key does not belong to the certificate.
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

    /// Presents these certificates to other nodes from now on, and checks theirs with this authority. Existing
    /// connections continue unchanged.
    pub fn replace(&self, others: &PeerCertificates) {
        let sides = others.0.sides();
        *self.0.0.write().unwrap_or_else(PoisonError::into_inner) = sides;
    }

    pub(crate) fn tls(&self) -> PeerTls {
        self.0.clone()
    }
}

/// The TLS configuration of this node. Clones share it, also after [`PeerCertificates::replace`].
#[derive(Clone, Debug)]
pub(crate) struct PeerTls(Arc<RwLock<TlsConfigs>>);

/// The TLS configurations of both roles.
#[derive(Clone, Debug)]
struct TlsConfigs {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    names: HostCheck,
}

/// Whether the other node's certificate must name the host of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostCheck {
    Checked,
    /// The certificate names no host, so any address is accepted.
    Any,
}

impl PeerTls {
    fn new(mut server: ServerConfig, mut client: ClientConfig, names: HostCheck) -> Self {
        // Connections are independent of each other.
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

    /// A configuration with a key that is generated now.
    ///
    /// # Errors
    /// The system provides no random numbers.
    pub(crate) fn generate() -> io::Result<Self> {
        #[expect(clippy::disallowed_types, reason = "a key must be unpredictable, whatever the seed")]
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

    /// Connects TLS to the node at an address, `host:port`.
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
            // The name is neither sent nor checked. Some names that a resolver knows are not valid in DNS (`node_a`).
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

/// Adds to a failed handshake what an operator can do.
fn in_words(error: io::Error) -> io::Error {
    let is_plain =
        error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).is_some_and(|inner| {
            matches!(inner, rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType))
        });
    if is_plain {
        return io::Error::other("it does not speak TLS");
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => io::Error::new(
            error.kind(),
            "it ended the connection before TLS began: it is no node, or has too many connections",
        ),
        _ => io::Error::new(error.kind(), format!("TLS: {error}")),
    }
}

/// Accepts every key, and checks that the other side holds its private half. The handshake of the cluster identifies
/// it.
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
        Err(rustls::Error::General("nodes speak TLS 1.3 only".to_owned()))
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

/// A connection that is read and written.
#[allow(unreachable_pub)] // the feature `testing` exports it
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection of any kind.
#[allow(unreachable_pub)] // the feature `testing` exports it
pub type PeerStream = Box<dyn Duplex>;

impl fmt::Debug for dyn Duplex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerStream")
    }
}

/// The connections of a simulation. They need no TLS, because no third party can read them.
#[cfg(any(test, feature = "testing"))]
pub trait Network: Send + Sync + fmt::Debug {
    /// Connects to the node at an address.
    fn connect(&self, address: &str) -> Pin<Box<dyn Future<Output = io::Result<PeerStream>> + Send + '_>>;
}

/// The way connections are made.
#[derive(Clone, Debug)]
pub(crate) enum Connector {
    /// Connections over TCP and TLS.
    Tls(PeerTls),
    /// Connections of a simulation.
    #[cfg(any(test, feature = "testing"))]
    Simulated(Arc<dyn Network>),
}

impl Connector {
    /// Connects to the node at an address, `host:port`.
    pub(super) async fn connect(&self, address: &str) -> io::Result<(PeerStream, Binding)> {
        match self {
            Connector::Tls(tls) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let (stream, binding) = tls.connect(stream, address).await?;
                Ok((Box::new(stream), binding))
            }
            #[cfg(any(test, feature = "testing"))]
            Connector::Simulated(network) => Ok((network.connect(address).await?, SIMULATED)),
        }
    }

    /// Accepts TLS on a TCP connection. A simulated node has no TCP connections.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<(PeerStream, Binding)> {
        match self {
            Connector::Tls(tls) => {
                let (stream, binding) = tls.accept(stream).await?;
                Ok((Box::new(stream), binding))
            }
            #[cfg(any(test, feature = "testing"))]
            Connector::Simulated(_) => Err(io::Error::other("a simulated node listens on no socket")),
        }
    }
}

/// The channel binding of a connection without TLS.
#[cfg(any(test, feature = "testing"))]
pub(super) const SIMULATED: Binding = [0; 32];
