package io.duewheel;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import java.lang.reflect.RecordComponent;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Clock;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;

/** The cases that every client runs: clients/cases.json, which clients/README.md describes. */
class CasesTest {
    private static final HttpClient HTTP = HttpClient.newHttpClient();
    private static Map<String, Object> all;
    private static String real;
    private static String scripted;

    @BeforeAll
    static void start() throws Exception {
        all = Records.as(Json.read(Servers.file("cases.json")));
        real = Servers.real(true);
        scripted = Servers.scripted();
    }

    private static List<Map<String, Object>> cases(String kind) {
        return Records.as(all.get(kind));
    }

    // One after the other: they share the clock.
    @TestFactory
    @Execution(ExecutionMode.SAME_THREAD)
    Stream<DynamicTest> real() {
        List<Map<String, Object>> cases = cases("real");
        Duewheel wheel = Duewheel.at(real).build();
        return IntStream.range(0, cases.size()).mapToObj(i -> dynamicTest((String) cases.get(i).get("name"), () -> {
            Map<String, Object> names = new LinkedHashMap<>(Map.of("queue", "case." + i));
            List<Map<String, Object>> steps = Records.as(cases.get(i).get("steps"));
            for (int step = 0; step < steps.size(); step++) {
                Map<String, Object> one = new LinkedHashMap<>(steps.get(step));
                Map<String, String> saves = Records.as(one.remove("save"));
                String where = "step " + (step + 1) + " (" + one.get("call") + ")";
                Object got = step(wheel, Records.as(filled(one, names)), where);
                if (saves == null) continue;
                saves.forEach((name, path) -> names.put(name, saved(got, path)));
            }
        }));
    }

    /** A member of a result by its path; a leased message as it is. */
    private static Object saved(Object got, String path) {
        if (path.startsWith("messages.")) return ((Grants) got).messages().get(Integer.parseInt(path.substring(9)));
        return Records.<Map<String, Object>>as(theirs(got)).get(path);
    }

    @TestFactory
    Stream<DynamicTest> scripted() {
        return cases("scripted").stream().map(each -> dynamicTest((String) each.get("name"), () -> {
            Map<String, Object> options = object(each, "client");
            Duewheel.Builder wheel = Duewheel.at(scripted + "/" + each.get("name")).token((String) options.get("token"));
            if (options.containsKey("retry_for_ms")) wheel.retryFor(length(options, "retry_for_ms"));
            step(wheel.build(), each, (String) each.get("name"));
            assertEquals(List.of(), verdict(each).get("failures"));
        }));
    }

    @TestFactory
    Stream<DynamicTest> workers() {
        return cases("workers").stream().map(each -> dynamicTest((String) each.get("name"), () -> {
            Map<String, Object> handler = object(each, "handler");
            Map<String, Object> options = object(each, "worker");
            String what = (String) handler.get("do");
            AtomicBoolean begun = new AtomicBoolean();
            AtomicBoolean cancelled = new AtomicBoolean();
            Duewheel wheel = Duewheel.at(scripted + "/" + each.get("name")).build();
            List<String> queues = Records.as(options.get("queues"));
            Worker worker = Worker.returning(wheel, (message, token) -> {
                begun.set(true);
                switch (what) {
                    case "fail" -> throw new Exception((String) handler.get("message"));
                    case "not_yet" -> throw Worker.notYet(length(handler, "delay_ms"));
                    case "dead" -> throw Worker.dead((String) handler.get("reason"));
                    case "sleep" -> Thread.sleep(length(handler, "ms").toMillis());
                    case "wait_cancelled" -> {
                        token.onCancel(Thread.currentThread()::interrupt);
                        assertThrows(InterruptedException.class, () -> Thread.sleep(60_000));
                        cancelled.set(token.isCancelled());
                        if (handler.containsKey("message")) throw new Exception((String) handler.get("message"));
                    }
                    case "result" -> {
                        return handler.get("value");
                    }
                    default -> assertEquals("return", what);
                }
                return null;
            }, queues.toArray(new String[0])).concurrency(((Number) options.get("concurrency")).intValue()).lease(length(options, "lease_ms")).build();
            Thread running = new Thread(worker);
            running.start();
            if ("while_running".equals(each.get("stop"))) Servers.until("the handler begins", begun::get);
            else Servers.until("it is complete", () -> (boolean) verdict(each).get("complete") && (!what.equals("wait_cancelled") || cancelled.get()));
            worker.stop(null);
            running.join();
            assertEquals(List.of(), verdict(each).get("failures"));
        }));
    }

    @TestFactory
    Stream<DynamicTest> signatures() {
        return cases("signatures").stream().map(each -> dynamicTest((String) each.get("name"), () -> {
            Clock clock = Clock.fixed(Instant.ofEpochSecond((Long) each.get("now")), ZoneOffset.UTC);
            Duration tolerance = each.containsKey("tolerance_ms") ? length(each, "tolerance_ms") : Duration.ofMinutes(5);
            List<String> secrets = Records.as(each.get("secrets"));
            Map<String, String> headers = Records.as(each.get("headers"));
            if (each.containsKey("error")) {
                DuewheelException error = assertThrows(DuewheelException.class, () -> new Webhooks(secrets, tolerance, clock).verify(headers, body(each)));
                assertEquals(object(each, "error").get("code"), error.code());
                return;
            }
            Webhooks.Webhook got = new Webhooks(secrets, tolerance, clock).verify(headers, body(each));
            Map<String, Object> out = Records.as(theirs(got));
            out.put("timestamp", got.timestamp().getEpochSecond());
            matches(out, each.get("result"), "webhook");
        }));
    }

