//! `GET /v1/token` and `GET /v1/tokens`: the caller's permissions, and the list of tokens. No hash leaves the server.

use axum::http::StatusCode;
use duewheel::core::QueueName;
use schemars::JsonSchema;
use serde::Serialize;

use super::call::Call;
use super::{Answer, reply};
use crate::auth::{Caller, Scope, TokenEntry};
use crate::json::InstantText;
use crate::schema::QueueSchema;

/// Returns the caller's permissions to every valid token; an open server answers that all calls are permitted.
pub(crate) async fn token(call: Call) -> Answer {
    let token = match &call.caller {
        Caller::Holder(entry) => Some(TokenAnswer::of(entry)),
        Caller::Trusted | Caller::Stranger(_) => None,
    };
    let answer = IdentityAnswer { open: call.app.guard.is_open(), token };
    Ok(reply(StatusCode::OK, &answer))
}

pub(crate) async fn tokens(call: Call) -> Answer {
    let entries = call.app.guard.entries();
    let tokens = entries.iter().map(|entry| TokenAnswer::of(entry)).collect();
    Ok(reply(StatusCode::OK, &TokensAnswer { tokens }))
}

/// The permissions of the caller.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Identity")]
pub(crate) struct IdentityAnswer<'a> {
    /// Whether the server requires no tokens, so that every caller may make every call.
    pub(super) open: bool,
    /// The caller's token; `null` where none is required.
    pub(super) token: Option<TokenAnswer<'a>>,
}

/// All tokens that the server knows.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Tokens")]
pub(crate) struct TokensAnswer<'a> {
    pub(super) tokens: Vec<TokenAnswer<'a>>,
}

/// The permissions of a token, without the token.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Token")]
pub(crate) struct TokenAnswer<'a> {
    pub(super) name: &'a str,
    #[schemars(with = "Vec<String>")]
    pub(super) scopes: Vec<Scope>,
    /// The prefixes of its queues; `null` for all queues.
    #[schemars(with = "Option<Vec<QueueSchema>>")]
    pub(super) queues: Option<Vec<&'a str>>,
    /// The time from which on it is invalid; `null` for never.
    pub(super) expires: Option<InstantText>,
}

impl<'a> TokenAnswer<'a> {
    fn of(entry: &'a TokenEntry) -> Self {
        TokenAnswer {
            name: &entry.name,
            scopes: entry.scopes.iter().copied().collect(),
            queues: entry.queues.as_ref().map(|all| all.iter().map(QueueName::as_str).collect()),
            expires: entry.expires.map(InstantText),
        }
    }
}
