package io.duewheel;

import java.net.URLDecoder;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.MessageDigest;
import java.security.PublicKey;
import java.security.Signature;
import java.security.spec.X509EncodedKeySpec;
import java.time.Clock;
import java.time.DateTimeException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Checks that requests are from your duewheel (Standard Webhooks 1.0, {@code v1} and {@code v1a}). */
public final class Webhooks {
    /** What the headers of an accepted request say. {@code id} is the same over all attempts. Members that are missing are null or 0. */
    public record Webhook(String id, Instant timestamp, String queue, String key, int attempt, Instant dueAt) {}

    @FunctionalInterface
    private interface Check {
        boolean holds(String version, byte[] signed, byte[] signature) throws GeneralSecurityException;
    }

    /** What comes before the 32 bytes of a public key of Ed25519 in X.509. */
    private static final byte[] ED25519 = HexFormat.of().parseHex("302a300506032b6570032100");

    private final List<Check> checks = new ArrayList<>();
    private final Duration tolerance;
    private final Clock clock;

    /** Of these secrets ({@code whsec_…}, or {@code whpk_…} for the public half of a {@code whsk_…}) one must fit; five minutes of tolerance. */
    public Webhooks(String... secrets) {
        this(List.of(secrets), Duration.ofMinutes(5), Clock.systemUTC());
    }

    public Webhooks(List<String> secrets, Duration tolerance, Clock clock) {
        if (secrets.isEmpty()) throw refusal("webhook_secret", "there is no secret; give those of the target");
        for (String secret : secrets) checks.add(check(secret));
        this.tolerance = tolerance;
        this.clock = clock;
    }

    /**
     * Accepts a request by its headers, in any spelling, and its body, byte for byte.
     *
     * @throws DuewheelException {@code webhook_header}, {@code webhook_timestamp} or {@code webhook_signature}; answer 400
     */
    public Webhook verify(Map<String, String> headers, byte[] body) {
        String id = needed(headers, "webhook-id");
        String time = needed(headers, "webhook-timestamp");
        String signatures = needed(headers, "webhook-signature");
        if (!time.matches("[0-9]{1,12}")) throw refusal("webhook_timestamp", time + " is no number of seconds");
        Instant at = Instant.ofEpochSecond(Long.parseLong(time));
        Duration off = Duration.between(at, clock.instant()).abs();
        if (off.compareTo(tolerance) > 0) throw refusal("webhook_timestamp", "the request is " + off.toSeconds() + " s from now");
        byte[] head = (id + "." + time + ".").getBytes(StandardCharsets.UTF_8);
        if (!holds(signatures, joined(head, body))) {
            throw refusal("webhook_signature", "no signature is by one of the secrets: the body was changed, or the secret is another");
        }
        String queue = header(headers, "duewheel-queue");
        String key = header(headers, "duewheel-key");
        return new Webhook(id, at, read(queue, Webhooks::decoded, queue), read(key, Webhooks::decoded, key),
                read(header(headers, "duewheel-attempt"), Integer::valueOf, 0), read(header(headers, "duewheel-due-at"), Instant::parse, null));
    }

    private boolean holds(String signatures, byte[] signed) {
        for (String each : signatures.split(" ")) {
            int comma = each.indexOf(',');
            try {
                byte[] signature = Base64.getDecoder().decode(each.substring(comma + 1));
                for (Check check : checks) if (comma > 0 && check.holds(each.substring(0, comma), signed, signature)) return true;
            } catch (IllegalArgumentException | GeneralSecurityException e) {
                // This one does not hold; another one may.
            }
        }
        return false;
    }

    private static Check check(String secret) {
        if (secret.startsWith("whsk_")) throw refusal("webhook_secret", "whsk_… is the private key of the sender; give its public half, whpk_…");
        boolean isPublic = secret.startsWith("whpk_");
        try {
            byte[] bytes = Base64.getDecoder().decode(secret.replaceFirst("^(whsec|whpk)_", ""));
            if (bytes.length == 0 || (isPublic && bytes.length != 32)) throw new IllegalArgumentException("length");
            if (!isPublic) {
                return (version, signed, signature) -> {
                    Mac mac = Mac.getInstance("HmacSHA256");
                    mac.init(new SecretKeySpec(bytes, "HmacSHA256"));
                    return version.equals("v1") && MessageDigest.isEqual(mac.doFinal(signed), signature);
                };
            }
            PublicKey key = KeyFactory.getInstance("Ed25519").generatePublic(new X509EncodedKeySpec(joined(ED25519, bytes)));
            return (version, signed, signature) -> {
                Signature verifier = Signature.getInstance("Ed25519");
                verifier.initVerify(key);
                verifier.update(signed);
                return version.equals("v1a") && verifier.verify(signature);
            };
        } catch (IllegalArgumentException | GeneralSecurityException e) {
            throw refusal("webhook_secret", "a secret is whsec_ and base64, a public key whpk_ and 32 bytes in base64; this one is neither");
        }
    }

    private static byte[] joined(byte[] a, byte[] b) {
        return ByteBuffer.allocate(a.length + b.length).put(a).put(b).array();
    }

    private static String needed(Map<String, String> headers, String name) {
        String value = header(headers, name);
        if (value == null) throw refusal("webhook_header", name + " is missing: the request is no webhook");
        return value;
    }

    private static String header(Map<String, String> headers, String name) {
        for (Map.Entry<String, String> header : headers.entrySet()) if (header.getKey().equalsIgnoreCase(name)) return header.getValue();
        return null;
    }

    /** These headers are not signed: one that cannot be read must not fail the request. */
    private static <T> T read(String text, Function<String, T> reader, T otherwise) {
        try {
            return text == null ? otherwise : reader.apply(text);
        } catch (IllegalArgumentException | DateTimeException e) {
            return otherwise;
        }
    }

    private static String decoded(String text) {
        return URLDecoder.decode(text.replace("+", "%2B"), StandardCharsets.UTF_8);
    }

    private static DuewheelException refusal(String code, String detail) {
        return DuewheelException.refusal(code, "webhook", detail);
    }
}
