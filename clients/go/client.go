// Package duewheel is a client of duewheel, a server of durable delayed messages.
//
//	wheel, err := duewheel.NewClient("http://localhost:7788", nil)
//	_, err = wheel.Enqueue(ctx, "close-review", duewheel.NewMessage{Body: []byte("order 42"), Delay: 48 * time.Hour, Key: "order-42"})
//	_, err = wheel.Cancel(ctx, duewheel.ByKey("close-review", "order-42"))
//
// Each call is repeated for 30 s after a lost connection, a 429 or a 503, as the server's Retry-After says. An enqueue is
// repeated under one DedupeID, so that a lost answer never makes a second message. Acks, nacks and extends are repeated
// until they are answered, also after any 5xx, or their context ends. Everything else that goes wrong is an *Error; compare its code by errors.Is.
package duewheel

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// How long the server remembers an id that the client made: longer than any call is repeated.
	ownWindow = 15 * time.Minute
	// Below the server's limits of a batch, 10,000 messages and 16 MiB.
	batchMessages, batchBytes = 10_000, 15 << 20
)

// Options of a client. Zero values are the defaults.
type Options struct {
	// Token of the server, dw_….
	Token string
	// RetryFor is how long a call is repeated; 30 s.
	RetryFor time.Duration
	// Timeout of one attempt, beyond the time that a reserve waits; 30 s.
	Timeout time.Duration
	// Transport in place of this package's own.
	Transport http.RoundTripper
}

// Client of one server. It may be used by many goroutines.
type Client struct {
	url     string
	options Options
	http    *http.Client
}

// NewClient makes a client; nothing is sent yet. A path in the address goes before every call's.
func NewClient(address string, options *Options) (*Client, error) {
	c := &Client{url: strings.TrimRight(address, "/")}
	parsed, err := url.Parse(address)
	if err != nil || (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "" || parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" {
		// A token in it must not be in the error.
		shown, _, _ := strings.Cut(address[strings.LastIndexByte(address, '@')+1:], "?")
		return nil, refuse(BadRequest, "url", "url: %q is no address of a server; give one such as http://localhost:7788, and a token as Options.Token", shown)
	}
	c.options = *or(options, new(Options))
	c.options.RetryFor, c.options.Timeout = or(c.options.RetryFor, 30*time.Second), or(c.options.Timeout, 30*time.Second)
	// A redirect is no answer of duewheel.
	c.http = &http.Client{Transport: c.options.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if c.options.Transport == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.MaxIdleConnsPerHost = 100
		c.http.Transport = own
	}
	return c, nil
}

// A message as it is sent, each time with the same id.
type line struct {
	fields    fields
	ownWindow bool
}

func newLine(message NewMessage) (*line, error) {
	f, err := message.wire()
	// A window without an id is refused by the server.
	if err != nil || message.DedupeID != "" || message.DedupeWindow != 0 {
		return &line{fields: f}, err
	}
	f["dedupe_window_ms"], f["dedupe_id"] = milliseconds(ownWindow), newID()
	return &line{f, true}, nil
}

// It panics on a system without random numbers, as crypto/rand does itself since Go 1.24.
func newID() string {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		panic(err)
	}
	return hex.EncodeToString(id)
}

// The queue remembers for a shorter time than ours; then its own time must do. True once.
func (l *line) windowRefused(err error) bool {
	refusal := asError(err)
	if l == nil || !l.ownWindow || refusal == nil || refusal.Code != BadRequest || refusal.Field != "dedupe_window" {
		return false
	}
	l.ownWindow = false
	delete(l.fields, "dedupe_window_ms")
	return true
}

func (l *line) MarshalJSON() ([]byte, error) { return json.Marshal(l.fields) }

func ofQueue(queue, rest string) string { return "/v1/queues/" + url.PathEscape(queue) + rest }

// Enqueue schedules one message. It is durable when this returns.
func (c *Client) Enqueue(ctx context.Context, queue string, message NewMessage) (*Enqueued, error) {
	line, err := newLine(message)
	if err != nil {
		return nil, err
	}
	for {
		answer, err := do[Enqueued](ctx, c, call{method: "POST", path: ofQueue(queue, "/messages"), body: line.fields})
		if err == nil || !line.windowRefused(err) {
			return answer, err
		}
	}
}

