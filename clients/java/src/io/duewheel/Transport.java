package io.duewheel;

import java.io.ByteArrayOutputStream;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodySubscribers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.stream.Collectors;

/** Sends requests: the connection's errors, 429 and 503 are repeated, of settles any 5xx, everything else is not. */
record Transport(String base, String token, Duration retryFor, Duration timeout, HttpClient http) {
    static final String JSON = "application/json";
    static final String LINES = "application/x-ndjson";

    /** One call, over all its attempts. */
    static final class Call {
        private final String method;
        private final List<String> path;
        String query = "", type = JSON, body;
        /** Repeated until it is answered. */
        boolean settles;
        /** Not repeated if it may have been applied. */
        boolean doubles;
        /** How long the server may hold its answer back. */
        Duration holding = Duration.ZERO;
        /** How long an attempt may take, if that is less than the client's; or null. */
        Duration limit;

        Call(String method, List<String> path, Object body) {
            this.method = method;
            this.path = path;
            this.body = body == null ? null : Json.write(body);
        }

        Call with(Consumer<Call> change) {
            change.accept(this);
            return this;
        }
    }

    /** What came of one attempt: an answer, which ends early if there is an error as well, or an error. */
    record Answer(int status, String text, DuewheelException error) {}

    Transport {
        if (!base.matches("https?://[^/?#@]+(/[^?#]*)?")) {
            // A token in it must not be in the error.
            String shown = base.replaceAll("(?s)^.*@|\\?.*", "");
            throw DuewheelException.refusal("bad_request", "url", "url: " + shown
                    + " is no address of a server; give one such as http://localhost:7788, and a token by token(…)");
        }
        base = base.replaceAll("/+$", "");
    }

    /** Without the token. */
    @Override
    public String toString() {
        return base;
    }

    /** The answer to a call, as JSON. */
    Map<String, Object> send(Call call) {
        Attempts attempts = new Attempts(call);
        while (true) {
            Answer answer = once(call);
            if (answer.error == null) {
                try {
                    if (Json.read(answer.text) instanceof Map<?, ?> object) return Records.as(object);
                } catch (IllegalArgumentException e) {
                    throw attempts.last(DuewheelException.badAnswer(answer.status, answer.text, null, e));
                }
                throw attempts.last(DuewheelException.badAnswer(answer.status, answer.text, null, null));
            }
            if (!attempts.again(answer.error)) throw attempts.last(answer.error);
            attempts.next(answer.error);
        }
    }

    /** One attempt. */
    Answer once(Call call) {
        HttpRequest.Builder request = HttpRequest.newBuilder(address(call));
        if (token != null) request.header("Authorization", "Bearer " + token);
        if (call.body != null) request.header("Content-Type", call.type);
        request.method(call.method, call.body == null ? BodyPublishers.noBody() : BodyPublishers.ofString(call.body));
        // What has come is kept if the answer ends early.
        HttpResponse.ResponseInfo[] info = new HttpResponse.ResponseInfo[1];
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        CompletableFuture<HttpResponse<Void>> sent = http.sendAsync(request.build(), head -> {
            info[0] = head;
            return BodySubscribers.ofByteArrayConsumer(part -> part.ifPresent(bytes::writeBytes));
        });
        DuewheelException cut = null;
        try {
            Duration most = timeout.plus(call.holding);
            if (call.limit != null && call.limit.compareTo(most) < 0) most = call.limit;
            sent.get(most.toMillis(), TimeUnit.MILLISECONDS);
        } catch (ExecutionException | TimeoutException e) {
            sent.cancel(true);
            cut = DuewheelException.connection(e instanceof ExecutionException ? e.getCause() : e);
        } catch (InterruptedException e) {
            sent.cancel(true);
            throw interrupted(e);
        }
        String text = bytes.toString(StandardCharsets.UTF_8);
        if (info[0] == null) return new Answer(0, "", cut);
        int status = info[0].statusCode();
        return status / 100 == 2 ? new Answer(status, text, cut) : new Answer(status, text, refused(info[0], text));
    }

    private static DuewheelException refused(HttpResponse.ResponseInfo info, String text) {
        Duration after = info.headers().firstValue("Retry-After").filter(value -> value.matches("\\d{1,9}"))
                .map(value -> Duration.ofSeconds(Long.parseLong(value))).orElse(null);
        try {
            if (Json.read(text) instanceof Map<?, ?> problem && problem.get("code") instanceof String) {
                return DuewheelException.of(Records.as(problem), info.statusCode(), after);
            }
        } catch (IllegalArgumentException e) {
            // It is not duewheel's.
        }
        return DuewheelException.badAnswer(info.statusCode(), text, after, null);
    }

    private URI address(Call call) {
        return URI.create(base + "/" + call.path.stream().map(Transport::escaped).collect(Collectors.joining("/")) + call.query);
    }

    static String escaped(String part) {
        // An encoder would write half of a surrogate pair as "?", which is another key.
        if (!StandardCharsets.UTF_8.newEncoder().canEncode(part)) {
            throw new IllegalArgumentException("half of a surrogate pair cannot be a part of a URL; give whole characters");
        }
        return URLEncoder.encode(part, StandardCharsets.UTF_8).replace("+", "%20");
    }

    static DuewheelException interrupted(InterruptedException e) {
        Thread.currentThread().interrupt();
        return new DuewheelException("interrupted", "the thread was interrupted", DuewheelException.Outcome.UNKNOWN, 0, Map.of(), null, e);
    }

    /** From 100 ms, doubled up to 5 s, of which a random half. */
    static Duration backoff(int attempt) {
        long most = Math.min(5000, 100L << Math.min(attempt, 10));
        return Duration.ofMillis((long) (most * (0.5 + ThreadLocalRandom.current().nextDouble() / 2)));
    }

    static void sleep(Duration time) {
        try {
            Thread.sleep(time.toMillis());
        } catch (InterruptedException e) {
            throw interrupted(e);
        }
    }

    /** The pauses between the attempts of a call, and their end. */
    final class Attempts {
        private final Call call;
        private final long began = System.nanoTime();
        private int count;
        private boolean unknown;

        Attempts(Call call) {
            this.call = call;
        }

        /** Whether another attempt makes sense. */
        boolean again(DuewheelException error) {
            boolean applied = error.outcome() == DuewheelException.Outcome.UNKNOWN;
            return (call.settles && error.status() >= 500) || (error.passes() && !(call.doubles && applied));
        }

        /** What may have been applied makes the whole call unknown. */
        void seen(DuewheelException error) {
            unknown |= error.outcome() == DuewheelException.Outcome.UNKNOWN;
        }

        /** Waits for the next attempt, or throws the error of the call if there is none. */
        void next(DuewheelException error) {
            Duration after = error.retryAfter();
            Duration pause = after == null ? backoff(count) : after.plusMillis(ThreadLocalRandom.current().nextInt(100));
            boolean over = Duration.ofNanos(System.nanoTime() - began).plus(pause).compareTo(retryFor) > 0;
            if (over && !call.settles) throw last(error);
            count++;
            seen(error);
            sleep(pause);
        }

        /** The error of the whole call: an earlier attempt without an answer may have been applied. */
        DuewheelException last(DuewheelException error) {
            return unknown ? error.unknown() : error;
        }
    }
}
