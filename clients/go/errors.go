package duewheel

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Code says what went wrong, in one stable word. It is an error, for errors.Is:
//
//	if errors.Is(err, duewheel.LeaseLost) { … }
//
// Later versions of the server may have codes beyond these.
type Code string

func (c Code) Error() string { return string(c) }

// Codes of the server that programs ask for; any other one (docs/errors.md) is Code("not_done").
const (
	// The request is wrong.
	BadRequest, InThePast, BodyTooLarge, Unauthorized Code = "bad_request", "in_the_past", "body_too_large", "unauthorized"
	// There is no such queue or message.
	NotFound, MessageNotFound Code = "not_found", "message_not_found"
	// The message is in another state than the request needs.
	KeyExists, Leased, IsDead, LeaseLost        Code = "key_exists", "leased", "dead", "lease_lost"
	GenerationMismatch, DedupeMismatch, Changed Code = "generation_mismatch", "dedupe_mismatch", "changed"
	// The server cannot at present.
	Overloaded, OverQuota, Draining, StorageUnavailable, DiskFull Code = "overloaded", "over_quota", "draining", "storage_unavailable", "disk_full"
)

// Codes of this package's own.
const (
	// Connection: no answer; refused, cut off, or timed out.
	Connection Code = "connection"
	// BadAnswer: an answer that is not duewheel's, such as a proxy's page.
	BadAnswer Code = "bad_answer"
	// WebhookHeader: a webhook without one of its three headers.
	WebhookHeader Code = "webhook_header"
	// WebhookTimestamp: a webhook from too long ago, or from the future.
	WebhookTimestamp Code = "webhook_timestamp"
	// WebhookSignature: a webhook that none of the secrets has signed.
	WebhookSignature Code = "webhook_signature"
	// WebhookSecret: a secret for webhooks that cannot be used.
	WebhookSecret Code = "webhook_secret"
)

// Outcome says whether a call that failed may have been applied.
type Outcome string

// NotApplied: nothing was changed. MayBeApplied: this request, or an earlier attempt of the same call, may have been
// applied, and only its answer is missing.
const NotApplied, MayBeApplied Outcome = "not_applied", "unknown"

// Error is a call that was refused or has failed. Members that do not apply are zero.
type Error struct {
	Code    Code    `json:"code"`
	Detail  string  `json:"detail"`
	Outcome Outcome `json:"outcome"`
	// Status of HTTP, if there was an answer.
	Status int `json:"status"`
	// Field, path part or parameter at fault, as HTTP calls it: delay_ms.
	Field string `json:"field"`
	// ExistingID is the message because of which the request was refused, State its state.
	ExistingID string `json:"existing_id"`
	State      string `json:"state"`
	// Generation is the message's present one.
	Generation uint32 `json:"generation"`
	// RetryAfterMS says when the same request may be accepted, in milliseconds; -1 if nothing said so.
	RetryAfterMS int64 `json:"retry_after_ms"`
	// With OverQuota: prefix, resource, limit and use.
	Quota, Resource string
	Limit, Used     uint64

	cause error
}

func (e *Error) Error() string { return "duewheel: " + string(e.Code) + ": " + e.Detail }

// Is makes errors.Is compare codes.
func (e *Error) Is(target error) bool { return target == error(e.Code) }

func (e *Error) Unwrap() error { return e.cause }

func refuse(code Code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Detail: fmt.Sprintf(format, args...), Outcome: NotApplied, RetryAfterMS: -1}
}

func noAnswer(cause error) *Error {
	return &Error{Code: Connection, Detail: "no answer from the server: " + cause.Error(), Outcome: MayBeApplied, RetryAfterMS: -1, cause: cause}
}

// The error that a problem document, or a refused item of a batch, is; nil if it is neither.
func fromProblem(data []byte, status int, afterMS int64) *Error {
	problem := &Error{Status: status, RetryAfterMS: afterMS}
	if json.Unmarshal(data, problem) != nil || problem.Code == "" {
		return nil
	}
	if problem.Outcome == "" && (problem.Status < 500 || problem.Status == 507 || problem.Code == Draining) {
		problem.Outcome = NotApplied
	}
	problem.Outcome = or(problem.Outcome, MayBeApplied)
	return problem
}

// Whether another attempt makes sense.
func (e *Error) passes() bool { return e.Code == Connection || e.Status == 429 || e.Status == 503 }

func asError(err error) *Error {
	var found *Error
	errors.As(err, &found)
	return found
}
