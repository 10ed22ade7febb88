package io.duewheel;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;

/** Fields of a request, by their names of HTTP. A null is left out; lengths of time are rounded up, so that nothing is early. */
abstract class Fields<Self extends Fields<Self>> {
    final Map<String, Object> wire = new LinkedHashMap<>();

    @SuppressWarnings("unchecked")
    Self set(String name, Object value) {
        if (value instanceof Duration length) wire.put(name, milliseconds(name, length));
        else if (value instanceof Instant instant) wire.put(name, instant.toString());
        else if (value != null) wire.put(name, value);
        return (Self) this;
    }

    Self content(byte[] body) {
        try {
            return set("body", StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(body)).toString());
        } catch (CharacterCodingException e) {
            return set("body_base64", Base64.getEncoder().encodeToString(body));
        }
    }

    static long milliseconds(String field, Duration length) {
        if (length.isNegative()) throw DuewheelException.refusal("bad_request", field, field + ": " + length + " is negative; give 0 or more");
        return length.plusNanos(999_999).toMillis();
    }
}
