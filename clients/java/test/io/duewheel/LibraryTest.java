package io.duewheel;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** What the cases do not say. */
class LibraryTest {
    private static String url;
    private static Duewheel wheel;

    @BeforeAll
    static void start() {
        url = Servers.real(false);
        wheel = Duewheel.at(url).build();
    }

    @Test
    void jsonIsReadAndWritten() {
        String text = "{\"a\":[1,-2,0.5,1E+30,true,null],\"b\":{\"c\":\"\\\"\\\\\\n\\u0001é中😀\"},\"d\":{},\"e\":[],\"f\":12345678901234567890}";
        assertEquals(text, Json.write(Json.read(text)));
        assertEquals("\ud83d\ude00/", Json.read("\"\\ud83d\\ude00\\/\""));
        assertEquals("\"\\ud83d\"", Json.write("\ud83d"));
        for (String bad : List.of("", " ", "{", "[1,]", "{\"a\"}", "{a:1}", "01", "1.", "-", "nul", "\"\\x\"", "\"\\u12\"", "\"a\nb\"", "1 2", "[1", "'a'", "{\"a\":1,}", "\"")) {
            assertThrows(IllegalArgumentException.class, () -> Json.read(bad), bad);
        }
        assertThrows(IllegalArgumentException.class, () -> Json.read("[".repeat(100_000)));
        assertThrows(IllegalArgumentException.class, () -> Json.write(Double.NaN));
        assertThrows(IllegalArgumentException.class, () -> Json.write(new Object()));
    }

    @Test
    void lengthsAreRoundedUp() {
        Enqueued sent = wheel.enqueue("c.fine", NewMessage.bytes(new byte[] {-1, 0}).delay(Duration.ofHours(1)).expiresIn(Duration.ofNanos(1)).lease(Duration.ofMinutes(1)));
        View view = wheel.get(Which.id(sent.id()));
        assertEquals(Duration.ofMillis(1), Duration.between(view.dueAt(), view.expiresAt()));
        assertEquals(Duration.ofMinutes(1), view.lease());
        assertArrayEquals(new byte[] {-1, 0}, view.body());
    }

    @Test
    void whatCannotBeSentIsRefused() {
        assertEquals("delay_ms", assertThrows(DuewheelException.class, () -> NewMessage.text("x").delay(Duration.ofSeconds(-1))).field());
        for (String bad : List.of("localhost:7788", "http://a@b", "ftp://x", "http://x/?a=b")) {
            assertEquals("url", assertThrows(DuewheelException.class, () -> Duewheel.at(bad).build()).field());
        }
        assertEquals("key", assertThrows(DuewheelException.class, () -> Which.key("q", "")).field());
        assertThrows(IllegalArgumentException.class, () -> Worker.of(wheel, (message, token) -> {}));
    }

    @Test
    void batchesAboveTheLimitsOfTheServer() {
        List<NewMessage> many = IntStream.range(0, 10_050).mapToObj(i -> NewMessage.text("" + i).delay(Duration.ofHours(1))).toList();
        List<NewMessage> large = IntStream.range(0, 70).mapToObj(i -> NewMessage.text("x".repeat(250_000)).delay(Duration.ofHours(1))).toList();
        for (List<NewMessage> messages : List.of(many, large)) {
            List<Result<Enqueued>> results = wheel.enqueueMany("c.many", messages);
            assertEquals(messages.size(), results.size());
            results.forEach(result -> assertTrue(result.get().created()));
        }
        assertEquals(List.of(), wheel.enqueueMany("c.many", List.of()));
    }

    @Test
    void anInterruptEndsACall() throws Exception {
        AtomicInteger ended = new AtomicInteger();
        Thread waiting = new Thread(() -> {
            DuewheelException e = assertThrows(DuewheelException.class, () -> wheel.reserve(List.of("c.empty"), new Duewheel.Reserve().waiting(Duration.ofMinutes(1))));
            if (e.is("interrupted") && Thread.currentThread().isInterrupted()) ended.incrementAndGet();
        });
        waiting.start();
        Servers.until("the reserve waits", () -> waiters("c.empty") == 1);
        waiting.interrupt();
        waiting.join();
        assertEquals(1, ended.get());
    }

    private static long waiters(String queue) {
        try {
            return wheel.queue(queue).waiters();
        } catch (DuewheelException e) {
            return 0;
        }
    }

