//! Shared pieces of the benchmarks.

pub mod instant;
pub mod machine;
pub mod medium;
pub mod message;
pub mod process;
pub mod server;
pub mod submit;

/// The median, the upper one of two; 0 without a value.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