// EnqueueMany schedules many messages, in order, not as one transaction. There is a result for each. The error is that of
// the whole call, if nothing was accepted for a reason that concerns all. A message that cannot be sent is refused before
// any is sent.
func (c *Client) EnqueueMany(ctx context.Context, queue string, messages []NewMessage) ([]Result[Enqueued], error) {
	var parts [][]any
	size, results := batchBytes, make([]Result[Enqueued], 0, len(messages))
	for _, message := range messages {
		line, err := newLine(message)
		if err != nil {
			return nil, err
		}
		data, err := json.Marshal(line.fields)
		if err != nil {
			return nil, refuse(BadRequest, "json", "JSON: %v", err)
		}
		if size += len(data) + 1; size > batchBytes || len(parts[len(parts)-1]) == batchMessages {
			parts, size = append(parts, nil), len(data)+1
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], line)
	}
	for _, part := range parts {
		done, err := batch[Enqueued](ctx, c, call{method: "POST", path: ofQueue(queue, "/messages")}, "", part, len(results) > 0)
		if results = append(results, done...); err != nil {
			return results, err
		}
	}
	return results, nil
}

// Result is what came of one item of a batch: Value, or Err.
type Result[T any] struct {
	Value *T
	Err   error
}

// A batch, as lines or as the member of an object, over all its attempts: what was put off or has no answer is sent again.
// An error of the whole call is that of each item if some were accepted: begun.
func batch[T any](ctx context.Context, c *Client, call call, member string, list []any, begun bool) ([]Result[T], error) {
	attempts := attempts{call: call, ends: time.Now().Add(c.options.RetryFor)}
	results, open := make([]Result[T], len(list)), make([]int, len(list))
	for i := range open {
		open[i] = i
	}
	for len(open) > 0 {
		part := make([]any, len(open))
		for at, i := range open {
			part[at] = list[i]
		}
		if call.body = (fields{member: part}); member == "" {
			call.body, call.lines = nil, part
		}
		text, failure := c.once(ctx, call)
		if ctx.Err() != nil {
			return results, ctx.Err()
		}
		answers := split(text, member == "")
		if failure == nil && len(answers) == 0 {
			failure = badAnswer(200, text, nil)
		}
		if failure != nil && !attempts.again(failure) && !begun {
			return nil, attempts.final(failure)
		}
		wait, rest := (*Error)(nil), []int(nil)
		for at, i := range open {
			err := failure
			if at < len(answers) {
				if err = fromProblem(answers[at], 0, -1); err == nil {
					value := new(T)
					if cause := json.Unmarshal(answers[at], value); cause == nil {
						results[i], begun = Result[T]{Value: value}, true
						continue
					}
					err = badAnswer(200, answers[at], nil)
				}
			} else if err == nil {
				err = noAnswer(io.ErrUnexpectedEOF)
			}
			line, _ := list[i].(*line)
			if attempts.again(err) {
				if wait == nil || err.RetryAfterMS > wait.RetryAfterMS {
					wait = err
				}
				attempts.unknown = attempts.unknown || err.Outcome == MayBeApplied
			} else if !line.windowRefused(err) {
				results[i].Err = attempts.final(err)
				continue
			}
			rest = append(rest, i)
		}
		if open = rest; wait == nil {
			continue
		}
		if err := attempts.next(ctx, wait); err != nil {
			if ctx.Err() != nil || !begun {
				return results, err
			}
			for _, i := range open {
				results[i].Err = err
			}
			return results, nil
		}
	}
	return results, nil
}

// The answers to a batch, as far as they are whole.
func split(text []byte, lines bool) (answers []json.RawMessage) {
	if !lines {
		var answer struct{ Results []json.RawMessage }
		_ = json.Unmarshal(text, &answer)
		return answer.Results
	}
	decoder, line := json.NewDecoder(bytes.NewReader(text)), json.RawMessage(nil)
	for decoder.Decode(&line) == nil {
		answers, line = append(answers, line), nil
	}
	return answers
}

