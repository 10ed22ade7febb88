package io.duewheel;

import java.time.Duration;

/** What becomes of a message that is not done. */
public final class Nack extends Fields<Nack> {
    private Nack() {}

    /** It comes again after the backoff. */
    public static Nack failed() {
        return new Nack();
    }

    /** It comes again after this time. */
    public static Nack after(Duration delay) {
        return new Nack().set("delay_ms", delay);
    }

    /** It comes again after this time, and this delivery does not count against its attempts. */
    public static Nack notYet(Duration delay) {
        return after(delay).set("attempt", false);
    }

    /** It is dead at once: no attempt can help. */
    public static Nack dead(String reason) {
        return new Nack().set("dead", true).reason(reason);
    }

    /** Kept in the message's history, cut to 256 bytes. */
    public Nack reason(String reason) {
        return set("reason", reason);
    }
}
