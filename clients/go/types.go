package duewheel

import (
	"reflect"
	"time"
	"unicode/utf8"
)

// Values of NewMessage.IfExists.
const Reject, Keep, Replace, Supersede = "reject", "keep", "replace", "supersede"

// NewMessage is a message to enqueue. What is zero is left to the settings of its queue.
type NewMessage struct {
	// Body, or JSON: a value that is encoded as JSON. Without either the body is empty.
	Body []byte
	JSON any
	// Delay, by elapsed time, or DueAt, by the wall clock. Without either it is due at once.
	Delay time.Duration `wire:"delay_ms"`
	DueAt time.Time     `wire:"due_at"`
	// Past says what happens if DueAt has passed: "refuse" (the default), "fire" or "keep".
	Past string `wire:"past"`
	// Key is your own name for the message, unique among the unsettled ones of its queue.
	Key string `wire:"key"`
	// IfExists says what happens if the key is taken; Reject by default.
	IfExists string `wire:"if_exists"`
	// DedupeID makes a repeated enqueue get the first answer, for DedupeWindow. Without one the client makes one for the call.
	DedupeID     string        `wire:"dedupe_id"`
	DedupeWindow time.Duration `wire:"dedupe_window_ms"`
	// Priority: lower first; 1024 by default. See Uint32.
	Priority    *uint32           `wire:"priority"`
	Lease       time.Duration     `wire:"lease_ms"`
	MaxAttempts uint32            `wire:"max_attempts"`
	Backoff     *Backoff          `wire:"backoff"`
	Headers     map[string]string `wire:"headers"`
	TargetURL   string            `wire:"target_url"`
	// Spread: due at an instant of its own within this time after the due time.
	Spread time.Duration `wire:"spread_ms"`
	// ExpiresIn, after the due time, or ExpiresAt.
	ExpiresIn time.Duration `wire:"expires_in_ms"`
	ExpiresAt time.Time     `wire:"expires_at"`
}

// Backoff is the delay after a failed attempt: from Min, doubled each time, up to Max.
type Backoff struct{ Min, Max time.Duration }

// Uint32 is for optional numbers.
func Uint32(n uint32) *uint32 { return &n }

// Which is one message: by ID, or by Queue and Key.
type Which struct{ ID, Queue, Key string }

// ByID names a message by its id.
func ByID(id string) Which { return Which{ID: id} }

// ByKey names a message by its key.
func ByKey(queue, key string) Which { return Which{Queue: queue, Key: key} }

// Change is a change of a scheduled or ready message. What is nil or zero stays.
type Change struct {
	Delay        *time.Duration `wire:"delay_ms"`
	DueAt        time.Time      `wire:"due_at"`
	Past         string         `wire:"past"`
	Body         []byte
	JSON         any
	Headers      map[string]string `wire:"headers"`
	Priority     *uint32           `wire:"priority"`
	MaxAttempts  uint32            `wire:"max_attempts"`
	Lease        time.Duration     `wire:"lease_ms"`
	IfGeneration uint32            `wire:"if_generation"`
}

// Enqueued is a message that was accepted, or that existed already. Created is false if IfExists: Keep kept another message,
// whose State this is. Replayed: the DedupeID was known, and this is the answer to an earlier enqueue. Replaced is the
// message that this one has replaced, Superseded the leased one whose key it has taken.
type Enqueued struct {
	ID, Queue, Key, Durability, State, Replaced, Superseded string
	Created, Replayed                                       bool
	Generation                                              uint32
	DueAt                                                   time.Time `json:"due_at"`
}

// Content is what a message is, wherever it comes from.
type Content struct {
	ID, Queue, Key string
	// Text is the body if it is valid UTF-8, else it is Binary. See Body.
	Text                          string            `json:"body"`
	Binary                        []byte            `json:"body_base64"`
	Headers                       map[string]string `json:"headers"`
	TargetURL                     string            `json:"target_url"`
	DueAt                         time.Time         `json:"due_at"`
	Attempt, Priority, Generation uint32
	LeaseMS                       int64     `json:"lease_ms"`
	LeaseUntil                    time.Time `json:"lease_until"`
}

// Message is a message under a lease: the right to work on it until LeaseUntil, which LeaseToken proves.
type Message struct {
	Content
	LeaseToken string `json:"lease_token"`
	LatenessMS int64  `json:"lateness_ms"`
	Late       bool   `json:"late"`
	// Result is for you to set: Ack, and a Worker, send it as JSON, and a queue with keep_done keeps it. At most 16 KiB.
	Result any `json:"-" wire:"result"`
}

