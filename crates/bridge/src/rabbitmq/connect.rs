//! Connections to a broker, over TCP or our TLS, and the declarations that a bridge needs.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_compat::Compat;
use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use duewheel::Policy;
use duewheel::core::name::QueueName;
use futures_util::io::{AsyncRead, AsyncWrite};
use futures_util::{Stream, TryFutureExt};
use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::tcp::AsyncTcpStream;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Channel, Connection, ConnectionProperties, ErrorKind, ExchangeKind};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::seam::SeamError;
use crate::settings::BridgeSettings;

/// How long a connection may take, with its declarations.
const CONNECTING: Duration = Duration::from_secs(15);
/// How long the broker may take for the next answer. One whose memory or disk is full takes nothing, and says nothing.
pub(super) const ANSWER: Duration = Duration::from_secs(30);
/// The interval of heartbeats, in seconds, unless the URL has one.
const HEARTBEAT: u16 = 10;

/// Connects to the broker of a bridge. Cheap to clone.
#[derive(Clone)]
pub struct RabbitConnector {
    pub(super) settings: Arc<BridgeSettings>,
    pub(super) queue: QueueName,
    /// Longest `dedupe_id`, in bytes.
    pub(super) max_dedupe_id: usize,
    uri: AMQPUri,
    tls: Option<TlsConnector>,
}

/// The address has a password.
impl fmt::Debug for RabbitConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitConnector").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The address of the broker. The error does not repeat it: it has a password.
pub(super) fn address(settings: &BridgeSettings) -> Result<AMQPUri, (&'static str, String)> {
    let mut uri: AMQPUri = settings.url.parse().map_err(|_| {
        ("url", "must be amqp://USER:PASSWORD@HOST:PORT/VHOST or amqps://…, percent-encoded".to_owned())
    })?;
    uri.query.heartbeat.get_or_insert(HEARTBEAT);
    Ok(uri)
}

