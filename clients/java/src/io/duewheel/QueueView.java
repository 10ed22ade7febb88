package io.duewheel;

import java.util.Map;

/** Counts and settings of a queue. */
public record QueueView(String queue, Counts counts, boolean paused, long waiters, Map<String, Object> config) {
    /** Messages by state. */
    public record Counts(long scheduled, long ready, long leased, long dead, boolean estimated) {}
}
