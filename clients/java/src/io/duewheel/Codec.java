package io.duewheel;

import java.nio.charset.StandardCharsets;
import java.util.function.Function;

/** How elements become bodies of messages. Equal elements must have equal bytes: these name the element. */
public interface Codec<T> {
    /** Text, as UTF-8. */
    Codec<String> TEXT = of(text -> text.getBytes(StandardCharsets.UTF_8), bytes -> new String(bytes, StandardCharsets.UTF_8));

    byte[] encode(T element);

    T decode(byte[] bytes);

    /** A codec of two functions. */
    static <T> Codec<T> of(Function<T, byte[]> encode, Function<byte[], T> decode) {
        return new Codec<>() {
            @Override
            public byte[] encode(T element) {
                return encode.apply(element);
            }

            @Override
            public T decode(byte[] bytes) {
                return decode.apply(bytes);
            }
        };
    }
}
