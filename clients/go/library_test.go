package duewheel

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func realClient(t *testing.T) (context.Context, *Client) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx, newClient(t, realServer, nil)
}

func TestLengthsAreRoundedUp(t *testing.T) {
	ctx, c := realClient(t)
	sent, err := c.Enqueue(ctx, "c.fine", NewMessage{Body: []byte{255, 0}, Delay: time.Hour, ExpiresIn: time.Nanosecond, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	view, err := c.Get(ctx, ByID(sent.ID))
	if err != nil || view.ExpiresAt.Sub(view.DueAt) != time.Millisecond || view.LeaseMS != 60_000 || string(view.Body()) != "\xff\x00" {
		t.Fatalf("%+v, %v", view, err)
	}
}

func TestWhatCannotBeSentIsRefused(t *testing.T) {
	ctx, c := realClient(t)
	for _, bad := range []NewMessage{{Body: []byte("x"), JSON: 1}, {Delay: time.Second, DueAt: time.Now()}, {JSON: func() {}}, {Delay: -time.Second}} {
		if _, err := c.Enqueue(ctx, "c.bad", bad); !errors.Is(err, BadRequest) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	for _, bad := range []string{"localhost:7788", "http://a@b", "ftp://x", "http://x/?a=b", ""} {
		if _, err := NewClient(bad, nil); !errors.Is(err, BadRequest) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := c.Get(ctx, Which{Queue: "q"}); !errors.Is(err, BadRequest) {
		t.Error(err)
	}
}

func TestBatchesAboveTheLimitsOfTheServer(t *testing.T) {
	ctx, c := realClient(t)
	many, large := make([]NewMessage, 10_050), make([]NewMessage, 70)
	for i := range many {
		many[i] = NewMessage{Body: []byte(fmt.Sprint(i)), Delay: time.Hour}
	}
	for i := range large {
		large[i] = NewMessage{Body: []byte(strings.Repeat("x", 250_000)), Delay: time.Hour}
	}
	for _, messages := range [][]NewMessage{many, large} {
		results, err := c.EnqueueMany(ctx, "c.many", messages)
		if err != nil || len(results) != len(messages) {
			t.Fatal(len(results), err)
		}
		for _, result := range results {
			if result.Err != nil || !result.Value.Created {
				t.Fatal(result)
			}
		}
	}
}

func TestContextsEndCalls(t *testing.T) {
	ctx, c := realClient(t)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error)
	go func() {
		_, err := c.Reserve(ctx, Reserve{Wait: time.Minute}, "c.empty")
		ended <- err
	}()
	until(t, "the reserve waits", func() bool {
		view, err := c.Queue(context.Background(), "c.empty")
		return err == nil && view.Waiters == 1
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestWorkerRunsSoManyAtATime(t *testing.T) {
	ctx, c := realClient(t)
	for i := 0; i < 12; i++ {
		if _, err := c.Enqueue(ctx, fmt.Sprintf("w.%d", i%2), NewMessage{Body: []byte{byte('a' + i)}}); err != nil {
			t.Fatal(err)
		}
	}
	var lock sync.Mutex
	three := make(chan struct{})
	seen, now, most := map[string]bool{}, 0, 0
	ctx, stop := context.WithCancel(ctx)
	worker := Worker{Client: c, Queues: []string{"w.0", "w.1"}, Concurrency: 3, Handler: func(_ context.Context, message *Message) error {
		lock.Lock()
		if now++; now > most {
			if most = now; most == 3 {
				close(three)
			}
		}
		lock.Unlock()
		select {
		case <-three:
		case <-ctx.Done():
		}
		lock.Lock()
		defer lock.Unlock()
		now--
		if seen[string(message.Body())] = true; len(seen) == 12 {
			stop()
		}
		return nil
	}}
	if err := worker.Run(ctx); err != nil || most != 3 {
		t.Fatal(most, err)
	}
	if view, err := c.Queue(context.Background(), "w.0"); err != nil || view.Counts.Leased+view.Counts.Ready != 0 {
		t.Fatal(view, err)
	}
}

func TestWorkerSurvivesAPanic(t *testing.T) {
	ctx, c := realClient(t)
	sent, err := c.Enqueue(ctx, "w.panic", NewMessage{Backoff: &Backoff{time.Millisecond, time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	var reported error
	worker := Worker{Client: c, Queues: []string{"w.panic"}, OnError: func(err error, _ *Message) { reported = err }, Handler: func(_ context.Context, message *Message) error {
		if message.Attempt == 1 {
			panic("boom")
		}
		stop()
		return Dead("seen")
	}}
	if err := worker.Run(running); err != nil || reported == nil {
		t.Fatal(err, reported)
	}
	view, err := c.Get(ctx, ByID(sent.ID))
	if err != nil || view.State != "dead" || view.History[0].Note != "panic: boom" || view.History[1].Note != "seen" {
		t.Fatalf("%+v %v", view, err)
	}
}

func TestWorkerDrainsAtASignal(t *testing.T) {
	ctx, c := realClient(t)
	sent, err := c.Enqueue(ctx, "w.term", NewMessage{})
	if err != nil {
		t.Fatal(err)
	}
	signals, stop := signal.NotifyContext(ctx, syscall.SIGUSR1)
	defer stop()
	finished := false
	worker := Worker{Client: c, Queues: []string{"w.term"}, Handler: func(handler context.Context, _ *Message) error {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGUSR1)
		<-signals.Done()
		time.Sleep(100 * time.Millisecond)
		finished = handler.Err() == nil
		return nil
	}}
	if err := worker.Run(signals); err != nil || !finished {
		t.Fatal(finished, err)
	}
	if _, err := c.Get(ctx, ByID(sent.ID)); !errors.Is(err, MessageNotFound) {
		t.Fatal(err)
	}
}

func TestWorkerGivesBackWhatADrainDoesNotWaitFor(t *testing.T) {
	ctx, c := realClient(t)
	sent, err := c.Enqueue(ctx, "w.slow", NewMessage{})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	worker := Worker{Client: c, Queues: []string{"w.slow"}, Drain: 10 * time.Millisecond, Handler: func(handler context.Context, _ *Message) error {
		stop()
		<-handler.Done()
		return handler.Err()
	}}
	if err := worker.Run(running); err != nil {
		t.Fatal(err)
	}
	view, err := c.Get(ctx, ByID(sent.ID))
	if err != nil || view.State != "ready" || view.Forgiven != 1 {
		t.Fatalf("%+v %v", view, err)
	}
}

func TestWorkerEndsWhenItsQueueIsRefused(t *testing.T) {
	ctx, c := realClient(t)
	worker := Worker{Client: c, Queues: []string{"-bad"}, Handler: func(context.Context, *Message) error { return nil }}
	if err := worker.Run(ctx); !errors.Is(err, BadRequest) {
		t.Fatal(err)
	}
	if err := (&Worker{Client: c}).Run(ctx); !errors.Is(err, BadRequest) {
		t.Fatal(err)
	}
}

func ExampleClient() {
	wheel, err := NewClient(realServer, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	_, err = wheel.Enqueue(ctx, "close-review", NewMessage{Body: []byte("order 42"), Delay: 48 * time.Hour, Key: "order-42"})
	fmt.Println(err)
	_, err = wheel.Enqueue(ctx, "close-review", NewMessage{Body: []byte("order 42"), Delay: 48 * time.Hour, Key: "order-42"})
	fmt.Println(errors.Is(err, KeyExists))
	_, err = wheel.Cancel(ctx, ByKey("close-review", "order-42"))
	fmt.Println(err)
	// Output:
	// <nil>
	// true
	// <nil>
}
