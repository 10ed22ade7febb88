// What goes wrong in ways that the scripted server of the cases does not show.
import assert from "node:assert/strict";
import { before, describe, it } from "node:test";
import { Client, DuewheelError, Worker, isDuewheelError } from "duewheel";
import { Queue, Worker as BullWorker } from "duewheel/bullmq";
import { real, until } from "./servers.js";

type Answer = Response | Error | "hangs";
interface Sent {
  path: string;
  body: any;
}

/** A client whose requests get these answers in turn; the last one again and again. */
function scripted(...answers: (Answer | ((sent: Sent) => Answer))[]): { client: Client; sent: Sent[] } {
  const sent: Sent[] = [];
  const answer = async (address: string, { body, signal }: RequestInit) => {
    const request = { path: new URL(address).pathname, body: body ? JSON.parse(String(body)) : undefined };
    sent.push(request);
    const next = answers[Math.min(sent.length, answers.length) - 1]!;
    const now = typeof next === "function" ? next(request) : next;
    if (now === "hangs") return new Promise((_, reject) => signal!.addEventListener("abort", () => reject(signal!.reason)));
    if (now instanceof Error) throw now;
    return now.clone();
  };
  return { client: new Client({ fetch: answer as typeof fetch }), sent };
}

const json = (value: object, status = 200) => new Response(JSON.stringify(value), { status });
const refused = (status: number, code: string) => json({ status, code, detail: "for the moment" }, status);
const gateway = new Response("<html>Bad Gateway</html>", { status: 502 });
const lost = new TypeError("fetch failed");
const acked = { result: "acked", durability: "fsync" };
const lease = (id: string) => ({ id, leaseToken: `t${id}` });

describe("repeats", { concurrency: true }, () => {
  it("settles on every 5xx, and nothing else on one", async () => {
    const { client, sent } = scripted(refused(500, "internal"), gateway, refused(504, "unknown"), json(acked));
    assert.equal((await client.ack(lease("1"))).result, "acked");
    assert.equal(sent.length, 4);
    const other = scripted(gateway, json({}));
    await assert.rejects(other.client.fire({ id: "1" }), (error) => isDuewheelError(error, "bad_answer"));
    assert.equal(other.sent.length, 1);
  });

  it("items of a batch that are refused for the moment", async () => {
    const busy = { status: 503, code: "storage_unavailable", detail: "busy", outcome: "not_applied" };
    const { client, sent } = scripted(
      json({ results: [{ id: "1", ...busy }, { id: "2", ...acked }, { id: "3", status: 409, code: "lease_lost", detail: "gone" }] }),
      json({ results: [{ id: "1", ...acked }] }),
    );
    const results = await client.ackMany([lease("1"), lease("2"), lease("3")]);
    assert.deepEqual(results.map((each) => (each instanceof DuewheelError ? each.code : each.result)), ["acked", "acked", "lease_lost"]);
    assert.deepEqual(sent[1]!.body, { messages: [{ id: "1", lease_token: "t1" }] });

    const cancel = scripted(
      json({ results: [{ key: "a", result: "cancelled" }, { key: "b", ...busy }, { id: "7", ...busy, outcome: "unknown" }] }),
      json({ results: [{ key: "b", result: "cancelled" }, { id: "7", status: 404, code: "message_not_found", detail: "none" }] }),
    );
    const cancelled = await cancel.client.cancelMany("q", { keys: ["a", "b"], ids: ["7"], forgetDedupe: true });
    assert.deepEqual(cancel.sent[1]!.body, { forget_dedupe: true, keys: ["b"], ids: ["7"] });
    assert.ok(!isDuewheelError(cancelled[0]) && !isDuewheelError(cancelled[1]));
    assert.ok(isDuewheelError(cancelled[2], "message_not_found") && cancelled[2].outcome === "unknown");
  });

  it("keeps what was answered when a repeated batch fails", async () => {
    const { client } = scripted(
      json({ results: [{ id: "1", status: 503, code: "draining", detail: "" }, { id: "2", ...acked }] }),
      refused(401, "unauthorized"),
    );
    const [first, second] = await client.ackMany([lease("1"), lease("2")]);
    assert.ok(isDuewheelError(first, "unauthorized") && !isDuewheelError(second));
  });

  it("a redrive only if a second one does nothing", async () => {
    const made = json({ id: "2", queue: "q", due_at: "2026-01-01T00:00:00Z" }, 201);
    for (const [call, requests] of [
      [(client: Client) => client.redrive("q", { max: 5 }), 1],
      [(client: Client) => client.redrive("q"), 2],
    ] as const) {
      const { client, sent } = scripted(lost, made);
      const error = await call(client).then(() => undefined, (error: unknown) => error);
      assert.equal(sent.length, requests);
      if (requests === 1) assert.ok(isDuewheelError(error, "connection") && error.outcome === "unknown");
      else assert.equal(error, undefined);
    }
    // Nothing was changed: that is repeated.
    const { client, sent } = scripted(refused(503, "draining"), refused(429, "overloaded"), made);
    assert.equal((await client.replay("1")).id, "2");
    assert.equal(sent.length, 3);
  });

  it("an extend that hangs, within the lease", async () => {
    const { client, sent } = scripted("hangs", json({ result: "extended" }));
    await client.extend(lease("1"), { leaseMs: 30_000 }, { timeoutMs: 20 });
    assert.equal(sent.length, 2);

    let extends_ = 0;
    let granted = false;
    const message = { ...acked, id: "1", queue: "q", body: "x", lease_token: "t", lease_ms: 3000, due_at: "2026-01-01T00:00:00Z" };
    const slow = scripted(({ path }) => {
      if (path.endsWith("/ack")) return json(acked);
      if (path.endsWith("/extend")) return extends_++ === 0 ? "hangs" : json({ result: "extended" });
      if (granted) return "hangs";
      granted = true;
      return json({ messages: [message] });
    });
    const worker = new Worker(slow.client, "q", () => until("it is extended", () => extends_ > 1).then(() => {}), { signals: [] });
    const run = worker.run();
    await until("it is acked", () => slow.sent.some(({ path }) => path.endsWith("/ack")));
    await worker.stop();
    await run;
  });
});