/// The TLS of an `amqps` address.
pub(super) fn tls(settings: &BridgeSettings) -> Result<Option<TlsConnector>, (&'static str, String)> {
    if address(settings)?.scheme == AMQPScheme::AMQP {
        return match settings.ca {
            Some(_) => Err(("ca", "is for amqps:// addresses".to_owned())),
            None => Ok(None),
        };
    }
    let mut roots = RootCertStore::empty();
    match &settings.ca {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(file) => {
            let bad = |why: &dyn fmt::Display| ("ca", format!("{}: {why}", file.display()));
            for certificate in CertificateDer::pem_file_iter(file).map_err(|why| bad(&why))? {
                let certificate = certificate.map_err(|why| bad(&why))?;
                roots.add(certificate).map_err(|why| bad(&why))?;
            }
            if roots.is_empty() {
                return Err(bad(&"there is no certificate in it"));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|why| ("ca", why.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Some(TlsConnector::from(Arc::new(config))))
}

impl RabbitConnector {
    pub(super) fn checked(
        settings: &BridgeSettings,
        policy: &Policy,
    ) -> Result<Self, (&'static str, String)> {
        Ok(RabbitConnector {
            uri: address(settings)?,
            tls: tls(settings)?,
            queue: QueueName::new(&settings.queue).map_err(|bad| ("queue", bad.to_string()))?,
            max_dedupe_id: policy.max_dedupe_id,
            settings: Arc::new(settings.clone()),
        })
    }

    /// Opens a connection, and makes sure that the broker has what the bridge needs.
    pub(super) async fn connect(&self, purpose: &str) -> Result<Connection, SeamError> {
        let connecting = async {
            let connection = self.open(purpose).await?;
            self.declare(&connection).await?;
            Ok(connection)
        };
        let connected = tokio::time::timeout(CONNECTING, connecting).await;
        connected.unwrap_or_else(|_| Err(SeamError(format!("no connection within {CONNECTING:?}"))))
    }

    /// Opens a connection.
    pub(super) async fn open(&self, purpose: &str) -> Result<Connection, SeamError> {
        let name = format!("duewheel bridge {} {purpose}", self.settings.name);
        let options = ConnectionProperties::default().with_connection_name(name.into());
        let tls = self.tls.clone();
        let dial = async move |uri: AMQPUri, _| {
            let stream = dial(&uri, tls.as_ref()).await.map_err(lapin::Error::from)?;
            Ok(AsyncTcpStream::Plain(stream))
        };
        let kit = RuntimeParts::new(Tokio::current(), OurReactor(Tokio::current()));
        let connecting = Connection::connector(self.uri.clone(), Runtime::new(kit), dial, options);
        let connected = tokio::time::timeout(CONNECTING, connecting).await;
        let connected = connected.map_err(|_| SeamError(format!("no connection within {CONNECTING:?}")))?;
        connected.map_err(|why| SeamError::of("cannot connect", why))
    }

    /// Makes sure that the queues and the exchange of due messages are there. What is there stays as it is.
    async fn declare(&self, connection: &Connection) -> Result<(), SeamError> {
        let (source, rejected) = (self.settings.source(), self.settings.rejected());
        self.declare_queue(connection, &rejected, &[FieldTable::default()]).await?;
        self.declare_queue(connection, &source, &self.source_arguments()).await?;
        let due = self.settings.due_exchange();
        let what = format!("exchange {due:?}");
        let passive = ExchangeDeclareOptions { passive: true, durable: true, ..Default::default() };
        match self.declare_due(connection, passive).await {
            Err(why) if is_missing(&why) => {
                let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
                self.declare_due(connection, durable).await.map_err(|why| SeamError::of(&what, why))
            }
            other => other.map_err(|why| SeamError::of(&what, why)),
        }
    }

    async fn declare_due(
        &self,
        connection: &Connection,
        options: ExchangeDeclareOptions,
    ) -> lapin::Result<()> {
        let kind = match &*self.settings.exchange_type {
            "fanout" => ExchangeKind::Fanout,
            "topic" => ExchangeKind::Topic,
            "headers" => ExchangeKind::Headers,
            _ => ExchangeKind::Direct,
        };
        let channel = connection.create_channel().await?;
        let name = short(&self.settings.due_exchange());
        channel.exchange_declare(name, kind, options, FieldTable::default()).await?;
        channel.close(200, "OK".into()).await
    }

    /// The arguments of the bridge's queue, the best ones first: older brokers refuse some.
    fn source_arguments(&self) -> Vec<FieldTable> {
        let text = |text: &str| AMQPValue::LongString(text.into());
        let table = |pairs: &[(&str, &str)]| {
            let mut table = FieldTable::default();
            // What expires in the queue, or is delivered too often, is put aside as well.
            table.insert("x-dead-letter-exchange".into(), text(""));
            table.insert("x-dead-letter-routing-key".into(), text(&self.settings.rejected()));
            for (name, value) in pairs {
                table.insert((*name).into(), text(value));
            }
            table
        };
        let quorum = ("x-queue-type", "quorum");
        let kept = [quorum, ("x-dead-letter-strategy", "at-least-once"), ("x-overflow", "reject-publish")];
        let classic = table(&[]);
        if !self.settings.quorum {
            return vec![classic];
        }
        vec![table(&kept), table(&[quorum]), classic]
    }

    /// Declares a queue, unless there is one, with the first of these arguments that the broker takes.
    async fn declare_queue(
        &self,
        connection: &Connection,
        name: &str,
        arguments: &[FieldTable],
    ) -> Result<(), SeamError> {
        let passive = QueueDeclareOptions { passive: true, durable: true, ..Default::default() };
        let mut last = match queue_declare(connection, name, passive, FieldTable::default()).await {
            Err(why) if is_missing(&why) => why,
            other => return other.map_err(|why| SeamError::of(&format!("queue {name:?}"), why)),
        };
        for arguments in arguments {
            let durable = QueueDeclareOptions { durable: true, ..Default::default() };
            match queue_declare(connection, name, durable, arguments.clone()).await {
                Ok(()) => return Ok(()),
                // Only the channel is closed.
                Err(why) if why.is_amqp_soft_error() => last = why,
                Err(why) => return Err(SeamError::of(&format!("queue {name:?}"), why)),
            }
        }
        Err(SeamError::of(&format!("queue {name:?}"), last))
    }
}

async fn queue_declare(
    connection: &Connection,
    name: &str,
    options: QueueDeclareOptions,
    arguments: FieldTable,
) -> lapin::Result<()> {
    let channel = connection.create_channel().await?;
    channel.queue_declare(short(name), options, arguments).await?;
    channel.close(200, "OK".into()).await
}

/// A channel whose messages are confirmed.
pub(super) async fn confirming(connection: &Connection) -> Result<Channel, SeamError> {
    let channel = connection.create_channel().await.map_err(|why| SeamError::of("channel", why))?;
    let selected = channel.confirm_select(ConfirmSelectOptions::default()).await;
    selected.map_err(|why| SeamError::of("confirms", why))?;
    Ok(channel)
}

/// Whether the broker has no such queue or exchange.
fn is_missing(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(why) if why.get_id() == 404)
}

/// A name as AMQP has it. Names of settings are short enough; another is cut at its limit.
pub(super) fn short(text: &str) -> ShortString {
    ShortString::try_new(duewheel::core::act::cut(text, 255)).unwrap_or_default()
}

/// A connection that lapin reads and writes.
trait AmqpStream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> AmqpStream for T {}

type OurStream = Compat<Box<dyn AmqpStream>>;

async fn dial(uri: &AMQPUri, tls: Option<&TlsConnector>) -> io::Result<OurStream> {
    let (host, port) = (&*uri.authority.host, uri.authority.port);
    let tcp = TcpStream::connect((host, port)).await?;
    tcp.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Compat::new(Box::new(tcp))) };
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(io::Error::other)?;
    Ok(Compat::new(Box::new(tls.connect(name, tcp).await?)))
}

/// Tokio's time, and streams of ours.
#[derive(Clone, Debug)]
struct OurReactor(Tokio);

impl Reactor for OurReactor {
    type TcpStream = OurStream;
    type Sleep = <Tokio as Reactor>::Sleep;

    #[allow(refining_impl_trait)] // the trait of the argument has no public name, and is not needed
    fn register<H: Send + 'static>(
        &self,
        _: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<OurStream, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.0.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = std::time::Instant> + Send + 'static {
        self.0.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<OurStream>> + Send + 'static {
        TcpStream::connect(address).map_ok(|tcp| Compat::new(Box::new(tcp) as Box<dyn AmqpStream>))
    }
}
