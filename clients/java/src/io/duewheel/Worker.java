package io.duewheel;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BiConsumer;

/**
 * Leases messages of its queues and runs a handler for each, on virtual threads where Java has them. It waits in one reserve
 * over all queues, asks for no more than it can work on, and extends each lease at half its time while the handler runs.
 *
 * <pre>{@code
 * Worker worker = Worker.of(wheel, (message, token) -> close(message.text()), "close-review").concurrency(10).build();
 * worker.run(); // until worker.stop(…), or SIGTERM
 * }</pre>
 */
public final class Worker implements Runnable {
    /** How one reserve waits for messages. */
    private static final Duration WAIT = Duration.ofSeconds(20);
    /** The largest number of messages that a server grants at once. */
    private static final int MOST = 10_000;

    /**
     * Works on one message. When it returns the message is acked; when it throws it is nacked, and comes again after the
     * backoff. One that stops because its token is cancelled throws: if it returns, the ack counts if nobody has got the
     * message since.
     */
    @FunctionalInterface
    public interface Handler {
        void handle(Message message, Token token) throws Exception;
    }

    /** A {@link Handler} that returns the result of its message: what {@link Json} writes, of at most 16 KiB, or null. */
    @FunctionalInterface
    public interface Returning {
        Object handle(Message message, Token token) throws Exception;
    }

    /** Says whether a handler should go on. */
    public static final class Token {
        private boolean cancelled, over;
        private Runnable action;
        private CompletableFuture<Void> lease = new CompletableFuture<>();

        /** Whether the lease is lost, or has ended and no extend is answered, or a stop has waited long enough. */
        public synchronized boolean isCancelled() {
            return cancelled;
        }

        /** Runs this when the token is cancelled, such as {@code Thread.currentThread()::interrupt}; at once if it is. */
        public synchronized void onCancel(Runnable action) {
            if (cancelled) action.run();
            else this.action = action;
        }

        private synchronized void cancel() {
            if (cancelled || over) return;
            cancelled = true;
            if (action != null) action.run();
        }

        /** Without an answer the lease ends all the same, and another consumer may have the message. */
        private synchronized void holdsFor(Duration time) {
            lease.complete(null);
            if (over) return;
            lease = new CompletableFuture<Void>().orTimeout(time.toNanos(), TimeUnit.NANOSECONDS);
            lease.whenComplete((none, late) -> { if (late != null) cancel(); });
        }

        /** The handler has ended. */
        private synchronized void end() {
            over = true;
            lease.complete(null);
        }
    }

    /** What a handler throws to say what becomes of its message. */
    public static final class Verdict extends RuntimeException {
        private static final long serialVersionUID = 1;
        private final transient Nack nack;

        private Verdict(Nack nack, String text) {
            super(text, null, false, false);
            this.nack = nack;
        }
    }

    /** To throw: the message comes again after this time, and this delivery does not count. */
    public static Verdict notYet(Duration delay) {
        return new Verdict(Nack.notYet(delay), "not yet");
    }

    /** To throw: the message is dead at once, for this reason. No attempt can help. */
    public static Verdict dead(String reason) {
        return new Verdict(Nack.dead(reason), reason);
    }

    private final Builder options;
    private final ExecutorService threads = threads();
    private final Semaphore free;
    private volatile boolean stopping, started;
    /** A stop waits no longer. */
    private volatile boolean ending;
    private volatile long drainNanos = Long.MAX_VALUE;
    private Thread reserving;

    private Worker(Builder options) {
        this.options = options;
        this.free = new Semaphore(options.concurrency);
    }

    /** A worker on these queues. */
    public static Builder of(Duewheel wheel, Handler handler, String... queues) {
        return returning(wheel, (message, token) -> {
            handler.handle(message, token);
            return null;
        }, queues);
    }

    /** A worker whose handler returns results, which queues with {@code keep_done} keep. */
    public static Builder returning(Duewheel wheel, Returning handler, String... queues) {
        return new Builder(wheel, handler, List.of(queues));
    }