describe("refuses", () => {
  it("what a URL cannot say", async () => {
    const { client, sent } = scripted(json({}));
    const folded = (field: string) => (error: unknown) => isDuewheelError(error, "bad_request") && error.field === field;
    await assert.rejects(client.get({ queue: "q", key: ".." }), folded("key"));
    await assert.rejects(client.get({ queue: ".", key: "k" }), folded("queue"));
    await assert.rejects(client.enqueue("..", { body: "x", delayMs: 0 }), folded("queue"));
    await assert.rejects(client.get({ id: "." }), folded("id"));
    assert.equal(sent.length, 0);
  });

  it("half of a surrogate pair", async () => {
    const { client, sent } = scripted(json(acked));
    const half = "a\ud800";
    const refused = (field: string) => (error: unknown) => isDuewheelError(error, "bad_request") && error.field === field;
    await assert.rejects(client.enqueue("q", { body: half, delayMs: 0 }), refused("body"));
    await assert.rejects(client.enqueue("q", { body: "x", delayMs: 0, headers: { a: half } }), refused("headers"));
    await assert.rejects(client.enqueueMany("q", [{ body: "x", delayMs: 0 }, { body: "x", delayMs: 0, key: half }]), refused("key"));
    await assert.rejects(client.cancelMany("q", { keys: ["a", half] }), refused("keys"));
    await assert.rejects(client.cancel({ queue: "q", key: half }), refused("key"));
    await assert.rejects(client.reserve(half), refused("queue"));
    await assert.rejects(client.list(half), refused("queue"));
    assert.equal(sent.length, 0);
    // A reason is only for people, and JSON can say it.
    await client.nack(lease("1"), { reason: half });
    await client.enqueue("q", { json: half, body: undefined, delayMs: 0 } as never);
    assert.deepEqual([sent[0]!.body.reason, sent[1]!.body.json], ["a\ufffd", half]);
  });

  it("an address without showing a token in it", () => {
    for (const url of ["http://:dw_secret@localhost:7788", "dw_secret@localhost", "http://localhost:7788/?token=dw_secret"]) {
      assert.throws(() => new Client({ url }), (error) => isDuewheelError(error, "bad_request") && !/dw_secret/.test(String(error)));
    }
  });

  it("a batch with what cannot be sent before anything is", async () => {
    const { client, sent } = scripted(json({}));
    const messages = Array.from({ length: 10_001 }, (_, n) => ({ json: n === 10_000 ? 1n : n, delayMs: 0 }));
    await assert.rejects(client.enqueueMany("q", messages), TypeError);
    assert.equal(sent.length, 0);
  });
});