    private static Map<String, Object> verdict(Map<String, Object> one) throws Exception {
        URI address = URI.create(scripted + "/_/" + one.get("name"));
        return Records.as(Json.read(HTTP.send(HttpRequest.newBuilder(address).build(), BodyHandlers.ofString()).body()));
    }

    private static Object step(Duewheel wheel, Map<String, Object> one, String where) {
        try {
            Object got = perform(wheel, (String) one.get("call"), object(one, "args"));
            if (one.containsKey("error")) throw new AssertionError(where + ": no error, but " + got);
            if (one.containsKey("result")) matches(theirs(got), one.get("result"), where);
            return got;
        } catch (DuewheelException e) {
            if (!one.containsKey("error")) throw e;
            matches(theirs(e), one.get("error"), where);
            return null;
        }
    }

    private static Object perform(Duewheel wheel, String call, Map<String, Object> a) {
        String queue = (String) a.get("queue");
        switch (call) {
            case "enqueue":
                return wheel.enqueue(queue, message(a));
            case "enqueue_many":
                return Map.of("results", wheel.enqueueMany(queue, Records.<List<Map<String, Object>>>as(a.get("messages")).stream().map(CasesTest::message).toList()));
            case "get":
                return wheel.get(which(a));
            case "cancel":
                return a.containsKey("forget_dedupe") ? wheel.cancelAndForget(which(a)) : wheel.cancel(which(a));
            case "cancel_many":
                return Map.of("results", wheel.cancelMany(queue, Records.as(a.get("keys"))));
            case "postpone":
                return wheel.postpone(which(a), change(a));
            case "fire":
                return wheel.fire(which(a));
            case "replay":
                return wheel.replay((String) a.get("id"), null);
            case "reserve":
                Duewheel.Reserve reserve = new Duewheel.Reserve();
                if (a.containsKey("max")) reserve.max(((Number) a.get("max")).intValue());
                if (a.containsKey("wait_ms")) reserve.waiting(length(a, "wait_ms"));
                if (a.containsKey("lease_ms")) reserve.lease(length(a, "lease_ms"));
                return wheel.reserve(Records.as(a.get("queues")), reserve);
            case "ack":
                return wheel.ack(lease(a.get("message")), a.get("result"));
            case "nack":
                return wheel.nack(lease(a.get("message")), nack(a));
            case "extend":
                return wheel.extend(lease(a.get("message")), length(a, "lease_ms"));
            case "ack_many":
                return Map.of("results", wheel.ackMany(leases(a), a.containsKey("results") ? Records.as(a.get("results")) : List.of()));
            case "nack_many":
                return Map.of("results", wheel.nackMany(leases(a), nack(a)));
            case "extend_many":
                return Map.of("results", wheel.extendMany(leases(a), length(a, "lease_ms")));
            case "list":
                return wheel.list(queue, (String) a.get("state"), (String) a.get("after"), ((Number) a.get("limit")).intValue());
            case "queue":
                return wheel.queue(queue);
            case "configure":
                return wheel.configure(queue, object(a, "settings"));
            case "redrive":
                return Map.of("redriven", wheel.redrive(queue));
            case "advance":
                wheel.advance(length(a, "by_ms"));
                return null;
            default:
                throw new AssertionError("no such call: " + call);
        }
    }

    private static Which which(Map<String, Object> a) {
        return a.containsKey("id") ? Which.id((String) a.get("id")) : Which.key((String) a.get("queue"), (String) a.get("key"));
    }

    private static byte[] body(Map<String, Object> a) {
        if (a.containsKey("body_base64")) return Base64.getDecoder().decode((String) a.get("body_base64"));
        return ((String) a.get("body")).getBytes(java.nio.charset.StandardCharsets.UTF_8);
    }

    private static NewMessage message(Map<String, Object> a) {
        NewMessage message = a.containsKey("json") ? NewMessage.json(a.get("json")) : NewMessage.bytes(body(a));
        a.forEach((name, value) -> {
            switch (name) {
                case "delay_ms" -> message.delay(length(a, name));
                case "due_at" -> message.dueAt(Instant.parse((String) value));
                case "past" -> message.past((String) value);
                case "key" -> message.key((String) value);
                case "if_exists" -> message.ifExists((String) value);
                case "dedupe_id" -> message.dedupeId((String) value);
                case "dedupe_window_ms" -> message.dedupeWindow(length(a, name));
                case "priority" -> message.priority((Long) value);
                case "max_attempts" -> message.maxAttempts((Long) value);
                case "headers" -> message.headers(Records.as(value));
                default -> {}
            }
        });
        return message;
    }

