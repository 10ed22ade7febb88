// What every runtime must be able to do: deno and bun run this, workerd serves it. It needs nothing of node.
import { Client, Worker, isDuewheelError, verifyWebhook } from "duewheel";

function check(holds: boolean, what: string): void {
  if (!holds) throw new Error(`does not hold: ${what}`);
}

export async function smoke(url: string): Promise<string> {
  const client = new Client({ url });
  const queue = `smoke.${crypto.randomUUID()}`;
  await client.enqueue(queue, { json: { order: 42 }, delay: "48h", key: "a/ü" });
  const error = await client.enqueue(queue, { body: "x", delayMs: 0, key: "a/ü" }).catch((error: unknown) => error);
  check(isDuewheelError(error, "key_exists"), "a taken key");
  check((await client.get({ queue, key: "a/ü" })).json<{ order: number }>().order === 42, "the message is read");
  const results = await client.enqueueMany(queue, [{ body: Uint8Array.of(255), delayMs: 0 }, { body: "x", delayMs: 0, key: "a/ü" }]);
  check(!isDuewheelError(results[0]) && isDuewheelError(results[1], "key_exists"), "a batch");
  await client.fire({ queue, key: "a/ü" });

  const seen: string[] = [];
  const worker = new Worker(
    client,
    queue,
    (message) => {
      seen.push([...message.bytes].join());
      if (seen.length === 2) void worker.stop();
    },
    { signals: [] },
  );
  await worker.run();
  check(seen.includes("255") && seen.length === 2, "the worker");
  check((await client.queue(queue)).counts.leased === 0, "both are acked");

  const headers = {
    "webhook-id": "dw_7f_17_1",
    "webhook-timestamp": "1767225600",
    "webhook-signature": "v1,c+hkwO7PGAs7m718z1Yeo58ZXwe2LHNtdNhYkF5wIMY= v1a,Dnx6UtBRN/9Kb7MQ8TMFW9PlqDUpBD4E6TfQfO2CJ3LeEgbHo8w0OEo2zQt4vjVnc0Mzb5jArV7qX/IhTlb/CQ==",
  };
  const request = { headers, body: "order 42 中", now: new Date(1767225600_000) };
  for (const secret of ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="]) {
    check((await verifyWebhook({ ...request, secrets: secret })).id === "dw_7f_17_1", "a signature");
    const changed = await verifyWebhook({ ...request, secrets: secret, body: "order 43" }).catch((error: unknown) => error);
    check(isDuewheelError(changed, "webhook_signature"), "another body");
  }
  return "all held";
}

/** For workerd: `GET /?url=ADDRESS`. */
export default {
  async fetch(request: Request): Promise<Response> {
    try {
      return new Response(await smoke(new URL(request.url).searchParams.get("url") ?? ""));
    } catch (error) {
      return new Response(String(error instanceof Error ? error.stack : error), { status: 500 });
    }
  },
};
