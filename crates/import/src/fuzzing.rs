//! Parses replies of a beanstalkd, for the fuzz target alone.

use crate::reply;

/// Parses one reply as each of the possible kinds: the result as text; `None` where it was refused.
pub fn replies(bytes: &[u8]) -> [Option<String>; 4] {
    fn parsed<T: std::fmt::Debug>(read: Result<T, reply::BadReply>) -> Option<String> {
        match read {
            Ok(read) => Some(format!("{read:?}")),
            Err(broken) => {
                let text = broken.to_string();
                assert!(!text.chars().any(char::is_control), "a source writes to the terminal: {text:?}");
                assert!(text.len() < 1_000, "{text}");
                None
            }
        }
    }
    [
        parsed(reply::stats(bytes)),
        parsed(reply::stats_tube(bytes)),
        parsed(reply::stats_job(bytes)),
        parsed(reply::tubes(bytes)),
    ]
}

/// The numbers of a line such as `FOUND 7 12`.
pub fn numbers(line: &str, word: &str) -> Option<[u64; 2]> {
    reply::numbers(line, word)
}

/// Whether a tube may have this name.
pub fn is_name(name: &str) -> bool {
    reply::is_name(name)
}
