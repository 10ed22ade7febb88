//! What the dashboard is made of, and the figures that it reads.

use serde_json::Value;

use crate::fixture::Server;
