package io.duewheel;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Map;

/**
 * A message under a lease: the right to work on it until {@code leaseUntil}, which {@code leaseToken} proves. {@code attempt}
 * counts deliveries, this one included; {@code lateness} is the time from its due time to its grant; {@code late}: it had
 * expired.
 */
public record Message(
        String id, String queue, String key, byte[] body, Map<String, String> headers, String targetUrl, int attempt, long priority,
        long generation, Instant dueAt, String leaseToken, Instant leaseUntil, Duration lease, Duration lateness, boolean late) {

    /** The body as text. What is not UTF-8 becomes U+FFFD. */
    public String text() {
        return new String(body, StandardCharsets.UTF_8);
    }

    /** The body, read by {@link Json#read}. */
    public Object json() {
        return Json.read(text());
    }
}