    @Test
    void delayedQueueHasTheCallsOfRedisson() throws Exception {
        DelayedQueue<String> queue = new DelayedQueue<>(wheel, "d.orders", Codec.TEXT);
        assertEquals(0, queue.size());
        queue.offer("order 42", 48, TimeUnit.HOURS);
        queue.offer("order 43", 48, TimeUnit.HOURS);
        assertTrue(queue.contains("order 42"));
        assertFalse(queue.contains("order 44"));
        assertNull(queue.poll());
        assertNull(queue.poll(50, TimeUnit.MILLISECONDS));
        long began = System.nanoTime();
        queue.offer("order 42", 300, TimeUnit.MILLISECONDS); // moved
        assertEquals(2, queue.size());
        assertEquals("order 42", queue.take());
        assertTrue(System.nanoTime() - began >= 300_000_000L, "never early");
        assertFalse(queue.contains("order 42"));
        assertTrue(queue.remove("order 43"));
        assertFalse(queue.remove("order 43"));
        assertEquals(0, queue.size());
        queue.offer("order 45", 0, TimeUnit.SECONDS);
        Servers.until("it is due", () -> "order 45".equals(queue.poll()));
        queue.offer("order 47", 0, TimeUnit.SECONDS);
        assertEquals("order 47", queue.poll(Long.MAX_VALUE, TimeUnit.DAYS), "for ever");
        // While one is leased, an equal one may come.
        queue.offer("order 46", 0, TimeUnit.SECONDS);
        Message leased = wheel.reserve(List.of("d.orders"), new Duewheel.Reserve().waiting(Duration.ofSeconds(10))).messages().get(0);
        assertFalse(queue.remove("order 46"));
        assertFalse(queue.contains("order 46"));
        queue.offer("order 46", 1, TimeUnit.HOURS);
        wheel.ack(leased);
        assertTrue(queue.contains("order 46"));
        assertEquals(Map.of("scheduled", 1L), Map.of("scheduled", wheel.queue("d.orders").counts().scheduled()));
    }

    @Test
    void takeEndsAtAnInterrupt() throws Exception {
        DelayedQueue<String> queue = new DelayedQueue<>(wheel, "d.empty", Codec.TEXT);
        AtomicInteger interrupted = new AtomicInteger();
        Thread taking = new Thread(() -> {
            assertThrows(InterruptedException.class, queue::take);
            interrupted.incrementAndGet();
        });
        taking.start();
        Servers.until("it waits", () -> waiters("d.empty") == 1);
        taking.interrupt();
        taking.join();
        assertEquals(1, interrupted.get());
    }

    @Test
    void workerRunsSoManyAtATime() throws Exception {
        for (int i = 0; i < 12; i++) wheel.enqueue("w." + i % 2, NewMessage.json(i));
        Set<Object> seen = Collections.synchronizedSet(new HashSet<>());
        AtomicInteger now = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        CountDownLatch three = new CountDownLatch(3);
        Worker worker = Worker.of(wheel, (message, token) -> {
            most.accumulateAndGet(now.incrementAndGet(), Math::max);
            three.countDown();
            assertTrue(three.await(1, TimeUnit.MINUTES), "three at a time");
            now.decrementAndGet();
            seen.add(message.json());
        }, "w.0", "w.1").concurrency(3).build();
        Thread running = new Thread(worker);
        running.start();
        Servers.until("all are done", () -> seen.size() == 12);
        worker.stop(null);
        running.join();
        assertEquals(3, most.get());
        assertEquals(0, wheel.queue("w.0").counts().leased());
    }

    @Test
    void workerGivesBackWhatAStopDoesNotWaitFor() throws Exception {
        Enqueued sent = wheel.enqueue("w.slow", NewMessage.text("x"));
        CountDownLatch begun = new CountDownLatch(1);
        Worker worker = Worker.of(wheel, (message, token) -> {
            token.onCancel(Thread.currentThread()::interrupt);
            begun.countDown();
            Thread.sleep(60_000);
        }, "w.slow").build();
        Thread running = new Thread(worker);
        running.start();
        begun.await();
        worker.stop(Duration.ofMillis(10));
        running.join();
        View view = wheel.get(Which.id(sent.id()));
        assertEquals(List.of("ready", 1), List.of(view.state(), view.forgiven()));
    }

    @Test
    void workerEndsWhenItsQueueIsRefused() {
        Worker worker = Worker.of(wheel, (message, token) -> {}, "-bad").build();
        assertEquals("bad_request", assertThrows(DuewheelException.class, worker::run).code());
        worker.stop(null);
    }

    /** A process with a worker that sleeps in its handler, for the test of SIGTERM. */
    static final class Process {
        public static void main(String[] arguments) {
            Worker.of(Duewheel.at(arguments[0]).build(), (message, token) -> {
                System.out.println("begun");
                Thread.sleep(500);
                System.out.println("finished");
            }, "w.term").build().run();
        }
    }

    @Test
    void drainsAtSigterm() throws Exception {
        Enqueued sent = wheel.enqueue("w.term", NewMessage.text("x"));
        java.lang.Process process = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-cp", System.getProperty("java.class.path"), Process.class.getName(), url)
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        assertEquals("begun", process.inputReader().readLine());
        process.toHandle().destroy(); // SIGTERM; that of the process would close its output
        assertEquals("finished", process.inputReader().readLine());
        process.waitFor();
        assertEquals("message_not_found", assertThrows(DuewheelException.class, () -> wheel.get(Which.id(sent.id()))).code());
    }
}
