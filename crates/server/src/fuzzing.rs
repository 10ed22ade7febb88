//! Entry points for the fuzz targets (`proof/fuzz`): parsers without a public interface of their own. They are behind
//! the feature `fuzzing`, and no part of the interface.

pub use crate::beanstalk::fuzzing as beanstalk;
pub use crate::http::fuzzing as http;
