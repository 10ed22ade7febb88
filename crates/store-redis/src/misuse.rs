//! Keys that another program uses: Redis refuses a command with `WRONGTYPE`, and does not name the key.

use std::borrow::Cow;

use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, Pipeline, Value};

use crate::{keys, value};

/// Asks for the types of keys.
pub(crate) fn ask(keys: &[String]) -> Pipeline {
    let mut ask = Pipeline::with_capacity(keys.len());
    for key in keys {
        ask.cmd("TYPE").arg(key);
    }
    ask
}

/// The first key that has another type than it must have, in words.
pub(crate) fn describe(keys: &[String], types: Vec<Value>) -> Option<String> {
    keys.iter().zip(types).find_map(|(key, is)| {
        let (is, should) = (value::text(is, "TYPE").ok()??, keys::type_of(key));
        let is_other = is != should && is != "none";
        is_other.then(|| format!("{key} is a {is}, and should be a {should}: another program uses it"))
    })
}

/// The refusal of a command with `WRONGTYPE`, with the name of the key.
pub(crate) async fn named(connection: &mut MultiplexedConnection, command: &Cmd) -> Option<Value> {
    let keys = keys_of(command);
    let types = connection.send_packed_commands(&ask(&keys), 0, keys.len()).await.ok()?;
    let what = describe(&keys, types).unwrap_or_else(|| format!("one of {}", keys.join(", ")));
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
