//! The memory that a master reports.

use duewheel_core::store::{ErrorKind, StoreError};
use redis::Pipeline;

use crate::value;
use crate::wire::Wire;

/// The used and the largest memory; refuses a server that evicts keys.
pub(crate) async fn ask(wire: &Wire) -> Result<(u64, u64), StoreError> {
    let mut ask = Pipeline::new();
    ask.cmd("INFO").arg("memory");
    read(value::some(wire.call(ask).await?.into_iter().next(), "INFO")?)
}

/// Reads the reply of `INFO memory`.
pub(crate) fn read(reply: redis::Value) -> Result<(u64, u64), StoreError> {
    let info = value::some(value::text(reply, "INFO")?, "INFO")?;
    let number = |field| value::info(&info, field).and_then(|n| n.parse().ok()).unwrap_or(0);
    let (used, max) = (number("used_memory"), number("maxmemory"));
    let policy = value::info(&info, "maxmemory_policy").unwrap_or("noeviction");
    if max > 0 && policy.starts_with("allkeys") {
        let what = format_args!("maxmemory-policy is {policy}: it would throw messages away; set noeviction")
            .to_string();
        return Err(StoreError::new(ErrorKind::Corrupt, what));
    }
    Ok((used, max))
}
