//! Ways in for the fuzz targets (`crates/fuzz`): parsers that have no public face of their own. Behind the feature
//! `fuzzing`, and no part of the interface.

pub use crate::beanstalk::fuzzing as beanstalk;
pub use crate::cli::import::fuzzing as import;
pub use crate::http::fuzzing as http;
