package io.duewheel;

import io.duewheel.Transport.Call;
import java.net.http.HttpClient;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.function.IntFunction;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * A client of one server of duewheel. It may be used by many threads, and its connections are kept.
 *
 * <pre>{@code
 * Duewheel wheel = Duewheel.at("http://localhost:7788").build();
 * wheel.enqueue("close-review", NewMessage.text("order 42").delay(Duration.ofHours(48)).key("order-42"));
 * wheel.cancel(Which.key("close-review", "order-42"));
 * }</pre>
 *
 * <p>Each call is repeated for 30 s after a lost connection, a 429 or a 503, as the server's {@code Retry-After} says. An
 * enqueue is repeated under one dedupe id, so that a lost answer never makes a second message. Acks, nacks and extends are
 * repeated until they are answered, also after any 5xx, or their thread is interrupted. Everything else that goes wrong is a
 * {@link DuewheelException}.
 */
public final class Duewheel {
    /** How long the server remembers an id that the client made: longer than any call is repeated. */
    private static final Duration OWN_WINDOW = Duration.ofMinutes(15);
    /** Below the server's limits of a batch, 10,000 messages and 16 MiB. */
    private static final int BATCH_MESSAGES = 10_000;
    private static final int BATCH_BYTES = 15 << 20;

    private final Transport transport;

    private Duewheel(Transport transport) {
        this.transport = transport;
    }

    /** A client of the server at this address; a path in it goes before every call's. */
    public static Builder at(String url) {
        return new Builder(url);
    }

    /** How a client is made. */
    public static final class Builder {
        private final String url;
        private String token;
        private Duration retryFor = Duration.ofSeconds(30);
        private Duration timeout = Duration.ofSeconds(30);
        private HttpClient http;

        private Builder(String url) {
            this.url = url;
        }

        /** A token of the server, {@code dw_…}. */
        public Builder token(String token) {
            this.token = token;
            return this;
        }

        /** How long a call is repeated; 30 s by default. */
        public Builder retryFor(Duration time) {
            this.retryFor = time;
            return this;
        }

        /** How long one attempt may take, beyond the time that a reserve waits; 30 s by default. */
        public Builder timeout(Duration time) {
            this.timeout = time;
            return this;
        }

        /** In place of an HttpClient of its own, such as for TLS. */
        public Builder http(HttpClient http) {
            this.http = http;
            return this;
        }

        public Duewheel build() {
            HttpClient.Builder own = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(timeout);
            return new Duewheel(new Transport(url, token, retryFor, timeout, http == null ? own.build() : http));
        }
    }

    /** A message as it is sent, each time with the same id. */
    private static final class Line {
        final Map<String, Object> wire;
        private boolean ownWindow;

        Line(NewMessage message) {
            wire = new LinkedHashMap<>(message.wire);
            if (!wire.containsKey("due_at")) wire.putIfAbsent("delay_ms", 0);
            // A window without an id is refused by the server.
            if (wire.containsKey("dedupe_id") || wire.containsKey("dedupe_window_ms")) return;
            wire.put("dedupe_id", UUID.randomUUID().toString());
            ownWindow = wire.put("dedupe_window_ms", OWN_WINDOW.toMillis()) == null;
        }

        /** The queue remembers for a shorter time than ours; then its own time must do. True once. */
        boolean windowRefused(DuewheelException error) {
            if (!ownWindow || !error.is("bad_request") || !"dedupe_window".equals(error.field())) return false;
            ownWindow = false;
            wire.remove("dedupe_window_ms");
            return true;
        }

        String json() {
            return Json.write(wire);
        }
    }

    private static List<String> messagesOf(String queue) {
        return List.of("v1", "queues", queue, "messages");
    }

    /** Schedules one message. It is durable when this returns. */
    public Enqueued enqueue(String queue, NewMessage message) {
        Line line = new Line(message);
        while (true) {
            try {
                return read(Enqueued.class, new Call("POST", messagesOf(queue), line.wire));
            } catch (DuewheelException e) {
                if (!line.windowRefused(e)) throw e;
            }
        }
    }

