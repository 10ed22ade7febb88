//! A timing wheel that takes time as an argument: generic, no clock, no threads.
