// The cases that every client runs: clients/cases.json, which clients/README.md describes.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { before, describe, it } from "node:test";
import { Client, DuewheelError, Message, View, Worker, dead, done, notYet, verifyWebhook } from "duewheel";
import { clients, real, scripted, until } from "./servers.js";

type Json = Record<string, any>;
const cases = JSON.parse(readFileSync(join(clients, "cases.json"), "utf8")) as Record<string, Json[]>;
let realServer: string;
let scriptedServer: string;

before(async () => {
  [realServer, scriptedServer] = await Promise.all([real("--virtual-clock"), scripted()]);
});

/** A name of HTTP, as this client spells it, and back. */
const camel = (name: string) => name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
const snake = (name: string) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

function ours(value: any, name = ""): any {
  if (name === "headers" || name === "json" || name === "result" || name === "results" || value instanceof Message) return value;
  if (Array.isArray(value)) return value.map((each) => ours(each));
  if (typeof value !== "object" || value === null) return value;
  const out: Json = {};
  for (const [each, member] of Object.entries(value)) {
    if (each === "body_base64") out["body"] = Uint8Array.from(Buffer.from(member as string, "base64"));
    else if (each === "due_at") out["dueAt"] = new Date(member as string);
    else out[camel(each)] = ours(member, each);
  }
  return out;
}

/** What a case calls what came back. */
function theirs(value: any, wanted: any): any {
  if (value instanceof DuewheelError) return { error: theirs({ ...value }, undefined) };
  if (value instanceof Date) return value.toISOString();
  if (Array.isArray(value)) return value.map((each, index) => theirs(each, wanted?.[index]));
  if (typeof value !== "object" || value === null) return value;
  const out: Json = {};
  for (const [name, member] of Object.entries(value)) {
    out[snake(name)] = name === "headers" || name === "result" ? member : theirs(member, wanted?.[snake(name)]);
  }
  if (value instanceof Message || value instanceof View) {
    if (value.isText) out["body"] = value.text;
    out["body_base64"] = Buffer.from(value.bytes).toString("base64");
    if (wanted?.json !== undefined) out["json"] = value.json();
  }
  return out;
}

function matches(got: any, wanted: any, where: string): void {
  if (wanted === null || wanted === undefined) return assert.equal(got ?? null, null, where);
  if (typeof wanted !== "object") return assert.deepEqual(got, wanted, where);
  if (Array.isArray(wanted)) assert.equal(got?.length, wanted.length, `${where}: the length of ${JSON.stringify(got)}`);
  assert.ok(typeof got === "object" && got !== null, `${where}: ${JSON.stringify(got)} for ${JSON.stringify(wanted)}`);
  for (const name of Object.keys(wanted)) matches(got[name], wanted[name], `${where}.${name}`);
}

async function call(client: Client, name: string, args: Json): Promise<any> {
  const { queue, id, key, ...rest } = args;
  const which = id === undefined ? { queue, key } : { id };
  const fields = ours(rest);
  switch (name) {
    case "enqueue":
      return client.enqueue(queue, ours({ ...rest, ...(key === undefined ? {} : { key }) }));
    case "enqueue_many":
      return { results: await client.enqueueMany(queue, fields.messages) };
    case "get":
      return client.get(which);
    case "cancel":
      return client.cancel(which, fields);
    case "cancel_many":
      return { results: await client.cancelMany(queue, fields) };
    case "postpone":
      return client.postpone(which, fields);
    case "fire":
      return client.fire(which);
    case "replay":
      return client.replay(id);
    case "reserve": {
      const { queues, ...options } = fields;
      return client.reserveWithReason(queues, options);
    }
    case "ack":
    case "nack":
    case "extend": {
      const { message, ...options } = fields;
      return client[name](message, options);
    }
    case "ack_many": {
      const { messages, ...options } = fields;
      return { results: await client.ackMany(messages, options) };
    }
    case "nack_many": {
      const { messages, ...options } = fields;
      return { results: await client.nackMany(messages, options) };
    }
    case "extend_many": {
      const { messages, ...options } = fields;
      return { results: await client.extendMany(messages, options) };
    }
    case "list":
      return client.list(queue, fields);
    case "queue":
      return client.queue(queue);
    case "configure":
      return client.configure(queue, fields.settings);
    case "redrive":
      return client.redrive(queue, fields);
    case "advance":
      return client.advance(fields);
    default:
      throw new Error(`no such call: ${name}`);
  }
}