    /**
     * Schedules many messages, in order, not as one transaction: a result for each. It throws only if nothing was accepted,
     * for a reason that concerns all; a message that cannot be sent is refused before any is sent.
     */
    public List<Result<Enqueued>> enqueueMany(String queue, Iterable<NewMessage> messages) {
        List<List<Line>> parts = new ArrayList<>();
        int size = BATCH_BYTES;
        for (NewMessage message : messages) {
            Line line = new Line(message);
            int bytes = line.json().getBytes(StandardCharsets.UTF_8).length + 1;
            size += bytes;
            if (size > BATCH_BYTES || parts.get(parts.size() - 1).size() == BATCH_MESSAGES) {
                parts.add(new ArrayList<>());
                size = bytes;
            }
            parts.get(parts.size() - 1).add(line);
        }
        List<Result<Enqueued>> results = new ArrayList<>();
        for (List<Line> part : parts) {
            results.addAll(batch(Enqueued.class, new Call("POST", messagesOf(queue), null).with(it -> it.type = Transport.LINES),
                    null, part, !results.isEmpty()));
        }
        return results;
    }

    /**
     * A batch, as lines or as the member of an object, over all its attempts: what was put off or has no answer is sent again.
     * An error of the whole call is that of each item if some were accepted, {@code begun}.
     */
    private <R> List<Result<R>> batch(Class<R> type, Call call, String member, List<?> items, boolean begun) {
        Transport.Attempts attempts = transport.new Attempts(call);
        List<Result<R>> results = new ArrayList<>(Collections.nCopies(items.size(), null));
        List<Integer> open = IntStream.range(0, items.size()).boxed().toList();
        while (!open.isEmpty()) {
            List<?> part = open.stream().map(items::get).toList();
            call.body = member != null ? Json.write(Map.of(member, part))
                    : part.stream().map(line -> ((Line) line).json() + "\n").collect(Collectors.joining());
            Transport.Answer answer = transport.once(call);
            List<Map<String, Object>> answers = answers(answer, member == null);
            DuewheelException failure = answer.error();
            if (failure == null && answers.isEmpty()) failure = DuewheelException.badAnswer(answer.status(), answer.text(), null, null);
            if (failure != null && !attempts.again(failure) && !begun) throw attempts.last(failure);
            DuewheelException wait = null;
            List<Integer> rest = new ArrayList<>();
            for (int at = 0; at < open.size(); at++) {
                int i = open.get(at);
                DuewheelException error = failure;
                if (at < answers.size()) {
                    Map<String, Object> item = answers.get(at);
                    if (!item.containsKey("code")) {
                        results.set(i, new Result<>(Records.read(type, item), null));
                        begun = true;
                        continue;
                    }
                    error = DuewheelException.of(item, ((Number) item.get("status")).intValue(), null);
                } else if (error == null) {
                    error = DuewheelException.connection(new java.io.EOFException("the answer ends early"));
                }
                if (attempts.again(error)) {
                    if (wait == null || later(error, wait)) wait = error;
                    attempts.seen(error);
                } else if (!(items.get(i) instanceof Line line && line.windowRefused(error))) {
                    results.set(i, new Result<>(null, attempts.last(error)));
                    continue;
                }
                rest.add(i);
            }
            open = rest;
            if (wait == null) continue;
            try {
                attempts.next(wait);
            } catch (DuewheelException e) {
                if (!begun || e.is("interrupted")) throw e;
                open.forEach(i -> results.set(i, new Result<>(null, e)));
                break;
            }
        }
        return results;
    }

