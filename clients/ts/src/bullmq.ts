/**
 * For those who come from BullMQ: its `Queue` and `Worker` in their shape, on duewheel. What BullMQ has and duewheel does
 * not (flows, repeatable jobs, progress, …) is refused by name, never ignored.
 */
import { Client } from "./client.js";
import { DuewheelError, isDuewheelError } from "./errors.js";
import type { Message, View } from "./message.js";
import type { ClientOptions } from "./transport.js";
import type { NewMessage } from "./types.js";
import { Worker as DuewheelWorker, dead, done, notYet, type Verdict } from "./worker.js";

/** Where the queue is: a client, or options of one. */
export type Connection = { connection?: Client | ClientOptions };

export interface JobsOptions {
  /** Milliseconds. */
  delay?: number;
  /** The job's name among the unfinished ones of its queue, the message's key: a second `add` with it adds nothing. */
  jobId?: string;
  /** 1 by default. A job whose worker is gone is run once more than that, as with BullMQ's `maxStalledCount` of 1. */
  attempts?: number;
  /** Milliseconds, or fixed or exponential from them on. */
  backoff?: number | { type: "fixed" | "exponential"; delay?: number };
  /** 1 is the highest; jobs without one come before all. */
  priority?: number;
  /** Finished jobs are removed in any case, unless the queue has `keepDoneMs`; a failed one stays, dead. */
  removeOnComplete?: boolean | number | object;
  removeOnFail?: boolean | number | object;
}

const known = new Set(["delay", "jobId", "attempts", "backoff", "priority", "removeOnComplete", "removeOnFail"]);
/** The longest backoff of a message: the server's largest delay. */
const LONGEST_MS = 4_294_967_295_000;

/** How often a lease may end before a job has failed, not counted as an attempt. */
const STALLS = 1;

/** A job that no further attempt can help. */
export class UnrecoverableError extends Error {
  override readonly name = "UnrecoverableError";
}

/** Thrown after `job.moveToDelayed`: the job is not done yet. */
export class DelayedError extends Error {
  override readonly name = "DelayedError";
}

/** One job: a message whose body is `{"name": …, "data": …, "attempts": …}`. */
export class Job<Data = unknown> {
  /** @internal */
  delayedUntil: number | undefined;
  /** What the processor has returned, as long as the queue keeps it. */
  returnvalue: unknown;

  /** @internal */
  constructor(
    readonly queueName: string,
    /** The `jobId`, or the message's id. */
    readonly id: string,
    readonly name: string,
    readonly data: Data,
    /** Attempts that have ended. */
    readonly attemptsMade: number,
    readonly timestamp: number,
    private readonly client: Client,
    private readonly messageId: string,
  ) {}

  /** Removes the job, unless a worker has it. */
  async remove(): Promise<void> {
    await this.client.cancel({ id: this.messageId });
  }

  /** Due so many milliseconds from now. */
  async changeDelay(delay: number): Promise<void> {
    await this.client.postpone({ id: this.messageId }, { delayMs: delay });
  }

  /** Due now. */
  async promote(): Promise<void> {
    await this.client.fire({ id: this.messageId });
  }

  /** A failed job is tried again. */
  async retry(): Promise<void> {
    await this.client.redrive(this.queueName, { ids: [this.messageId] });
  }

  async getState(): Promise<"delayed" | "waiting" | "active" | "failed" | "completed" | "unknown"> {
    try {
      const { state } = await this.client.get({ id: this.messageId });
      return ({ scheduled: "delayed", ready: "waiting", leased: "active", dead: "failed", done: "completed" } as const)[state];
    } catch (error) {
      if (isDuewheelError(error, "message_not_found")) return "unknown";
      throw error;
    }
  }

  /** In a processor, followed by `throw new DelayedError()`: the job comes again at this time, and no attempt is used up. */
  async moveToDelayed(timestamp: number): Promise<void> {
    this.delayedUntil = timestamp;
  }
}

export class Queue<Data = unknown> {
  readonly #client: Client;
  readonly #defaults: JobsOptions;

