//! All options of `duewheel serve`: the flag, the variable, the key in the file and the precedence of each, and
//! `docs/options.md`, are generated from this list.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, Args};
use duewheel_bridge::BridgeSettings;
use serde::{Deserialize, Serialize};

use super::{
    Insecure, LevelOption, Listen, LogFormat, PostgresTable, QuotaTable, RedisCreate, RedisWaitFor, Secret,
    VirtualClockOption,
};
use crate::auth::{Hosts, Prefixes};
use crate::beanstalk::SocketMode;
use crate::span::{TimeSpan, written};

macro_rules! options {
    ($(#[$outer:meta])* pub struct Options {
        $($(#[$meta:meta])* $field:ident: $type:ty as $form:literal,)*
        ;
        $($(#[$of_file:meta])* $key:ident: $value:ty,)*
    }) => {
        $(#[$outer])*
        pub struct Options {
            $($(#[$meta])* #[arg(long, value_name = $form)] pub $field: Option<$type>,)*
            $($(#[$of_file])* #[arg(skip)] pub $key: Option<$value>,)*
        }

        impl Options {
            /// The names of all options, as the file has them.
            pub const NAMES: &[&str] = &[$(stringify!($field),)* $(stringify!($key)),*];

            /// Completes these options by those of a lower layer.
            pub fn over(self, lower: Options) -> Options {
                Options { $($field: self.$field.or(lower.$field),)* $($key: self.$key.or(lower.$key)),* }
            }

            /// The names of the options that are given.
            pub(super) fn given(&self) -> impl Iterator<Item = &'static str> {
                let all = [$((stringify!($field), self.$field.is_some()),)* $((stringify!($key), self.$key.is_some())),*];
                all.into_iter().filter_map(|(name, is_given)| is_given.then_some(name))
            }
        }
    };
}

/// Gives an option its variable, `DUEWHEEL_<OPTION>`, and reads lengths of time as people write them. Other arguments
/// of a command that has these options stay as they are.
fn with_variable(arg: Arg) -> Arg {
    let id = arg.get_id().as_str();
    if !Options::NAMES.contains(&id) {
        return arg;
    }
    let variable = OsString::from(format!("DUEWHEEL_{}", id.to_uppercase()));
    let is_time = arg.get_value_names().and_then(|names| names.first()).is_some_and(|name| name == "TIME");
    let arg = if is_time { arg.value_parser(written) } else { arg };
    arg.env(variable)
}

options! {
    /// The options of `duewheel serve`. An option that is not given in one layer is taken from the next.
    #[derive(Args, Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
    #[serde(deny_unknown_fields)]
    #[command(mut_args = with_variable)]
    pub struct Options {
        /// Folder for the data; created if it is missing [default: ./duewheel-data]
        data: PathBuf as "DIR",
        /// Address of the HTTP listener, `:PORT` for 127.0.0.1, or `off` [default: 127.0.0.1:7788]
        http: Listen as "ADDR",
        /// Address of the listener for beanstalkd's protocol, `:PORT` for 127.0.0.1, or `off` [default: 127.0.0.1:11300; with
        /// --tokens off]
        beanstalk: Listen as "ADDR|unix:PATH",
        /// Prefixes of the queues that clients of beanstalkd's protocol may use [default: all queues]
        beanstalk_queues: Prefixes as "PREFIX,...",
        /// Authority (PEM) of client certificates for beanstalkd's protocol, which then needs TLS (--tls-cert)
        beanstalk_client_ca: PathBuf as "FILE",
        /// Permissions of the socket file of `--beanstalk unix:PATH`, octal [default: 600]
        beanstalk_socket_mode: SocketMode as "MODE",
        /// Largest job over beanstalkd's protocol, in bytes; above `--max-body` it applies to HTTP, too [default:
        /// 65535]
        beanstalk_max_job_size: usize as "N",
        /// Store of the messages: `log`, the one in the data folder; `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`; or
        /// `redis-cluster://HOST[:PORT],...`; with TLS `rediss://` and `rediss-cluster://`; or
        /// `postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE` [default: log]
        #[arg(hide_env_values = true)]
        store: Secret as "URL",
        /// User of Redis, if not in the URL
        redis_user: String as "NAME",
        /// Password of Redis, if not in the URL; prefer the environment or the file, because other users can see flags
        #[arg(hide_env_values = true)]
        redis_password: Secret as "PASSWORD",
        /// Prefix of all keys in Redis [default: duewheel]
        redis_prefix: String as "PREFIX",
        /// Number of Redis replicas that must have a change before it is answered [default: 0]
        redis_wait: u32 as "N",
        /// Whether replicas must have received a change, or Redis and they must have synced it to their append-only
        /// files, which needs Redis 7.2 or later [default: received]
        redis_wait_for: RedisWaitFor as "WHAT",
        /// Accept a Redis with `appendonly no`: when it restarts, all changes since its last snapshot are lost
        #[arg(num_args = 0..=1, default_missing_value = "true")]
        redis_without_aof: bool as "BOOL",
        /// Whether a cluster is created in an empty Redis: always, or never, so that a Redis that has lost its data is
        /// not taken for a new one; then `duewheel cluster reset` creates one [default: always]
        redis_create: RedisCreate as "WHEN",
        /// How long startup waits for Redis [default: 60s]
        redis_start_timeout: TimeSpan as "TIME",
        /// Authority of the certificate of Redis, in PEM; by default those that the system trusts
        redis_ca: PathBuf as "FILE",
        /// Client certificate for Redis, in PEM, if it requires one (`tls-auth-clients`)
        redis_cert: PathBuf as "FILE",
        /// Private key of --redis-cert, in PEM
        redis_key: PathBuf as "FILE",
        /// Password of PostgreSQL, if not in the URL; prefer the environment or the file, because other users can see
        /// flags
        #[arg(hide_env_values = true)]
        postgres_password: Secret as "PASSWORD",
        /// Schema of the tables in PostgreSQL [default: duewheel]
        postgres_schema: String as "NAME",
        /// Authority of the certificate of PostgreSQL, in PEM; by default those of the web
        postgres_ca: PathBuf as "FILE",
        /// How long startup waits for PostgreSQL [default: 60s]
        postgres_start_timeout: TimeSpan as "TIME",
        /// Name of this node among those that share a Redis or a PostgreSQL [default: duewheel]
        node: String as "NAME",
        /// Address at which other nodes reach this one; without it this is a single node
        advertise: String as "ADDR",
        /// Certificate for connections to other nodes, in PEM; without it each node generates a key, which the
        /// cluster's secret authenticates
        peer_cert: PathBuf as "FILE",
        /// Private key of --peer-cert, in PEM
        peer_key: PathBuf as "FILE",
        /// Authority of the certificates of all nodes, in PEM
        peer_ca: PathBuf as "FILE",
        /// Address of the listener for other nodes [default: the address of --advertise]
        peer_listen: String as "ADDR",
        /// Number of shards of a new cluster or data folder, which never changes [default: 1; with --advertise 16]
        shards: u32 as "N",
        /// How long a shard stays with a node that does not renew its lease; from 1s to 60s [default: 5s]
        shard_lease: TimeSpan as "TIME",
        /// How long a new node must stay before others give up shards to it [default: 10s]
        settle_delay: TimeSpan as "TIME",
        /// Meaning of an answer: on the disk, handed to the system, or in memory [default: fsync]
        durability: LevelOption as "LEVEL",
        /// Bytes of recent changes kept in memory and in the journal, which startup reads again; at least 1048576;
        /// bounds the number of records in proportion [default: 268435456]
        journal_bytes: u64 as "N",
        /// Bytes of memory for recent changes, of all shards of the process together; at least 1048576
        /// [default: 536870912; twice --journal-bytes if that is more]
        memory: u64 as "N",
        /// Messages kept in memory because they are due soon or ready; all others are on the disk alone; at least 100
        /// [default: 400000]
        memory_messages: usize as "N",
        /// TOML file of tokens, made by `duewheel token new`: each HTTP request then needs one; read again when it
        /// changes, and on SIGHUP
        tokens: PathBuf as "FILE",
        /// File of keys (32 random bytes in base64, one a line) that seal the secrets of targets: the first one seals, and
        /// all open
        secrets_key: PathBuf as "FILE",
        /// Certificate for HTTPS, in PEM, followed by those that lead to its authority; read again like --tokens
        tls_cert: PathBuf as "FILE",
        /// Private key of --tls-cert, in PEM; read again like --tokens
        tls_key: PathBuf as "FILE",
        /// Host names that a server without tokens accepts, besides addresses, localhost and names without a dot
        hosts: Hosts as "NAME,...",
        /// Listeners (http, peer, beanstalk) that may be on addresses that other machines reach without authentication
        /// and encryption [default: none]
        #[arg(num_args = 0..=1, default_missing_value = "true")]
        insecure: Insecure as "LISTENER,...",
        /// Folder below which the server creates backups, and nowhere else. Without it a backup needs an existing
        /// folder of the server's user
        backup_root: PathBuf as "DIR",
        /// Time between the signal to stop, which makes /readyz red, and the drain [default: 0s]
        drain_delay: TimeSpan as "TIME",
        /// Time limit for jobs of beanstalkd clients and running requests when the server stops [default: 10s]
        drain_timeout: TimeSpan as "TIME",
        /// Log level: error, warn, info, debug, trace [default: info]
        log: String as "FILTER",
        /// Format of log lines [default: text]
        log_format: LogFormat as "FORMAT",
        /// Address of a collector that spans are sent to with OTLP over HTTP; the variables of OpenTelemetry
        /// (OTEL_EXPORTER_OTLP_ENDPOINT, ...) count as well, and this one wins
        otlp_endpoint: String as "URL",
        /// For tests: time stands, and only `POST /v1/clock/advance` moves it. All is in memory, unless it is `force`;
        /// then messages of the data folder may come before their time [default: off]
        #[arg(num_args = 0..=1, default_missing_value = "on")]
        virtual_clock: VirtualClockOption as "WHEN",
        /// Number of slots of the ring [default: 3600]
        wheel_slots: usize as "N",
        /// Length of one step of the ring's pointer; the precision is always a millisecond [default: 1s]
        wheel_tick: TimeSpan as "TIME",
        /// Largest body of a message, in bytes [default: 262144]
        max_body: usize as "N",
        /// Largest number of messages [default: 10000000000]
        max_messages: usize as "N",
        /// Largest total size of messages, in bytes [default: 4398046511104]
        max_message_bytes: usize as "N",
        /// Largest number of connections of each listener [default: 10000]
        max_connections: usize as "N",
        /// Time limit for the headers of a request, including idle time before it [default: 30s]
        header_timeout: TimeSpan as "TIME",
        /// Time limit for the body of a request [default: 30s]
        body_timeout: TimeSpan as "TIME",

        ; // In the file alone.
        /// Quotas of tenants; in the file alone, as `[[quota]]`; read again like `tokens`.
        quota: Vec<QuotaTable>,
        /// Databases whose outboxes are drained; in the file alone, as `[[postgres]]`.
        postgres: Vec<PostgresTable>,
        /// Bridges to other systems; in the file alone, as `[[bridge]]`.
        bridge: Vec<BridgeSettings>,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::{Arg, Command};
    use toml::Value;

    use super::*;

    fn arguments() -> Vec<Arg> {
        let command = Options::augment_args(Command::new("serve"));
        command
            .get_arguments()
            .filter(|arg| Options::NAMES.contains(&arg.get_id().as_str()))
            .cloned()
            .collect()
    }

    /// The help of an option, and the default in it.
    fn told(arg: &Arg) -> (String, Option<String>) {
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        match help.split_once(" [default: ") {
            Some((text, default)) => (text.to_owned(), Some(default.trim_end_matches(']').to_owned())),
            None => (help, None),
        }
    }

    /// The value of each option that is not given, with the store and the listener that it is for.
    fn defaults() -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for toml in
            ["", "store = 'redis://h:1'", "store = 'postgres://u@localhost/d'", "beanstalk = 'unix:/b'"]
        {
            let given: Options = toml::from_str(toml).unwrap();
            let given: Vec<&str> = given.given().collect();
            let options: Options = toml::from_str(toml).unwrap();
            let counts = toml::Table::try_from(options.settings().unwrap().to_options()).unwrap();
            for (name, value) in counts {
                let text = match value {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                if !given.contains(&&*name) {
                    all.entry(name).or_insert(text);
                }
            }
        }
        all
    }

    /// The normal form of a length of time: 60s is 1m.
    fn as_span(text: String) -> String {
        text.parse::<TimeSpan>().map_or(text, |span| span.to_string())
    }

    /// Story: the help of `--max-messages` and `--max-message-bytes` showed other defaults than the effective ones.
    #[test]
    fn help_tells_the_defaults_that_count() {
        // A default that depends on other options, or that no value stands for, is described in words.
        let in_words = [
            ("beanstalk", "127.0.0.1:11300; with --tokens off"),
            ("beanstalk_queues", "all queues"),
            ("data", "./duewheel-data"),
            ("memory", "536870912; twice --journal-bytes if that is more"),
            ("peer_listen", "the address of --advertise"),
            ("shards", "1; with --advertise 16"),
        ];
        let defaults = defaults();
        for arg in arguments() {
            let name = arg.get_id().as_str();
            let (_, told) = told(&arg);
            if let Some((_, words)) = in_words.iter().find(|(of, _)| *of == name) {
                assert_eq!(told.as_deref(), Some(*words), "--{name}");
                continue;
            }
            // The defaults "none", "nothing" and "no" are not shown.
            let counts = defaults.get(name).filter(|value| !matches!(&***value, "" | "false" | "[]"));
            assert_eq!(told.map(as_span), counts.cloned().map(as_span), "--{name}");
        }
    }

    #[test]
    fn options_page_matches_options() {
        let mut page = String::from(HEAD);
        for arg in arguments() {
            let (help, default) = told(&arg);
            let value = arg.get_value_names().unwrap_or_default().join(" ").replace('|', "\\|");
            let default = default.map(|default| format!("`{default}`")).unwrap_or_default();
            let flag = arg.get_long().unwrap_or_default();
            let help = help.replace('|', "\\|");
            page.push_str(&format!("| `--{flag} {value}` | {default} | {help} |\n"));
        }
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/options.md");
        if std::env::var_os("DUEWHEEL_OPTIONS_PAGE").is_some_and(|word| word == "write") {
            std::fs::write(file, &page).unwrap();
            return;
        }
        let same = std::fs::read_to_string(file).unwrap_or_default() == page;
        assert!(
            same,
            "the options have changed: DUEWHEEL_OPTIONS_PAGE=write cargo test -p duewheel-server-lib --lib config:: writes docs/options.md again"
        );
    }

    const HEAD: &str = "\
# Options of `duewheel serve`

Each option is a flag, a variable and a key of the file of `--config`: `--drain-delay 5s`, `DUEWHEEL_DRAIN_DELAY=5s`,
`drain_delay = \"5s\"`. Flags win over variables, variables over the file, the file over the defaults; `duewheel serve
--print-config` tells what counts. In the file a list may also be an array, and a switch `true` or `false`. Quotas
([operations](operations.md#quotas)), databases with an outbox ([outbox](outbox.md)) and bridges
([RabbitMQ](rabbitmq.md)) stand in the file alone.

| option | default | what |
|---|---|---|
";
}
