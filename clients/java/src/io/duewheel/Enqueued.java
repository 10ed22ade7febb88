package io.duewheel;

import java.time.Instant;

/**
 * A message that was accepted, or that existed already. {@code created} is false if it was kept, and {@code
 * state} is its state; {@code replayed}: the dedupe id was known; {@code replaced}, {@code superseded}: the
 * message whose key it has taken.
 */
public record Enqueued(
        String id, String queue, String key, Instant dueAt, long generation, boolean created, boolean replayed,
        String durability, String replaced, String superseded, String state) {}
