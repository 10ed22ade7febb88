package io.duewheel;

import java.lang.reflect.ParameterizedType;
import java.lang.reflect.RecordComponent;
import java.lang.reflect.Type;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;

/** Makes records of answers: the component {@code dueAt} is the member {@code due_at}, and the Duration {@code lease} {@code lease_ms}. */
final class Records {
    private Records() {}

    static <R> R read(Class<R> type, Map<String, Object> wire) {
        RecordComponent[] components = type.getRecordComponents();
        Class<?>[] types = new Class<?>[components.length];
        Object[] values = new Object[components.length];
        for (int i = 0; i < components.length; i++) {
            types[i] = components[i].getType();
            values[i] = member(components[i], wire);
        }
        try {
            return type.getDeclaredConstructor(types).newInstance(values);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    static String snake(String name) {
        return name.replaceAll("([A-Z])", "_$1").toLowerCase(java.util.Locale.ROOT);
    }

    private static Object member(RecordComponent component, Map<String, Object> wire) {
        Class<?> type = component.getType();
        String name = snake(component.getName());
        Object value = wire.get(type == Duration.class ? name + "_ms" : name);
        if (type == byte[].class) {
            if (value != null) return ((String) value).getBytes(StandardCharsets.UTF_8);
            Object encoded = wire.get(name + "_base64");
            return encoded == null ? new byte[0] : Base64.getDecoder().decode((String) encoded);
        }
        if (type == boolean.class) return Boolean.TRUE.equals(value);
        if (type == int.class) return value == null ? 0 : ((Number) value).intValue();
        if (type == long.class) return value == null ? 0L : ((Number) value).longValue();
        if (value == null) return type == List.class ? List.of() : type == Map.class ? Map.of() : null;
        if (type == Instant.class) return Instant.parse((String) value);
        if (type == Duration.class) return Duration.ofMillis(((Number) value).longValue());
        if (type.isRecord()) return read(type, Records.<Map<String, Object>>as(value));
        if (type != List.class) return value;
        Type item = ((ParameterizedType) component.getGenericType()).getActualTypeArguments()[0];
        if (!(item instanceof Class<?> of) || !of.isRecord()) return value;
        List<Object> list = new ArrayList<>();
        for (Object each : (List<?>) value) list.add(read(of, Records.<Map<String, Object>>as(each)));
        return list;
    }

    @SuppressWarnings("unchecked")
    static <T> T as(Object value) {
        return (T) value;
    }
}
