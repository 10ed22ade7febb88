// What the cases do not say: the worker as a process, adapters for BullMQ and NestJS, batches above the server's limits.
import "reflect-metadata";
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { before, describe, it } from "node:test";
import { Controller, Module } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import { Ctx, EventPattern, MessagePattern, Payload } from "@nestjs/microservices";
import { lastValueFrom } from "rxjs";
import { Client, DuewheelError, Worker, isDuewheelError, verifyWebhook } from "duewheel";
import { DelayedError, Queue, UnrecoverableError, Worker as BullWorker } from "duewheel/bullmq";
import { DuewheelClient, DuewheelContext, DuewheelRecord, DuewheelServer } from "duewheel/nestjs";
import { real, until } from "./servers.js";

let url: string;
let client: Client;
before(async () => {
  url = await real();
  client = new Client({ url });
});

describe("client", () => {
  it("takes lengths of time as text, dates, and bytes", async () => {
    const dueAt = new Date(Date.now() + 3_600_000);
    const { id } = await client.enqueue("c.text", { body: Uint8Array.of(255, 0), delay: "48h", lease: "1m" });
    const view = await client.get({ id });
    assert.deepEqual([...view.bytes], [255, 0]);
    assert.equal(view.isText, false);
    assert.equal(view.leaseMs, 60_000);
    assert.equal((await client.enqueue("c.text", { body: "x", dueAt })).dueAt.getTime(), dueAt.getTime());
    await assert.rejects(client.enqueue("c.text", { body: "x", delay: "soon" }), (error) => isDuewheelError(error, "bad_request"));
    await assert.rejects(client.enqueue("c.text", { body: "x", delayMs: -1 }), /delay_ms: -1 is no number of milliseconds/);
    await assert.rejects(client.enqueue("c.text", { body: "x", dueAt: new Date("no") }), /due_at: an invalid Date/);
  });

  it("rounds up what is finer than a millisecond", async () => {
    const { id } = await client.enqueue("c.fine", { body: "x", delayMs: 3_600_000.25, expiresInMs: 0.5 });
    const view = await client.get({ id });
    assert.equal(view.expiresAt!.getTime() - view.dueAt.getTime(), 1);
  });

  it("splits batches above the server's limits", async () => {
    const many = Array.from({ length: 10_050 }, (_, n) => ({ body: String(n), delayMs: 3_600_000 }));
    const large = Array.from({ length: 70 }, () => ({ body: "x".repeat(250_000), delayMs: 3_600_000 }));
    for (const messages of [many, large]) {
      const results = await client.enqueueMany("c.many", messages);
      assert.equal(results.length, messages.length);
      assert.ok(results.every((result) => !(result instanceof DuewheelError) && result.created));
    }
    assert.equal((await client.queue("c.many")).counts.scheduled, 10_120);
  });

  it("ends a call by its signal, also a reserve that waits", async () => {
    const end = new AbortController();
    const waiting = client.reserve("c.empty", { waitMs: 60_000, signal: end.signal });
    await until("the reserve waits", async () => (await client.queue("c.empty").catch(() => undefined))?.waiters === 1);
    end.abort(new Error("enough"));
    await assert.rejects(waiting, /enough/);
  });

  it("refuses what is no address", () => {
    for (const bad of ["localhost:7788", "http://a@b", "ftp://x", "http://x/?a=b"]) {
      assert.throws(() => new Client({ url: bad }), /url: .* is no address of a server/);
    }
  });

  it("names its errors", async () => {
    const error = await client.get({ id: "999999" }).then(() => assert.fail(), (error: unknown) => error);
    assert.ok(isDuewheelError(error, "message_not_found") && isDuewheelError(error) && !isDuewheelError(error, "leased"));
    assert.match(String(error), /^DuewheelError: message_not_found: nothing is pending/);
  });
});