func (w Which) path(rest string) string {
	if w.ID != "" {
		return "/v1/messages/" + url.PathEscape(w.ID) + rest
	}
	return ofQueue(w.Queue, "/keys/"+url.PathEscape(w.Key)+rest)
}

func one[T any](ctx context.Context, c *Client, method string, which Which, rest string, body any) (*T, error) {
	if which.ID == "" && (which.Queue == "" || which.Key == "") {
		return nil, refuse(BadRequest, "key", "key: neither an id, nor a queue and a key are given")
	}
	return do[T](ctx, c, call{method: method, path: which.path(rest), body: body})
}

// Get returns the present state of a message; MessageNotFound if it was delivered, cancelled, or never there.
func (c *Client) Get(ctx context.Context, which Which) (*View, error) {
	return one[View](ctx, c, "GET", which, "", nil)
}

// Cancelled is the answer to a cancel.
type Cancelled struct{ Result, ID, Key string }

// Cancel removes a message that no consumer has: Leased if it was too late, MessageNotFound if nothing is pending; then
// with the outcome MayBeApplied an earlier attempt of this call may have cancelled it.
func (c *Client) Cancel(ctx context.Context, which Which) (*Cancelled, error) {
	return one[Cancelled](ctx, c, "DELETE", which, "", nil)
}

// CancelAndForget also makes the message's DedupeID free again.
func (c *Client) CancelAndForget(ctx context.Context, which Which) (*Cancelled, error) {
	return one[Cancelled](ctx, c, "DELETE", which, "", fields{"forget_dedupe": true})
}

// CancelMany cancels messages of a queue by key: a result for each.
func (c *Client) CancelMany(ctx context.Context, queue string, keys ...string) ([]Result[Cancelled], error) {
	list := make([]any, len(keys))
	for i, key := range keys {
		list[i] = key
	}
	return batch[Cancelled](ctx, c, call{method: "POST", path: ofQueue(queue, "/cancel")}, "keys", list, false)
}

// Postpone changes due time, content or settings of a scheduled or ready message.
func (c *Client) Postpone(ctx context.Context, which Which, change Change) (*View, error) {
	body, err := change.wire()
	if err != nil {
		return nil, err
	}
	return one[View](ctx, c, "PATCH", which, "", body)
}

// Fire makes a message due now.
func (c *Client) Fire(ctx context.Context, which Which) (*View, error) {
	return one[View](ctx, c, "POST", which, "/fire", nil)
}

// Replay makes a new message, due now, with the content of a done or dead one. The key may be empty.
func (c *Client) Replay(ctx context.Context, id, key string) (*Enqueued, error) {
	return do[Enqueued](ctx, c, call{method: "POST", path: ByID(id).path("/replay"), body: wire(NewMessage{Key: key, DedupeID: newID()})})
}

// Reserve leases messages of one or more queues, the best ones first. There are none if none came while it waited.
func (c *Client) Reserve(ctx context.Context, reserve Reserve, queues ...string) (*Grants, error) {
	list := make([]fields, len(queues))
	for i, queue := range queues {
		list[i] = fields{"queue": queue}
	}
	body := wire(reserve)
	body["queues"] = list
	return do[Grants](ctx, c, call{method: "POST", path: "/v1/reserve", body: body, wait: reserve.Wait})
}

func (c *Client) settle(ctx context.Context, verb string, message *Message, body fields, timeout time.Duration) (*Settled, error) {
	body["lease_token"] = message.LeaseToken
	return do[Settled](ctx, c, call{method: "POST", path: ByID(message.ID).path("/" + verb), body: body, settles: true, timeout: timeout})
}

// Ack: the message is done, with its Result. LeaseLost if another consumer has it, or had it.
func (c *Client) Ack(ctx context.Context, message *Message) (*Settled, error) {
	return c.settle(ctx, "ack", message, wire(*message), 0)
}

// Nack: the message is not done; it comes again, or is dead.
func (c *Client) Nack(ctx context.Context, message *Message, nack Nack) (*Settled, error) {
	return c.settle(ctx, "nack", message, nack.wire(), 0)
}

