//! The file of tokens.
//!
//! ```toml
//! [[token]]
//! name = "shop"                            # for people and messages
//! hash = "sha256:5f3c…"                    # `duewheel token new` makes it
//! scopes = ["enqueue", "cancel"]
//! queues = ["shop/"]                       # only queues that begin so; left out: all
//! expires = "2027-01-01T00:00:00.000Z"     # left out: never
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use duewheel::core::{QueueName, WallMs};
use serde::{Deserialize, Serialize};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use super::{Hash, Scope};
use crate::file_value::FileValue;
use crate::toml_text::{self, BadToml};
use crate::{private, rfc3339};

/// The largest number of tokens: each request is compared with all of them.
const MAX_TOKENS: usize = 1_000;
const MAX_BYTES: u64 = 1024 * 1024;
const MAX_NAME: usize = 100;

/// All tokens of a server.
#[derive(Debug, Default)]
pub struct TokenTable(Vec<Arc<TokenEntry>>);

/// An entry of the token file: a token's name, hash, scopes and queues.
#[derive(Clone, Debug)]
pub struct TokenEntry {
    /// The name of the token, for people.
    pub name: String,
    /// The hash of the token.
    pub hash: Hash,
    /// The calls that it allows.
    pub scopes: BTreeSet<Scope>,
    /// The prefixes of its queues; `None` for all queues.
    pub queues: Option<Vec<QueueName>>,
    /// The time from which on it is invalid.
    pub expires: Option<WallMs>,
}

