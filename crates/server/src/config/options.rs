//! Every option of `duewheel serve`, once: its flag, its variable, its key in the file, its place among the layers, and
//! `docs/options.md` are made of this list.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, Args};
use serde::{Deserialize, Serialize};

use super::{Insecure, Level, Listen, LogFormat, QuotaTable, RedisCreate, RedisWaitFor, Secret};
use crate::auth::{Hosts, Prefixes};
use crate::beanstalk::SocketMode;
use crate::span::Span;

macro_rules! options {
    ($(#[$outer:meta])* pub struct Options { $($(#[$meta:meta])* pub $field:ident: Option<$type:ty>,)* }) => {
        $(#[$outer])*
        pub struct Options { $($(#[$meta])* pub $field: Option<$type>,)* }

        impl Options {
            /// The names of all options, as the file has them.
            pub const NAMES: &[&str] = &[$(stringify!($field)),*];

            /// These options where given, else those of a lower layer.
            pub fn over(self, lower: Options) -> Options {
                Options { $($field: self.$field.or(lower.$field)),* }
            }

            /// The names of the options that are given.
            pub(super) fn given(&self) -> impl Iterator<Item = &'static str> {
                let all = [$((stringify!($field), self.$field.is_some())),*];
                all.into_iter().filter_map(|(name, is_given)| is_given.then_some(name))
            }
        }
    };
}

/// Gives an option its variable: `DUEWHEEL_<OPTION>`. Arguments of commands that have these options among others stay as
/// they are.
fn with_variable(arg: Arg) -> Arg {
    let id = arg.get_id().as_str();
    if !Options::NAMES.contains(&id) {
        return arg;
    }
    let variable = OsString::from(format!("DUEWHEEL_{}", id.to_uppercase()));
    arg.env(variable)
}

options! {
    /// The options of `duewheel serve`. What is not given in one layer comes from the next.
    #[derive(Args, Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
    #[serde(deny_unknown_fields)]
    #[command(mut_args = with_variable)]
    pub struct Options {
        /// Folder for the data; made if it is not there [default: ./duewheel-data]
        #[arg(long, value_name = "DIR")]
        pub data: Option<PathBuf>,
        /// Where to listen for HTTP, or `off` [default: 127.0.0.1:7788]
        #[arg(long, value_name = "ADDR")]
        pub http: Option<Listen>,
        /// Where to listen for beanstalkd's protocol, or `off` [default: 127.0.0.1:11300; with --tokens off]
        #[arg(long, value_name = "ADDR|unix:PATH")]
        pub beanstalk: Option<Listen>,
        /// How the names of the queues begin that clients of beanstalkd's protocol may use [default: all queues]
        #[arg(long, value_name = "PREFIX,...")]
        pub beanstalk_queues: Option<Prefixes>,
        /// Speak beanstalkd's protocol over TLS, with --tls-cert, to clients with a certificate of this authority, in PEM
        #[arg(long, value_name = "FILE")]
        pub beanstalk_client_ca: Option<PathBuf>,
        /// The rights of the file of `--beanstalk unix:PATH`, octal [default: 600]
        #[arg(long, value_name = "MODE")]
        pub beanstalk_socket_mode: Option<SocketMode>,
        /// Largest job over beanstalkd's protocol, in bytes; above `--max-body` it counts for HTTP, too [default: 65535]
        #[arg(long, value_name = "N")]
        pub beanstalk_max_job_size: Option<usize>,
        /// Which store keeps the messages: `log`, the one in the data folder; `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`; or
        /// `redis-cluster://HOST[:PORT],...`; with TLS `rediss://` and `rediss-cluster://` [default: log]
        #[arg(long, value_name = "URL", hide_env_values = true)]
        pub store: Option<Secret>,
        /// The user at Redis, if not in the URL
        #[arg(long, value_name = "NAME")]
        pub redis_user: Option<String>,
        /// The password at Redis, if not in the URL; better in the environment or the file than in a flag, which others can see
        #[arg(long, value_name = "PASSWORD", hide_env_values = true)]
        pub redis_password: Option<Secret>,
        /// What the names of all keys in Redis begin with [default: duewheel]
        #[arg(long, value_name = "PREFIX")]
        pub redis_prefix: Option<String>,
        /// How many replicas of Redis must have a change before it is answered [default: 0]
        #[arg(long, value_name = "N")]
        pub redis_wait: Option<u32>,
        /// What is waited for: that replicas have received a change, or that Redis and they have synced it to their append-only
        /// files, which needs Redis 7.2 or later [default: received]
        #[arg(long, value_name = "WHAT")]
        pub redis_wait_for: Option<RedisWaitFor>,
        /// Accept a Redis with `appendonly no`: what it was told since its last snapshot is lost when it restarts
        #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
        pub redis_without_aof: Option<bool>,
        /// Whether a cluster is made in a Redis where none is: always, or never, so that a Redis that has lost its data is
        /// not taken for a new one. `duewheel cluster reset` makes one then [default: always]
        #[arg(long, value_name = "WHEN")]
        pub redis_create: Option<RedisCreate>,
        /// How long a start waits for a Redis that is not there [default: 60s]
        #[arg(long, value_name = "TIME")]
        pub redis_start_timeout: Option<Span>,
        /// The authority that the certificate of Redis is from, in PEM; without it those that the system trusts
        #[arg(long, value_name = "FILE")]
        pub redis_ca: Option<PathBuf>,
        /// The certificate that is shown to Redis, in PEM, where it asks its clients for one (`tls-auth-clients`)
        #[arg(long, value_name = "FILE")]
        pub redis_cert: Option<PathBuf>,
        /// The private key of --redis-cert, in PEM
        #[arg(long, value_name = "FILE")]
        pub redis_key: Option<PathBuf>,
        /// The name of this node among those that share a Redis [default: duewheel]
        #[arg(long, value_name = "NAME")]
        pub node: Option<String>,
        /// Where the other nodes reach this one; without it the node is alone
        #[arg(long, value_name = "ADDR")]
        pub advertise: Option<String>,
        /// The certificate that is shown to other nodes, in PEM; without it each node draws a key, which the cluster's
        /// secret vouches for
        #[arg(long, value_name = "FILE")]
        pub peer_cert: Option<PathBuf>,
        /// The private key of --peer-cert, in PEM
        #[arg(long, value_name = "FILE")]
        pub peer_key: Option<PathBuf>,
        /// The authority that the certificates of all nodes are from, in PEM
        #[arg(long, value_name = "FILE")]
        pub peer_ca: Option<PathBuf>,
        /// Where to listen for the other nodes [default: the address of --advertise]
        #[arg(long, value_name = "ADDR")]
        pub peer_listen: Option<String>,
        /// Into how many shards the messages of a new cluster are split, for ever [default: 1; with --advertise 16]
        #[arg(long, value_name = "N")]
        pub shards: Option<u32>,
        /// How long a shard stays with a node that is not heard of; from 1s to 60s [default: 5s]
        #[arg(long, value_name = "TIME")]
        pub shard_lease: Option<Span>,
        /// How long a node that comes must stay before others give shards up to it [default: 10s]
        #[arg(long, value_name = "TIME")]
        pub settle_delay: Option<Span>,
        /// What an answer means: on the disk, handed to the system, or in memory [default: fsync]
        #[arg(long, value_name = "LEVEL")]
        pub durability: Option<Level>,
        /// Bytes of recent changes kept in memory and in the journal, which a start reads again; from 1048576 up, and the
        /// number of records in proportion [default: 268435456]
        #[arg(long, value_name = "N")]
        pub journal_bytes: Option<u64>,
        /// Messages kept in memory because they are due soon or ready; all others lie on the disk alone; from 100 up
        /// [default: 400000]
        #[arg(long, value_name = "N")]
        pub memory_messages: Option<usize>,
        /// A TOML file of tokens, made by `duewheel token new`: HTTP asks each request for one; read again when it changes, and on
        /// SIGHUP
        #[arg(long, value_name = "FILE")]
        pub tokens: Option<PathBuf>,
        /// The certificate for HTTPS, in PEM, with those that lead to its authority; read again as --tokens
        #[arg(long, value_name = "FILE")]
        pub tls_cert: Option<PathBuf>,
        /// The private key of --tls-cert, in PEM; read again as --tokens
        #[arg(long, value_name = "FILE")]
        pub tls_key: Option<PathBuf>,
        /// Names by which HTTP clients may call a server without tokens, beside addresses, localhost and names without a dot
        #[arg(long, value_name = "NAME,...")]
        pub hosts: Option<Hosts>,
        /// Which listeners, out of http, peer and beanstalk, may be on addresses that other machines reach, although nothing asks
        /// them who they are or hides what they say [default: none]
        #[arg(long, value_name = "LISTENER,...", num_args = 0..=1, default_missing_value = "true")]
        pub insecure: Option<Insecure>,
        /// The folder below which backups go: the server makes them there, and nowhere else. Without it a backup needs a folder
        /// that its user has made for it
        #[arg(long, value_name = "DIR")]
        pub backup_root: Option<PathBuf>,
        /// Between the signal to stop, from which on /readyz says no, and the drain [default: 0s]
        #[arg(long, value_name = "TIME")]
        pub drain_delay: Option<Span>,
        /// For running requests when told to stop [default: 10s]
        #[arg(long, value_name = "TIME")]
        pub drain_timeout: Option<Span>,
        /// Which log lines to write: error, warn, info, debug, trace [default: info]
        #[arg(long, value_name = "FILTER")]
        pub log: Option<String>,
        /// How to write log lines [default: text]
        #[arg(long, value_name = "FORMAT")]
        pub log_format: Option<LogFormat>,
        /// Slots of the ring [default: 3600]
        #[arg(long, value_name = "N")]
        pub wheel_slots: Option<usize>,
        /// One step of the ring's pointer; precision is a millisecond whatever it is [default: 1s]
        #[arg(long, value_name = "TIME")]
        pub wheel_tick: Option<Span>,
        /// Largest body of a message, in bytes [default: 262144]
        #[arg(long, value_name = "N")]
        pub max_body: Option<usize>,
        /// Most messages held at a time [default: 10000000000]
        #[arg(long, value_name = "N")]
        pub max_messages: Option<usize>,
        /// Most bytes of messages held at a time [default: 4398046511104]
        #[arg(long, value_name = "N")]
        pub max_message_bytes: Option<usize>,
        /// Most connections at a time, of each listener [default: 10000]
        #[arg(long, value_name = "N")]
        pub max_connections: Option<usize>,
        /// For the headers of a request, idle time before it included [default: 30s]
        #[arg(long, value_name = "TIME")]
        pub header_timeout: Option<Span>,
        /// For the body of a request [default: 30s]
        #[arg(long, value_name = "TIME")]
        pub body_timeout: Option<Span>,
        /// What tenants may have; in the file alone, as `[[quota]]`; read again as `tokens`.
        #[arg(skip)]
        pub quota: Option<Vec<QuotaTable>>,
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

    /// The help of an option, and the default that it tells.
    fn told(arg: &Arg) -> (String, Option<String>) {
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        match help.split_once(" [default: ") {
            Some((text, default)) => (text.to_owned(), Some(default.trim_end_matches(']').to_owned())),
            None => (help, None),
        }
    }

    /// What counts where an option is not given, with the store and the listener that it is for.
    fn defaults() -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for toml in ["", "store = 'redis://h:1'", "beanstalk = 'unix:/b'"] {
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

    /// A length of time in one form: 60s is 1m.
    fn as_span(text: String) -> String {
        text.parse::<Span>().map_or(text, |span| span.to_string())
    }

    /// Story: the help of `--max-messages` and `--max-message-bytes` told other defaults than those that counted.
    #[test]
    fn help_tells_the_defaults_that_count() {
        // What a default depends on, or what no value stands for, is told in words.
        let in_words = [
            ("beanstalk", "127.0.0.1:11300; with --tokens off"),
            ("beanstalk_queues", "all queues"),
            ("data", "./duewheel-data"),
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
            // None, nothing and no are told by silence.
            let counts = defaults.get(name).filter(|value| !matches!(&***value, "" | "false" | "[]"));
            assert_eq!(told.map(as_span), counts.cloned().map(as_span), "--{name}");
        }
    }

    #[test]
    fn the_page_of_options_is_made_of_them() {
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
            "the options have changed: DUEWHEEL_OPTIONS_PAGE=write cargo test -p duewheel-server --lib config:: writes docs/options.md again"
        );
    }

    const HEAD: &str = "\
# Options of `duewheel serve`

Each option is a flag, a variable and a key of the file of `--config`: `--drain-delay 5s`, `DUEWHEEL_DRAIN_DELAY=5s`,
`drain_delay = \"5s\"`. Flags win over variables, variables over the file, the file over the defaults; `duewheel serve
--print-config` tells what counts. Quotas stand in the file alone ([operations](operations.md#quotas)). This page is made
of the list of options; a test compares it with what the server takes, and the defaults with those that count.

| option | default | what |
|---|---|---|
";
}
