//! A receiver on loopback that keeps what it was sent.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use duewheel_delivery::{PushRequest, Resolver, TargetSettings};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub struct Received {
    pub line: String,
    /// In the order they came; names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// What the receiver does with a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Sends these bytes.
    Bytes(Vec<u8>),
    /// Sends these bytes and closes the connection.
    Last(Vec<u8>),
    /// Sends these bytes, and then this one again and again.
    Endless(Vec<u8>, &'static [u8]),
    /// Closes the connection.
    Close,
    /// Says nothing.
    Hang,
}

/// An answer with these headers, each with its line end.
pub fn status(code: u16, headers: &str, body: &str) -> Answer {
    let length = body.len();
    Answer::Bytes(
        format!("HTTP/1.1 {code} x\r\ncontent-length: {length}\r\n{headers}\r\n{body}").into_bytes(),
    )
}

type Answering = dyn Fn(usize, &Received) -> Answer + Send + Sync;

/// A receiver that answers with what a function says, given the number of the request and the request.
pub struct Receiver {
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    connections: usize,
    closed: usize,
    requests: Vec<Received>,
}

impl Receiver {
    pub async fn new(answering: impl Fn(usize, &Received) -> Answer + Send + Sync + 'static) -> Self {
        Self::over(answering, |stream| async move { Some(stream) }).await
    }

    /// A receiver that answers nothing until it is told to.
    pub async fn held() -> (Self, watch::Sender<bool>) {
        let (open, opened) = watch::channel(false);
        let receiver = Receiver::over(
            |_, _| status(200, "", ""),
            move |stream| {
                let mut opened = opened.clone();
                async move {
                    opened.wait_for(|open| *open).await.ok()?;
                    Some(stream)
                }
            },
        )
        .await;
        (receiver, open)
    }

    /// A receiver whose connections are changed first, by TLS for example.
    pub async fn over<S, Fut>(
        answering: impl Fn(usize, &Received) -> Answer + Send + Sync + 'static,
        change: impl Fn(tokio::net::TcpStream) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        Fut: Future<Output = Option<S>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Receiver { address: listener.local_addr().unwrap(), seen: Arc::default() };
        let (seen, answering, change) = (receiver.seen.clone(), Arc::new(answering), Arc::new(change));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                seen.lock().unwrap().connections += 1;
                let (seen, answering, change) = (seen.clone(), answering.clone(), change.clone());
                tokio::spawn(async move {
                    if let Some(stream) = change(stream).await {
                        drop(serve(stream, &seen, &*answering).await);
                        seen.lock().unwrap().closed += 1;
                    }
                });
            }
        });
        receiver
    }

    pub fn requests(&self) -> Vec<Received> {
        self.seen.lock().unwrap().requests.clone()
    }

    pub fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections
    }

    /// Connections that have ended.
    pub fn closed(&self) -> usize {
        self.seen.lock().unwrap().closed
    }

    /// Settings of a target that leads here.
    pub fn target(&self) -> TargetSettings {
        TargetSettings { networks: local(), ..TargetSettings::new(format!("http://{}/hook", self.address)) }
    }
}

/// Loopback alone.
pub fn local() -> Option<duewheel_delivery::NetworkSettings> {
    Some(duewheel_delivery::NetworkSettings::One("127.0.0.1/32".into()))
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    seen: &Mutex<Seen>,
    answering: &Answering,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let text = String::from_utf8(buffer[..head].to_vec()).unwrap();
        let mut lines = text.trim_end().split("\r\n");
        let line = lines.next().unwrap().to_owned();
        let headers: Vec<(String, String)> = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let length: usize = length.map_or(0, |(_, value)| value.parse().unwrap());
        while buffer.len() < head + length {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let body = buffer[head..head + length].to_vec();
        buffer.drain(..head + length);
        let received = Received { line, headers, body };
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.requests.push(received.clone());
            seen.requests.len()
        };
        match answering(number, &received) {
            Answer::Bytes(bytes) => stream.write_all(&bytes).await?,
            Answer::Last(bytes) => return stream.write_all(&bytes).await,
            Answer::Endless(first, then) => {
                stream.write_all(&first).await?;
                loop {
                    stream.write_all(then).await?;
                    tokio::task::yield_now().await;
                }
            }
            Answer::Close => return Ok(()),
            Answer::Hang => std::future::pending().await,
        }
    }
}

/// A request with little in it.
pub fn request() -> PushRequest {
    let instant = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    PushRequest {
        webhook_id: "dw_s1_17_1".into(),
        now: instant(1_614_265_330),
        queue: "orders".into(),
        key: None,
        attempt: 1,
        due_at: instant(1_614_265_329),
        headers: Vec::new(),
        body: Bytes::from_static(b"hello"),
        span: None,
    }
}

/// Names with fixed addresses, one list for each look-up; the last list repeats.
#[derive(Default)]
pub struct Names {
    answers: HashMap<String, Vec<Vec<IpAddr>>>,
    asked: Mutex<Vec<String>>,
}

impl Names {
    pub fn with(name: &str, answers: &[&[&str]]) -> Arc<Self> {
        let answers =
            answers.iter().map(|list| list.iter().map(|ip| ip.parse().unwrap()).collect()).collect();
        Arc::new(Names { answers: HashMap::from([(name.to_owned(), answers)]), asked: Mutex::default() })
    }

    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Resolver for Names {
    fn resolve(&self, name: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> {
        let mut asked = self.asked.lock().unwrap();
        let before = asked.iter().filter(|n| *n == name).count();
        asked.push(name.to_owned());
        let found = self.answers.get(name).map(|lists| lists[before.min(lists.len() - 1)].clone());
        Box::pin(async move { found.ok_or_else(|| io::Error::other("no such name")) })
    }
}