    private static Change change(Map<String, Object> a) {
        Change change = a.containsKey("delay_ms") ? Change.delay(length(a, "delay_ms")) : new Change();
        if (a.containsKey("body")) change.body(body(a));
        if (a.containsKey("priority")) change.priority((Long) a.get("priority"));
        if (a.containsKey("if_generation")) change.ifGeneration((Long) a.get("if_generation"));
        return change;
    }

    private static Nack nack(Map<String, Object> a) {
        String reason = (String) a.get("reason");
        if (Boolean.TRUE.equals(a.get("dead"))) return Nack.dead(reason);
        if (!a.containsKey("delay_ms")) return Nack.failed().reason(reason);
        Duration delay = length(a, "delay_ms");
        return (Boolean.FALSE.equals(a.get("attempt")) ? Nack.notYet(delay) : Nack.after(delay)).reason(reason);
    }

    private static Message lease(Object o) {
        return o instanceof Message message ? message : Records.read(Message.class, Records.as(o));
    }

    private static List<Message> leases(Map<String, Object> a) {
        return Records.<List<Object>>as(a.get("messages")).stream().map(CasesTest::lease).toList();
    }

    private static Duration length(Map<String, Object> a, String name) {
        return a.containsKey(name) ? Duration.ofMillis(((Number) a.get(name)).longValue()) : null;
    }

    private static Map<String, Object> object(Map<String, Object> a, String name) {
        return a.containsKey(name) ? Records.as(a.get(name)) : Map.of();
    }

    /** What a case calls what came back. */
    private static Object theirs(Object value) {
        if (value instanceof Result<?> result) return result.error() == null ? theirs(result.value()) : Map.of("error", theirs(result.error()));
        if (value instanceof List<?> list) return list.stream().map(CasesTest::theirs).toList();
        if (value instanceof Instant instant) return instant;
        Map<String, Object> out = new LinkedHashMap<>();
        if (value instanceof DuewheelException e) {
            out.put("code", e.code());
            out.put("status", e.status());
            out.put("outcome", e.outcome().name().toLowerCase());
            out.put("field", e.field());
            out.put("existing_id", e.existingId());
            out.put("state", e.state());
            out.put("generation", e.member("generation"));
            if (e.retryAfter() != null) out.put("retry_after_ms", e.retryAfter().toMillis());
            return out;
        }
        if (value instanceof Map<?, ?> map) {
            map.forEach((name, member) -> out.put((String) name, theirs(member)));
            return out;
        }
        if (!(value instanceof Record)) return value;
        for (RecordComponent component : value.getClass().getRecordComponents()) {
            try {
                component.getAccessor().setAccessible(true);
                Object member = component.getAccessor().invoke(value);
                String name = Records.snake(component.getName());
                if (member instanceof Duration length) out.put(name + "_ms", length.toMillis());
                else if (member instanceof byte[] bytes) content(bytes, out);
                else out.put(name, member == null ? null : theirs(member));
            } catch (ReflectiveOperationException e) {
                throw new AssertionError(e);
            }
        }
        return out;
    }

    private static void content(byte[] bytes, Map<String, Object> out) {
        out.put("body", new String(bytes, java.nio.charset.StandardCharsets.UTF_8));
        out.put("body_base64", Base64.getEncoder().encodeToString(bytes));
        try {
            out.put("json", Json.read((String) out.get("body")));
        } catch (IllegalArgumentException e) {
            // It is none.
        }
    }

    private static void matches(Object got, Object wanted, String where) {
        if (wanted instanceof Map<?, ?> map) {
            Map<?, ?> members = assertInstanceOf(Map.class, got, where);
            map.forEach((name, value) -> matches(members.get(name), value, where + "." + name));
        } else if (wanted instanceof List<?> list) {
            List<?> items = assertInstanceOf(List.class, got, where);
            assertEquals(list.size(), items.size(), where + ": " + got);
            for (int i = 0; i < list.size(); i++) matches(items.get(i), list.get(i), where + "[" + i + "]");
        } else if (got instanceof Instant instant) {
            assertEquals(Instant.parse((String) wanted), instant, where);
        } else if (wanted instanceof Long number) {
            assertEquals(number, got == null ? null : ((Number) got).longValue(), where);
        } else {
            assertEquals(wanted, got, where);
        }
    }

    private static Object filled(Object value, Map<String, Object> names) {
        if (value instanceof String text) {
            if (text.matches("\\$\\{\\w+}")) return names.get(text.substring(2, text.length() - 1));
            return Pattern.compile("\\$\\{(\\w+)}").matcher(text).replaceAll(found -> Matcher.quoteReplacement(String.valueOf(names.get(found.group(1)))));
        }
        if (value instanceof List<?> list) {
            List<Object> out = new ArrayList<>();
            list.forEach(each -> out.add(filled(each, names)));
            return out;
        }
        if (!(value instanceof Map<?, ?> map)) return value;
        Map<String, Object> out = new LinkedHashMap<>();
        map.forEach((name, each) -> out.put((String) name, filled(each, names)));
        return out;
    }
}
