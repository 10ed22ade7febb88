package io.duewheel;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;

/**
 * The present state of a message: {@code scheduled}, {@code ready}, {@code leased}, {@code dead}, or {@code done} with
 * {@code outcome} and the {@code result} of its ack. After a change it comes without body, headers and history. Members that do not apply are null or 0.
 */
public record View(
        String id, String queue, String key, byte[] body, Map<String, String> headers, String state, Instant dueAt, Duration dueIn,
        int attempt, int forgiven, long maxAttempts, long generation, long priority, Duration lease, Instant enqueuedAt, Instant leaseUntil,
        Instant expiresAt, Instant endedAt, String deadReason, String outcome, Object result, String supersededBy, List<Attempt> history) {

    /** An attempt that has ended: how, and the reason that its consumer gave. */
    public record Attempt(int attempt, Instant grantedAt, Instant endedAt, String how, String note) {}

    /** The body as text. What is not UTF-8 becomes U+FFFD. */
    public String text() {
        return new String(body, StandardCharsets.UTF_8);
    }
}
