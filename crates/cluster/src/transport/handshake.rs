//! The handshake in which two nodes prove over TLS that they belong to one cluster.
//!
//! ```text
//!   asker  ── Hello: versions, limits, who I am, whom I want ──▶  owner
//!          ── Proofs: one by each secret that I know ──▶
//!          ◀── Welcome: version, limits, proof by the same secret ──
//! ```
//!
//! A proof is an HMAC-SHA-256 with a secret of the cluster over the role, the channel binding of the TLS session (RFC
//! 9266) and the bytes of the Hello. The binding differs between sessions, and only the two ends of a session can
//! compute it: so a proof is valid for this connection alone, and can neither be relayed nor reflected to its sender.
//! While a secret is being replaced two are valid, and a connection stands as long as the secret that authenticated it
//! is valid ([`Keyring`]).
//!
//! The number of connections that have not authenticated yet is bounded, and a new connection always gets a slot. When
//! all slots are taken, a new connection takes one from the address that has most of them, and there the oldest. So
//! clients that connect and send nothing lose their slots first; a node that connects authenticates within a few round
//! trips, long before its slot is the oldest. Authenticated connections have a limit of their own.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duewheel_core::store::{Node, Secrets};
use ring::hmac;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::tls::Binding;
use super::wire::SupportedVersions;
use crate::transport::wire::FrameLimits;

/// The first bytes, so that another protocol is not taken for this one.
pub(super) const MAGIC: [u8; 8] = *b"duewnode";
/// The first bytes of builds before 0.1.0.
pub(super) const EARLIER_MAGIC: [u8; 8] = *b"duewheel";

/// The largest number of secrets that are valid at a time, and so of proofs of one node.
const MAX_SECRETS: usize = 2;

/// The identity of a node in a handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeIdentity {
    pub(super) name: Box<str>,
    pub(super) number: u32,
}

impl From<&Node> for NodeIdentity {
    fn from(node: &Node) -> Self {
        NodeIdentity { name: node.name.clone(), number: node.number }
    }
}

/// The first message of the node that connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) magic: [u8; 8],
    pub(super) versions: SupportedVersions,
    pub(super) takes: FrameLimits,
    pub(super) from: NodeIdentity,
    pub(super) to: NodeIdentity,
}

/// The second message of the node that connects: a proof for each secret that it knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Proofs(pub(super) Vec<[u8; 32]>);

/// The answer of the node that accepts the connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Welcome {
    /// The request is accepted, with this version.
    Come { version: u32, takes: FrameLimits, proof: [u8; 32] },
    /// The connecting node has given no valid proof.
    Stranger,
    /// The owner speaks these versions.
    OtherVersions(SupportedVersions),
    /// The connection has reached this other node.
    OtherNode(NodeIdentity),
}

/// The side of a handshake whose proof it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeRole {
    Asker,
    Owner,
}

/// The identifier of a secret; it does not reveal the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyId([u8; 8]);

#[cfg(test)]
impl KeyId {
    pub(super) fn of_a_test() -> Self {
        KeyId([1; 8])
    }
}

/// A secret in the form in which it makes and checks proofs.
#[derive(Clone)]
struct HandshakeKey {
    id: KeyId,
    hmac: hmac::Key,
}

/// The valid secrets, the newest first.
#[derive(Clone)]
pub(crate) struct Keyring(Vec<HandshakeKey>);

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| key.id)).finish()
    }
}

impl PartialEq for Keyring {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().map(|key| key.id).eq(other.0.iter().map(|key| key.id))
    }
}

impl From<&Secrets> for Keyring {
    fn from(secrets: &Secrets) -> Self {
        let key = |secret: &[u8; 32]| {
            let hmac = hmac::Key::new(hmac::HMAC_SHA256, secret);
            let mut id = [0; 8];
            id.copy_from_slice(&hmac::sign(&hmac, b"duewheel: which secret").as_ref()[..8]);
            HandshakeKey { id: KeyId(id), hmac }
        };
        Keyring([Some(&secrets.current), secrets.former.as_ref()].into_iter().flatten().map(key).collect())
    }
}

