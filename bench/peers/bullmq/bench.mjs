// BullMQ's side of `bench/run redis`: node bench.mjs PORT WHAT SETTINGS. The last line of its output is what it came to, as JSON.
import { Queue, Worker } from "bullmq";
import IORedis from "ioredis";

const [port, what, settings] = [Number(process.argv[2]), process.argv[3], JSON.parse(process.argv[4])];
const connection = new IORedis({ host: "127.0.0.1", port, maxRetriesPerRequest: null });
const QUEUE = "bench";
const HOUR_MS = 3_600_000;

const letters = "abcdefghijklmnopqrstuvwxyz";
const bodies = Array.from({ length: 64 }, () =>
  Array.from({ length: settings.body }, () => letters[Math.floor(Math.random() * 26)]).join(""),
);
// What is completed is forgotten, as an acked message is.
const job = (n, delay) => ({
  name: "m",
  data: { body: bodies[n % bodies.length] },
  opts: { delay, removeOnComplete: true },
});

// Over all processes, threads included.
const processorSeconds = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
};
const say = (value) => console.log(JSON.stringify({ ...value, processor_s: processorSeconds() }));

const adds = (queue, first, count, delay) =>
  count === 1
    ? queue.add(...Object.values(job(first, delay())))
    : queue.addBulk(Array.from({ length: count }, (_, i) => job(first + i, delay())));

// Adds for so long, with so many calls under way.
async function add({ seconds, calls, bulk }) {
  const queue = new Queue(QUEUE, { connection });
  await queue.waitUntilReady();
  const warm = performance.now() + (seconds * 1000) / 5;
  const end = warm + seconds * 1000;
  const delay = () => 1 + Math.floor(Math.random() * HOUR_MS);
  const times = [];
  let added = 0;
  const one = async () => {
    for (;;) {
      const sent = performance.now();
      if (sent >= end) return;
      const first = added;
      added += bulk;
      await adds(queue, first, bulk, delay);
      const done = performance.now();
      if (sent >= warm && done <= end) times.push(done - sent);
    }
  };
  await Promise.all(Array.from({ length: calls }, one));
  times.sort((a, b) => a - b);
  const at = (permille) => times[Math.floor((times.length * permille) / 1000)] ?? 0;
  say({ messages: times.length * bulk, all: added, seconds, p50: at(500), p99: at(990) });
}

// Adds so many, each due after the same delay.
async function produce({ messages, calls, bulk, delay_ms }) {
  const queue = new Queue(QUEUE, { connection });
  await queue.waitUntilReady();
  const started_ms = Date.now();
  let added = 0;
  const one = async () => {
    while (added < messages) {
      const [first, count] = [added, Math.min(bulk, messages - added)];
      added += count;
      await adds(queue, first, count, () => delay_ms);
    }
  };
  await Promise.all(Array.from({ length: calls }, one));
  say({ started_ms, added });
}

// Completes so many.
async function work({ messages, concurrency, body }) {
  let completed = 0;
  const worker = new Worker(
    QUEUE,
    async (job) => {
      if (job.data.body.length !== body) throw new Error("another body than was added");
    },
    { connection, concurrency },
  );
  const all = new Promise((resolve, reject) => {
    worker.on("failed", (_, error) => reject(error));
    worker.on("error", reject);
    worker.on("completed", () => {
      completed += 1;
      if (completed === messages) resolve();
    });
  });
  await worker.waitUntilReady();
  console.log("ready");
  await all;
  say({ ended_ms: Date.now(), completed });
}

await { add, produce, work }[what](settings);
process.exit(0);