    /** How a worker is made. */
    public static final class Builder {
        private final Duewheel wheel;
        private final Returning handler;
        private final List<String> queues;
        private int concurrency = 1;
        private Duration lease;
        private boolean shutdownHook = true;
        private BiConsumer<DuewheelException, Message> onError = (error, message) -> {};

        private Builder(Duewheel wheel, Returning handler, List<String> queues) {
            if (queues.isEmpty()) throw new IllegalArgumentException("queues: there are none; name at least one");
            this.wheel = wheel;
            this.handler = handler;
            this.queues = queues;
        }

        /** Handlers that run at a time; 1 by default. */
        public Builder concurrency(int concurrency) {
            if (concurrency < 1) throw new IllegalArgumentException("concurrency: " + concurrency + " is no number of handlers; give 1 or more");
            this.concurrency = concurrency;
            return this;
        }

        /** The lease of each message; the message's own by default. */
        public Builder lease(Duration lease) {
            this.lease = lease;
            return this;
        }

        /** Whether the end of the JVM (SIGTERM) waits for the handlers that run; true by default. */
        public Builder shutdownHook(boolean hook) {
            this.shutdownHook = hook;
            return this;
        }

        /** Called with errors outside of handlers, such as lost leases. The message may be null. */
        public Builder onError(BiConsumer<DuewheelException, Message> onError) {
            this.onError = onError;
            return this;
        }

        public Worker build() {
            return new Worker(this);
        }
    }

    /**
     * Works until it is stopped, and returns when the handlers that run have ended.
     *
     * @throws DuewheelException what makes further work impossible, such as {@code unauthorized}
     */
    @Override
    public void run() {
        Thread ended = new Thread(() -> stop(null));
        started = true;
        if (options.shutdownHook) Runtime.getRuntime().addShutdownHook(ended);
        try {
            reserveAll();
        } finally {
            stopping = true;
            drain();
            threads.shutdown();
            synchronized (threads) {
                threads.notifyAll();
            }
            try {
                if (options.shutdownHook) Runtime.getRuntime().removeShutdownHook(ended);
            } catch (IllegalStateException e) {
                // The JVM ends already.
            }
        }
    }

    /**
     * Leases nothing more, and waits for the handlers that run, for ever if {@code drain} is null; after that time their
     * tokens are cancelled, and what they do not settle comes again when its lease ends.
     */
    public void stop(Duration drain) {
        if (drain != null) drainNanos = System.nanoTime() + drain.toNanos();
        stopping = true;
        synchronized (this) {
            if (reserving != null) reserving.interrupt();
        }
        try {
            synchronized (threads) {
                while (started && !threads.isShutdown()) threads.wait();
            }
        } catch (InterruptedException e) {
            throw Transport.interrupted(e);
        }
    }

    private void reserveAll() {
        for (int failures = 0; !stopping; ) {
            synchronized (this) {
                reserving = Thread.currentThread();
            }
            int max = 0, begun = 0;
            try {
                if (stopping) return;
                free.acquire();
                max = Math.min(1 + free.availablePermits(), MOST);
                free.acquireUninterruptibly(max - 1);
                Duewheel.Reserve reserve = new Duewheel.Reserve().max(max).waiting(WAIT).lease(options.lease);
                for (Message message : options.wheel.reserve(options.queues, reserve).messages()) {
                    threads.execute(() -> handle(message));
                    begun++;
                }
                failures = 0;
            } catch (InterruptedException e) {
                if (!stopping) throw Transport.interrupted(e);
            } catch (DuewheelException e) {
                if (stopping && e.is("interrupted")) return;
                if (!e.passes() && e.status() < 500) throw e;
                options.onError.accept(e, null);
                pause(Transport.backoff(failures++));
            } finally {
                free.release(max - begun);
                synchronized (this) {
                    reserving = null;
                    // It was for the reserve.
                    if (stopping) Thread.interrupted();
                }
            }
        }
    }

