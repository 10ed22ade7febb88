package io.duewheel;

import java.time.Duration;
import java.time.Instant;
import java.util.Map;

/** A change of a scheduled or ready message. What is not set stays. */
public final class Change extends Fields<Change> {
    public static Change delay(Duration delay) {
        return new Change().set("delay_ms", delay);
    }

    public static Change dueAt(Instant dueAt) {
        return new Change().set("due_at", dueAt);
    }

    public Change past(String past) {
        return set("past", past);
    }

    public Change body(byte[] body) {
        return content(body);
    }

    public Change json(Object value) {
        return set("json", value);
    }

    public Change headers(Map<String, String> headers) {
        return set("headers", headers);
    }

    public Change priority(long priority) {
        return set("priority", priority);
    }

    public Change maxAttempts(long attempts) {
        return set("max_attempts", attempts);
    }

    public Change lease(Duration lease) {
        return set("lease_ms", lease);
    }

    /** Only if this is the message's generation; else {@code generation_mismatch}. */
    public Change ifGeneration(long generation) {
        return set("if_generation", generation);
    }
}
