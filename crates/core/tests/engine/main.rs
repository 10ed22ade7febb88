//! Tests of the engine: inputs in, literal effects out; and a model, over random histories.
#![allow(unreachable_pub)] // one binary of several modules

mod harness;
mod literal;
mod loading;
mod model;
