//! A receiver of webhooks.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::fixture::PATIENCE;

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct HookRequest {
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl HookRequest {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(crate) fn body(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }
}

/// Keeps what it gets, and answers as it is told.
pub(crate) struct Hook {
    pub(crate) address: SocketAddr,
    got: Arc<Mutex<Vec<HookRequest>>>,
}

type Answering = dyn Fn(usize, &HookRequest) -> String + Send + Sync;

impl Hook {
    /// Answers each request, by its number, with a status and further headers, such as `429\r\nretry-after: 1`.
    pub(crate) fn new(answering: impl Fn(usize, &HookRequest) -> String + Send + Sync + 'static) -> Hook {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let got: Arc<Mutex<Vec<HookRequest>>> = Arc::default();
        let (kept, answering): (_, Arc<Answering>) = (got.clone(), Arc::new(answering));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, answering) = (kept.clone(), answering.clone());
                std::thread::spawn(move || serve(stream, &kept, &*answering));
            }
        });
        Hook { address, got }
    }

    /// Takes everything.
    pub(crate) fn well() -> Hook {
        Hook::new(|_, _| "200".to_owned())
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<HookRequest> {
        self.got.lock().expect("requests").clone()
    }

    /// Waits until it has got what is wanted.
    pub(crate) fn until(&self, what: &str, so: impl Fn(&[HookRequest]) -> bool) -> Vec<HookRequest> {
        let begun = Instant::now();
        loop {
            let got = self.requests();
            if so(&got) {
                return got;
            }
            assert!(begun.elapsed() < PATIENCE, "never: {what}: {} requests", got.len());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn serve(stream: TcpStream, got: &Mutex<Vec<HookRequest>>, answering: &Answering) {
    let Ok(mut answers) = stream.try_clone() else { return };
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader) {
        let n = {
            let mut got = got.lock().expect("requests");
            got.push(request.clone());
            got.len()
        };
        let answer = answering(n, &request);
        let text = format!("HTTP/1.1 {answer}\r\ncontent-length: 2\r\n\r\nok");
        if answers.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

/// One request; `None` when the connection ends.
pub(crate) fn read(reader: &mut impl BufRead) -> Option<HookRequest> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(HookRequest { path, headers, body })
}