    /** The answers to a batch, as far as they are whole. */
    private static List<Map<String, Object>> answers(Transport.Answer answer, boolean lines) {
        if (answer.status() / 100 != 2) return List.of();
        List<Map<String, Object>> answers = new ArrayList<>();
        try {
            if (!lines) return Records.as(Records.<Map<String, Object>>as(Json.read(answer.text())).getOrDefault("results", answers));
            // What comes after the last line break is no whole line.
            String whole = answer.text().substring(0, answer.text().lastIndexOf('\n') + 1);
            for (String line : whole.lines().toList()) answers.add(Records.as(Json.read(line)));
        } catch (IllegalArgumentException | ClassCastException e) {
            // Cut off, or not duewheel's.
        }
        return answers;
    }

    private static boolean later(DuewheelException a, DuewheelException b) {
        return a.retryAfter() != null && (b.retryAfter() == null || a.retryAfter().compareTo(b.retryAfter()) > 0);
    }

    /** The present state of a message; {@code message_not_found} if it was delivered, cancelled, or never there. */
    public View get(Which which) {
        return read(View.class, new Call("GET", which.path(), null));
    }

    /**
     * Removes a message that no consumer has: {@code leased} if it was too late, {@code message_not_found} if nothing is
     * pending; then with the outcome UNKNOWN an earlier attempt of this call may have cancelled it.
     */
    public Cancelled cancel(Which which) {
        return read(Cancelled.class, new Call("DELETE", which.path(), null));
    }

    /** Cancels, and makes the message's dedupe id free again. */
    public Cancelled cancelAndForget(Which which) {
        return read(Cancelled.class, new Call("DELETE", which.path(), Map.of("forget_dedupe", true)));
    }

    /** Cancels messages of a queue by key: a result for each. */
    public List<Result<Cancelled>> cancelMany(String queue, List<String> keys) {
        return batch(Cancelled.class, new Call("POST", List.of("v1", "queues", queue, "cancel"), null), "keys", keys, false);
    }

    /** Changes due time, content or settings of a scheduled or ready message. */
    public View postpone(Which which, Change change) {
        return read(View.class, new Call("PATCH", which.path(), change.wire));
    }

    /** Makes a message due now. */
    public View fire(Which which) {
        return read(View.class, new Call("POST", Stream.concat(which.path().stream(), Stream.of("fire")).toList(), null));
    }

    /** A new message, due now, with the content of a done or dead one. The key may be null. */
    public Enqueued replay(String id, String key) {
        Map<String, String> body = new LinkedHashMap<>(Map.of("dedupe_id", UUID.randomUUID().toString()));
        if (key != null) body.put("key", key);
        return read(Enqueued.class, new Call("POST", List.of("v1", "messages", id, "replay"), body));
    }

    /** How messages are leased. Without {@link #max} one, without {@link #waiting} at once. */
    public static final class Reserve extends Fields<Reserve> {
        private Duration wait = Duration.ZERO;

        public Reserve max(int max) {
            return set("max", max);
        }

        /** How long to wait for the first message. */
        public Reserve waiting(Duration time) {
            wait = time;
            return set("wait_ms", time);
        }

        public Reserve lease(Duration lease) {
            return set("lease_ms", lease);
        }
    }

    /** Leases messages of one or more queues, the best ones first. There are none if none came while it waited. */
    public Grants reserve(List<String> queues, Reserve reserve) {
        Map<String, Object> body = new LinkedHashMap<>(reserve.wire);
        body.put("queues", queues.stream().map(queue -> Map.of("queue", queue)).toList());
        return read(Grants.class, new Call("POST", List.of("v1", "reserve"), body).with(it -> it.holding = reserve.wait));
    }

    /** The message is done; {@code lease_lost} if another consumer has it, or had it. */
    public Settled ack(Message message) {
        return ack(message, null);
    }

    /** The message is done, with a result: what {@link Json} writes, of at most 16 KiB. A queue with {@code keep_done} keeps it. */
    public Settled ack(Message message, Object result) {
        return settle("ack", message, result(result), null);
    }

    private static Map<String, Object> result(Object result) {
        return result == null ? Map.of() : Map.of("result", result);
    }

    /** The message is not done: it comes again, or is dead. */
    public Settled nack(Message message, Nack nack) {
        return settle("nack", message, nack.wire, null);
    }