/// Why the tokens could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The file cannot be read.
    #[error("cannot read the tokens in {}: {why}", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The reason.
        why: std::io::Error,
    },
    /// Other users than the owner of the file may read or change it.
    #[error("the tokens in {}: the file {what}", .file.display())]
    Exposed {
        /// The file.
        file: PathBuf,
        /// The owner and the permissions.
        what: String,
    },
    /// The content of the file is invalid.
    #[error("the tokens in {}: {what}", .file.display())]
    Wrong {
        /// The file.
        file: PathBuf,
        /// The fault, with the line or the token's name.
        what: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    token: Vec<TokenFields>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFields {
    name: String,
    hash: String,
    scopes: Vec<String>,
    queues: Option<Vec<String>>,
    expires: Option<String>,
}

impl TokenTable {
    /// Reads the file.
    ///
    /// # Errors
    /// [`TokensError`] when the file cannot be read, other users may read or change it, or its content is invalid.
    pub fn read(file: &Path) -> Result<TokenTable, TokensError> {
        let unreadable = |why| TokensError::Unreadable { file: file.to_owned(), why };
        let bytes = private::read(file, MAX_BYTES).map_err(unreadable)?;
        let bytes = bytes.map_err(|what| TokensError::Exposed { file: file.to_owned(), what })?;
        if bytes.len() as u64 > MAX_BYTES {
            let what = format!("must have at most {MAX_BYTES} bytes");
            return Err(TokensError::Wrong { file: file.to_owned(), what });
        }
        let text = String::from_utf8(bytes);
        let text =
            text.map_err(|why| unreadable(std::io::Error::new(std::io::ErrorKind::InvalidData, why)))?;
        TokenTable::parse(&text).map_err(|what| TokensError::Wrong { file: file.to_owned(), what })
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// A sentence about the fault, with the line or the token's name. It repeats no part of a hash.
    pub fn parse(text: &str) -> Result<TokenTable, String> {
        let file: File =
            toml_text::read(text).map_err(|BadToml { line, what }| format!("line {line}: {what}"))?;
        if file.token.len() > MAX_TOKENS {
            return Err(format!("there may be at most {MAX_TOKENS} tokens"));
        }
        let mut table = TokenTable::default();
        for (n, written) in file.token.into_iter().enumerate() {
            let named = if written.name.is_empty() {
                format!("token {}", n + 1)
            } else {
                format!("token {:?}", written.name)
            };
            let entry = TokenEntry::check(written).map_err(|what| format!("{named}: {what}"))?;
            if table.0.iter().any(|other| other.name == entry.name) {
                return Err(format!("{named}: name: another token has it"));
            }
            if table.0.iter().any(|other| other.hash.same(&entry.hash).into()) {
                return Err(format!("{named}: hash: another token has it"));
            }
            table.0.push(Arc::new(entry));
        }
        Ok(table)
    }

    /// All tokens, in the order of the file.
    pub(crate) fn entries(&self) -> &[Arc<TokenEntry>] {
        &self.0
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none, so that no call is allowed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The token with this hash. It is compared with all of them, in a time that does not depend on where they differ.
    pub fn find(&self, hash: &Hash) -> Option<Arc<TokenEntry>> {
        const NONE: u32 = u32::MAX;
        let mut found = NONE;
        for (n, entry) in (0_u32..).zip(&self.0) {
            found.conditional_assign(&n, entry.hash.same(hash));
        }
        if found.ct_eq(&NONE).into() {
            return None;
        }
        self.0.get(usize::try_from(found).ok()?).cloned()
    }
}

impl TokenEntry {
    fn check(written: TokenFields) -> Result<TokenEntry, String> {
        let TokenFields { name, hash, scopes, queues, expires } = written;
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
            return Err(format!("name: must be 1 to {MAX_NAME} bytes of text"));
        }
        let hash = hash.parse().map_err(|what| format!("hash: {what}"))?;
        if scopes.is_empty() {
            return Err("scopes: at least one is needed".to_owned());
        }
        let scopes = scopes.iter().map(|word| word.parse()).collect::<Result<_, _>>();
        let scopes = scopes.map_err(|what| format!("scopes: {what}"))?;
        let prefix = |text: &String| QueueName::new(text).map_err(|what| format!("queues: {text:?} {what}"));
        let queues = queues.map(|all| all.iter().map(prefix).collect::<Result<Vec<_>, _>>()).transpose()?;
        if queues.as_ref().is_some_and(Vec::is_empty) {
            return Err("queues: say how their names begin, or leave it out for all queues".to_owned());
        }
        let expires = expires.map(|text| rfc3339::parse(&text)).transpose();
        let expires = expires.map_err(|what| format!("expires: {what}"))?;
        Ok(TokenEntry { name, hash, scopes, queues, expires })
    }

    /// Whether the token covers this queue.
    pub fn reaches(&self, queue: &QueueName) -> bool {
        match &self.queues {
            None => true,
            Some(prefixes) => reach(prefixes, queue),
        }
    }
}

/// The token in the form of the file.
pub fn block(entry: &TokenEntry) -> impl fmt::Display + '_ {
    struct Block<'a>(&'a TokenEntry);
    impl fmt::Display for Block<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let TokenEntry { name, hash, scopes, queues, expires } = self.0;
            let list = |words: Vec<&str>| toml::Value::from(words);
            writeln!(f, "[[token]]")?;
            writeln!(f, "name = {}", toml::Value::from(name.as_str()))?;
            writeln!(f, "hash = \"{hash}\"")?;
            writeln!(f, "scopes = {}", list(scopes.iter().map(|scope| scope.as_str()).collect()))?;
            if let Some(queues) = queues {
                writeln!(f, "queues = {}", list(queues.iter().map(QueueName::as_str).collect()))?;
            }
            if let Some(expires) = expires {
                writeln!(f, "expires = \"{}\"", rfc3339::string(*expires))?;
            }
            Ok(())
        }
    }
    Block(entry)
}

/// Prefixes of the names of queues; at least one. They cover a queue if its name begins with one of them.
///
/// In a text they are separated by commas, which no name may contain.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "FileValue", into = "Vec<String>")]
pub struct Prefixes(Vec<QueueName>);

impl Prefixes {
    /// Whether the prefixes cover the queue.
    pub fn reach(&self, queue: &QueueName) -> bool {
        reach(&self.0, queue)
    }

    /// The prefixes.
    pub fn names(&self) -> &[QueueName] {
        &self.0
    }
}

/// Whether the name of a queue begins with one of these.
pub(super) fn reach(prefixes: &[QueueName], queue: &QueueName) -> bool {
    prefixes.iter().any(|prefix| queue.as_str().starts_with(prefix.as_str()))
}

impl FromStr for Prefixes {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if s.is_empty() {
            return Err("say how their names begin, or leave it out for all queues".to_owned());
        }
        let one =
            |text: &str| QueueName::new(text.trim()).map_err(|what| format!("{:?} {what}", text.trim()));
        s.split(',').map(one).collect::<Result<_, _>>().map(Prefixes)
    }
}

impl TryFrom<FileValue> for Prefixes {
    type Error = String;

    fn try_from(value: FileValue) -> Result<Self, String> {
        value.list()
    }
}