describe("worker", () => {
  it("runs so many handlers at a time, over several queues", async () => {
    for (let n = 0; n < 12; n++) await client.enqueue(n % 2 ? "w.odd" : "w.even", { json: n, delayMs: 0 });
    const done = new Set<number>();
    let now = 0;
    let most = 0;
    const worker = new Worker(
      client,
      ["w.odd", "w.even"],
      async (message) => {
        most = Math.max(most, ++now);
        await until("three run at a time", () => most >= 3);
        now -= 1;
        done.add(message.json<number>());
      },
      { concurrency: 3, signals: [] },
    );
    const run = worker.run();
    await until("all are done", () => done.size === 12);
    await worker.stop();
    await run;
    assert.equal(most, 3);
    assert.equal((await client.queue("w.odd")).counts.leased, 0);
  });

  it("ends when its token is refused", async () => {
    const worker = new Worker(client, "-bad", () => {}, { signals: [] });
    await assert.rejects(worker.run(), (error) => isDuewheelError(error, "bad_request"));
  });

  it("gives back what a stop does not wait for", async () => {
    const { id } = await client.enqueue("w.slow", { body: "x", delayMs: 0 });
    let begun = false;
    const worker = new Worker(
      client,
      "w.slow",
      (_, { signal }) =>
        new Promise((_resolve, reject) => {
          begun = true;
          signal.addEventListener("abort", () => reject(new Error("cut off")));
        }),
      { signals: [] },
    );
    const run = worker.run();
    await until("it begins", () => begun);
    await worker.stop({ drainMs: 10 });
    await run;
    const view = await client.get({ id });
    assert.deepEqual([view.state, view.forgiven], ["ready", 1]);
  });

  it("drains at SIGTERM, and the process ends", async () => {
    await client.enqueue("w.term", { body: "x", delayMs: 0 });
    writeFileSync(
      "term.mjs",
      `import { Client, Worker } from "duewheel";
       const worker = new Worker(new Client({ url: ${JSON.stringify(url)} }), "w.term", async () => {
         console.log("begun");
         await new Promise((resolve) => setTimeout(resolve, 500));
         console.log("finished");
       });
       await worker.run();
       console.log("drained");`,
    );
    const child = spawn(process.execPath, ["term.mjs"], { stdio: ["ignore", "pipe", "inherit"] });
    let output = "";
    child.stdout.on("data", (data) => (output += data));
    await until("the handler begins", () => output.includes("begun"));
    child.kill("SIGTERM");
    const [code] = await once(child, "exit");
    assert.deepEqual([code, output], [0, "begun\nfinished\ndrained\n"]);
    const { counts } = await client.queue("w.term");
    assert.deepEqual([counts.leased, counts.ready], [0, 0]);
  });
});

describe("bullmq", () => {
  it("adds with delay and jobId, and works", async () => {
    const queue = new Queue<{ order: number }>("b.close", { connection: { url }, defaultJobOptions: { attempts: 2, backoff: 10 } });
    const job = await queue.add("close", { order: 42 }, { delay: 48 * 3_600_000, jobId: "order-42" });
    assert.deepEqual([job.id, await job.getState()], ["order-42", "delayed"]);
    await queue.add("close", { order: 43 }, { jobId: "order-42" });
    await client.configure("b.close", { keepDoneMs: 60_000 });
    assert.deepEqual((await queue.getJob("order-42"))!.data, { order: 42 });
    await job.promote();
    await queue.addBulk([{ name: "fail", data: { order: 1 }, opts: { jobId: "f" } }, { name: "never", data: { order: 2 }, opts: { jobId: "n" } }]);
    await queue.add("later", { order: 3 });

    const seen: string[] = [];
    let later = 0;
    const worker = new BullWorker<{ order: number }>(
      "b.close",
      async (job) => {
        if (job.name === "fail") throw new Error("boom");
        if (job.name === "never") throw new UnrecoverableError("no such order");
        if (job.name === "later" && later++ < 2) {
          await job.moveToDelayed(Date.now() + 20);
          throw new DelayedError();
        }
        return job.data.order;
      },
      { connection: client, concurrency: 2 },
    );
    worker.on("completed", (job, result) => seen.push(`${job.name} ${String(result)}`));
    worker.on("failed", (job, error) => seen.push(`${job!.name} ${job!.attemptsMade} ${error.message}`));
    await until("all have ended", () => seen.length === 5);
    await worker.close();
    assert.deepEqual(seen.sort(), ["close 42", "fail 0 boom", "fail 1 boom", "later 3", "never 0 no such order"]);
    assert.equal((await queue.getJob("order-42"))!.returnvalue, 42);
    await client.configure("b.close", { keepDoneMs: null });
    const dead = await client.get({ queue: "b.close", key: "n" });
    assert.deepEqual([dead.state, dead.deadReason, dead.attempt], ["dead", "buried", 1]);
    const failed = await client.get({ queue: "b.close", key: "f" });
    assert.deepEqual([failed.deadReason, failed.attempt, failed.history!.at(-1)!.note], ["buried", 2, "boom"]);
    await queue.add("x", { order: 9 }, { jobId: "gone", delay: 60_000 });
    assert.deepEqual([await queue.remove("gone"), await queue.getJob("gone"), await queue.remove("gone")], [1, undefined, 0]);
  });

  it("refuses what duewheel does not have", async () => {
    const queue = new Queue("b.refused", { connection: client });
    await assert.rejects(queue.add("x", 1, { repeat: { every: 1000 } } as never), /repeat: duewheel has no such option/);
  });
});