    /**
     * Keeps the lease for so long from now; for as long as it was granted if that is null. Of a message without a lease the
     * server then takes what message and queue say now, and never shortens it. An attempt takes a sixth of the lease at
     * most, or 2 s: a dead connection must not outlast the lease.
     */
    public Settled extend(Message message, Duration lease) {
        Duration length = lease == null ? message.lease() : lease;
        Duration limit = length == null || length.toMillis() < 12_000 ? Duration.ofSeconds(2) : length.dividedBy(6);
        return settle("extend", message, new Reserve().lease(length).wire, limit);
    }

    private Settled settle(String verb, Message message, Map<String, Object> fields, Duration limit) {
        Map<String, Object> body = new LinkedHashMap<>(fields);
        body.put("lease_token", message.leaseToken());
        return read(Settled.class, new Call("POST", List.of("v1", "messages", message.id(), verb), body).with(it -> it.settles = true).with(it -> it.limit = limit));
    }

    /** Acks messages: a result for each. */
    public List<Result<Settled>> ackMany(List<Message> messages) {
        return ackMany(messages, List.of());
    }

    /** Acks messages with their results, as far as there are some. */
    public List<Result<Settled>> ackMany(List<Message> messages, List<?> results) {
        return settleMany("ack", messages, i -> result(i < results.size() ? results.get(i) : null));
    }

    /** Nacks messages: a result for each. */
    public List<Result<Settled>> nackMany(List<Message> messages, Nack nack) {
        return settleMany("nack", messages, i -> nack.wire);
    }

    /** Extends leases, each as {@link #extend} does: a result for each. */
    public List<Result<Settled>> extendMany(List<Message> messages, Duration lease) {
        return settleMany("extend", messages, i -> new Reserve().lease(lease == null ? messages.get(i).lease() : lease).wire);
    }

    private List<Result<Settled>> settleMany(String verb, List<Message> messages, IntFunction<Map<String, Object>> fields) {
        List<Map<String, Object>> list = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            Map<String, Object> item = new LinkedHashMap<>(fields.apply(i));
            item.put("id", messages.get(i).id());
            item.put("lease_token", messages.get(i).leaseToken());
            list.add(item);
        }
        return batch(Settled.class, new Call("POST", List.of("v1", verb), null).with(it -> it.settles = true), "messages", list, false);
    }

    /** A page of a queue's messages in due order. State and after may be null. */
    public Page list(String queue, String state, String after, int limit) {
        String query = "?limit=" + limit + (state == null ? "" : "&state=" + state) + (after == null ? "" : "&after=" + Transport.escaped(after));
        return read(Page.class, new Call("GET", messagesOf(queue), null).with(it -> it.query = query));
    }

    /** Counts and settings of a queue. */
    public QueueView queue(String queue) {
        return read(QueueView.class, new Call("GET", List.of("v1", "queues", queue), null));
    }

    /** Changes the settings that are named, as HTTP names them: {@code Map.of("lease_ms", 60000)}. The scope is {@code admin}. */
    public QueueView configure(String queue, Map<String, ?> settings) {
        return read(QueueView.class, new Call("PATCH", List.of("v1", "queues", queue, "config"), settings));
    }

    /** Makes dead messages ready again: those with these ids, or all if there are none. The scope is {@code admin}. */
    public long redrive(String queue, String... ids) {
        Object body = ids.length == 0 ? Map.of() : Map.of("ids", List.of(ids));
        return ((Number) transport.send(new Call("POST", List.of("v1", "queues", queue, "redrive"), body)).get("redriven")).longValue();
    }

    /** Lets time pass on a server with {@code --virtual-clock}, for tests. It is not repeated after a lost answer: time would pass twice. */
    public void advance(Duration by) {
        transport.send(new Call("POST", List.of("v1", "clock", "advance"), Map.of("by_ms", Fields.milliseconds("by_ms", by)))
                .with(it -> it.doubles = true));
    }

    private <R> R read(Class<R> type, Call call) {
        return Records.read(type, transport.send(call));
    }
}