// View is the present state of a message.
type View struct {
	Content
	State, Outcome string
	DueInMS        int64         `json:"due_in_ms"`
	Forgiven       uint32        `json:"forgiven"`
	MaxAttempts    uint32        `json:"max_attempts"`
	EnqueuedAt     time.Time     `json:"enqueued_at"`
	ExpiresAt      time.Time     `json:"expires_at"`
	EndedAt        time.Time     `json:"ended_at"`
	DeadReason     string        `json:"dead_reason"`
	SupersededBy   string        `json:"superseded_by"`
	Result         any           `json:"result"`
	History        []PastAttempt `json:"history"`
}

// PastAttempt is an attempt that has ended: how, and the reason that its consumer gave.
type PastAttempt struct {
	Attempt   uint32    `json:"attempt"`
	GrantedAt time.Time `json:"granted_at"`
	EndedAt   time.Time `json:"ended_at"`
	How, Note string
}

// Settled is the answer to an ack ("acked", "already"), a nack ("again", "dead", "superseded") or an extend ("extended").
type Settled struct {
	Result, Durability string
	DueAt              time.Time `json:"due_at"`
	DeadReason         string    `json:"dead_reason"`
	LeaseUntil         time.Time `json:"lease_until"`
}

// Nack says what becomes of a message that is not done.
type Nack struct {
	// Delay before the next attempt; without it the backoff decides.
	Delay *time.Duration `wire:"delay_ms"`
	// Reason is kept in the message's history, cut to 256 bytes.
	Reason string `wire:"reason"`
	// Dead: at once.
	Dead bool `wire:"dead"`
	// NotYet: this delivery does not count against MaxAttempts.
	NotYet bool
}

// Reserve says how messages are leased.
type Reserve struct {
	// Max is 1 by default.
	Max int `wire:"max"`
	// Wait for the first message; 0 by default.
	Wait time.Duration `wire:"wait_ms"`
	// Lease; the message's own by default.
	Lease time.Duration `wire:"lease_ms"`
}

// Grants are leased messages. HeldBack says why there are none although some are ready.
type Grants struct {
	Messages []*Message `json:"messages"`
	HeldBack string     `json:"held_back"`
}

// QueueView is the state of a queue.
type QueueView struct {
	Queue   string                                         `json:"queue"`
	Counts  struct{ Scheduled, Ready, Leased, Dead int64 } `json:"counts"`
	Paused  bool                                           `json:"paused"`
	Waiters int64                                          `json:"waiters"`
	Config  map[string]any                                 `json:"config"`
}

// Body is the content, as bytes.
func (c Content) Body() []byte {
	if c.Binary != nil {
		return c.Binary
	}
	return []byte(c.Text)
}

// Fields of a request.
type fields map[string]any

// A request's fields: those with a tag that are not zero. Lengths of time are rounded up, so that nothing is early.
func wire(request any) fields {
	f, v := fields{}, reflect.ValueOf(request)
	for i := 0; i < v.NumField(); i++ {
		name := v.Type().Field(i).Tag.Get("wire")
		if name == "" || v.Field(i).IsZero() {
			continue
		}
		switch value := v.Field(i).Interface().(type) {
		case time.Duration:
			f[name] = milliseconds(value)
		case *time.Duration:
			f[name] = milliseconds(*value)
		case time.Time:
			f[name] = value.UTC().Format(time.RFC3339Nano)
		case *Backoff:
			f[name] = fields{"min_ms": milliseconds(value.Min), "max_ms": milliseconds(value.Max)}
		default:
			f[name] = value
		}
	}
	return f
}

// The first one unless it is zero, else the other.
func or[T comparable](value, otherwise T) T {
	if value == *new(T) {
		return otherwise
	}
	return value
}

func milliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > 0 && d%time.Millisecond != 0 {
		ms++
	}
	return ms
}

func (f fields) content(body []byte, value any) error {
	switch {
	case body != nil && value != nil:
		return refuse(BadRequest, "body", "Body and JSON: both are given; give one")
	case value != nil:
		f["json"] = value
	case utf8.Valid(body):
		f["body"] = string(body)
	default:
		f["body_base64"] = body
	}
	return nil
}

func (m NewMessage) wire() (fields, error) {
	f := wire(m)
	if m.DueAt.IsZero() {
		f["delay_ms"] = milliseconds(m.Delay)
	} else if m.Delay != 0 {
		return nil, refuse(BadRequest, "due_at", "Delay and DueAt: both are given; give one")
	}
	return f, f.content(m.Body, m.JSON)
}

func (c Change) wire() (fields, error) {
	f := wire(c)
	if c.Body == nil && c.JSON == nil {
		return f, nil
	}
	return f, f.content(c.Body, c.JSON)
}

// The length of the lease after an extend: as it was granted, unless another one is given.
func (m *Message) extension(lease time.Duration) time.Duration {
	return or(lease, time.Duration(m.LeaseMS)*time.Millisecond)
}

func (n Nack) wire() fields {
	f := wire(n)
	if n.NotYet {
		f["attempt"] = false
	}
	return f
}
