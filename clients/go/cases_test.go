package duewheel

// The cases that every client runs: clients/cases.json, which clients/README.md describes.

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"
)

type object = map[string]any

func cases(t *testing.T, kind string) []object {
	data, err := os.ReadFile("../cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]json.RawMessage
	var list []object
	if json.Unmarshal(data, &all) != nil || json.Unmarshal(all[kind], &list) != nil {
		t.Fatal("cases.json is no list of cases")
	}
	return list
}

func text(o object, name string) string { s, _ := o[name].(string); return s }
func length(o object, name string) time.Duration {
	n, _ := o[name].(float64)
	return time.Duration(n) * time.Millisecond
}
func optional(o object, name string) *time.Duration {
	if o[name] == nil {
		return nil
	}
	d := length(o, name)
	return &d
}
func number(o object, name string) uint32 { n, _ := o[name].(float64); return uint32(n) }
func priority(o object) *uint32 {
	if o["priority"] == nil {
		return nil
	}
	return Uint32(number(o, "priority"))
}
func instant(o object, name string) time.Time {
	at, _ := time.Parse(time.RFC3339, text(o, name))
	return at
}
func list(value any) []any { each, _ := value.([]any); return each }
func texts(value any) (all []string) {
	for _, one := range list(value) {
		all = append(all, one.(string))
	}
	return all
}
func headers(o object) (out map[string]string) {
	for name, value := range func() object { h, _ := o["headers"].(object); return h }() {
		if out == nil {
			out = map[string]string{}
		}
		out[name] = value.(string)
	}
	return out
}
func body(o object) []byte {
	if o["body_base64"] != nil {
		data, _ := base64.StdEncoding.DecodeString(text(o, "body_base64"))
		return data
	}
	if o["body"] == nil {
		return nil
	}
	return []byte(text(o, "body"))
}

func newMessage(o object) NewMessage {
	return NewMessage{
		Body: body(o), JSON: o["json"], Delay: length(o, "delay_ms"), DueAt: instant(o, "due_at"), Past: text(o, "past"),
		Key: text(o, "key"), IfExists: text(o, "if_exists"), DedupeID: text(o, "dedupe_id"), DedupeWindow: length(o, "dedupe_window_ms"),
		Priority: priority(o), MaxAttempts: number(o, "max_attempts"), Headers: headers(o),
	}
}

func lease(o any) *Message {
	if message, ok := o.(*Message); ok {
		return message
	}
	content := Content{ID: text(o.(object), "id"), LeaseMS: length(o.(object), "lease_ms").Milliseconds()}
	return &Message{Content: content, LeaseToken: text(o.(object), "lease_token")}
}
func leases(o any) (list []*Message) {
	for _, each := range o.([]any) {
		list = append(list, lease(each))
	}
	return list
}

func perform(ctx context.Context, c *Client, name string, a object) (any, error) {
	which := Which{ID: text(a, "id"), Queue: text(a, "queue"), Key: text(a, "key")}
	nack := Nack{Delay: optional(a, "delay_ms"), Reason: text(a, "reason"), Dead: a["dead"] == true, NotYet: a["attempt"] == false}
	switch name {
	case "enqueue":
		return c.Enqueue(ctx, which.Queue, newMessage(a))
	case "enqueue_many":
		var messages []NewMessage
		for _, each := range a["messages"].([]any) {
			messages = append(messages, newMessage(each.(object)))
		}
		results, err := c.EnqueueMany(ctx, which.Queue, messages)
		return object{"results": results}, err
	case "get":
		return c.Get(ctx, which)
	case "cancel":
		if a["forget_dedupe"] == true {
			return c.CancelAndForget(ctx, which)
		}
		return c.Cancel(ctx, which)
	case "cancel_many":
		results, err := c.CancelMany(ctx, which.Queue, texts(a["keys"])...)
		return object{"results": results}, err
	case "postpone":
		return c.Postpone(ctx, which, Change{Delay: optional(a, "delay_ms"), Body: body(a), Priority: priority(a), IfGeneration: number(a, "if_generation")})
	case "fire":
		return c.Fire(ctx, which)
	case "replay":
		return c.Replay(ctx, which.ID, "")
	case "reserve":
		return c.Reserve(ctx, Reserve{Max: int(number(a, "max")), Wait: length(a, "wait_ms"), Lease: length(a, "lease_ms")}, texts(a["queues"])...)
	case "ack":
		message := lease(a["message"])
		message.Result = a["result"]
		return c.Ack(ctx, message)
	case "nack":
		return c.Nack(ctx, lease(a["message"]), nack)
	case "extend":
		return c.Extend(ctx, lease(a["message"]), length(a, "lease_ms"))
	case "ack_many":
		messages := leases(a["messages"])
		for i, result := range list(a["results"]) {
			messages[i].Result = result
		}
		results, err := c.AckMany(ctx, messages...)
		return object{"results": results}, err
	case "nack_many":
		results, err := c.NackMany(ctx, nack, leases(a["messages"])...)
		return object{"results": results}, err
	case "extend_many":
		results, err := c.ExtendMany(ctx, length(a, "lease_ms"), leases(a["messages"])...)
		return object{"results": results}, err
	case "list":
		return c.List(ctx, which.Queue, int(number(a, "limit")), text(a, "after"), url.Values{"state": {text(a, "state")}})
	case "queue":
		return c.Queue(ctx, which.Queue)
	case "configure":
		return c.Configure(ctx, which.Queue, a["settings"].(object))
	case "redrive":
		n, err := c.Redrive(ctx, which.Queue)
		return object{"redriven": n}, err
	case "advance":
		return nil, c.Advance(ctx, length(a, "by_ms"))
	}
	return nil, fmt.Errorf("no such call: %s", name)
}

// What a case calls what came back.
func theirs(value any) any {
	v := reflect.ValueOf(value)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	switch {
	case v.Kind() == reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = theirs(v.Index(i).Interface())
		}
		return list
	case v.Kind() == reflect.Map:
		out := object{}
		for _, key := range v.MapKeys() {
			out[key.String()] = theirs(v.MapIndex(key).Interface())
		}
		return out
	case v.Kind() == reflect.Struct:
		if failed := v.FieldByName("Err"); failed.IsValid() && !failed.IsNil() {
			return object{"error": theirs(asError(failed.Interface().(error)))}
		}
		if value := v.FieldByName("Value"); value.IsValid() {
			return theirs(value.Interface())
		}
		data, _ := json.Marshal(v.Interface())
		// Members of one word have no tag.
		data = regexp.MustCompile(`"[A-Z][A-Za-z]*":`).ReplaceAllFunc(data, bytes.ToLower)
		out := object{}
		if json.Unmarshal(data, &out) != nil {
			return value // an instant
		}
		for i := 0; i < v.NumField(); i++ {
			// Lists of messages have bodies, which JSON does not show.
			if name, found := v.Type().Field(i).Tag.Lookup("json"); found && v.Field(i).Kind() == reflect.Slice && name != "-" {
				out[name] = theirs(v.Field(i).Interface())
			}
		}
		if content, ok := v.Interface().(interface{ Body() []byte }); ok {
			data := content.Body()
			out["body_base64"] = base64.StdEncoding.EncodeToString(data)
			if utf8.Valid(data) {
				out["body"] = string(data)
			}
			var parsed any
			if json.Unmarshal(data, &parsed) == nil {
				out["json"] = parsed
			}
		}
		return out
	}
	return value
}

