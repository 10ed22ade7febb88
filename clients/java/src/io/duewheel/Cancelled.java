package io.duewheel;

/**
 * The answer to a cancel.
 */
public record Cancelled(
        String result, String id, String key) {}
