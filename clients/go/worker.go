package duewheel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// How one reserve waits for messages, and the largest number that a server grants at once.
const workerWait, mostGrants = 20 * time.Second, 10_000

// verdict is an error of a handler that says what becomes of its message.
type verdict struct {
	nack Nack
	text string
}

func (v *verdict) Error() string { return v.text }

// NotYet is for a handler to return: the message comes again after this time, and this delivery does not count.
func NotYet(delay time.Duration) error { return &verdict{Nack{Delay: &delay, NotYet: true}, "not yet"} }

// Dead is for a handler to return: the message is dead at once, for this reason. No attempt can help.
func Dead(reason string) error { return &verdict{Nack{Dead: true, Reason: reason}, reason} }

// Handler works on one message. Nil acks it, with the message's Result if one was set; an error nacks it, and it comes
// again after the backoff, unless the error is, or wraps, NotYet or Dead. The context ends when the lease is lost, or ends
// and no extend is answered, or when a drain has waited long enough; it has the values of Run's. A handler that stops
// because of it returns an error: nil is also acked then, and counts if nobody has got the message since.
type Handler func(ctx context.Context, message *Message) error

// Worker leases messages of its queues and runs a handler for each. It waits in one reserve over all queues, asks for no
// more than it can work on, and extends each lease at half its time while the handler runs.
type Worker struct {
	Client  *Client
	Queues  []string
	Handler Handler
	// Concurrency is the number of handlers that run at a time; 1 by default.
	Concurrency int
	// Lease of each message; the message's own by default.
	Lease time.Duration
	// Drain is how long the end of Run waits for handlers; for ever by default.
	Drain time.Duration
	// OnError is called with errors outside of handlers, such as lost leases. The message may be nil.
	OnError func(err error, message *Message)
}

// Run works until the context ends; then it leases nothing more, and returns nil when the handlers that run have ended.
// For a drain at SIGTERM give it a context of signal.NotifyContext. It returns an error that makes further work
// impossible, such as Unauthorized.
func (w *Worker) Run(ctx context.Context) error {
	if len(w.Queues) == 0 || w.Handler == nil || w.Client == nil || w.Concurrency < 0 {
		return refuse(BadRequest, "worker", "a worker needs a Client, a Handler, at least one of Queues, and no negative Concurrency")
	}
	concurrency := or(w.Concurrency, 1)
	handlers, end := context.WithCancel(valuesOf{ctx})
	defer end()
	taken := make(chan struct{}, concurrency)
	var running sync.WaitGroup
	err := w.reserveAll(ctx, taken, func(message *Message) {
		running.Add(1)
		go func() {
			defer running.Done()
			defer func() { <-taken }()
			w.handle(handlers, message)
		}()
	})
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	var cut <-chan time.Time
	if w.Drain > 0 {
		defer time.AfterFunc(w.Drain, end).Stop()
		// Those that are cut off have a moment to give their messages back.
		cut = time.After(w.Drain + 2*time.Second)
	}
	select {
	case <-done:
	case <-cut:
	}
	return err
}

func (w *Worker) reserveAll(ctx context.Context, taken chan struct{}, begin func(*Message)) error {
	for failures := 0; ; {
		// At least one place is free; take all that are.
		select {
		case taken <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		max := 1
		for ; max < mostGrants && len(taken) < cap(taken); max++ {
			taken <- struct{}{}
		}
		grants, err := w.Client.Reserve(ctx, Reserve{Max: max, Wait: workerWait, Lease: w.Lease}, w.Queues...)
		if ctx.Err() != nil && err != nil {
			return nil
		}
		if err != nil {
			refusal := asError(err)
			if refusal == nil || (!refusal.passes() && refusal.Status < 500) {
				return err
			}
			w.report(err, nil)
			grants = new(Grants)
			if sleep(ctx, backoff(failures)) != nil {
				return nil
			}
			failures++
		} else {
			failures = 0
		}
		for _, message := range grants.Messages {
			begin(message)
		}
		for i := len(grants.Messages); i < max; i++ {
			<-taken
		}
	}
}

func (w *Worker) handle(ctx context.Context, message *Message) {
	handler, cancel := context.WithCancel(ctx)
	extends, over := context.WithCancel(context.Background())
	lost := make(chan error, 1)
	// Without an answer the lease ends all the same, and another consumer may have the message.
	ends := time.AfterFunc(time.Duration(message.LeaseMS)*time.Millisecond, cancel)
	defer ends.Stop()
	go func() { lost <- w.extend(extends, message, ends) }()
	result := w.call(handler, message)
	over()
	cancel()
	// Work that is done may count all the same: the settle says so.
	if err := <-lost; err != nil && result != nil {
		w.report(err, message)
		return
	}
	settle := ctx
	if ctx.Err() != nil {
		// After the end of a drain there is a moment for each settle, and no more.
		var done context.CancelFunc
		settle, done = context.WithTimeout(context.Background(), 1500*time.Millisecond)
		defer done()
	}
	var err error
	var said *verdict
	switch {
	case result == nil:
		if _, err = w.Client.Ack(settle, message); message.Result != nil && (errors.Is(err, BadRequest) || errors.Is(err, BodyTooLarge)) {
			// The work is done all the same.
			w.report(err, message)
			message.Result = nil
			_, err = w.Client.Ack(settle, message)
		}
	case errors.As(result, &said):
		_, err = w.Client.Nack(settle, message, said.nack)
	case ctx.Err() != nil:
		// The drain is to blame, not the message.
		_, err = w.Client.Nack(settle, message, Nack{Delay: new(time.Duration), NotYet: true, Reason: "the worker stops"})
	default:
		_, err = w.Client.Nack(settle, message, Nack{Reason: result.Error()})
	}
	if err != nil {
		w.report(err, message)
	}
}

// A panic of a handler is that message's failed attempt.
func (w *Worker) call(ctx context.Context, message *Message) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
			w.report(err, message)
		}
	}()
	return w.Handler(ctx, message)
}

// Extends the lease at half its time until the handler is done; the error if the lease is lost.
func (w *Worker) extend(over context.Context, message *Message, ends *time.Timer) error {
	lease := message.extension(w.Lease)
	for pause := lease / 2; sleep(over, pause) == nil; {
		_, err := w.Client.Extend(over, message, lease)
		if errors.Is(err, LeaseLost) || errors.Is(err, MessageNotFound) || errors.Is(err, NotFound) {
			ends.Reset(0)
			return err
		}
		if pause = lease / 2; err == nil {
			ends.Reset(lease)
		} else if over.Err() == nil {
			// That says nothing of the lease.
			w.report(err, message)
			pause = lease / 6
		}
	}
	return nil
}

func (w *Worker) report(err error, message *Message) {
	if w.OnError != nil {
		w.OnError(err, message)
	}
}

// valuesOf has a context's values, and not its end.
type valuesOf struct{ context.Context }

func (valuesOf) Deadline() (time.Time, bool) { return time.Time{}, false }
func (valuesOf) Done() <-chan struct{}       { return nil }
func (valuesOf) Err() error                  { return nil }
