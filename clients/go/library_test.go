package duewheel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

// A server that gives these answers, one after the other, and the last one again and again: statuses, or bodies of 200.
// An empty one closes the connection. It returns the bodies of what was asked.
func answering(t *testing.T, answers ...string) (*Client, func() []string) {
	var lock sync.Mutex
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has cut its request off
		}
		lock.Lock()
		answer := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		asked = append(asked, string(body))
		lock.Unlock()
		if answer == "" {
			panic(http.ErrAbortHandler)
		}
		if answer == "hang" {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if status, err := strconv.Atoi(answer); err == nil {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(status)
		}
		_, _ = w.Write([]byte(answer))
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(server.Close)
	return newClient(t, server.URL, nil), func() []string {
		lock.Lock()
		defer lock.Unlock()
		return append([]string(nil), asked...)
	}
}

var leased = &Message{Content: Content{ID: "1"}, LeaseToken: "t"}

func TestSettlesAreRepeatedAfterAnyFailureOfAServer(t *testing.T) {
	c, asked := answering(t, "500", "502", "504", "", `{"result": "acked"}`)
	if settled, err := c.Ack(context.Background(), leased); err != nil || settled.Result != "acked" || len(asked()) != 5 {
		t.Fatal(settled, err, asked())
	}
}

func TestExtendsDoNotWaitForADeadConnection(t *testing.T) {
	c, asked := answering(t, "hang", `{"result": "extended"}`)
	c.options.Timeout = time.Hour
	if settled, err := c.Extend(context.Background(), leased, time.Second); err != nil || settled.Result != "extended" || len(asked()) != 2 {
		t.Fatal(settled, err, asked())
	}
}

func TestItemsThatWerePutOffAreSentAgain(t *testing.T) {
	put := `{"id": "%s", "status": 503, "code": "storage_unavailable", "outcome": "unknown", "retry_after_ms": 1}`
	c, asked := answering(t, `{"results": [`+fmt.Sprintf(put, "1")+`, {"id": "2", "result": "acked"}, {"id": "3", "status": 409, "code": "lease_lost"}]}`,
		`{"results": [{"id": "1", "status": 500, "code": "internal", "retry_after_ms": 1}]}`, `{"results": [{"id": "1", "result": "already"}]}`)
	results, err := c.AckMany(context.Background(), leased, &Message{Content: Content{ID: "2"}}, &Message{Content: Content{ID: "3"}})
	if err != nil || len(asked()) != 3 || !strings.Contains(asked()[1], `"1"`) || strings.Contains(asked()[1], `"2"`) || strings.Contains(asked()[1], `"3"`) {
		t.Fatal(results, err, asked())
	}
	if results[0].Value.Result != "already" || results[1].Value.Result != "acked" || !errors.Is(results[2].Err, LeaseLost) {
		t.Fatal(results)
	}
	c, asked = answering(t, `{"results": [`+fmt.Sprintf(put, "1")+`, {"result": "cancelled", "id": "2", "key": "b"}]}`, `{"results": [{"status": 404, "code": "message_not_found"}]}`)
	cancelled, err := c.CancelMany(context.Background(), "q", "a", "b")
	if err != nil || asked()[1] != "{\"keys\":[\"a\"]}\n" || asError(cancelled[0].Err).Outcome != MayBeApplied || cancelled[1].Value.ID != "2" {
		t.Fatal(cancelled, err, asked())
	}
}

func TestNothingIsSentOfABatchWithAMessageThatCannotBe(t *testing.T) {
	c, asked := answering(t, "")
	messages := make([]NewMessage, 10_002)
	messages[10_001].JSON = func() {}
	if _, err := c.EnqueueMany(context.Background(), "q", messages); !errors.Is(err, BadRequest) || len(asked()) != 0 {
		t.Fatal(err, len(asked()))
	}
}

func TestWorkersKeepALeaseOfWhichNothingIsKnown(t *testing.T) {
	grant := `{"messages": [{"id": "1", "lease_token": "t", "lease_ms": 4500}]}`
	c, asked := answering(t, grant, "401", "404", `{"result": "extended"}`)
	ctx, stop := context.WithCancel(context.Background())
	var reported atomic.Int32
	worker := Worker{Client: c, Queues: []string{"q"}, OnError: func(error, *Message) { reported.Add(1) }, Handler: func(handler context.Context, _ *Message) error {
		stop()
		until(t, "it is extended", func() bool { return len(asked()) > 3 || handler.Err() != nil })
		return handler.Err()
	}}
	if err := worker.Run(ctx); err != nil || reported.Load() != 2 {
		t.Fatal(err, reported.Load(), asked())
	}
	if last := asked()[len(asked())-1]; last != "{\"lease_token\":\"t\"}\n" {
		t.Fatal("no ack: " + last)
	}
}

func TestErrorsDoNotShowTokens(t *testing.T) {
	for _, bad := range []string{"http://:dw_secret@host", "http://dw_secret@host:1", "http://dw_se@cret@host", "http://host/?token=dw_secret", "://:dw_secret@host"} {
		if _, err := NewClient(bad, nil); !errors.Is(err, BadRequest) || strings.Contains(err.Error(), "dw_se") || strings.Contains(err.Error(), "cret") {
			t.Error(err)
		}
	}
}
