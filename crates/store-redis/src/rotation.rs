//! Replaces the secret by which nodes authenticate each other, while they work.

use std::time::Duration;

use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_store_medium::{SecretRotation, random};

use crate::cluster::CoordinatorInner;
use crate::reign::{self, FORMAT, unknown_format};
use crate::{fault, script, value};

/// The number of leases after which every member has read the new secret: each reads it four times a lease, and a node
/// that was cut off for a whole lease reads it before it talks to others again.
const LEASES: u32 = 2;

impl CoordinatorInner {
    /// Writes a new secret; the former one also stays valid.
    pub(crate) async fn begin_rotation(&self) -> Result<SecretRotation, StoreError> {
        let (is_new, wait) = self.rotate("begin", &reign::hex(&random::<32>()?)).await?;
        self.replicas_know().await?;
        Ok(SecretRotation { is_new, wait })
    }

    /// Ends the validity of the former secret.
    pub(crate) async fn end_rotation(&self) -> Result<(), StoreError> {
        self.rotate("end", "").await?;
        self.replicas_know().await
    }

    async fn rotate(&self, step: &str, new: &str) -> Result<(bool, Duration), StoreError> {
        let of = "rotate";
        let mut call = redis::cmd("EVAL");
        call.arg(script::rotate()).arg(1).arg(self.cluster_key()).arg(step).arg(FORMAT).arg(new);
        let reply = value::some(self.of_cluster(call).await?.into_iter().next(), of)?;
        let mut words = value::list(reply, of)?.into_iter();
        let mut next = || value::text(words.next().unwrap_or_default(), of);
        let (word, second) = (next()?, next()?);
        let is_new = match word.as_deref() {
            Some("OK") => true,
            Some("BEGUN") => false,
            Some("FORMAT") => {
                return Err(unknown_format(self.cluster_key(), &second.unwrap_or_default()));
            }
            Some("EMPTY") => {
                let what = format_args!("{} is not there: no node has taken part yet", self.cluster_key());
                return Err(StoreError::new(ErrorKind::Corrupt, what.to_string()));
            }
            _ => return Err(fault::odd(of)),
        };
        let lease = second.and_then(|ms| ms.parse().ok()).map_or(self.options().lease, Duration::from_millis);
        Ok((is_new, lease * LEASES))
    }
}