async function step(client: Client, { call: name, args, result, error }: Json, where: string): Promise<any> {
  let got: any;
  try {
    got = await call(client, name, args);
  } catch (thrown) {
    if (!(thrown instanceof DuewheelError) || !error) throw thrown;
    matches(theirs({ ...thrown }, error), error, where);
    return undefined;
  }
  assert.ok(!error, `${where}: no error, but ${JSON.stringify(got)}`);
  if (result) matches(theirs(got, result), result, where);
  return got;
}

function filled(value: any, names: Json): any {
  if (typeof value === "string") {
    const whole = /^\$\{(\w+)\}$/.exec(value);
    return whole ? names[whole[1]!] : value.replace(/\$\{(\w+)\}/g, (_, name: string) => names[name]);
  }
  if (Array.isArray(value)) return value.map((each) => filled(each, names));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, filled(member, names)]));
}

describe("real", () => {
  cases["real"]!.forEach((each, number) =>
    it(each["name"], async () => {
      const client = new Client({ url: realServer });
      const names: Json = { queue: `case.${number}` };
      for (const [index, one] of (each["steps"] as Json[]).entries()) {
        const { save, ...rest } = one;
        const got = await step(client, filled(rest, names), `step ${index + 1} (${one["call"]})`);
        for (const [name, path] of Object.entries((save ?? {}) as Record<string, string>)) {
          names[name] = path.split(".").reduce((value, part) => value[part], got);
        }
      }
    }),
  );
});

async function verdict(name: string): Promise<{ failures: string[]; complete: boolean }> {
  return (await fetch(`${scriptedServer}/_/${name}`)).json() as Promise<{ failures: string[]; complete: boolean }>;
}

describe("scripted", { concurrency: true }, () => {
  for (const each of cases["scripted"]!) {
    it(each["name"], async () => {
      const client = new Client({ url: `${scriptedServer}/${each["name"]}`, ...ours(each["client"] ?? {}) });
      await step(client, each, each["name"]);
      assert.deepEqual((await verdict(each["name"])).failures, []);
    });
  }
});

describe("workers", { concurrency: true }, () => {
  for (const each of cases["workers"]!) {
    it(each["name"], async () => {
      const name = each["name"] as string;
      const { do: what, ...how } = each["handler"];
      let begun = false;
      let cancelled = 0;
      const worker = new Worker(
        new Client({ url: `${scriptedServer}/${name}` }),
        each["worker"].queues,
        async (_, { signal }) => {
          begun = true;
          if (what === "fail") throw new Error(how.message);
          if (what === "not_yet") return notYet({ delayMs: how.delay_ms });
          if (what === "result") return done(how.value);
          if (what === "dead") throw dead(how.reason);
          if (what === "sleep") await new Promise((resolve) => setTimeout(resolve, how.ms));
          if (what === "wait_cancelled") {
            await new Promise((resolve) => signal.addEventListener("abort", resolve));
            assert.equal((signal.reason as DuewheelError).code, "lease_lost");
            cancelled += 1;
            if (how.message) throw new Error(how.message);
          }
          return undefined;
        },
        { concurrency: each["worker"].concurrency, leaseMs: each["worker"].lease_ms, signals: [] },
      );
      const run = worker.run();
      if (each["stop"] === "while_running") await until("the handler begins", () => begun);
      else await until(`${name} is complete`, async () => (await verdict(name)).complete && (what !== "wait_cancelled" || cancelled > 0));
      await worker.stop();
      await run;
      assert.deepEqual((await verdict(name)).failures, []);
    });
  }
});

describe("signatures", () => {
  for (const each of cases["signatures"]!) {
    it(each["name"], async () => {
      const body = each["body"] ?? Uint8Array.from(Buffer.from(each["body_base64"], "base64"));
      const tolerance = each["tolerance_ms"] === undefined ? {} : { toleranceMs: each["tolerance_ms"] };
      const request = { secrets: each["secrets"], headers: each["headers"], body, now: new Date(each["now"] * 1000), ...tolerance };
      if (each["error"]) {
        await assert.rejects(verifyWebhook(request), (error: DuewheelError) => error.code === each["error"].code);
      } else {
        const got = await verifyWebhook(request);
        matches({ ...theirs(got, undefined), timestamp: got.timestamp.getTime() / 1000 }, each["result"], each["name"]);
      }
    });
  }
});
