//! The files for Compose and Kubernetes: every command in them is one that the binary takes, and every listener may be
//! where it is.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

use duewheel_server::config::{Options, Settings};
use serde_json::Value;

use crate::process::{BINARY, run, text};

fn read(file: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All documents of a file of YAML, with its merges carried out.
fn documents(file: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(line) => line.split_whitespace().map(str::to_owned).collect(),
        Value::Array(words) => words.iter().map(|word| word.as_str().expect("a word").to_owned()).collect(),
        other => panic!("no command: {other}"),
    }
}

fn duewheel(words: &[String]) -> Output {
    run(Command::new(BINARY).args(words).env_clear())
}

/// What would count for a server that is started so. Its listeners are allowed where they are.
fn settings(words: &[String]) -> Settings {
    assert_eq!(words[0], "serve");
    let output = duewheel(&[words, &["--print-config".to_owned()]].concat());
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    let options: Options = toml::from_str(&text(&output.stdout)).expect("settings");
    let settings = options.settings().expect("settings");
    settings.http_address().unwrap_or_else(|error| panic!("{words:?}: {error}"));
    settings.beanstalk_address().unwrap_or_else(|error| panic!("{words:?}: {error}"));
    settings.peer_address().unwrap_or_else(|error| panic!("{words:?}: {error}"));
    settings
}

#[test]
fn compose_describes_three_node_cluster() {
    let [compose] = &documents("compose.yaml")[..] else { panic!("not one document") };
    let services = compose["services"].as_object().expect("services");
    let redis: Vec<&str> = services
        .values()
        .filter(|service| service["command"].as_str().is_some_and(|line| line.starts_with("redis-server ")))
        .map(|service| service["networks"]["wheel"]["ipv4_address"].as_str().expect("an address"))
        .collect();
    assert_eq!(redis.len(), 6);
    let meet = services["redis-meet"]["command"][2].as_str().expect("a script");
    assert!(meet.contains("--cluster-replicas 1"), "{meet}");
    assert!(redis.iter().all(|address| meet.contains(&format!("{address}:6379"))), "{meet}");
    let mut names = Vec::new();
    for (name, service) in services.iter().filter(|(name, _)| name.starts_with("node-")) {
        let settings = settings(&words(&service["command"]));
        let own = service["networks"]["wheel"]["ipv4_address"].as_str().expect("an address");
        let peers = settings.peer_address().expect("address").expect("peers");
        assert_eq!(peers.ip().to_string(), own, "{name} listens for the others at its own address");
        let store = settings.to_options().store.expect("store").expose().to_owned();
        assert!(redis.iter().all(|address| store.contains(address)), "{name} knows all of Redis: {store}");
        names.push(settings.to_options().node.expect("a name"));
        // Whatever is open on the host is open there on loopback alone.
        for port in service["ports"].as_array().expect("ports") {
            assert!(port.as_str().is_some_and(|port| port.starts_with("127.0.0.1:")), "{name}: {port}");
        }
    }
    assert_eq!(names, ["node-1", "node-2", "node-3"]);
}

/// Puts values into the place of `$(NAME)`, as Kubernetes does.
fn expanded(container: &Value, values: &BTreeMap<&str, &str>) -> Vec<String> {
    let named: Vec<&str> = container["env"]
        .as_array()
        .expect("env")
        .iter()
        .map(|one| one["name"].as_str().expect("name"))
        .collect();
    let mut words = words(&container["args"]);
    for (name, value) in values {
        assert!(named.contains(name), "{name} is no variable of the container");
        for word in &mut words {
            *word = word.replace(&format!("$({name})"), value);
        }
    }
    assert!(words.iter().all(|word| !word.contains("$(")), "{words:?}");
    words
}

