//! A private RabbitMQ for tests: loopback, ports and folders of its own, and processes that end with their owner.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use duewheel_bridge::{BridgeKind, BridgeSettings};
use lapin::options::{
    BasicGetOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use rustix::process::{Pid, Signal, kill_process_group};

const PATIENCE: Duration = Duration::from_secs(120);

/// A broker. Dropping it kills it and removes its folder.
pub struct Broker {
    folder: tempfile::TempDir,
    ports: [u16; 3],
    epmd: Child,
    server: Option<Child>,
    /// Whether it also listens with TLS, at the second port after its own.
    tls: Option<u16>,
}

fn free_port() -> u16 {
    duewheel_redis_rig::free_port().unwrap()
}

/// The script of the newest installed broker.
fn program() -> PathBuf {
    if let Some(program) = std::env::var_os("DUEWHEEL_RABBITMQ") {
        return program.into();
    }
    let installed = fs::read_dir("/usr/lib/rabbitmq/lib").expect("rabbitmq-server is not installed");
    let newest = installed.map(|entry| entry.unwrap().path()).max().unwrap();
    newest.join("sbin/rabbitmq-server")
}

impl Broker {
    pub fn start() -> Broker {
        Broker::start_with(None)
    }

    /// Starts a broker that also listens with this certificate and key, in PEM.
    pub fn start_with(certificate: Option<(&str, &str)>) -> Broker {
        let folder = tempfile::Builder::new().prefix("dw-rmq-").tempdir_in("/tmp").unwrap();
        let ports = [free_port(), free_port(), free_port()];
        let tls = certificate.map(|_| free_port());
        let path = |name: &str| folder.path().join(name);
        let mut config = format!("listeners.tcp.1 = 127.0.0.1:{}\nlog.file.level = warning\n", ports[0]);
        if let (Some((certificate, key)), Some(port)) = (certificate, tls) {
            fs::write(path("cert.pem"), certificate).unwrap();
            fs::write(path("key.pem"), key).unwrap();
            let at = folder.path().display();
            config.push_str(&format!("listeners.ssl.1 = 127.0.0.1:{port}\n"));
            config.push_str(&format!(
                "ssl_options.certfile = {at}/cert.pem\nssl_options.keyfile = {at}/key.pem\n"
            ));
            config.push_str(&format!(
                "ssl_options.cacertfile = {at}/cert.pem\nssl_options.verify = verify_none\n"
            ));
        }
        fs::write(path("rabbitmq.conf"), config).unwrap();
        fs::write(path("plugins"), "[].").unwrap();
        fs::create_dir(path("home")).unwrap();
        let cookie = path("home/.erlang.cookie");
        fs::write(&cookie, "a-cookie-of-its-own").unwrap();
        fs::set_permissions(&cookie, fs::Permissions::from_mode(0o400)).unwrap();
        let epmd = Command::new("epmd")
            .args(["-port", &ports[1].to_string(), "-address", "127.0.0.1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut broker = Broker { folder, ports, epmd, server: None, tls };
        broker.run();
        broker
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the server, and waits until it listens.
    pub fn run(&mut self) {
        let out = File::options().create(true).append(true).open(self.path("out")).unwrap();
        let server = Command::new(program())
            .process_group(0)
            .env("HOME", self.path("home"))
            .env("ERL_EPMD_PORT", self.ports[1].to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", format!("dw{}@localhost", self.ports[0]))
            .env("RABBITMQ_MNESIA_BASE", self.path("m"))
            .env("RABBITMQ_LOG_BASE", self.path("l"))
            .env("RABBITMQ_CONFIG_FILE", self.path("rabbitmq.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", self.path("plugins"))
            .env("RABBITMQ_PLUGINS_EXPAND_DIR", self.path("x"))
            .env("RABBITMQ_FEATURE_FLAGS_FILE", self.path("ff"))
            .env("RABBITMQ_GENERATED_CONFIG_DIR", self.path("g"))
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_PID_FILE", self.path("pid"))
            .env("RABBITMQ_DIST_PORT", self.ports[2].to_string())
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .spawn()
            .unwrap();
        self.server = Some(server);
        let begun = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports[0])).is_err() {
            if begun.elapsed() > PATIENCE {
                panic!("the broker does not start: {}", fs::read_to_string(self.path("out")).unwrap());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends the server as a crash does.
    pub fn kill(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        let group = Pid::from_child(&server);
        let _ = kill_process_group(group, Signal::KILL);
        server.wait().unwrap();
    }

    /// Waits until a crash does not lose this quorum queue: the broker writes the names of new ones some seconds later.
    pub async fn remembers(&self, queue: &str) {
        let names = format!("m/dw{0}@localhost/quorum/dw{0}@localhost/names.dets", self.ports[0]);
        crate::until("the broker remembers its queue", async || {
            let names = fs::read(self.path(&names)).unwrap_or_default();
            names.windows(queue.len()).any(|part| part == queue.as_bytes())
        })
        .await;
    }

    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.ports[0])
    }

    pub fn tls_url(&self) -> String {
        format!("amqps://guest:guest@localhost:{}/%2f", self.tls.unwrap())
    }

    /// The settings of a bridge to it: from exchange `delayed` to `delayed.due`.
    pub fn settings(&self) -> BridgeSettings {
        BridgeSettings {
            name: "shop".into(),
            kind: BridgeKind::Rabbitmq,
            url: self.url(),
            queue: "shop-due".into(),
            exchange: "delayed".into(),
            exchange_type: "direct".into(),
            source: None,
            quorum: true,
            max_attempts: 3,
            ca: None,
        }
    }

    /// A connection, and a channel whose messages are confirmed. The server may be starting.
    pub async fn connect(&self) -> (Connection, Channel) {
        let begun = Instant::now();
        loop {
            match Connection::connect(&self.url(), ConnectionProperties::default()).await {
                Ok(connection) => {
                    let channel = connection.create_channel().await.unwrap();
                    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
                    return (connection, channel);
                }
                Err(why) => assert!(begun.elapsed() < PATIENCE, "{why}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            for log in fs::read_dir(self.path("l")).into_iter().flatten().flatten() {
                let text = fs::read(log.path()).unwrap_or_default();
                let text = String::from_utf8_lossy(&text[text.len().saturating_sub(8_000)..]).into_owned();
                println!("the log of the broker ends with:\n{text}");
            }
        }
        let _ = self.epmd.kill();
        let _ = self.epmd.wait();
    }
}

/// What the plan says: the exchange of publishers as fanout into the bridge's queue, and a consumer's queue behind the
/// exchange of due messages, with this routing key.
pub async fn lay_out(channel: &Channel, settings: &BridgeSettings, consumer: &str, routing_key: &str) {
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    let exchange = &*settings.exchange;
    let kept = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let fanout = channel.exchange_declare(exchange.into(), ExchangeKind::Fanout, kept, FieldTable::default());
    fanout.await.unwrap();
    channel.queue_declare(consumer.into(), durable, FieldTable::default()).await.unwrap();
    for (queue, exchange, key) in
        [(&*settings.source(), exchange, ""), (consumer, &*settings.due_exchange(), routing_key)]
    {
        let bound = channel.queue_bind(
            queue.into(),
            exchange.into(),
            key.into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        );
        bound.await.unwrap();
    }
}

/// Takes all messages of a queue.
pub async fn drain(channel: &Channel, queue: &str) -> Vec<lapin::message::Delivery> {
    let mut all = Vec::new();
    while let Some(message) = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap()
    {
        all.push(message.delivery);
    }
    all
}
