//! Entry points for the fuzz targets (`crates/fuzz`): parsers without a public interface. Behind the feature `fuzzing`,
//! and no part of the interface.

pub use crate::beanstalk::fuzzing as beanstalk;
pub use crate::cli::import::fuzzing as import;
pub use crate::http::fuzzing as http;
