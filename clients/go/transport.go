package duewheel

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// A call, over all its attempts.
type call struct {
	method string
	path   string
	query  url.Values
	body   any
	// A batch in place of a body.
	lines []any
	// Repeated until it is answered; not repeated if it may have been applied.
	settles, doubles bool
	// How long the server may hold its answer back; how long an attempt may take, if that is less than the client's.
	wait, timeout time.Duration
}

// Attempts of a call: the pauses between them, and their end.
type attempts struct {
	call    call
	ends    time.Time
	count   int
	unknown bool
}

// Whether another attempt makes sense.
func (a *attempts) again(err *Error) bool {
	return (a.call.settles && err.Status >= 500) || (err.passes() && !(a.call.doubles && err.Outcome == MayBeApplied))
}

// Waits for the next attempt, or returns the error of the call if there is none.
func (a *attempts) next(ctx context.Context, err *Error) error {
	pause := backoff(a.count)
	if err.RetryAfterMS >= 0 {
		pause = time.Duration(err.RetryAfterMS)*time.Millisecond + time.Duration(rand.Int63n(int64(100*time.Millisecond)))
	}
	if !a.call.settles && time.Now().Add(pause).After(a.ends) {
		return a.final(err)
	}
	a.count++
	a.unknown = a.unknown || err.Outcome == MayBeApplied
	return sleep(ctx, pause)
}

// The error of the whole call: an earlier attempt without an answer may have been applied.
func (a *attempts) final(err *Error) *Error {
	if a.unknown && err.Outcome != MayBeApplied {
		copied := *err
		copied.Outcome = MayBeApplied
		return &copied
	}
	return err
}

// From 100 ms, doubled up to 5 s, of which a random half.
func backoff(attempt int) time.Duration {
	return time.Duration(math.Min(5, 0.1*math.Pow(2, float64(attempt))) * (0.5 + rand.Float64()/2) * float64(time.Second))
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// The answer to a call, as JSON.
func do[T any](ctx context.Context, c *Client, call call) (*T, error) {
	attempts := attempts{call: call, ends: time.Now().Add(c.options.RetryFor)}
	for {
		text, err := c.once(ctx, call)
		if err == nil {
			answer := new(T)
			if err := json.Unmarshal(text, answer); err != nil {
				return nil, badAnswer(200, text, err)
			}
			return answer, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !attempts.again(err) {
			return nil, attempts.final(err)
		}
		if err := attempts.next(ctx, err); err != nil {
			return nil, err
		}
	}
}

// once makes one attempt. With an error, a part of the answer may be there.
func (c *Client) once(ctx context.Context, call call) ([]byte, *Error) {
	address, timeout := c.url+call.path, c.options.Timeout+call.wait
	if len(call.query) > 0 {
		address += "?" + call.query.Encode()
	}
	if call.timeout > 0 && call.timeout < timeout {
		timeout = call.timeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	parts, kind, body := call.lines, "application/x-ndjson", new(bytes.Buffer)
	if call.body != nil {
		parts, kind = []any{call.body}, "application/json"
	}
	for _, part := range parts {
		if err := json.NewEncoder(body).Encode(part); err != nil {
			return nil, refuse(BadRequest, "json", "JSON: %v", err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, call.method, address, body)
	if err != nil {
		return nil, refuse(BadRequest, "url", "url: %v", err)
	}
	if len(parts) > 0 {
		request.Header.Set("Content-Type", kind)
	}
	if c.options.Token != "" {
		request.Header.Set("Authorization", "Bearer "+c.options.Token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, noAnswer(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if response.StatusCode/100 != 2 {
		return nil, refused(response, text)
	}
	if err != nil {
		return text, noAnswer(err)
	}
	if kind := response.Header.Get("Content-Type"); !strings.Contains(kind, "json") {
		return nil, badAnswer(response.StatusCode, text, nil)
	}
	return text, nil
}

func refused(response *http.Response, text []byte) *Error {
	afterMS := int64(-1)
	if seconds, err := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 31); err == nil {
		afterMS = int64(seconds) * 1000
	}
	if problem := fromProblem(text, response.StatusCode, afterMS); problem != nil {
		return problem
	}
	err := badAnswer(response.StatusCode, text, nil)
	err.RetryAfterMS = afterMS
	return err
}

// An answer that is not duewheel's, such as a proxy's page.
func badAnswer(status int, text []byte, cause error) *Error {
	if len(text) > 100 {
		text = text[:100]
	}
	detail := fmt.Sprintf("status %d, and no answer of duewheel: %q", status, text)
	return &Error{Code: BadAnswer, Detail: detail, Outcome: MayBeApplied, Status: status, RetryAfterMS: -1, cause: cause}
}