func matches(t *testing.T, got, wanted any, where string) {
	t.Helper()
	switch w := wanted.(type) {
	case object:
		g, _ := got.(object)
		for name, value := range w {
			matches(t, g[name], value, where+"."+name)
		}
		return
	case []any:
		g, _ := got.([]any)
		if len(g) != len(w) {
			t.Fatalf("%s: %v in place of %v", where, got, wanted)
		}
		for i, value := range w {
			matches(t, g[i], value, fmt.Sprintf("%s[%d]", where, i))
		}
		return
	case nil: // nothing, or what is nothing in Go
		if got == nil || reflect.ValueOf(got).IsZero() {
			return
		}
	case string:
		a, errA := time.Parse(time.RFC3339, fmt.Sprint(got))
		b, errB := time.Parse(time.RFC3339, w)
		if errA == nil && errB == nil && a.Equal(b) {
			return
		}
	}
	if n, ok := got.(int64); ok {
		got = float64(n)
	}
	if !reflect.DeepEqual(got, wanted) {
		t.Fatalf("%s: %#v in place of %#v", where, got, wanted)
	}
}

func step(t *testing.T, c *Client, one object, where string) any {
	t.Helper()
	args, _ := one["args"].(object)
	got, err := perform(context.Background(), c, text(one, "call"), args)
	wanted, refused := one["error"].(object)
	if !refused {
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		if one["result"] != nil {
			matches(t, theirs(got), one["result"], where)
		}
		return got
	}
	if !errors.Is(err, Code(text(wanted, "code"))) {
		t.Fatalf("%s: %v in place of %v", where, err, wanted)
	}
	matches(t, theirs(asError(err)), wanted, where)
	return nil
}

var name = regexp.MustCompile(`\$\{(\w+)\}`)