const payloads: unknown[] = [];

@Controller()
class Orders {
  @EventPattern<string>("n.close")
  async close(@Payload() order: { order: number }, @Ctx() context: DuewheelContext): Promise<void> {
    payloads.push([order, context.message.key, context.message.attempt]);
    if (order.order === 1 && context.message.attempt === 1) throw new Error("again");
    if (order.order === 2) {
      context.dead("no such order");
      throw new Error("hidden by Nest");
    }
    if (order.order === 3 && context.message.attempt === 1) context.notYet({ delayMs: 1 });
  }

  @EventPattern<string>("n.text")
  async text(@Payload() text: string): Promise<void> {
    payloads.push(text);
  }
}

@Module({ controllers: [Orders] })
class App {}

@Controller()
class Replies {
  @MessagePattern("n.reply")
  async reply(): Promise<number> {
    return 1;
  }
}

@Module({ controllers: [Replies] })
class WithReplies {}

describe("nestjs", () => {
  it("delivers what is emitted to the handlers of its queue", async () => {
    const emitter = new DuewheelClient({ client });
    const emit = (order: number, options = {}) =>
      lastValueFrom(emitter.emit("n.close", new DuewheelRecord({ order }, { backoff: { minMs: 1, maxMs: 1 }, key: `order-${order}`, ...options })));
    const app = await NestFactory.createMicroservice(App, { strategy: new DuewheelServer({ url, concurrency: 4 }), logger: false });
    await app.listen();
    await emit(0, { delay: "1s" });
    const began = Date.now();
    await emit(1);
    await emit(2);
    await emit(3);
    await client.enqueue("n.text", { body: "plain", delayMs: 0 });
    await until("all have come", () => payloads.length >= 7);
    assert.ok(Date.now() - began >= 900, "never early");
    await until("all are settled", async () => (await client.queue("n.close")).counts.leased === 0);
    await app.close();
    const seen = payloads.map((payload) => JSON.stringify(payload)).sort();
    const order = (n: number, attempt: number) => JSON.stringify([{ order: n }, `order-${n}`, attempt]);
    assert.deepEqual(seen, ['"plain"', order(0, 1), order(1, 1), order(1, 2), order(2, 1), order(3, 1), order(3, 2)].sort());
    const dead = await client.get({ queue: "n.close", key: "order-2" });
    assert.deepEqual([dead.deadReason, dead.history!.at(-1)!.note], ["buried", "no such order"]);
  });

  it("refuses replies", async () => {
    const strategy = new DuewheelServer({ url });
    const app = await NestFactory.createMicroservice(WithReplies, { strategy, logger: false });
    await assert.rejects(app.listen(), /@MessagePattern\(n.reply\): messages have no reply here/);
    await assert.rejects(lastValueFrom(new DuewheelClient({ client }).send("n.reply", {})), /messages have no reply here/);
  });
});

describe("webhooks", () => {
  it("takes the headers of a request of fetch", async () => {
    const headers = new Headers({ "webhook-id": "dw_1", "webhook-timestamp": "1", "webhook-signature": "v1,AAAA" });
    const request = { secrets: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", headers, body: "x", now: new Date(1000) };
    await assert.rejects(verifyWebhook(request), (error) => isDuewheelError(error, "webhook_signature"));
    await assert.rejects(verifyWebhook({ ...request, secrets: "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=" }), /private key of the sender/);
  });
});
