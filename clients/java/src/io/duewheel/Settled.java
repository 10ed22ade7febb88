package io.duewheel;

import java.time.Instant;

/**
 * The answer to an ack ({@code acked}, {@code already}), a nack ({@code again}, {@code dead}, {@code
 * superseded}) or an extend ({@code extended}).
 */
public record Settled(
        String result, Instant dueAt, String deadReason, Instant leaseUntil, String durability) {}
