package io.duewheel;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.junit.jupiter.api.Test;

/** Servers and proxies that fail in ways that no case has. */
class FailuresTest {
    private static final Message LEASED = leased("1", Duration.ofSeconds(30));

    private static Message leased(String id, Duration lease) {
        return new Message(id, "q", null, new byte[0], Map.of(), null, 1, 0, 1, Instant.EPOCH, "t", Instant.EPOCH, lease, Duration.ZERO, false);
    }

    /**
     * A server that gives these answers, one after the other, and the last one again and again: statuses, or bodies of 200. An
     * empty one closes the connection, "hang" never ends.
     */
    private static final class Answering {
        final List<String> asked = Collections.synchronizedList(new ArrayList<>());
        final Duewheel wheel;

        Answering(String... answers) throws IOException {
            List<String> left = new ArrayList<>(Arrays.asList(answers));
            HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
            server.setExecutor(Executors.newCachedThreadPool(task -> {
                Thread thread = new Thread(task);
                thread.setDaemon(true);
                return thread;
            }));
            server.createContext("/", exchange -> {
                String answer;
                synchronized (left) {
                    asked.add(new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8));
                    answer = left.size() > 1 ? left.remove(0) : left.get(0);
                }
                if (answer.equals("hang")) return;
                if (answer.isEmpty()) {
                    exchange.close();
                    return;
                }
                boolean failure = answer.matches("\\d{3}");
                exchange.getResponseHeaders().set("Content-Type", failure ? "text/html" : "application/json");
                byte[] bytes = answer.getBytes(StandardCharsets.UTF_8);
                exchange.sendResponseHeaders(failure ? Integer.parseInt(answer) : answer.startsWith("{\"status\":409") ? 409 : 200, bytes.length);
                exchange.getResponseBody().write(bytes);
                exchange.close();
            });
            server.start();
            wheel = Duewheel.at("http://127.0.0.1:" + server.getAddress().getPort()).timeout(Duration.ofHours(1)).build();
        }
    }

    @Test
    void settlesAreRepeatedAfterAnyFailureOfAServer() throws Exception {
        Answering server = new Answering("500", "502", "504", "", "{\"result\":\"acked\"}");
        assertEquals("acked", server.wheel.ack(LEASED).result());
        assertEquals(5, server.asked.size());
    }

    @Test
    void extendsDoNotWaitForADeadConnection() throws Exception {
        Answering server = new Answering("hang", "{\"result\":\"extended\"}");
        assertEquals("extended", server.wheel.extend(LEASED, Duration.ofSeconds(1)).result());
        assertEquals(2, server.asked.size());
    }

    @Test
    void itemsThatWerePutOffAreSentAgain() throws Exception {
        String put = "{\"id\":\"1\",\"status\":503,\"code\":\"storage_unavailable\",\"outcome\":\"unknown\",\"retry_after_ms\":1}";
        Answering server = new Answering(
                "{\"results\":[" + put + ",{\"id\":\"2\",\"result\":\"acked\"},{\"id\":\"3\",\"status\":409,\"code\":\"lease_lost\"}]}",
                "{\"results\":[{\"id\":\"1\",\"status\":500,\"code\":\"internal\",\"retry_after_ms\":1}]}",
                "{\"results\":[{\"id\":\"1\",\"result\":\"already\"}]}");
        List<Result<Settled>> results = server.wheel.ackMany(List.of(LEASED, leased("2", null), leased("3", null)));
        assertEquals(List.of("already", "acked", "lease_lost"),
                List.of(results.get(0).get().result(), results.get(1).get().result(), results.get(2).error().code()));
        assertEquals(3, server.asked.size());
        assertTrue(server.asked.get(1).contains("\"1\"") && !server.asked.get(1).contains("\"2\"") && !server.asked.get(1).contains("\"3\""));

        server = new Answering("{\"results\":[" + put + ",{\"id\":\"2\",\"result\":\"cancelled\"}]}", "{\"results\":[{\"status\":404,\"code\":\"message_not_found\"}]}");
        List<Result<Cancelled>> cancelled = server.wheel.cancelMany("q", List.of("a", "b"));
        assertEquals("{\"keys\":[\"a\"]}", server.asked.get(1));
        assertEquals(DuewheelException.Outcome.UNKNOWN, cancelled.get(0).error().outcome());
        assertEquals("2", cancelled.get(1).get().id());
    }

    @Test
    void nothingIsSentOfABatchWithAMessageThatCannotBe() throws Exception {
        Answering server = new Answering("409");
        List<NewMessage> messages = new ArrayList<>(Collections.nCopies(10_001, NewMessage.text("x")));
        messages.add(NewMessage.json(new Object()));
        assertThrows(IllegalArgumentException.class, () -> server.wheel.enqueueMany("q", messages));
        assertEquals(List.of(), server.asked);
    }

    @Test
    void aKeyWithHalfOfASurrogatePairIsRefused() throws Exception {
        Answering server = new Answering("{\"result\":\"cancelled\",\"id\":\"1\"}");
        assertThrows(IllegalArgumentException.class, () -> server.wheel.cancel(Which.key("q", "a\ud800")));
        assertEquals(List.of(), server.asked);
    }

    @Test
    void workersKeepALeaseOfWhichNothingIsKnown() throws Exception {
        Answering server = new Answering("{\"messages\":[{\"id\":\"1\",\"lease_token\":\"t\",\"lease_ms\":12000}]}", "401", "404", "{\"result\":\"extended\"}");
        AtomicInteger reported = new AtomicInteger();
        AtomicInteger cancelled = new AtomicInteger();
        Worker[] worker = new Worker[1];
        worker[0] = Worker.of(server.wheel, (message, token) -> {
            token.onCancel(cancelled::incrementAndGet);
            new Thread(() -> worker[0].stop(null)).start();
            Servers.until("it is extended", () -> server.asked.size() > 3 || token.isCancelled());
        }, "q").onError((error, message) -> reported.incrementAndGet()).shutdownHook(false).build();
        worker[0].run();
        assertEquals(List.of(2, 0), List.of(reported.get(), cancelled.get()));
        assertEquals("{\"lease_token\":\"t\"}", server.asked.get(server.asked.size() - 1), "it is acked");
    }

    @Test
    void anElementWhoseAckMayHaveBeenAppliedIsTaken() throws Exception {
        String grants = "{\"messages\":[{\"id\":\"1\",\"lease_token\":\"t\",\"lease_ms\":30000,\"body\":\"order 42\"}]}";
        String lost = "{\"status\":409,\"code\":\"lease_lost\"}";
        assertEquals("order 42", new DelayedQueue<>(new Answering(grants, "", lost).wheel, "q", Codec.TEXT).poll());
        assertNull(new DelayedQueue<>(new Answering(grants, lost, "{\"messages\":[]}").wheel, "q", Codec.TEXT).poll());
    }

    @Test
    void errorsDoNotShowTokens() {
        for (String bad : List.of("http://:dw_secret@host", "http://dw_secret@host:1", "http://dw_se@cret@host", "http://host/?token=dw_secret", "ftp://:dw_secret@host")) {
            String said = assertThrows(DuewheelException.class, () -> Duewheel.at(bad).build()).getMessage();
            assertFalse(said.contains("dw_se") || said.contains("cret"), said);
        }
    }

    @Test
    void unsignedHeadersThatCannotBeReadFailNoWebhook() throws Exception {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec("secret".getBytes(StandardCharsets.UTF_8), "HmacSHA256"));
        String signature = Base64.getEncoder().encodeToString(mac.doFinal("m.1000.x".getBytes(StandardCharsets.UTF_8)));
        Map<String, String> headers = new HashMap<>(Map.of("webhook-id", "m", "webhook-timestamp", "1000", "webhook-signature", "v1," + signature,
                "duewheel-attempt", "many", "duewheel-due-at", "soon", "duewheel-queue", "100%", "duewheel-key", "a%20b"));
        Webhooks webhooks = new Webhooks(List.of("whsec_c2VjcmV0"), Duration.ofMinutes(5), Clock.fixed(Instant.ofEpochSecond(1000), ZoneOffset.UTC));
        byte[] body = "x".getBytes(StandardCharsets.UTF_8);
        assertEquals(new Webhooks.Webhook("m", Instant.ofEpochSecond(1000), "100%", "a b", 0, null), webhooks.verify(headers, body));
        for (String digits : List.of("9".repeat(400), "9".repeat(5000))) {
            headers.put("webhook-timestamp", digits);
            assertEquals("webhook_timestamp", assertThrows(DuewheelException.class, () -> webhooks.verify(headers, body)).code());
        }
    }
}