  constructor(
    readonly name: string,
    options: Connection & { defaultJobOptions?: JobsOptions } = {},
  ) {
    this.#client = clientOf(options);
    this.#defaults = options.defaultJobOptions ?? {};
  }

  async add(name: string, data: Data, options: JobsOptions = {}): Promise<Job<Data>> {
    const { id } = await this.#client.enqueue(this.name, this.#message(name, data, options));
    return new Job(this.name, options.jobId ?? id, name, data, 0, Date.now(), this.#client, id);
  }

  /** Many jobs. They are not one transaction: it throws the first refusal after it has tried all. */
  async addBulk(jobs: { name: string; data: Data; opts?: JobsOptions }[]): Promise<Job<Data>[]> {
    const results = await this.#client.enqueueMany(
      this.name,
      jobs.map((job) => this.#message(job.name, job.data, job.opts ?? {})),
    );
    const refused = results.find((result) => result instanceof DuewheelError);
    if (refused) throw refused;
    return jobs.map((job, index) => {
      const { id } = results[index] as { id: string };
      return new Job(this.name, job.opts?.jobId ?? id, job.name, job.data, 0, Date.now(), this.#client, id);
    });
  }

  /** The job with this `jobId`, else the one with this id of a message. */
  async getJob(jobId: string): Promise<Job<Data> | undefined> {
    for (const which of [{ queue: this.name, key: jobId }, ...(/^\d+$/.test(jobId) ? [{ id: jobId }] : [])]) {
      try {
        const view = await this.#client.get(which);
        return jobOf<Data>(view, this.#client, view.enqueuedAt);
      } catch (error) {
        if (!isDuewheelError(error, "message_not_found")) throw error;
      }
    }
    return undefined;
  }

  /** 1 if the job was removed, 0 if it is active or not there. */
  async remove(jobId: string): Promise<number> {
    try {
      const job = await this.getJob(jobId);
      await job?.remove();
      return job ? 1 : 0;
    } catch (error) {
      if (isDuewheelError(error, "message_not_found", "leased")) return 0;
      throw error;
    }
  }

  async close(): Promise<void> {}

  #message(name: string, data: Data, given: JobsOptions): NewMessage {
    const options = { ...this.#defaults, ...given };
    const unknown = Object.keys(options).find((option) => !known.has(option));
    if (unknown) throw new TypeError(`${unknown}: duewheel has no such option of a job; see docs/guide, "Moving from BullMQ"`);
    const attempts = options.attempts ?? 1;
    const message: NewMessage = {
      json: { name, data, attempts },
      delayMs: options.delay ?? 0,
      maxAttempts: attempts + STALLS,
      backoff: backoffOf(options.backoff),
      priority: options.priority ?? 0,
    };
    return options.jobId === undefined ? message : { ...message, key: options.jobId, ifExists: "keep" };
  }
}

type Events<Data> = {
  completed: (job: Job<Data>, result: unknown) => void;
  failed: (job: Job<Data> | undefined, error: Error) => void;
  error: (error: Error) => void;
};

/** The processor of a job. Its result is kept where the queue has `keepDoneMs`. */
export type Processor<Data> = (job: Job<Data>, token: string, signal: AbortSignal) => Promise<unknown>;

export class Worker<Data = unknown> {
  readonly #client: Client;
  readonly #worker: DuewheelWorker;
  readonly #listeners: { [Name in keyof Events<Data>]: Set<Events<Data>[Name]> } = {
    completed: new Set(),
    failed: new Set(),
    error: new Set(),
  };
  #running: Promise<void> | undefined;

  constructor(
    readonly name: string,
    processor: Processor<Data>,
    options: Connection & { concurrency?: number; lockDuration?: number; autorun?: boolean } = {},
  ) {
    this.#client = clientOf(options);
    this.#worker = new DuewheelWorker(this.#client, name, (message, { signal }) => this.#process(processor, message, signal), {
      concurrency: options.concurrency ?? 1,
      leaseMs: options.lockDuration ?? 30_000,
      signals: [],
      onError: (error) => this.#emit("error", error),
    });
    if (options.autorun ?? true) this.run().catch(() => {});
  }

