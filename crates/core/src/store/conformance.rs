//! The suite that every store runs; see [`super::Store`] for the obligations it checks.
