package io.duewheel;

import java.util.List;

/** One message: by its id, or by queue and key, as the path of its calls. */
public record Which(List<String> path) {
    public static Which id(String id) {
        return new Which(List.of("v1", "messages", id));
    }

    public static Which key(String queue, String key) {
        if (key.isEmpty()) throw DuewheelException.refusal("bad_request", "key", "key: it is empty; give 1 to 512 bytes");
        return new Which(List.of("v1", "queues", queue, "keys", key));
    }
}
