//! The server from outside: over real sockets in this process with virtual time, and as a real process.

mod backup;
mod bad_input;
mod batch;
mod beanstalk;
mod beanstalkd;
mod bugs;
mod command_line;
mod delays;
mod fixture;
mod health;
mod import;
mod limits;
mod long_poll;
mod metrics;
mod operations;
mod peer;
mod process;
mod queues;
mod quotas;
mod redis;
mod salvage;
mod schema;
mod security;
mod shards;