#[test]
fn kubernetes_manifest_matches_server_settings() {
    let all = documents("deploy/kubernetes/duewheel.yaml");
    let of_kind = |kind: &str| -> Vec<&Value> { all.iter().filter(|one| one["kind"] == kind).collect() };
    let [set] = of_kind("StatefulSet")[..] else { panic!("not one StatefulSet") };
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let values = BTreeMap::from([("POD_NAME", "duewheel-0"), ("POD_NAMESPACE", "prod")]);
    let settings = settings(&expanded(container, &values));
    let options = settings.to_options();
    let peers_service = set["spec"]["serviceName"].as_str().expect("a name");
    assert_eq!(
        options.advertise.as_deref(),
        Some(&*format!("duewheel-0.{peers_service}.prod.svc.cluster.local:7800"))
    );
    assert!(options.redis_create.is_some_and(|create| create == duewheel_server::config::RedisCreate::Never));
    assert_eq!(settings.insecure.to_string(), "peer", "only what the NetworkPolicy closes");
    assert!(settings.tokens.is_some() && settings.tls.is_some());
    let mount = container["volumeMounts"][0]["mountPath"].as_str().expect("a folder");
    assert!(settings.tokens.as_ref().is_some_and(|file| file.starts_with(mount)));

    // The ports that are named are those that it listens on, and the probes go to HTTPS.
    let ports: BTreeMap<&str, u64> = container["ports"]
        .as_array()
        .expect("ports")
        .iter()
        .map(|port| (port["name"].as_str().expect("name"), port["containerPort"].as_u64().expect("number")))
        .collect();
    let http = settings.http_address().expect("address").expect("http").port();
    let peers = settings.peer_address().expect("address").expect("peers").port();
    assert_eq!(ports, BTreeMap::from([("https", u64::from(http)), ("peers", u64::from(peers))]));
    for (probe, path) in
        [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
    {
        let get = &container[probe]["httpGet"];
        assert_eq!(
            (&get["path"], &get["port"], &get["scheme"]),
            (&path.into(), &"https".into(), &"HTTPS".into())
        );
    }
    let number = |value: &Value| value.as_u64().expect("a number");
    let startup = &container["startupProbe"];
    let patience = number(&startup["periodSeconds"]) * number(&startup["failureThreshold"]);
    let wait = options.redis_start_timeout.expect("a time").0 / 1_000;
    assert!(patience > wait, "killed after {patience} s while it waits for Redis for {wait} s");
    let end = settings.drain_delay + settings.drain_timeout;
    assert!(number(&pod["terminationGracePeriodSeconds"]) > end.as_secs(), "killed before it has drained");
    // The kubelet writes files for root and this group, with this mode (in octal in YAML 1.1, as Kubernetes reads it).
    assert!(pod["securityContext"]["fsGroup"].is_u64());
    assert!(read("deploy/kubernetes/duewheel.yaml").contains("defaultMode: 0440"));
    for service in of_kind("Service") {
        let target = service["spec"]["ports"][0]["targetPort"].as_str().expect("a name");
        assert!(ports.contains_key(target), "{service}");
    }
}

#[test]
fn kubernetes_single_node_requires_token() {
    let all = documents("deploy/kubernetes/one-node.yaml");
    let set = all.iter().find(|one| one["kind"] == "StatefulSet").expect("a StatefulSet");
    assert_eq!(set["spec"]["replicas"], 1);
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let settings = settings(&words(&container["args"]));
    assert!(settings.tokens.is_some() && settings.tls.is_some() && settings.insecure.is_empty());
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    let data = mounts.iter().find(|mount| mount["name"] == "data").expect("the volume");
    assert!(settings.data.starts_with(data["mountPath"].as_str().expect("a folder")), "{settings:?}");
    assert_eq!(set["spec"]["volumeClaimTemplates"][0]["metadata"]["name"], "data");
    let http = settings.http_address().expect("address").expect("http").port();
    assert_eq!(container["ports"][0]["containerPort"], http);
    let end = settings.drain_delay + settings.drain_timeout;
    assert!(pod["terminationGracePeriodSeconds"].as_u64().is_some_and(|grace| grace > end.as_secs()));
}

#[test]
fn kubernetes_job_uses_same_redis() {
    let [job] = &documents("deploy/kubernetes/create-cluster.yaml")[..] else { panic!("not one document") };
    let mut words = words(&job["spec"]["template"]["spec"]["containers"][0]["args"]);
    let all = documents("deploy/kubernetes/duewheel.yaml");
    let set = all.iter().find(|one| one["kind"] == "StatefulSet").expect("a StatefulSet");
    let nodes = self::words(&set["spec"]["template"]["spec"]["containers"][0]["args"]);
    let store = |words: &[String]| words.iter().find(|word| word.starts_with("--store=")).cloned();
    assert_eq!(store(&words), store(&nodes));
    // Without its last word it is understood and refused; with it it would be done.
    assert_eq!(words.pop().as_deref(), Some("--yes"));
    let output = duewheel(&words);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("say --yes"), "{stderr}");
}
