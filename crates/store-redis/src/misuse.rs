//! Keys that another program uses: Redis refuses a command with `WRONGTYPE`, and does not name the key.

use std::borrow::Cow;

use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, Pipeline, Value};

use crate::{keys, value};

/// The refusal of a command with `WRONGTYPE`, with the name of the key; `None`: the server does not answer any more.
pub(crate) async fn named(connection: &mut MultiplexedConnection, command: &Cmd) -> Option<Value> {
    let keys = keys_of(command);
    let mut ask = Pipeline::with_capacity(keys.len());
    for key in &keys {
        ask.cmd("TYPE").arg(key);
    }
    let types = connection.send_packed_commands(&ask, 0, keys.len()).await.ok()?;
    let other = keys.iter().zip(types).find_map(|(key, is)| {
        let (is, should) = (value::text(is, "TYPE").ok()??, keys::type_of(key));
        let is_other = is != should && is != "none";
        is_other.then(|| format!("{key} is a {is}, and should be a {should}: another program uses it"))
    });
    let what = other.unwrap_or_else(|| format!("one of {}", keys.join(", ")));
    // The client crate has no constructor of a refusal.
    redis::parse_redis_value(format!("-WRONGTYPE {what}\r\n").as_bytes()).ok()
}

/// The keys of a command: those of a script, or the first argument.
fn keys_of(command: &Cmd) -> Vec<String> {
    let words = command.args_iter().filter_map(|arg| match arg {
        Arg::Simple(word) => Some(String::from_utf8_lossy(word)),
        _ => None,
    });
    let words: Vec<Cow<'_, str>> = words.collect();
    let (first, count) = match &words[..] {
        [eval, _, count, ..] if eval == "EVAL" => (3, count.parse().unwrap_or(0)),
        _ => (1, 1),
    };
    words.into_iter().skip(first).take(count).map(Cow::into_owned).collect()
}