impl From<Prefixes> for Vec<String> {
    fn from(Prefixes(all): Prefixes) -> Self {
        all.iter().map(|prefix| prefix.as_str().to_owned()).collect()
    }
}

impl fmt::Display for Prefixes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Vec::from(self.clone()).join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, n: u8) -> TokenEntry {
        TokenEntry {
            name: name.to_owned(),
            hash: Hash::of(&[n]),
            scopes: BTreeSet::from([Scope::Consume, Scope::Enqueue]),
            queues: Some(vec![QueueName::new("shop/").unwrap(), QueueName::new("sms").unwrap()]),
            expires: Some(WallMs(1_800_000_000_000)),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let one = entry("a \"b\" \\ ü", 1);
        let two = TokenEntry { queues: None, expires: None, ..entry("two", 2) };
        let table = TokenTable::parse(&format!("# mine\n{}\n{}", block(&one), block(&two))).unwrap();
        assert_eq!(table.len(), 2);
        let found = table.find(&one.hash).unwrap();
        assert_eq!((&found.name, &found.scopes, &found.queues), (&one.name, &one.scopes, &one.queues));
        assert_eq!(found.expires, one.expires);
        let found = table.find(&two.hash).unwrap();
        assert_eq!((found.name.as_str(), &found.queues, found.expires), ("two", &None, None));
        assert!(table.find(&Hash::of(&[3])).is_none());
        assert!(TokenTable::parse("").unwrap().is_empty());
    }

    #[test]
    fn token_reaches_queues_by_prefix() {
        let reaches = |name: &str| entry("x", 1).reaches(&QueueName::new(name).unwrap());
        assert!(reaches("shop/") && reaches("shop/orders") && reaches("sms") && reaches("sms-2"));
        assert!(!reaches("shop") && !reaches("other/shop/") && !reaches("sm") && !reaches("SMS"));
    }

    #[test]
    fn invalid_token_file_names_its_fault() {
        let good = block(&entry("x", 1)).to_string();
        let hash = entry("x", 1).hash.to_string();
        for (text, says) in [
            (good.replace("consume", "eat"), "token \"x\": scopes: \"eat\" is none of enqueue"),
            (good.replace("name = \"x\"", "name = \"\""), "token 1: name"),
            (good.replace("[\"enqueue\", \"consume\"]", "[]"), "scopes: at least one"),
            (good.replace("[\"shop/\", \"sms\"]", "[]"), "queues: say how"),
            (good.replace("shop/", ""), "queues: \"\" must not be empty"),
            (good.replace("shop/", "shop/*"), "queues: \"shop/*\" may hold only"),
            (good.replace("2027", "soon"), "expires: "),
            (good.replace(&hash, &hash[..20]), "hash: a hash is sha256:"),
            (good.replace("hash", "token"), "line 3: there is no key `token` here, but "),
            (good.replace("scopes", "scope"), "line 4: there is no key `scope` here; did you mean `scopes`?"),
            (good.replace("[[token]]", "[token]"), "line 1: "),
            (format!("{good}{good}"), "name: another token has it"),
            (format!("{good}{}", good.replace("\"x\"", "\"y\"")), "token \"y\": hash: another"),
            (format!("{good}[["), "line 7: "),
        ] {
            let why = TokenTable::parse(&text).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
            assert!(!why.contains(&hash[..20]), "{why}");
        }
        let many: String = (0..=MAX_TOKENS).map(|n| block(&entry(&n.to_string(), 1)).to_string()).collect();
        assert!(TokenTable::parse(&many).unwrap_err().contains("at most 1000"));
    }

    #[test]
    fn shared_token_file_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens.toml");
        std::fs::write(&file, block(&entry("x", 1)).to_string()).unwrap();
        for (mode, good) in
            [(0o600, true), (0o400, true), (0o640, true), (0o604, false), (0o620, false), (0o602, false)]
        {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            let read = TokenTable::read(&file);
            assert_eq!(read.is_ok(), good, "{mode:o}: {read:?}");
            if let Err(why) = read {
                let text = why.to_string();
                assert!(text.contains("chmod 600") && text.contains(&format!("{mode:03o}")), "{text}");
            }
        }
        let none = TokenTable::read(&dir.path().join("none")).unwrap_err().to_string();
        assert!(none.contains("cannot read the tokens in"), "{none}");
    }
}