// Extend keeps the lease for so long from now; for as long as it was granted if lease is 0. Of a message without LeaseMS the
// server then takes what message and queue say now, and never shortens the lease. An attempt takes a sixth of it at most, or
// 2 s: a dead connection must not outlast the lease.
func (c *Client) Extend(ctx context.Context, message *Message, lease time.Duration) (*Settled, error) {
	lease = message.extension(lease)
	body := wire(Reserve{Lease: lease})
	if lease /= 6; lease < 2*time.Second {
		lease = 2 * time.Second
	}
	return c.settle(ctx, "extend", message, body, lease)
}

// AckMany acks messages: a result for each.
func (c *Client) AckMany(ctx context.Context, messages ...*Message) ([]Result[Settled], error) {
	return c.settleMany(ctx, "ack", messages, func(m *Message) fields { return wire(*m) })
}

// NackMany nacks messages: a result for each.
func (c *Client) NackMany(ctx context.Context, nack Nack, messages ...*Message) ([]Result[Settled], error) {
	return c.settleMany(ctx, "nack", messages, func(*Message) fields { return nack.wire() })
}

// ExtendMany extends leases, each as Extend does: a result for each.
func (c *Client) ExtendMany(ctx context.Context, lease time.Duration, messages ...*Message) ([]Result[Settled], error) {
	return c.settleMany(ctx, "extend", messages, func(m *Message) fields { return wire(Reserve{Lease: m.extension(lease)}) })
}

func (c *Client) settleMany(ctx context.Context, verb string, messages []*Message, more func(*Message) fields) ([]Result[Settled], error) {
	list := make([]any, len(messages))
	for i, message := range messages {
		item := more(message)
		item["id"], item["lease_token"] = message.ID, message.LeaseToken
		list[i] = item
	}
	return batch[Settled](ctx, c, call{method: "POST", path: "/v1/" + verb, settles: true}, "messages", list, false)
}

// Page is a part of a queue's messages. Next is empty on the last page.
type Page struct {
	Messages []*View `json:"messages"`
	Next     string  `json:"next"`
}

// List returns a page of a queue's messages in due order, after an earlier page's Next. Filters are those of HTTP:
// {"state": {"dead"}}.
func (c *Client) List(ctx context.Context, queue string, limit int, after string, filter url.Values) (*Page, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	for name, values := range filter {
		query[name] = values
	}
	if after != "" {
		query.Set("after", after)
	}
	return do[Page](ctx, c, call{method: "GET", path: ofQueue(queue, "/messages"), query: query})
}

// Queue returns counts and settings of a queue.
func (c *Client) Queue(ctx context.Context, queue string) (*QueueView, error) {
	return do[QueueView](ctx, c, call{method: "GET", path: ofQueue(queue, "")})
}

// Configure changes the settings that are named, as HTTP names them: {"lease_ms": 60000}. The scope is admin.
func (c *Client) Configure(ctx context.Context, queue string, settings map[string]any) (*QueueView, error) {
	return do[QueueView](ctx, c, call{method: "PATCH", path: ofQueue(queue, "/config"), body: settings})
}

// Redrive makes dead messages ready again: those with these ids, or all. It returns how many. The scope is admin.
func (c *Client) Redrive(ctx context.Context, queue string, ids ...string) (int64, error) {
	body := wire(struct {
		IDs []string `wire:"ids"`
	}{ids})
	answer, err := do[struct{ Redriven int64 }](ctx, c, call{method: "POST", path: ofQueue(queue, "/redrive"), body: body})
	if err != nil {
		return 0, err
	}
	return answer.Redriven, nil
}

// Advance lets time pass on a server with --virtual-clock, for tests. It is not repeated after a lost answer: time would
// pass twice.
func (c *Client) Advance(ctx context.Context, by time.Duration) error {
	_, err := do[struct{}](ctx, c, call{method: "POST", path: "/v1/clock/advance", body: fields{"by_ms": milliseconds(by)}, doubles: true})
	return err
}
