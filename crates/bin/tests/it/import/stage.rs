//! Where jobs are moved to, the importer's process, and what stands between it and its source.

use super::*;

pub(super) struct Target {
    pub(super) server: Process,
    pub(super) dir: TempDir,
}

impl Target {
    pub(super) fn new() -> Target {
        Target::with(&[])
    }

    pub(super) fn with(options: &[&str]) -> Target {
        let dir = TempDir::new().expect("dir");
        let server = Process::start(&dir.path().join("data"), options);
        Target { server, dir }
    }

    pub(super) fn folder(&self, name: &str) -> PathBuf {
        let folder = self.dir.path().join(name);
        std::fs::create_dir_all(&folder).expect("folder");
        folder
    }

    pub(super) fn import(&self, from: &str, more: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(["import", "--beanstalk", from, "--server", &self.server.url]).args(more);
        command
    }

    /// Runs an import that must end with this code; what it did.
    pub(super) fn imports(&self, from: &str, more: &[&str], code: i32) -> Value {
        let output = run(self.import(from, more).arg("--json"));
        ended(&output, code);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output.stdout)))
    }

    /// All messages of a queue in due order.
    pub(super) fn messages(&self, queue: &str) -> Vec<Value> {
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/queues/{}/messages?limit=1000{after}", queue.replace('/', "%2F"));
            let (status, page) = self.server.call("GET", &path, "");
            assert_eq!(status, 200, "{page}");
            all.extend(page["messages"].as_array().expect("messages").iter().cloned());
            let Some(next) = page["next"].as_str() else { return all };
            after = format!("&after={next}");
        }
    }

    pub(super) fn counts(&self, queue: &str) -> Value {
        self.server.call("GET", &format!("/v1/queues/{queue}"), "").1["counts"].clone()
    }

    pub(super) fn held(&self, queue: &str) -> u64 {
        let counts = self.counts(queue);
        ["scheduled", "ready", "leased", "dead"].iter().filter_map(|state| counts[*state].as_u64()).sum()
    }

    pub(super) fn reserve(&self, queue: &str, max: usize) -> Vec<Value> {
        let path = format!("/v1/queues/{queue}/reserve");
        let (status, done) = self.server.call("POST", &path, &json!({ "max": max }).to_string());
        assert_eq!(status, 200, "{done}");
        done["messages"].as_array().expect("messages").clone()
    }

    pub(super) fn ack(&self, grant: &Value) {
        let path = format!("/v1/messages/{}/ack", grant["id"].as_str().expect("id"));
        let (status, done) =
            self.server.call("POST", &path, &json!({"lease_token": grant["lease_token"]}).to_string());
        assert_eq!(status, 200, "{done}");
    }

    /// Takes everything that is ready in a queue; the bodies in this order.
    pub(super) fn consume(&self, queue: &str) -> Vec<String> {
        let mut bodies = Vec::new();
        loop {
            let grants = self.reserve(queue, 100);
            if grants.is_empty() {
                return bodies;
            }
            for grant in grants {
                self.ack(&grant);
                bodies.push(grant["body"].as_str().expect("text").to_owned());
            }
        }
    }
}

pub(super) fn ended(output: &Output, code: i32) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}{}", text(&output.stdout));
    assert!(!said.contains("panicked"), "{said}");
}

pub(super) fn body(message: &Value) -> Vec<u8> {
    match (&message["body"], &message["body_base64"]) {
        (Value::String(text), _) => text.as_bytes().to_vec(),
        (_, Value::String(text)) => STANDARD.decode(text).expect("base64"),
        other => panic!("{other:?}"),
    }
}

pub(super) fn ms(instant: SystemTime) -> i64 {
    let since = instant.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("ms")
}

pub(super) fn due_ms(message: &Value) -> i64 {
    let due: jiff::Timestamp = message["due_at"].as_str().expect("due_at").parse().expect("instant");
    due.as_millisecond()
}

/// A kill of the importer while it works.
pub(super) struct Importer(pub(super) Child);

impl Importer {
    pub(super) fn start(command: &mut Command) -> Importer {
        Importer(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("spawn"))
    }

    pub(super) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Importer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Stands between an importer and a beanstalkd, and calls `before` with each command line before it passes it on.
/// `false` cuts the connection instead.
pub(super) struct Proxy {
    pub(super) address: String,
    pub(super) cut: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub(super) fn start(to: &str, before: impl Fn(&str) -> bool + Send + Sync + 'static) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address").to_string();
        let cut = Arc::new(Mutex::new(Vec::new()));
        let (to, streams, before) = (to.to_owned(), cut.clone(), Arc::new(before));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(&to).expect("connect");
                let clone = |stream: &TcpStream| stream.try_clone().expect("clone");
                streams.lock().expect("lock").extend([clone(&client), clone(&server)]);
                let (mut back, mut answers) = (clone(&client), clone(&server));
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut answers, &mut back);
                    let _ = back.shutdown(Shutdown::Both);
                });
                let before = before.clone();
                std::thread::spawn(move || {
                    let mut server = server;
                    for line in BufReader::new(client).split(b'\n').map_while(Result::ok) {
                        let command = String::from_utf8_lossy(&line).trim_end().to_owned();
                        let passes = before(&command);
                        if !passes || server.write_all(&[&line[..], b"\n"].concat()).is_err() {
                            break;
                        }
                    }
                    let _ = server.shutdown(Shutdown::Both);
                });
            }
        });
        Proxy { address, cut }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        for stream in self.cut.lock().expect("lock").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// What is left to a reader of the whole queue after all is moved: each body once.
pub(super) fn assert_each_once(
    target: &Target,
    queue: &str,
    expected: &BTreeSet<String>,
    consumed: &[String],
) {
    assert_eq!(twice(target, queue, expected, consumed), Vec::<String>::new());
}

/// Nothing is lost; what is there twice.
pub(super) fn twice(
    target: &Target,
    queue: &str,
    expected: &BTreeSet<String>,
    consumed: &[String],
) -> Vec<String> {
    let mut times: BTreeMap<String, u32> = BTreeMap::new();
    consumed.iter().for_each(|body| *times.entry(body.clone()).or_default() += 1);
    for message in target.messages(queue) {
        *times.entry(text(&body(&message))).or_default() += 1;
    }
    let lost: Vec<_> = expected.iter().filter(|body| !times.contains_key(*body)).take(5).collect();
    assert!(lost.is_empty(), "lost {lost:?}");
    assert_eq!(times.len(), expected.len());
    times.into_iter().filter(|(_, n)| *n > 1).map(|(body, _)| body).collect()
}
