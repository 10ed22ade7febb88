// The JavaScript of the guides runs as it stands: docs/guide/*/src/from-bullmq.md.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { before, describe, it } from "node:test";
import { Client } from "duewheel";
import { clients, real } from "./servers.js";

let url: string;
before(async () => {
  url = await real();
});

const AsyncFunction = (async () => {}).constructor as new (...parts: string[]) => (...values: unknown[]) => Promise<void>;

describe("guides", () => {
  for (const language of ["en", "zh"]) {
    it(`from-bullmq in ${language}`, async () => {
      const page = readFileSync(join(clients, `../docs/guide/${language}/src/from-bullmq.md`), "utf8");
      const code = [...page.matchAll(/^```js\n(.*?)^```$/gms)].map((block) => block[1]!.replaceAll("http://localhost:7788", url));
      assert.equal(code.length, 2);
      const client = new Client({ url });
      // The producer's message is made due, and one fails; the loop ends when it asks again.
      const seen: unknown[] = [];
      let reserves = 0;
      const passing = async (address: string, request: RequestInit) => {
        if (address.endsWith("/reserve")) {
          if (reserves++ === 0) await client.fire({ queue: "close", key: "order-42" });
          if (reserves > 1) throw new Error("enough");
        }
        return fetch(address, request);
      };
      const close = async (order: { order: number }) => {
        seen.push(order);
        if (order.order === 43) throw new Error("boom");
      };
      const { id } = await client.enqueue("close", { json: { order: 43 }, delayMs: 0 });
      const run = new AsyncFunction("queue", "close", "fetch", code.join("\n"));
      await assert.rejects(run({ add: async () => {} }, close, passing), /enough/);
      assert.deepEqual(seen.map((order) => JSON.stringify(order)).sort(), ['{"order":42}', '{"order":43}']);
      await assert.rejects(client.get({ queue: "close", key: "order-42" }), /message_not_found/);
      const failed = await client.get({ id });
      assert.deepEqual([failed.state, failed.history![0]!.note], ["scheduled", "Error: boom"]);
      await client.cancel({ id });
    });
  }
});
