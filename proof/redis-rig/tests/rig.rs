//! The rig does what the tests that stand on it believe.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use duewheel_redis_rig::{
    Appendonly, Login, Mode, Proxy, Redis, RedisCluster, Role, Settings, Transport, Value, Wire,
};

const PATIENCE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

fn bytes(text: &str) -> Value {
    Value::Bytes(text.as_bytes().to_vec())
}

#[test]
fn only_synced_data_survives_kill() -> io::Result<()> {
    for (appendonly, after) in [(Appendonly::Always, bytes("1")), (Appendonly::Off, Value::Nothing)] {
        let mut redis = Redis::start(Settings { appendonly, ..Settings::default() })?;
        let (port, id) = (redis.port(), redis.id());
        assert_eq!(redis.command(&["SET", "a", "1"])?, bytes("OK"));
        redis.kill()?;
        assert!(redis.command(&["PING"]).is_err());
        redis.restart()?;
        assert_eq!(redis.command(&["GET", "a"])?, after);
        assert_eq!(redis.port(), port);
        assert_ne!(redis.id(), id);
        redis.stop()?;
        assert!(redis.stop().is_err());
        assert!(std::fs::read_to_string(redis.log())?.contains("Ready to accept connections"));
    }
    Ok(())
}

#[test]
fn server_restarts_from_copy() -> io::Result<()> {
    let mut redis = Redis::start(Settings::default())?;
    redis.command(&["SET", "a", "1"])?;
    let copy = redis.copy()?;
    redis.command(&["SET", "a", "2"])?;
    assert!(redis.restart_from(&copy).is_err());
    redis.kill()?;
    redis.restart_from(&copy)?;
    assert_eq!(redis.command(&["GET", "a"])?, bytes("1"));
    Ok(())
}

#[test]
fn paused_server_answers_after_resume() -> io::Result<()> {
    let redis = Redis::start(Settings::default())?;
    redis.pause()?;
    let mut wire = redis.connect(SHORT)?;
    assert!(wire.command(&["PING"]).is_err());
    assert!(!wire.is_sound());
    redis.resume()?;
    assert_eq!(redis.command(&["PING"])?, bytes("PONG"));
    Ok(())
}

#[test]
fn settings_are_taken() -> io::Result<()> {
    let user = Login::User { name: "wheel".to_owned(), password: "secret".to_owned() };
    let settings = Settings {
        login: user,
        transport: Transport::Tls,
        maxmemory: Some(50 << 20),
        extra: ["--hz", "77"].map(str::to_owned).to_vec(),
        ..Settings::default()
    };
    let redis = Redis::start(settings)?;
    assert_eq!(redis.url(3), format!("rediss://wheel:secret@{}/3", redis.address()));
    let get = |name| Ok::<_, io::Error>(redis.command(&["CONFIG", "GET", name])?.list()[1].clone());
    assert_eq!(get("maxmemory")?, bytes("52428800"));
    assert_eq!(get("hz")?, bytes("77"));
    assert_eq!(get("appendfsync")?, bytes("always"));
    let certificates = redis.certificates().ok_or_else(|| io::Error::other("no certificates"))?;
    assert!(certificates.authority().exists());
    let mut stranger = Wire::open_tls(redis.address(), PATIENCE, certificates)?;
    assert!(matches!(stranger.command(&["GET", "a"])?, Value::Error(e) if e.starts_with("NOAUTH")));
    let wrong = Login::Password("secret".to_owned());
    assert_eq!(stranger.login(&wrong).map_err(|e| e.kind()), Err(io::ErrorKind::PermissionDenied));
    // Without TLS nobody is there who speaks the protocol.
    let mut plain = Wire::open(redis.address(), SHORT)?;
    assert!(!matches!(plain.command(&["PING"]), Ok(Value::Bytes(_))));
    Ok(())
}

