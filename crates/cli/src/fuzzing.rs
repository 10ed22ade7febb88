//! Entry points for the fuzz targets (`proof/fuzz`): parsers without a public interface of their own. They are behind
//! the feature `fuzzing`, and no part of the interface.

/// Replies of a beanstalkd to an import.
pub mod import {
    use crate::beanstalk_source::{self, JobStats, SourceStats};
    use crate::failure::CommandFailure;

    /// Parses one reply as each of the possible kinds: the result as text; `None` where it was refused.
    pub fn replies(text: &str) -> [Option<String>; 4] {
        fn parsed<T: std::fmt::Debug>(read: Result<T, CommandFailure>) -> Option<String> {
            match read {
                Ok(read) => Some(format!("{read:?}")),
                Err(CommandFailure::Failed(text)) => {
                    assert!(!text.chars().any(char::is_control), "a source writes to the terminal: {text:?}");
                    assert!(text.len() < 1_000, "{text}");
                    None
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        [
            parsed(SourceStats::parse(text)),
            parsed(beanstalk_source::jobs(text)),
            parsed(JobStats::parse(text)),
            parsed(beanstalk_source::tubes(text)),
        ]
    }

    /// The numbers of a line such as `FOUND 7 12`.
    pub fn numbers(line: &str, word: &str) -> Option<[u64; 2]> {
        beanstalk_source::numbers(line, word)
    }
}