func filled(value any, names object) any {
	switch v := value.(type) {
	case string:
		if whole := name.FindString(v); whole != "" && whole == v {
			return names[v[2:len(v)-1]]
		}
		return name.ReplaceAllStringFunc(v, func(each string) string { return fmt.Sprint(names[each[2:len(each)-1]]) })
	case []any:
		list := make([]any, len(v))
		for i, each := range v {
			list[i] = filled(each, names)
		}
		return list
	case object:
		out := object{}
		for name, each := range v {
			out[name] = filled(each, names)
		}
		return out
	}
	return value
}

func newClient(t *testing.T, url string, o object) *Client {
	t.Helper()
	c, err := NewClient(url, &Options{Token: text(o, "token"), RetryFor: length(o, "retry_for_ms")})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestReal(t *testing.T) {
	c := newClient(t, virtualServer, nil)
	for number, each := range cases(t, "real") {
		queue := fmt.Sprintf("case.%d", number)
		each := each
		t.Run(text(each, "name"), func(t *testing.T) {
			names := object{"queue": queue}
			for i, one := range each["steps"].([]any) {
				one := one.(object)
				saves, _ := one["save"].(object)
				delete(one, "save")
				got := step(t, c, filled(one, names).(object), fmt.Sprintf("step %d (%s)", i+1, text(one, "call")))
				for name, path := range saves {
					grants, leased := got.(*Grants)
					var place int
					if leased {
						_, _ = fmt.Sscanf(path.(string), "messages.%d", &place)
						names[name] = grants.Messages[place]
					} else {
						names[name] = theirs(got).(object)[path.(string)]
					}
				}
			}
		})
	}
}

func verdictOf(t *testing.T, name string) (failures []string, complete bool) {
	t.Helper()
	response, err := http.Get(scriptedServer + "/_/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var answer struct {
		Failures []string
		Complete bool
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	return answer.Failures, answer.Complete
}

func TestScripted(t *testing.T) {
	for _, each := range cases(t, "scripted") {
		each, name := each, text(each, "name")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options, _ := each["client"].(object)
			step(t, newClient(t, scriptedServer+"/"+name, options), each, name)
			if failures, _ := verdictOf(t, name); len(failures) > 0 {
				t.Fatal(strings.Join(failures, "\n"))
			}
		})
	}
}

func TestWorkers(t *testing.T) {
	for _, each := range cases(t, "workers") {
		each, name := each, text(each, "name")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			how, options := each["handler"].(object), each["worker"].(object)
			var begun, cancelled atomic.Bool
			worker := Worker{
				Client:      newClient(t, scriptedServer+"/"+name, nil),
				Queues:      texts(options["queues"]),
				Concurrency: int(number(options, "concurrency")),
				Lease:       length(options, "lease_ms"),
				Handler: func(ctx context.Context, message *Message) error {
					begun.Store(true)
					switch text(how, "do") {
					case "fail":
						return errors.New(text(how, "message"))
					case "not_yet":
						return NotYet(length(how, "delay_ms"))
					case "dead":
						return fmt.Errorf("wrapped: %w", Dead(text(how, "reason")))
					case "result":
						message.Result = how["value"]
					case "sleep":
						time.Sleep(length(how, "ms"))
					case "wait_cancelled":
						<-ctx.Done()
						cancelled.Store(true)
						if how["message"] != nil {
							return errors.New(text(how, "message"))
						}
					}
					return nil
				},
			}
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error)
			go func() { ended <- worker.Run(ctx) }()
			if text(each, "stop") == "while_running" {
				until(t, "the handler begins", begun.Load)
			} else {
				until(t, name+" is complete", func() bool {
					_, complete := verdictOf(t, name)
					return complete && (text(how, "do") != "wait_cancelled" || cancelled.Load())
				})
			}
			stop()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if failures, _ := verdictOf(t, name); len(failures) > 0 {
				t.Fatal(strings.Join(failures, "\n"))
			}
		})
	}
}

func TestSignatures(t *testing.T) {
	for _, each := range cases(t, "signatures") {
		each := each
		t.Run(text(each, "name"), func(t *testing.T) {
			header := http.Header{}
			for name, value := range headers(each) {
				header.Set(name, value)
			}
			now := time.Unix(int64(each["now"].(float64)), 0)
			checks := Webhooks{Secrets: texts(each["secrets"]), Tolerance: length(each, "tolerance_ms"), Now: func() time.Time { return now }}
			got, err := checks.Verify(header, body(each))
			if wanted, refused := each["error"].(object); refused {
				if !errors.Is(err, Code(text(wanted, "code"))) {
					t.Fatalf("%v in place of %v", err, wanted)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			out := theirs(got).(object)
			out["timestamp"] = got.Timestamp.Unix()
			matches(t, out, each["result"], "webhook")
		})
	}
}
