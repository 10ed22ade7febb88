package io.duewheel;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * A queue of elements that can be taken when their delay is over, with the calls of Redisson's {@code RDelayedQueue} and of
 * the queue behind it.
 *
 * <pre>{@code
 * DelayedQueue<String> orders = new DelayedQueue<>(wheel, "close-review", Codec.TEXT);
 * orders.offer("order 42", 48, TimeUnit.HOURS);
 * String due = orders.take();
 * }</pre>
 *
 * <p>The differences: equal elements are one, and a second offer moves it (its key is the SHA-256 of the encoded element,
 * in hexadecimal digits); nothing has to be created, started or destroyed; an offer is on the disk when it returns.
 *
 * <p>As there, an element is gone once it is taken, whether or not it was worked on: if the process dies in between, it is
 * lost. If a call is cut off by an error or an interrupt, or its answer is lost, the element may come again when its lease of 30 s
 * is over. A
 * {@link Worker} on the same queue keeps each element until its handler is done.
 */
public final class DelayedQueue<T> {
    private static final Duration WAIT = Duration.ofSeconds(20);
    private static final Duration LEASE = Duration.ofSeconds(30);

    private final Duewheel wheel;
    private final String queue;
    private final Codec<T> codec;

    public DelayedQueue(Duewheel wheel, String queue, Codec<T> codec) {
        this.wheel = wheel;
        this.queue = queue;
        this.codec = codec;
    }

    /** The element can be taken after this delay. An equal one that was there is moved. */
    public void offer(T element, long delay, TimeUnit unit) {
        byte[] body = codec.encode(element);
        Duration time = Duration.of(delay, unit.toChronoUnit());
        wheel.enqueue(queue, NewMessage.bytes(body).delay(time).key(key(body)).ifExists("supersede"));
    }

    /** The next element that is due; waits for one. */
    public T take() throws InterruptedException {
        while (true) {
            T element = poll(WAIT.toMillis(), TimeUnit.MILLISECONDS);
            if (element != null) return element;
        }
    }

    /** The next element that is due, or null. */
    public T poll() {
        return next(Duration.ZERO);
    }

    /** The next element that is due, or null if none is within this time. */
    public T poll(long time, TimeUnit unit) throws InterruptedException {
        try {
            // Saturated: Long.MAX_VALUE of any unit means for ever.
            return next(Duration.ofNanos(unit.toNanos(time)));
        } catch (DuewheelException e) {
            if (!e.is("interrupted")) throw e;
            Thread.interrupted();
            throw (InterruptedException) new InterruptedException().initCause(e);
        }
    }

    private T next(Duration wait) {
        for (long ends = System.nanoTime() + wait.toNanos(); ; ) {
            Duration left = Duration.ofNanos(Math.max(0, ends - System.nanoTime()));
            // The server waits ten minutes at most.
            Duration now = left.compareTo(WAIT) < 0 ? left : WAIT;
            for (Message message : wheel.reserve(List.of(queue), new Duewheel.Reserve().waiting(now).lease(LEASE)).messages()) {
                T element = codec.decode(message.body());
                try {
                    wheel.ack(message);
                    return element;
                } catch (DuewheelException e) {
                    if (!e.is("lease_lost", "message_not_found")) throw e;
                    // The first attempt may have acked it, and its answer is missing; else another consumer has it by now.
                    if (e.outcome() == DuewheelException.Outcome.UNKNOWN) return element;
                }
            }
            if (ends - System.nanoTime() <= 0) return null;
        }
    }

    /** Removes the element; false if it is not there, or being taken. */
    public boolean remove(T element) {
        try {
            wheel.cancel(which(element));
            return true;
        } catch (DuewheelException e) {
            // The first attempt may have removed it, and its answer is missing.
            if (e.is("message_not_found")) return e.outcome() == DuewheelException.Outcome.UNKNOWN;
            if (e.is("leased")) return false;
            throw e;
        }
    }

    /** Whether the element waits for its time, or to be taken. */
    public boolean contains(T element) {
        try {
            return List.of("scheduled", "ready").contains(wheel.get(which(element)).state());
        } catch (DuewheelException e) {
            if (e.is("message_not_found")) return false;
            throw e;
        }
    }

    /** How many elements wait for their time, or to be taken. */
    public long size() {
        try {
            QueueView.Counts counts = wheel.queue(queue).counts();
            return counts.scheduled() + counts.ready();
        } catch (DuewheelException e) {
            if (e.is("not_found")) return 0;
            throw e;
        }
    }

    private Which which(T element) {
        return Which.key(queue, key(codec.encode(element)));
    }

    private static String key(byte[] body) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body));
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException("every Java has SHA-256", e);
        }
    }
}