impl Keyring {
    /// The proofs of the connecting node for one session.
    pub(super) fn prove_all(&self, binding: &Binding, hello: &[u8]) -> Proofs {
        let transcript = transcript(HandshakeRole::Asker, binding, hello);
        Proofs(self.0.iter().map(|key| sign(&key.hmac, &transcript)).collect())
    }

    /// The proof of the accepting node, with the secret of the proof that it has accepted.
    pub(super) fn prove(&self, by: KeyId, binding: &Binding, hello: &[u8]) -> Option<[u8; 32]> {
        let key = self.0.iter().find(|key| key.id == by)?;
        Some(sign(&key.hmac, &transcript(HandshakeRole::Owner, binding, hello)))
    }

    /// The secret with which one of the proofs is valid. Each is compared in constant time.
    pub(super) fn check(
        &self,
        proofs: &[[u8; 32]],
        role: HandshakeRole,
        binding: &Binding,
        hello: &[u8],
    ) -> Option<KeyId> {
        let transcript = transcript(role, binding, hello);
        let proofs = &proofs[..proofs.len().min(MAX_SECRETS)];
        let holds = |key: &&HandshakeKey| {
            proofs.iter().any(|proof| hmac::verify(&key.hmac, &transcript, proof).is_ok())
        };
        self.0.iter().find(holds).map(|key| key.id)
    }

    /// Whether a connection that was authenticated by this secret may stand.
    pub(super) fn knows(&self, id: KeyId) -> bool {
        self.0.iter().any(|key| key.id == id)
    }
}

fn sign(key: &hmac::Key, transcript: &[u8]) -> [u8; 32] {
    let mut proof = [0; 32];
    proof.copy_from_slice(hmac::sign(key, transcript).as_ref());
    proof
}

/// The transcript that a proof covers. It is unambiguous: every part but the last has a fixed length.
fn transcript(role: HandshakeRole, binding: &Binding, hello: &[u8]) -> Vec<u8> {
    let mut transcript = Vec::with_capacity(64 + hello.len());
    transcript.extend(MAGIC);
    transcript.push(match role {
        HandshakeRole::Asker => b'a',
        HandshakeRole::Owner => b'o',
    });
    transcript.extend(binding);
    transcript.extend(hello);
    transcript
}

/// The largest number of unauthenticated connections at a time.
pub(super) const MAX_UNAUTHENTICATED: usize = 256;

/// The unauthenticated connections, in the order in which they were accepted.
#[derive(Clone, Debug, Default)]
pub(super) struct HandshakeSlots(Arc<Mutex<SlotTable>>);

#[derive(Debug, Default)]
struct SlotTable {
    next: u64,
    taken: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
}

/// The slot of one unauthenticated connection; freed on drop.
#[derive(Debug)]
pub(super) struct HandshakeSlot {
    of: HandshakeSlots,
    number: u64,
    gone: oneshot::Receiver<()>,
}

impl HandshakeSlots {
    /// Takes a slot for a connection from this address, if necessary from another connection.
    pub(super) fn enter(&self, from: IpAddr) -> HandshakeSlot {
        let (to, gone) = oneshot::channel();
        let mut places = self.places();
        if places.taken.len() >= MAX_UNAUTHENTICATED
            && let Some(loses) = places.least_wanted()
            && let Some((_, loser)) = places.taken.remove(&loses)
        {
            // The connection may have ended by itself.
            let _ = loser.send(());
        }
        let number = places.next;
        places.next += 1;
        places.taken.insert(number, (from, to));
        drop(places);
        HandshakeSlot { of: self.clone(), number, gone }
    }