#[test]
fn cluster_fails_over_keeping_files() -> io::Result<()> {
    let mut cluster = RedisCluster::start(3, 1, Settings::default())?;
    let slot = cluster.slot_of_key("{a}b")?;
    assert_eq!(slot, cluster.slot_of_key("a")?);
    let old = cluster.master_of_key("a")?;
    assert!(old < 3, "{:?}", cluster.nodes()?);
    let replicas = cluster.replicas_of(old)?;
    assert_eq!(replicas.len(), 1);
    assert_eq!(cluster.node(old).command(&["SET", "a", "1"])?, bytes("OK"));
    assert_eq!(cluster.node(old).command(&["WAIT", "1", "60000"])?, Value::Number(1));

    cluster.kill(old)?;
    let new = cluster.wait_for_failover(slot, old, PATIENCE)?;
    assert_eq!(vec![new], replicas);
    assert_eq!(cluster.node(new).command(&["GET", "a"])?, bytes("1"));
    cluster.restart(old)?;
    cluster.wait_until_well(PATIENCE)?;
    assert_eq!(cluster.nodes()?[old].role, Role::Replica { of: new });

    cluster.kill_all()?;
    cluster.restart_all()?;
    assert_eq!(cluster.master_of_slot(slot)?, new);
    assert_eq!(cluster.node(new).command(&["GET", "a"])?, bytes("1"));

    // One that is paused for long is replaced, too.
    cluster.pause(new)?;
    assert_eq!(cluster.wait_for_failover(slot, new, PATIENCE)?, old);
    cluster.resume(new)?;
    cluster.wait_until_well(PATIENCE)
}

#[test]
fn cluster_supports_users_and_tls() -> io::Result<()> {
    let login = Login::User { name: "wheel".to_owned(), password: "secret".to_owned() };
    let settings = Settings { login, transport: Transport::Tls, ..Settings::default() };
    let cluster = RedisCluster::start(3, 0, settings)?;
    let master = cluster.master_of_key("a")?;
    assert_eq!(cluster.node(master).command(&["SET", "a", "1"])?, bytes("OK"));
    Ok(())
}

#[test]
fn a_network_is_cut_and_healed() -> io::Result<()> {
    let target = TcpListener::bind("127.0.0.1:0")?;
    let proxy = Proxy::start(target.local_addr()?)?;
    std::thread::spawn(move || {
        for stream in target.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut buffer = [0; 16];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..n]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    let open = || {
        let stream = TcpStream::connect_timeout(&proxy.address(), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok::<_, io::Error>(stream)
    };
    let echo = |stream: &mut TcpStream| {
        stream.write_all(b"a")?;
        let mut got = [0];
        stream.read_exact(&mut got)?;
        Ok::<_, io::Error>(got == *b"a")
    };
    let mut first = open()?;
    assert!(echo(&mut first)?);
    proxy.set(Mode::Stall);
    first.set_read_timeout(Some(SHORT))?;
    assert!(echo(&mut first).is_err());
    proxy.heal();
    first.set_read_timeout(Some(PATIENCE))?;
    // What was held back comes late, but comes.
    let mut late = [0];
    first.read_exact(&mut late)?;
    assert_eq!(late, *b"a");
    proxy.set(Mode::Cut);
    assert_eq!(first.read(&mut late).unwrap_or(0), 0);
    let mut refused = open()?;
    assert!(echo(&mut refused).is_err());
    proxy.set(Mode::Delay(Duration::from_millis(20)));
    let since = std::time::Instant::now();
    assert!(echo(&mut open()?)?);
    assert!(since.elapsed() >= Duration::from_millis(40));
    proxy.heal();
    assert!(echo(&mut open()?)?);
    Ok(())
}

#[test]
fn lost_reply_keeps_its_request() -> io::Result<()> {
    let redis = Redis::start(Settings::default())?;
    let proxy = Proxy::start(redis.address())?;
    let mut wire = Wire::open(proxy.address(), PATIENCE)?;
    proxy.set(Mode::LoseReply("is lost"));
    assert_eq!(wire.command(&["SET", "a", "is told"])?, bytes("OK"));
    assert!(wire.command(&["SET", "a", "is lost"]).is_err());
    assert_eq!(redis.command(&["GET", "a"])?, bytes("is lost"));
    let mut again = Wire::open(proxy.address(), PATIENCE)?;
    assert_eq!(again.command(&["GET", "a"])?, bytes("is lost"));
    Ok(())
}