describe("leases", { concurrency: true }, () => {
  let url: string;
  before(async () => {
    url = await real();
  });

  it("a reserve that is answered keeps its messages, whatever its signal says", async () => {
    const end = new AbortController();
    const passing = async (address: string, request: RequestInit) => {
      const answer = await fetch(address, { ...request, signal: null });
      const text = await answer.text();
      if (address.endsWith("/reserve")) end.abort();
      return new Response(text, answer);
    };
    const client = new Client({ url, fetch: passing as typeof fetch });
    await client.enqueue("l.whole", { body: "x", delayMs: 0 });
    const [message] = await client.reserve("l.whole", { waitMs: 20_000, signal: end.signal });
    assert.ok(end.signal.aborted && message!.text === "x");
  });

  it("a worker that is stopped as its reserve is answered gives the messages back", async () => {
    let worker: Worker;
    const passing = async (address: string, request: RequestInit) => {
      if (!address.endsWith("/reserve")) return fetch(address, request);
      const answer = await fetch(address, { ...request, signal: null });
      const text = await answer.text();
      void worker.stop();
      return new Response(text, answer);
    };
    const client = new Client({ url, fetch: passing as typeof fetch });
    const { id } = await client.enqueue("l.stop", { body: "x", delayMs: 0 });
    worker = new Worker(client, "l.stop", () => assert.fail("it is not begun"), { signals: [] });
    await worker.run();
    const { state, attempt, forgiven } = await client.get({ id });
    assert.deepEqual([state, attempt, forgiven], ["ready", 1, 1]);
  });

  it("times beyond those of timers end nothing at once", async () => {
    let extends_ = 0;
    const counting = async (address: string, request: RequestInit) => {
      if (address.endsWith("/extend")) extends_ += 1;
      return fetch(address, request);
    };
    const client = new Client({ url, timeoutMs: Infinity, fetch: counting as typeof fetch });
    await client.enqueue("l.long", { body: "x", delayMs: 0 });
    let aborted: boolean | undefined;
    const work = async (_: unknown, { signal }: { signal: AbortSignal }) => {
      void worker.stop({ drainMs: Infinity });
      await new Promise((resolve) => setTimeout(resolve, 200));
      aborted = signal.aborted;
    };
    const worker = new Worker(client, "l.long", work, { signals: [], leaseMs: 2 ** 33 });
    await worker.run();
    assert.deepEqual([aborted, extends_], [false, 0]);
  });

  it("an extend that is refused is tried again, and the handler goes on", async () => {
    let extends_ = 0;
    const passing = async (address: string, request: RequestInit) => {
      if (address.endsWith("/extend") && extends_++ === 0) return refused(403, "forbidden");
      return fetch(address, request);
    };
    const client = new Client({ url, fetch: passing as typeof fetch });
    await client.enqueue("l.extend", { body: "x", delayMs: 0 });
    const errors: string[] = [];
    const fails = (error: DuewheelError) => {
      errors.push(error.code);
      throw new Error("onError fails (a test's)");
    };
    let aborted: boolean | undefined;
    const worker = new Worker(
      client,
      "l.extend",
      async (_, { signal }) => {
        await until("it is extended", () => extends_ > 1);
        aborted = signal.aborted;
        void worker.stop();
      },
      { signals: [], leaseMs: 10_000, onError: fails },
    );
    await worker.run();
    assert.deepEqual([aborted, errors], [false, ["forbidden"]]);
    assert.equal((await client.queue("l.extend")).counts.leased, 0);
  });

  it("a job of BullMQ's form whose worker is gone is run again, and its attempts are the failures", async () => {
    const client = new Client({ url });
    const queue = new Queue<number>("l.bull", { connection: client });
    await queue.add("once", 1, { jobId: "once" });
    await queue.add("twice", 2, { jobId: "twice", attempts: 2 });
    // A worker that is gone.
    const taken = await client.reserve("l.bull", { max: 2, leaseMs: 100 });
    assert.equal(taken.length, 2);
    const seen: string[] = [];
    const errors: string[] = [];
    const worker = new BullWorker<number>(
      "l.bull",
      async (job) => {
        seen.push(job.name);
        if (job.name === "twice") throw new Error("boom");
      },
      { connection: client },
    );
    worker.on("error", (error) => errors.push(error.message));
    worker.on("completed", () => {
      throw new Error("a listener's");
    });
    await until("all have ended", async () => seen.length >= 3 && (await queue.getJob("once")) === undefined);
    await until("it has failed", async () => (await client.get({ queue: "l.bull", key: "twice" })).state === "dead");
    await worker.close();
    assert.deepEqual([seen.sort(), errors], [["once", "twice", "twice"], ["a listener's"]]);
    const failed = await client.get({ queue: "l.bull", key: "twice" });
    assert.deepEqual([failed.deadReason, failed.attempt], ["buried", 3]);
  });
});
