//! How two nodes show each other that they are of one cluster.
//!
//! ```text
//!   asker  ── Hello: versions, who I am, whom I want, a number drawn now ──▶  owner
//!          ◀── Welcome: a number drawn now, proof ──
//!          ── Proof ──▶
//!          ◀── Ready ──
//! ```
//!
//! A proof is an HMAC-SHA-256 by the cluster's secret over the role, both nodes' names and numbers, and both drawn numbers. So it holds for
//! this connection alone, and cannot be sent back to the one who made it. It says who is there; it does not hide what follows: the port
//! belongs in a private network.

use duewheel_core::store::Node;
use ring::hmac;
use serde::{Deserialize, Serialize};

/// First of all: a stranger's protocol is not taken for ours.
pub(super) const MAGIC: [u8; 8] = *b"duewheel";

/// A number drawn for one connection.
pub(super) type Drawn = [u8; 32];

/// A node, as it introduces itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Who {
    pub(super) name: Box<str>,
    pub(super) number: u32,
}

impl From<&Node> for Who {
    fn from(node: &Node) -> Self {
        Who { name: node.name.clone(), number: node.number }
    }
}

/// The asker's first word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) magic: [u8; 8],
    pub(super) protocol: u32,
    pub(super) from: Who,
    pub(super) to: Who,
    pub(super) drawn: Drawn,
}

/// The owner's answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Welcome {
    /// Prove it.
    Come { drawn: Drawn, proof: [u8; 32] },
    /// The owner speaks this version.
    OtherProtocol(u32),
    /// The owner is this node.
    OtherNode(Who),
}

/// The asker's second word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Proof(pub(super) [u8; 32]);

/// The owner's second word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ready;

/// Who proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Asker,
    Owner,
}

/// The secret, ready to prove and to check.
#[derive(Clone)]
pub(super) struct Secret(hmac::Key);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        Secret(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    pub(super) fn prove(&self, role: Role, hello: &Hello, owner: &Drawn) -> [u8; 32] {
        let tag = hmac::sign(&self.0, &said(role, hello, owner));
        let mut proof = [0; 32];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    /// In constant time.
    pub(super) fn holds(&self, proof: &[u8; 32], role: Role, hello: &Hello, owner: &Drawn) -> bool {
        hmac::verify(&self.0, &said(role, hello, owner), proof).is_ok()
    }
}

/// What is proved, without two ways to read it: every part has a fixed length or its length before it.
fn said(role: Role, hello: &Hello, owner: &Drawn) -> Vec<u8> {
    let mut said = Vec::with_capacity(256);
    said.extend(MAGIC);
    said.extend(hello.protocol.to_le_bytes());
    said.push(match role {
        Role::Asker => b'a',
        Role::Owner => b'o',
    });
    for who in [&hello.from, &hello.to] {
        said.extend((who.name.len() as u64).to_le_bytes());
        said.extend(who.name.as_bytes());
        said.extend(who.number.to_le_bytes());
    }
    said.extend(hello.drawn);
    said.extend(owner);
    said
}

/// A number that nobody can know before.
pub(super) fn draw() -> Result<Drawn, std::io::Error> {
    let mut drawn = [0; 32];
    let random = ring::rand::SystemRandom::new();
    ring::rand::SecureRandom::fill(&random, &mut drawn)
        .map_err(|_| std::io::Error::other("the system gives no random numbers"))?;
    Ok(drawn)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        let who = |name: &str, number| Who { name: name.into(), number };
        Hello { magic: MAGIC, protocol: 1, from: who("a", 1), to: who("b", 2), drawn: [3; 32] }
    }

    #[test]
    fn a_proof_holds_for_its_connection_and_its_role_alone() {
        let secret = Secret::new(&[7; 32]);
        let proof = secret.prove(Role::Owner, &hello(), &[4; 32]);
        assert!(secret.holds(&proof, Role::Owner, &hello(), &[4; 32]));
        assert!(!secret.holds(&proof, Role::Asker, &hello(), &[4; 32]), "sent back");
        assert!(!secret.holds(&proof, Role::Owner, &hello(), &[5; 32]), "another connection");
        assert!(!Secret::new(&[8; 32]).holds(&proof, Role::Owner, &hello(), &[4; 32]), "another secret");
        let changes: [fn(&mut Hello); 6] = [
            |h| h.from.name = "c".into(),
            |h| h.from.number = 9,
            |h| h.to.name = "c".into(),
            |h| h.to.number = 9,
            |h| h.drawn[0] = 9,
            |h| h.protocol = 9,
        ];
        for change in changes {
            let mut other = hello();
            change(&mut other);
            assert!(!secret.holds(&proof, Role::Owner, &other, &[4; 32]), "{other:?}");
        }
    }

    #[test]
    fn no_number_is_drawn_twice() {
        assert_ne!(draw().unwrap(), draw().unwrap());
    }
}
