//! Tokens, which clients send and of which the server keeps hashes.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The prefix by which secret scanners find tokens.
const PREFIX: &str = "dw_";
const RANDOM_BYTES: usize = 32;

/// A bearer token: `dw_` and 256 random bits. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The token of these random bytes.
    pub fn of(random: [u8; RANDOM_BYTES]) -> Token {
        Token(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random)))
    }

    /// The text of the token, to be shown to its holder only.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl FromStr for Token {
    type Err = String;

    /// Parses the text of a token. The error does not repeat it.
    fn from_str(s: &str) -> Result<Self, String> {
        let random = s.strip_prefix(PREFIX).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        match random {
            Some(random) if random.len() == RANDOM_BYTES => Ok(Token(s.to_owned())),
            Some(_) | None => Err("this is not a token: it must be dw_ and 43 letters and digits".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_recognised_and_never_shown() {
        let (one, two) = (Token::of([1; 32]), Token::of([2; 32]));
        assert_ne!(one, two);
        assert!(one.reveal().starts_with("dw_") && one.reveal().len() == 46, "{}", one.reveal());
        assert_eq!(one.reveal().parse::<Token>().unwrap(), one);
        assert_eq!(format!("{one:?}"), "Token(..)");
        let short = &one.reveal()[..45];
        for bad in ["", "dw_", "secret", short, &format!("{}x", one.reveal()), &one.reveal()[3..]] {
            let why = bad.parse::<Token>().unwrap_err();
            assert!(bad.len() < 5 || !why.contains(bad), "{why}");
        }
    }
}
