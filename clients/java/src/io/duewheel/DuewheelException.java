package io.duewheel;

import java.time.Duration;
import java.util.List;
import java.util.Map;

/** A call that was refused or has failed. Compare {@link #code}; the message is for people. */
public final class DuewheelException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** Whether a call that failed may have been applied. */
    public enum Outcome {
        /** Nothing was changed. */
        NOT_APPLIED,
        /** This request, or an earlier attempt of the same call, may have been applied, and only its answer is missing. */
        UNKNOWN
    }

    private final String code;
    private final String detail;
    private final Outcome outcome;
    private final int status;
    private final transient Map<String, Object> problem;
    private final Duration retryAfter;

    DuewheelException(String code, String detail, Outcome outcome, int status, Map<String, Object> problem, Duration retryAfter, Throwable cause) {
        super(code + ": " + detail, cause);
        this.code = code;
        this.detail = detail;
        this.outcome = outcome;
        this.status = status;
        this.problem = problem;
        this.retryAfter = retryAfter;
    }

    /** A refusal of ours, before anything is sent. */
    static DuewheelException refusal(String code, String field, String detail) {
        return new DuewheelException(code, detail, Outcome.NOT_APPLIED, 0, Map.of("field", field), null, null);
    }

    static DuewheelException connection(Throwable cause) {
        String detail = "no answer from the server: " + (cause.getMessage() == null ? cause.getClass().getSimpleName() : cause.getMessage());
        return new DuewheelException("connection", detail, Outcome.UNKNOWN, 0, Map.of(), null, cause);
    }

    static DuewheelException badAnswer(int status, String text, Duration retryAfter, Throwable cause) {
        String detail = "status " + status + ", and no answer of duewheel: " + text.substring(0, Math.min(100, text.length()));
        return new DuewheelException("bad_answer", detail, Outcome.UNKNOWN, status, Map.of(), retryAfter, cause);
    }

    /** The error that a problem document, or a refused item of a batch, is. */
    static DuewheelException of(Map<String, Object> problem, int status, Duration after) {
        String code = String.valueOf(problem.get("code"));
        Outcome outcome = status < 500 || status == 507 || code.equals("draining") ? Outcome.NOT_APPLIED : Outcome.UNKNOWN;
        if (problem.get("outcome") instanceof String said) outcome = said.equals("unknown") ? Outcome.UNKNOWN : Outcome.NOT_APPLIED;
        Duration again = problem.get("retry_after_ms") instanceof Long ms ? Duration.ofMillis(ms) : after;
        return new DuewheelException(code, String.valueOf(problem.get("detail")), outcome, status, problem, again, null);
    }

    /** The same, after an earlier attempt that may have been applied. */
    DuewheelException unknown() {
        return outcome == Outcome.UNKNOWN ? this : new DuewheelException(code, detail, Outcome.UNKNOWN, status, problem, retryAfter, this);
    }

    /** Whether another attempt makes sense. */
    boolean passes() {
        return code.equals("connection") || status == 429 || status == 503;
    }

    /**
     * What went wrong, in one stable word: those of the server (docs/errors.md; later versions may have further ones), or
     * {@code connection} (no answer), {@code bad_answer} (not duewheel's), {@code interrupted}, {@code webhook_header},
     * {@code webhook_timestamp}, {@code webhook_signature}, {@code webhook_secret}.
     */
    public String code() {
        return code;
    }

    /** Whether the code is one of these. */
    public boolean is(String... codes) {
        return List.of(codes).contains(code);
    }

    /** What went wrong, without the code. */
    public String detail() {
        return detail;
    }

    public Outcome outcome() {
        return outcome;
    }

    /** The status of HTTP; 0 without an answer. */
    public int status() {
        return status;
    }

    /** The field, path part or parameter at fault, as HTTP calls it, such as {@code delay_ms}; or null. */
    public String field() {
        return (String) member("field");
    }

    /** The message because of which the request was refused, or null. */
    public String existingId() {
        return (String) member("existing_id");
    }

    /** The state of that message, or null. */
    public String state() {
        return (String) member("state");
    }

    /** When the same request may be accepted, or null. */
    public Duration retryAfter() {
        return retryAfter;
    }

    /** Any other member of the answer by its name of HTTP, such as {@code quota} or {@code generation}, or null. */
    public Object member(String name) {
        return problem == null ? null : problem.get(name);
    }
}
