//! Durable delayed messages, embedded: said once, done when due, cancellable by your own key.
