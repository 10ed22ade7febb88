//! The options of all client commands: the server's address and the credentials.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use crate::config::Insecure;

/// The server that a client command talks to, and the credentials.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// Print the answer as JSON, and an error as one JSON object on standard error
    #[arg(long, help_heading = "Options")]
    pub(crate) json: bool,
    /// The server's address
    #[arg(long, env = "DUEWHEEL_SERVER", value_name = "URL", default_value = "http://127.0.0.1:7788")]
    pub(crate) server: String,
    /// The token, if the server requires one. Other users of this machine can see options, so prefer DUEWHEEL_TOKEN or
    /// a file
    #[arg(long, env = "DUEWHEEL_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) token: Option<HiddenText>,
    /// A file that contains the token
    #[arg(long, env = "DUEWHEEL_TOKEN_FILE", value_name = "FILE", conflicts_with = "token")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificates of authorities (PEM) for https, in place of those that browsers trust
    #[arg(long, env = "DUEWHEEL_CA_CERT", value_name = "FILE")]
    pub(crate) ca_cert: Option<PathBuf>,
    /// Send the token to another machine even without https
    #[arg(long, env = "DUEWHEEL_INSECURE", value_name = "YES", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_parser = insecure)]
    pub(crate) insecure: Option<bool>,
}

/// The variable may be the server's, where it names listeners: such a value permits nothing for tokens.
fn insecure(text: &str) -> Result<bool, String> {
    text.parse()
        .or_else(|_| text.parse::<Insecure>().map(|_| false))
        .map_err(|_| "must be true or false".to_owned())
}

/// Text that is never shown, not even when it is invalid.
#[derive(Clone)]
pub(crate) struct HiddenText(pub(crate) String);

impl fmt::Debug for HiddenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl FromStr for HiddenText {
    type Err = Infallible;

    fn from_str(s: &str) -> Result<Self, Infallible> {
        Ok(HiddenText(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container may have the server's variable, and its client commands must continue to work.
    #[test]
    fn listener_insecure_value_exposes_no_token() {
        for (text, means) in
            [("true", Ok(true)), ("false", Ok(false)), ("http,peer", Ok(false)), ("none", Ok(false))]
        {
            assert_eq!(insecure(text), means, "{text}");
        }
        assert!(insecure("yes").is_err() && insecure("").is_err());
    }
}
