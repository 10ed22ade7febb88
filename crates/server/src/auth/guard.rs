//! Authenticates the caller of each request.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::{HeaderMap, header};
use duewheel::core::{QueueName, WallMs};

use super::{Hash, Scope, TokenEntry, TokenTable, TokensError};
use crate::error::{ErrorCode, Extra, Problem};

/// The tokens of a running server; they may be replaced while it runs.
#[derive(Debug, Default)]
pub struct Guard(Option<Tokens>);

#[derive(Debug)]
struct Tokens {
    file: PathBuf,
    table: RwLock<Arc<TokenTable>>,
}

/// The caller of a request.
#[derive(Clone, Debug)]
pub enum Caller {
    /// There are no tokens: every client that reaches the listener may make every call.
    Trusted,
    /// The holder of a valid token.
    Holder(Arc<TokenEntry>),
    /// Missing or invalid credentials, and the reason.
    Stranger(&'static str),
}

impl Guard {
    /// A guard without tokens.
    pub fn open() -> Guard {
        Guard(None)
    }

    /// A guard with the tokens of this file.
    ///
    /// # Errors
    /// See [`TokenTable::read`].
    pub fn of(file: PathBuf) -> Result<Guard, TokensError> {
        let table = RwLock::new(Arc::new(TokenTable::read(&file)?));
        Ok(Guard(Some(Tokens { file, table })))
    }

    /// Reads the file again; returns the number of its tokens, if there is a file. After an error the former tokens
    /// stay.
    ///
    /// # Errors
    /// See [`TokenTable::read`].
    pub fn reload(&self) -> Result<Option<usize>, TokensError> {
        let Some(tokens) = &self.0 else { return Ok(None) };
        let table = TokenTable::read(&tokens.file)?;
        let count = table.len();
        *tokens.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        Ok(Some(count))
    }

    /// Whether there are no tokens.
    pub fn is_open(&self) -> bool {
        self.0.is_none()
    }

    /// All tokens, without their hashes; none where no tokens are required.
    pub(crate) fn entries(&self) -> Vec<Arc<TokenEntry>> {
        let Some(tokens) = &self.0 else { return Vec::new() };
        tokens.table.read().unwrap_or_else(PoisonError::into_inner).entries().to_vec()
    }

    /// The caller of a request, by its headers.
    pub fn caller(&self, headers: &HeaderMap, now: WallMs) -> Caller {
        let Some(tokens) = &self.0 else { return Caller::Trusted };
        let mut sent = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(first), None) = (sent.next(), sent.next()) else {
            return Caller::Stranger("this server asks for a token: Authorization: Bearer dw_...");
        };
        let Some(token) = bearer(first.as_bytes()) else {
            return Caller::Stranger("the Authorization header must be: Bearer dw_...");
        };
        let table = Arc::clone(&tokens.table.read().unwrap_or_else(PoisonError::into_inner));
        match table.find(&Hash::of(token)) {
            None => Caller::Stranger("this token is not known"),
            Some(entry) if entry.expires.is_some_and(|end| end <= now) => {
                Caller::Stranger("this token has expired")
            }
            Some(entry) => Caller::Holder(entry),
        }
    }
}

/// The credentials after `Bearer`, in any case (RFC 9110, 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(6)?;
    let token = rest.strip_prefix(b" ")?.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty()).then_some(token)
}

impl Caller {
    /// Requires the permission for calls of this kind.
    ///
    /// # Errors
    /// `unauthorized` for invalid credentials, `forbidden` for a token without the scope.
    pub fn need(&self, scope: Scope) -> Result<(), Problem> {
        self.need_one_of(&[scope])
    }

    /// Requires the permission for calls that any of these scopes allows.
    ///
    /// # Errors
    /// Those of [`Caller::need`].
    pub(crate) fn need_one_of(&self, scopes: &[Scope]) -> Result<(), Problem> {
        match self {
            Caller::Trusted => Ok(()),
            Caller::Stranger(why) => Err(Problem::new(ErrorCode::Unauthorized, *why)),
            Caller::Holder(entry) if scopes.iter().any(|scope| entry.scopes.contains(scope)) => Ok(()),
            Caller::Holder(_) => {
                let what = format!("this token does not have the scope {}", Scope::either(scopes));
                Err(Problem::new(ErrorCode::Forbidden, what))
            }
        }
    }

    /// Requires valid credentials, where tokens are required.
    ///
    /// # Errors
    /// `unauthorized`.
    pub fn need_identity(&self) -> Result<(), Problem> {
        match self {
            Caller::Trusted | Caller::Holder(_) => Ok(()),
            Caller::Stranger(why) => Err(Problem::new(ErrorCode::Unauthorized, *why)),
        }
    }

    /// Whether the caller may use this queue.
    pub fn reaches(&self, queue: &QueueName) -> bool {
        match self {
            Caller::Trusted => true,
            Caller::Holder(entry) => entry.reaches(queue),
            Caller::Stranger(_) => false,
        }
    }

    /// The prefixes of the queues that the caller may use; `None` for all queues.
    pub fn limits(&self) -> Option<&[QueueName]> {
        match self {
            Caller::Trusted => None,
            Caller::Holder(entry) => entry.queues.as_deref(),
            Caller::Stranger(_) => Some(&[]),
        }
    }

    /// Whether the caller may see the use of a quota: all queues with this prefix are its own.
    pub fn sees_quota(&self, prefix: &str) -> bool {
        self.limits().is_none_or(|own| own.iter().any(|own| prefix.starts_with(own.as_str())))
    }

    /// A problem as the caller may read it: without the use of a quota that it may not see.
    pub(crate) fn readable(&self, problem: Problem) -> Problem {
        let Extra::OverQuota(over) = &problem.extra else { return problem };
        if self.sees_quota(&over.quota) {
            return problem;
        }
        let (resource, retry_ms) = (over.resource, over.retry_ms);
        let detail =
            format!("the limit of {resource} that this queue shares with others is reached; try again later");
        Problem { extra: Extra::SharedQuota(resource, retry_ms), ..Problem::new(problem.code, detail) }
    }

    /// Requires the permission for a queue.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn need_queue(&self, queue: &QueueName) -> Result<(), Problem> {
        if self.reaches(queue) {
            return Ok(());
        }
        Err(Problem::new(ErrorCode::Forbidden, format!("this token is not for the queue {queue}")))
    }

    /// Requires a token that is not limited to queues.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn need_all_queues(&self) -> Result<(), Problem> {
        if self.limits().is_none() {
            return Ok(());
        }
        let why = "this call is about the whole server, and this token is for some queues only";
        Err(Problem::new(ErrorCode::Forbidden, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_scheme_precedes_token() {
        for (value, token) in [
            ("Bearer dw_x", Some("dw_x")),
            ("bearer dw_x", Some("dw_x")),
            ("BEARER   dw_x  ", Some("dw_x")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Bearer\tdw_x", None),
            ("Bearerdw_x", None),
            ("Basic dw_x", None),
            ("dw_x", None),
            ("", None),
        ] {
            assert_eq!(bearer(value.as_bytes()), token.map(str::as_bytes), "{value:?}");
        }
    }
}
