package io.duewheel;

import java.time.Duration;
import java.time.Instant;
import java.util.Map;

/**
 * A message to enqueue. What is not set is left to the settings of its queue; without {@link #delay} and {@link #dueAt} it
 * is due at once.
 *
 * <pre>{@code NewMessage.text("order 42").delay(Duration.ofHours(48)).key("order-42")}</pre>
 */
public final class NewMessage extends Fields<NewMessage> {
    private NewMessage() {}

    public static NewMessage text(String body) {
        return new NewMessage().set("body", body);
    }

    public static NewMessage bytes(byte[] body) {
        return new NewMessage().content(body);
    }

    /** A value of JSON, of the types that {@link Json#write} takes. The message gets {@code content-type: application/json}. */
    public static NewMessage json(Object value) {
        // A null is its text: as a value it would count as missing.
        return value == null ? text("null") : new NewMessage().set("json", value);
    }

    /** After this time, by elapsed time. */
    public NewMessage delay(Duration delay) {
        return set("delay_ms", delay);
    }

    /** At this instant, by the wall clock. */
    public NewMessage dueAt(Instant dueAt) {
        return set("due_at", dueAt);
    }

    /** If {@link #dueAt} has passed: {@code refuse} (the default), {@code fire} (due now) or {@code keep}. */
    public NewMessage past(String past) {
        return set("past", past);
    }

    /** Your own name for the message, unique among the unsettled ones of its queue. */
    public NewMessage key(String key) {
        return set("key", key);
    }

    /** If the key is taken: {@code reject} (the default), {@code keep}, {@code replace} or {@code supersede}. */
    public NewMessage ifExists(String ifExists) {
        return set("if_exists", ifExists);
    }

    /** Makes a repeated enqueue get the first answer. Without one the client makes one for the call. */
    public NewMessage dedupeId(String dedupeId) {
        return set("dedupe_id", dedupeId);
    }

    /** How long that is remembered. */
    public NewMessage dedupeWindow(Duration window) {
        return set("dedupe_window_ms", window);
    }

    /** Lower first; 1024 by default. */
    public NewMessage priority(long priority) {
        return set("priority", priority);
    }

    public NewMessage lease(Duration lease) {
        return set("lease_ms", lease);
    }

    /** Deliveries after which it is dead. */
    public NewMessage maxAttempts(long attempts) {
        return set("max_attempts", attempts);
    }

    /** The delay after a failed attempt: from {@code min}, doubled each time, up to {@code max}. */
    public NewMessage backoff(Duration min, Duration max) {
        return set("backoff", Map.of("min_ms", milliseconds("backoff", min), "max_ms", milliseconds("backoff", max)));
    }

    public NewMessage headers(Map<String, String> headers) {
        return set("headers", headers);
    }

    /** The URL that it is sent to in place of the queue's target. */
    public NewMessage targetUrl(String url) {
        return set("target_url", url);
    }

    /** Due at an instant of its own within this time after the due time. */
    public NewMessage spread(Duration spread) {
        return set("spread_ms", spread);
    }

    /** It expires so long after its due time. */
    public NewMessage expiresIn(Duration time) {
        return set("expires_in_ms", time);
    }

    public NewMessage expiresAt(Instant expiresAt) {
        return set("expires_at", expiresAt);
    }
}