  run(): Promise<void> {
    return (this.#running ??= this.#worker.run().catch((error: Error) => {
      this.#emit("error", error);
      throw error;
    }));
  }

  on<Name extends keyof Events<Data>>(event: Name, listener: Events<Data>[Name]): this {
    const listeners = this.#listeners[event];
    if (!listeners) throw new TypeError(`${event}: there is no such event here; there are completed, failed and error`);
    listeners.add(listener);
    return this;
  }

  off<Name extends keyof Events<Data>>(event: Name, listener: Events<Data>[Name]): this {
    this.#listeners[event].delete(listener);
    return this;
  }

  /** Waits for the jobs that run; with `force` they are cut off, and come again. */
  async close(force = false): Promise<void> {
    await this.#worker.stop(force ? { drainMs: 0 } : {});
  }

  async #process(processor: Processor<Data>, message: Message, signal: AbortSignal): Promise<void | Verdict> {
    let job: Job<Data>;
    try {
      job = jobOf<Data>(message, this.#client, message.dueAt);
    } catch (error) {
      this.#emit("failed", undefined, error as Error);
      return dead(`no job of BullMQ's form: ${(error as Error).message}`);
    }
    let verdict: Verdict;
    try {
      job.returnvalue = await processor(job, message.leaseToken, signal);
      verdict = done(job.returnvalue);
    } catch (error) {
      if (error instanceof DelayedError && job.delayedUntil !== undefined) {
        return notYet({ delayMs: Math.max(0, job.delayedUntil - Date.now()) });
      }
      const cause = error instanceof Error ? error : new Error(String(error));
      this.#emit("failed", job, cause);
      // By name too: a processor may throw BullMQ's own.
      if (cause.name === "UnrecoverableError" || (!signal.aborted && (await this.#last(message)))) return dead(cause.message);
      throw cause;
    }
    this.#emit("completed", job, job.returnvalue);
    return verdict;
  }

  /** Whether this failure is the last one that the job may have. Ended leases, and "not yet", are no failures. */
  async #last(message: Message): Promise<boolean> {
    const { attempts } = message.json<{ attempts?: unknown }>();
    if (typeof attempts !== "number" || message.attempt < attempts) return false;
    if (message.attempt === 1) return true;
    try {
      const { attempt, forgiven, history = [] } = await this.#client.get({ id: message.id });
      return attempt - forgiven - history.filter(({ how }) => how === "lease_expired").length >= attempts;
    } catch (error) {
      // A token that may not read messages: the server ends the job, with the attempts that are left for ended leases.
      if (error instanceof DuewheelError) return false;
      throw error;
    }
  }

  /** What a listener throws is an error of the listener: the job is what it is. */
  #emit<Name extends keyof Events<Data>>(event: Name, ...args: Parameters<Events<Data>[Name]>): void {
    for (const listener of this.#listeners[event]) {
      try {
        (listener as (...args: unknown[]) => void)(...args);
      } catch (error) {
        if (event === "error") console.error(error);
        else this.#emit<"error">("error", error instanceof Error ? error : new Error(String(error)));
      }
    }
  }
}

function clientOf({ connection }: Connection): Client {
  return connection instanceof Client ? connection : new Client(connection);
}

function jobOf<Data>(message: Message | View, client: Client, at: Date): Job<Data> {
  const value = message.json<{ name?: unknown; data?: unknown } | null>();
  if (typeof value?.name !== "string") throw new TypeError(`message ${message.id}: the body has no name of a job`);
  const made = "leaseToken" in message ? message.attempt - 1 : message.attempt;
  const id = message.key ?? message.id;
  const job = new Job(message.queue, id, value.name, value.data as Data, made, at.getTime(), client, message.id);
  if ("result" in message) job.returnvalue = message.result;
  return job;
}

function backoffOf(backoff: JobsOptions["backoff"]): { minMs: number; maxMs: number } {
  const { type, delay = 0 } = typeof backoff === "object" ? backoff : { type: "fixed", delay: backoff ?? 0 };
  if (type !== "fixed" && type !== "exponential") throw new TypeError(`backoff: there is no ${type}; there are fixed and exponential`);
  return { minMs: delay, maxMs: type === "fixed" ? delay : delay === 0 ? 0 : LONGEST_MS };
}
