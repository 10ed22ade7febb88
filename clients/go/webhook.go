package duewheel

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Webhooks checks that requests are from your duewheel.
type Webhooks struct {
	// Secrets of the target: whsec_…, or whpk_… for the public half of a whsk_…. One that fits is enough.
	Secrets []string
	// Tolerance is how old, or how far ahead, a request may be; 5 minutes by default.
	Tolerance time.Duration
	// Now is the clock; time.Now by default.
	Now func() time.Time
}

// Webhook is what the headers of an accepted request say.
type Webhook struct {
	// ID is the same over all attempts: compare it to ignore what was seen before.
	ID         string
	Timestamp  time.Time
	Queue, Key string
	// Attempt counts deliveries so far, this one included.
	Attempt int
	DueAt   time.Time `json:"due_at"`
}

// Verify accepts a request if one of its signatures (Standard Webhooks 1.0, v1 and v1a) is by one of the secrets, and its
// time is near. Else answer 400; the error's code is WebhookHeader, WebhookTimestamp, WebhookSignature or WebhookSecret.
func (w Webhooks) Verify(header http.Header, body []byte) (*Webhook, error) {
	id, stamp, signatures := header.Get("webhook-id"), header.Get("webhook-timestamp"), header.Get("webhook-signature")
	for name, value := range map[string]string{"webhook-id": id, "webhook-timestamp": stamp, "webhook-signature": signatures} {
		if value == "" {
			return nil, refuse(WebhookHeader, name, "%s is missing: the request is no webhook", name)
		}
	}
	if len(w.Secrets) == 0 {
		return nil, refuse(WebhookSecret, "", "there is no secret; give those of the target")
	}
	keys := make([]func(version string, signed, signature []byte) bool, len(w.Secrets))
	for i, secret := range w.Secrets {
		var err error
		if keys[i], err = webhookKey(secret); err != nil {
			return nil, err
		}
	}
	seconds, err := strconv.ParseUint(stamp, 10, 40)
	if err != nil {
		return nil, refuse(WebhookTimestamp, "webhook-timestamp", "%q is no number of seconds", stamp)
	}
	now, tolerance := time.Now(), or(w.Tolerance, 5*time.Minute)
	if w.Now != nil {
		now = w.Now()
	}
	at := time.Unix(int64(seconds), 0)
	if off := now.Sub(at); off > tolerance || off < -tolerance {
		return nil, refuse(WebhookTimestamp, "webhook-timestamp", "the request is %v from now", off)
	}
	if !holds(keys, signatures, append([]byte(id+"."+stamp+"."), body...)) {
		return nil, refuse(WebhookSignature, "webhook-signature", "no signature is by one of the secrets: the body was changed, or the secret is another")
	}
	attempt, _ := strconv.Atoi(header.Get("duewheel-attempt"))
	due, _ := time.Parse(time.RFC3339, header.Get("duewheel-due-at"))
	return &Webhook{id, at, unescaped(header.Get("duewheel-queue")), unescaped(header.Get("duewheel-key")), attempt, due}, nil
}

func holds(keys []func(string, []byte, []byte) bool, signatures string, signed []byte) bool {
	for _, each := range strings.Split(signatures, " ") {
		version, encoded, _ := strings.Cut(each, ",")
		signature, err := base64.StdEncoding.Strict().DecodeString(encoded)
		for _, key := range keys {
			if err == nil && key(version, signed, signature) {
				return true
			}
		}
	}
	return false
}

func webhookKey(secret string) (func(version string, signed, signature []byte) bool, error) {
	if strings.HasPrefix(secret, "whsk_") {
		return nil, refuse(WebhookSecret, "", "whsk_… is the private key of the sender; give its public half, whpk_…")
	}
	public := strings.HasPrefix(secret, "whpk_")
	bytes, err := base64.StdEncoding.Strict().DecodeString(strings.TrimPrefix(strings.TrimPrefix(secret, "whpk_"), "whsec_"))
	if err != nil || len(bytes) == 0 || (public && len(bytes) != ed25519.PublicKeySize) {
		return nil, refuse(WebhookSecret, "", "a secret is whsec_ and base64, a public key whpk_ and 32 bytes in base64; this one is neither")
	}
	if public {
		return func(version string, signed, signature []byte) bool {
			return version == "v1a" && ed25519.Verify(bytes, signed, signature)
		}, nil
	}
	return func(version string, signed, signature []byte) bool {
		mac := hmac.New(sha256.New, bytes)
		mac.Write(signed)
		return version == "v1" && hmac.Equal(mac.Sum(nil), signature)
	}, nil
}

func unescaped(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text
}
