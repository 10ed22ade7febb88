//! What makes calls comfortable: names in any script, several queues and messages in one request, bodies in JSON,
//! idempotency by header, settings, the page of errors, and ids of requests.

mod config;
mod enqueue;
mod examples;
mod forms;
mod names;
mod requests;
mod settle;
mod times;
mod words;