    fn places(&self) -> MutexGuard<'_, SlotTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotTable {
    /// The oldest slot of the address that has most slots.
    fn least_wanted(&self) -> Option<u64> {
        let mut each: BTreeMap<IpAddr, (usize, u64)> = BTreeMap::new();
        for (number, (from, _)) in &self.taken {
            each.entry(*from).or_insert((0, *number)).0 += 1;
        }
        // Of two addresses with as many slots, the one with the older slot.
        each.into_values().max_by_key(|(count, oldest)| (*count, u64::MAX - oldest)).map(|(_, oldest)| oldest)
    }
}

impl HandshakeSlot {
    /// Waits until another connection has taken this slot.
    pub(super) async fn lost(&mut self) {
        // An error means the same: the sender is dropped only with the slot.
        let _ = (&mut self.gone).await;
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.of.places().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(current: u8, former: Option<u8>) -> Keyring {
        Keyring::from(&Secrets { current: [current; 32], former: former.map(|former| [former; 32]) })
    }

    #[test]
    fn proof_binds_session_hello_and_role() {
        let ring = ring(7, None);
        let (binding, hello) = ([4; 32], b"hello".as_slice());
        let Proofs(proofs) = ring.prove_all(&binding, hello);
        let id = ring.check(&proofs, HandshakeRole::Asker, &binding, hello).unwrap();
        let owner = [ring.prove(id, &binding, hello).unwrap()];
        assert_eq!(ring.check(&owner, HandshakeRole::Owner, &binding, hello), Some(id));
        assert_eq!(ring.check(&proofs, HandshakeRole::Owner, &binding, hello), None, "sent back");
        assert_eq!(ring.check(&owner, HandshakeRole::Asker, &binding, hello), None, "sent back");
        assert_eq!(
            ring.check(&proofs, HandshakeRole::Asker, &[5; 32], hello),
            None,
            "passed on to another session"
        );
        assert_eq!(ring.check(&proofs, HandshakeRole::Asker, &binding, b"hell0"), None, "another hello");
        assert_eq!(
            self::ring(8, None).check(&proofs, HandshakeRole::Asker, &binding, hello),
            None,
            "another secret"
        );
    }

    #[test]
    fn nodes_authenticate_during_secret_rotation() {
        let (binding, hello) = ([4; 32], b"hello".as_slice());
        let (before, during, after) = (ring(1, None), ring(2, Some(1)), ring(2, None));
        for (a, b, meet) in [
            (&before, &during, true),
            (&during, &before, true),
            (&during, &after, true),
            (&after, &during, true),
            (&before, &after, false),
            (&after, &before, false),
        ] {
            let Proofs(proofs) = a.prove_all(&binding, hello);
            let by = b.check(&proofs, HandshakeRole::Asker, &binding, hello);
            assert_eq!(by.is_some(), meet);
            if let Some(by) = by {
                let proof = [b.prove(by, &binding, hello).unwrap()];
                assert_eq!(a.check(&proof, HandshakeRole::Owner, &binding, hello), Some(by));
            }
        }
        let Proofs(proofs) = during.prove_all(&binding, hello);
        let newest = during.check(&proofs, HandshakeRole::Asker, &binding, hello).unwrap();
        assert!(after.knows(newest) && !before.knows(newest), "two that know both go by the newer one");
    }
}

#[cfg(test)]
mod handshake_slots_tests {
    use super::*;

    #[test]
    fn whoever_has_most_loses_its_oldest() {
        let slots = HandshakeSlots::default();
        let (flood, node) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut real = slots.enter(node);
        let mut floods: Vec<HandshakeSlot> =
            (0..3 * MAX_UNAUTHENTICATED).map(|_| slots.enter(flood)).collect();
        assert!(real.gone.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        let lost: Vec<bool> = floods.iter_mut().map(|place| place.gone.try_recv().is_ok()).collect();
        let first_left = 2 * MAX_UNAUTHENTICATED + 1;
        assert!(lost[..first_left].iter().all(|lost| *lost) && lost[first_left..].iter().all(|lost| !lost));
        assert_eq!(slots.places().taken.len(), MAX_UNAUTHENTICATED);
        drop(floods);
        drop(real);
        assert!(slots.places().taken.is_empty());
    }
}
