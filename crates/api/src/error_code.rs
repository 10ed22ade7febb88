//! The codes of errors: for each one word, one HTTP status, and one paragraph in `docs/errors.md`.

use http::StatusCode;

/// The table of codes: name, word, HTTP status, reply of beanstalkd's protocol where the code has one of its own, and
/// meaning.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident $word:literal $status:ident $($reply:literal)?: $summary:literal;)*) => {
        /// The stable code of an error. Codes are never renamed or reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
        pub enum ErrorCode {
            $($(#[$doc])* $code,)*
        }

        impl ErrorCode {
            /// All codes, by status.
            pub const ALL: [ErrorCode; [$($word),*].len()] = [$(ErrorCode::$code),*];

            /// The code in JSON.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(ErrorCode::$code => $word,)*
                }
            }

            /// The meaning of the code, in one sentence.
            pub fn summary(self) -> &'static str {
                match self {
                    $(ErrorCode::$code => $summary,)*
                }
            }

            /// The HTTP status of the code.
            pub fn status(self) -> StatusCode {
                match self {
                    $(ErrorCode::$code => StatusCode::$status,)*
                }
            }

            /// The reply of beanstalkd's protocol for the code, where the case has no reply of its own.
            pub fn beanstalk(self) -> &'static str {
                match self {
                    $($(ErrorCode::$code => $reply,)?)*
                    _ => "INTERNAL_ERROR\r\n",
                }
            }
        }
    };
}

// beanstalkd has no reply `FORBIDDEN`; a listener that is limited to some queues has no better one. `OUT_OF_MEMORY`: "The
// client should try again later."
codes! {
    /// The request does not follow the documentation.
    BadRequest "bad_request" BAD_REQUEST:
        "Something about the request is not as documented; `field` names it.";
    /// Missing or invalid credentials.
    Unauthorized "unauthorized" UNAUTHORIZED:
        "The token is missing or not valid.";
    /// The token does not permit this.
    Forbidden "forbidden" FORBIDDEN "FORBIDDEN\r\n":
        "The token does not allow this call.";
    /// The request comes from a web page of another origin.
    CrossOrigin "cross_origin" FORBIDDEN:
        "The call comes from a web page of another origin, or names a host that is not this server.";
    /// No such path.
    NotFound "not_found" NOT_FOUND:
        "There is nothing at this path, or no such queue.";
    /// Nothing is pending under this id or key.
    MessageNotFound "message_not_found" NOT_FOUND "NOT_FOUND\r\n":
        "Nothing is pending under this id or key: it was delivered, cancelled, or never there.";
    /// The path does not support the method.
    MethodNotAllowed "method_not_allowed" METHOD_NOT_ALLOWED:
        "The path does not have this method.";
    /// The request's body did not arrive in time.
    RequestTimeout "request_timeout" REQUEST_TIMEOUT:
        "The body of the request did not arrive in time.";
    /// Another message has the key.
    KeyExists "key_exists" CONFLICT:
        "Another message has this key.";
    /// A consumer has the message.
    Leased "leased" CONFLICT:
        "A consumer has the message.";
    /// The message is dead.
    Dead "dead" CONFLICT:
        "The message is dead.";
    /// The message is not dead.
    NotDead "not_dead" CONFLICT:
        "The message is not dead.";
    /// The message is neither done nor dead.
    NotDone "not_done" CONFLICT:
        "The message is neither done nor dead.";
    /// The lease has ended, or is no longer the message's latest.
    LeaseLost "lease_lost" CONFLICT "NOT_FOUND\r\n":
        "The lease is over: the message was settled, or another consumer has it or had it since.";
    /// The message no longer has the generation that the request names.
    GenerationMismatch "generation_mismatch" CONFLICT:
        "The message was changed meanwhile.";
    /// More messages match than the request expects.
    Changed "changed" CONFLICT:
        "More messages match than `expect` says; nothing was done, except that a purge may have emptied some shards.";
    /// The `dedupe_id` stands for another content.
    DedupeMismatch "dedupe_mismatch" CONFLICT:
        "The `dedupe_id` was used for another content in this queue.";
    /// The queue is paused.
    Paused "paused" CONFLICT:
        "The queue is paused.";
    /// The queue is in use.
    InUse "in_use" CONFLICT:
        "Consumers wait on the queue, or connections use it.";
    /// The body is too large.
    BodyTooLarge "body_too_large" PAYLOAD_TOO_LARGE "JOB_TOO_BIG\r\n":
        "The request, or the body of a message in it, has more bytes than it may have.";
    /// The body is neither JSON nor NDJSON.
    UnsupportedMediaType "unsupported_media_type" UNSUPPORTED_MEDIA_TYPE:
        "The body of the request is neither JSON nor NDJSON, or is encoded.";
    /// The due time has passed.
    InThePast "in_the_past" UNPROCESSABLE_ENTITY:
        "The due time has passed.";
    /// A limit is reached.
    Overloaded "overloaded" TOO_MANY_REQUESTS "OUT_OF_MEMORY\r\n":
        "A limit of the server is reached, or its store is behind.";
    /// The tenant has used up its quota.
    OverQuota "over_quota" TOO_MANY_REQUESTS "OUT_OF_MEMORY\r\n":
        "The quota of this queue is used up.";
    /// The request has too many bytes of headers.
    HeadersTooLarge "headers_too_large" REQUEST_HEADER_FIELDS_TOO_LARGE:
        "The request has too many bytes of headers.";
    /// A bug in duewheel.
    Internal "internal" INTERNAL_SERVER_ERROR:
        "A bug in duewheel.";
    /// The server is shutting down.
    Draining "draining" SERVICE_UNAVAILABLE "DRAINING\r\n":
        "The server accepts nothing new because it is about to stop.";
    /// The store failed.
    StorageUnavailable "storage_unavailable" SERVICE_UNAVAILABLE:
        "The store does not work; `outcome` says whether the request may have been applied.";
    /// The outcome of a line of a batch is unknown: it may have been applied.
    Unknown "unknown" SERVICE_UNAVAILABLE:
        "It is unknown whether this line was applied.";
    /// No room for new messages.
    DiskFull "disk_full" INSUFFICIENT_STORAGE "OUT_OF_MEMORY\r\n":
        "The disk has no room for new or changed messages.";
}

impl ErrorCode {
    /// The code that this word in JSON stands for; `None` for words of later versions.
    pub fn of(word: &str) -> Option<ErrorCode> {
        ErrorCode::ALL.into_iter().find(|code| code.as_str() == word)
    }

    /// The `type` of a problem: the section about the code in the page that the server has at `/errors`.
    pub fn reference(self) -> String {
        format!("/errors#{}", self.as_str())
    }

    /// Whether the same request may succeed a little later; the answer then asks the client to wait.
    pub fn is_passing(self) -> bool {
        [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE, StatusCode::INSUFFICIENT_STORAGE]
            .contains(&self.status())
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for ErrorCode {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Code".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string", "examples": ErrorCode::ALL.map(ErrorCode::as_str),
            "description": "What went wrong, in one stable word. Later versions may have more words than the examples; \
                /errors has a paragraph for each.",
        })
    }
}
