//! Ways in for the fuzz targets (`proof/fuzz`): parsers that have no public face of their own. Behind the feature
//! `fuzzing`, and no part of the interface.

pub use crate::beanstalk::fuzzing as beanstalk;
pub use crate::http::fuzzing as http;
pub use duewheel_import::fuzzing as import;
