package io.duewheel;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * JSON (RFC 8259) as Java's own types: {@code Map<String, Object>}, {@code List<Object>}, String, Boolean, null, and for
 * numbers Long where that is exact, else BigDecimal.
 */
public final class Json {
    /** Deeper values are refused: the reader calls itself. */
    private static final int MAX_DEPTH = 500;
    private static final Pattern NUMBER = Pattern.compile("-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?");

    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /**
     * Reads one value.
     *
     * @throws IllegalArgumentException if the text is no JSON; the message names the place
     */
    public static Object read(String text) {
        Json json = new Json(text);
        Object value = json.value(0);
        json.space();
        if (json.at < text.length()) throw json.wrong("the end");
        return value;
    }

    /**
     * Writes a value of the types that {@link #read} gives, of any Number, Iterable or Map.
     *
     * @throws IllegalArgumentException for any other type, and for NaN and infinite numbers
     */
    public static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value == null || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof Number number) {
            boolean floating = number instanceof Double || number instanceof Float;
            if (floating && !Double.isFinite(number.doubleValue())) throw new IllegalArgumentException(number + " is no JSON");
            out.append(number);
        } else if (value instanceof CharSequence text) {
            writeText(text, out);
        } else if (value instanceof Map<?, ?> map) {
            String between = "{";
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                writeText(String.valueOf(entry.getKey()), out.append(between));
                write(entry.getValue(), out.append(':'));
                between = ",";
            }
            out.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof Iterable<?> list) {
            out.append('[');
            String between = "";
            for (Object each : list) {
                write(each, out.append(between));
                between = ",";
            }
            out.append(']');
        } else {
            throw new IllegalArgumentException(value.getClass().getName() + " is no JSON; give a Map, List, String, Number or Boolean");
        }
    }

    private static void writeText(CharSequence text, StringBuilder out) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            switch (c) {
                case '"' -> out.append("\\\"");
                case '\\' -> out.append("\\\\");
                case '\n' -> out.append("\\n");
                case '\r' -> out.append("\\r");
                case '\t' -> out.append("\\t");
                default -> {
                    // A lone surrogate has no UTF-8.
                    if (c < 0x20 || alone(text, i)) out.append(String.format("\\u%04x", (int) c));
                    else out.append(c);
                }
            }
        }
        out.append('"');
    }

    private static boolean alone(CharSequence text, int i) {
        char c = text.charAt(i);
        if (Character.isHighSurrogate(c)) return i + 1 == text.length() || !Character.isLowSurrogate(text.charAt(i + 1));
        return Character.isLowSurrogate(c) && (i == 0 || !Character.isHighSurrogate(text.charAt(i - 1)));
    }

    private Object value(int depth) {
        if (depth > MAX_DEPTH) throw wrong("less depth");
        space();
        return switch (at < text.length() ? text.charAt(at) : 0) {
            case '{' -> object(depth);
            case '[' -> array(depth);
            case '"' -> string();
            case 't' -> word("true", true);
            case 'f' -> word("false", false);
            case 'n' -> word("null", null);
            default -> number();
        };
    }

    private Map<String, Object> object(int depth) {
        Map<String, Object> object = new LinkedHashMap<>();
        at++;
        if (next('}')) return object;
        do {
            space();
            if (at == text.length() || text.charAt(at) != '"') throw wrong("a name");
            String name = string();
            if (!next(':')) throw wrong("':'");
            object.put(name, value(depth + 1));
        } while (next(','));
        if (!next('}')) throw wrong("',' or '}'");
        return object;
    }

    private List<Object> array(int depth) {
        List<Object> array = new ArrayList<>();
        at++;
        if (next(']')) return array;
        do array.add(value(depth + 1));
        while (next(','));
        if (!next(']')) throw wrong("',' or ']'");
        return array;
    }

    private String string() {
        StringBuilder out = new StringBuilder();
        for (at++; at < text.length(); at++) {
            char c = text.charAt(at);
            if (c == '"') {
                at++;
                return out.toString();
            }
            if (c < 0x20) throw wrong("no control character");
            out.append(c == '\\' ? escape() : c);
        }
        throw wrong("'\"'");
    }

    private char escape() {
        at++;
        char c = at < text.length() ? text.charAt(at) : 0;
        return switch (c) {
            case 'n' -> '\n';
            case 't' -> '\t';
            case 'r' -> '\r';
            case 'b' -> '\b';
            case 'f' -> '\f';
            case '"', '\\', '/' -> c;
            case 'u' -> {
                String digits = text.substring(at + 1, Math.min(at + 5, text.length()));
                if (!digits.matches("[0-9a-fA-F]{4}")) throw wrong("four hexadecimal digits");
                at += 4;
                yield (char) Integer.parseInt(digits, 16);
            }
            default -> throw wrong("an escape");
        };
    }

    private Object number() {
        Matcher found = NUMBER.matcher(text).region(at, text.length());
        if (!found.lookingAt()) throw wrong("a value");
        at = found.end();
        String number = found.group();
        if (number.matches("[-0-9]{1,18}")) return Long.parseLong(number);
        try {
            return new BigDecimal(number);
        } catch (NumberFormatException e) {
            throw wrong("a number that fits");
        }
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) throw wrong(word);
        at += word.length();
        return value;
    }

    /** Takes this character, if it is next. */
    private boolean next(char c) {
        space();
        if (at == text.length() || text.charAt(at) != c) return false;
        at++;
        return true;
    }

    private void space() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) at++;
    }

    private IllegalArgumentException wrong(String wanted) {
        return new IllegalArgumentException("no JSON: expected " + wanted + " at character " + at);
    }
}