    private void pause(Duration time) {
        try {
            Transport.sleep(time);
        } catch (DuewheelException e) {
            if (!stopping) throw e;
            Thread.interrupted();
        }
    }

    private void drain() {
        try {
            while (!free.tryAcquire(options.concurrency, 20, TimeUnit.MILLISECONDS)) {
                if (drainNanos == Long.MAX_VALUE || System.nanoTime() - drainNanos < 0) continue;
                ending = true;
                // Those that are cut off have a moment to give their messages back.
                free.tryAcquire(options.concurrency, 2, TimeUnit.SECONDS);
                threads.shutdownNow();
                return;
            }
        } catch (InterruptedException e) {
            threads.shutdownNow();
            throw Transport.interrupted(e);
        }
    }

    private void handle(Message message) {
        Token token = new Token();
        token.holdsFor(message.lease());
        AtomicReference<DuewheelException> lost = new AtomicReference<>();
        Future<?> extending = threads.submit(() -> extend(message, token, lost));
        Nack nack = null;
        Object result = null;
        try {
            result = options.handler.handle(message, token);
            Json.write(result); // that it is no JSON is the handler's failure
        } catch (Verdict verdict) {
            nack = verdict.nack;
        } catch (Throwable e) {
            // At the end of a stop, that is to blame, not the message.
            if (ending) nack = Nack.notYet(Duration.ZERO).reason("the worker stops");
            else nack = Nack.failed().reason(e.getMessage() == null ? e.toString() : e.getMessage());
        }
        extending.cancel(true);
        token.end();
        // A handler that its token has interrupted must not end the settle.
        Thread.interrupted();
        try {
            // Work that is done may count all the same: the server says so.
            if (nack == null) ack(message, result);
            else if (lost.get() == null) options.wheel.nack(message, nack);
            else options.onError.accept(lost.get(), message);
        } catch (DuewheelException e) {
            options.onError.accept(e, message);
        } finally {
            free.release();
        }
    }

    private void ack(Message message, Object result) {
        try {
            options.wheel.ack(message, result);
        } catch (DuewheelException e) {
            if (result == null || !e.is("bad_request", "body_too_large")) throw e;
            // The work is done all the same.
            options.onError.accept(e, message);
            options.wheel.ack(message);
        }
    }

    /** Extends the lease at half its time until the handler is done, which interrupts it. */
    private void extend(Message message, Token token, AtomicReference<DuewheelException> lost) {
        Duration lease = options.lease == null ? message.lease() : options.lease;
        try {
            for (long next = System.nanoTime() + lease.toNanos() / 2; ; ) {
                // Short sleeps, because the end of a stop also cancels the token.
                Thread.sleep(Math.max(1, Math.min(50, (next - System.nanoTime()) / 1_000_000)));
                if (ending) token.cancel();
                if (System.nanoTime() - next < 0) continue;
                next = System.nanoTime() + lease.toNanos() / (extended(message, lease, token, lost) ? 2 : 6);
                if (lost.get() != null) return;
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private boolean extended(Message message, Duration lease, Token token, AtomicReference<DuewheelException> lost) {
        try {
            options.wheel.extend(message, lease);
            token.holdsFor(lease);
            return true;
        } catch (DuewheelException e) {
            if (e.is("lease_lost", "message_not_found", "not_found")) {
                lost.set(e);
                token.cancel();
            } else if (!e.is("interrupted")) {
                // That says nothing of the lease.
                options.onError.accept(e, message);
            }
            return false;
        }
    }

    /** Virtual threads where there are some (Java 21), else threads that do not keep the JVM running. */
    private static ExecutorService threads() {
        try {
            return (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
        } catch (ReflectiveOperationException e) {
            return Executors.newCachedThreadPool(task -> {
                Thread thread = new Thread(task, "duewheel-worker");
                thread.setDaemon(true);
                return thread;
            });
        }
    }
}
