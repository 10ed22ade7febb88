import type { Client } from "./client.js";
import { DuewheelError, isDuewheelError } from "./errors.js";
import type { Message } from "./message.js";
import { MAX_TIMER_MS, backoff, sleep } from "./transport.js";
import type { Duration } from "./types.js";

/** How one reserve waits for messages. */
const WAIT_MS = 20_000;

/** The largest number of messages that a server grants at once. */
const MAX_GRANTS = 10_000;

/** What becomes of a message. Return it, or throw it. */
export class Verdict extends Error {
  override readonly name = "Verdict";
  /** @internal */
  constructor(
    readonly fields: { delayMs?: number; delay?: Duration; attempt?: false; dead?: true; reason?: string; result?: unknown },
    message: string,
  ) {
    super(message);
  }
}

/** Done, with a result, which a queue with `keepDoneMs` keeps: JSON of at most 16 KiB; a larger one is left out. */
export function done(result: unknown): Verdict {
  return new Verdict({ result: JSON.parse(JSON.stringify(result ?? null)) }, "done");
}

/** Not yet: the message comes again after this time, and this delivery does not count as an attempt. */
export function notYet(delay: Duration | { delayMs: number }, reason?: string): Verdict {
  const time = typeof delay === "string" ? { delay } : { delayMs: delay.delayMs };
  return new Verdict({ ...time, attempt: false, ...(reason === undefined ? {} : { reason }) }, reason ?? "not yet");
}

/** The message is dead at once, for this reason: no attempt can help. */
export function dead(reason: string): Verdict {
  return new Verdict({ dead: true, reason }, reason);
}

export interface HandlerContext {
  /** Aborted when the lease is lost, or ends and no extend is answered, with a {@link DuewheelError}, or when a stop has waited long enough. */
  readonly signal: AbortSignal;
}

/**
 * Works on one message. When it returns the message is acked; when it throws it is nacked, and comes again after the
 * backoff. {@link done}, {@link notYet} and {@link dead} say more. One that stops because its signal is aborted throws: if
 * it returns, the ack counts if nobody has got the message since.
 */
export type Handler = (message: Message, context: HandlerContext) => Promise<void | Verdict> | void | Verdict;

export interface WorkerOptions {
  /** Handlers that run at a time; 1 by default. No more messages than that are leased. */
  concurrency?: number;
  /** The lease of each message; the message's or queue's own if it is left out. It is extended while the handler runs. */
  leaseMs?: number;
  /** Signals of the process that drain the worker; `SIGTERM` and `SIGINT` by default, where there are signals. */
  signals?: string[];
  /** How long a drain by a signal waits for handlers; for ever by default. */
  drainMs?: number;
  /** Called with errors outside of handlers: lost leases, a server that is away. */
  onError?: (error: DuewheelError, message?: Message) => void;
}

interface Process {
  on?(event: string, listener: () => void): unknown;
  off?(event: string, listener: () => void): unknown;
}

/**
 * Leases messages of its queues and runs a handler for each. It waits in one reserve over all queues, asks for no more
 * than it can work on, and extends each lease at half its time while the handler runs.
 *
 * ```ts
 * const worker = new Worker(client, "close-review", async (message, { signal }) => close(message.json(), signal));
 * await worker.run(); // until worker.stop(), or SIGTERM
 * ```
 */
export class Worker {
  readonly #client: Client;
  readonly #queues: string[];
  readonly #handler: Handler;
  readonly #options: WorkerOptions;
  readonly #concurrency: number;
  readonly #running = new Set<Promise<void>>();
  /** Ends the waiting reserve. */
  readonly #draining = new AbortController();
  /** Ends the handlers that a stop does not wait for any longer. */
  readonly #ending = new AbortController();
  #run: Promise<void> | undefined;
  #freed: (() => void) | undefined;

  constructor(client: Client, queues: string | string[], handler: Handler, options: WorkerOptions = {}) {
    this.#client = client;
    this.#queues = [queues].flat();
    this.#handler = handler;
    this.#options = options;
    this.#concurrency = options.concurrency ?? 1;
    if (!Number.isInteger(this.#concurrency) || this.#concurrency < 1) {
      throw new RangeError(`concurrency: ${this.#concurrency} is no number of handlers; give 1 or more`);
    }
    if (this.#queues.length === 0) throw new RangeError("queues: there are none; name at least one");
  }

  /** Works until it is stopped. @throws what makes further work impossible, such as `unauthorized` */
  run(): Promise<void> {
    return (this.#run ??= this.#work());
  }

  /**
   * Leases nothing more, and waits for the handlers that run; after `drainMs` their signals are aborted, and what
   * they do not settle comes again when its lease ends.
   */
  async stop(options: { drainMs?: number } = {}): Promise<void> {
    this.#draining.abort();
    this.#freed?.();
    const drainMs = Math.min(options.drainMs ?? Infinity, MAX_TIMER_MS);
    const timer = drainMs === MAX_TIMER_MS ? undefined : setTimeout(() => this.#ending.abort(), drainMs);
    try {
      await this.#run?.catch(() => {});
    } finally {
      clearTimeout(timer);
    }
  }

  async #work(): Promise<void> {
    const process = (globalThis as { process?: Process }).process;
    const stop = () => void this.stop(this.#options.drainMs === undefined ? {} : { drainMs: this.#options.drainMs });
    const signals = process?.on && process.off ? (this.#options.signals ?? ["SIGTERM", "SIGINT"]) : [];
    for (const signal of signals) process?.on?.(signal, stop);
    try {
      await this.#reserveAll();
    } finally {
      this.#draining.abort();
      const given = new Promise<void>((resolve) => this.#ending.signal.addEventListener("abort", () => resolve(), { once: true }));
      while (this.#running.size > 0 && !this.#ending.signal.aborted) {
        await Promise.race([given, ...this.#running]);
      }
      // Those that were cut off have a moment to give their messages back.
      if (this.#running.size > 0) await Promise.race([sleep(2000), Promise.all(this.#running)]);
      this.#ending.abort();
      for (const signal of signals) process?.off?.(signal, stop);
    }
  }

  async #reserveAll(): Promise<void> {
    const { leaseMs } = this.#options;
    const signal = this.#draining.signal;
    for (let failures = 0; !signal.aborted; ) {
      const max = Math.min(this.#concurrency - this.#running.size, MAX_GRANTS);
      if (max === 0) {
        await new Promise<void>((resolve) => (this.#freed = resolve));
        continue;
      }
      try {
        const options = { max, waitMs: WAIT_MS, signal, ...(leaseMs === undefined ? {} : { leaseMs }) };
        for (const message of await this.#client.reserve(this.#queues, options)) this.#begin(message);
        failures = 0;
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof DuewheelError) || !passes(error)) throw error;
        this.#report(error);
        await sleep(backoff(failures++), signal).catch(() => {});
      }
    }
  }

  #begin(message: Message): void {
    // Of a reserve that was answered as the worker was stopped nothing is begun any more.
    const stopped = this.#draining.signal.aborted;
    const work = (stopped ? this.#settle(message, notYet({ delayMs: 0 }, "the worker stops")) : this.#handle(message))
      .catch((error: unknown) => {
        // A stop that waits no longer cuts settles off: their messages come again.
        if (!this.#ending.signal.aborted) this.#report(internal(error), message);
      })
      .finally(() => {
        this.#running.delete(work);
        this.#freed?.();
      });
    this.#running.add(work);
  }

  async #handle(message: Message): Promise<void> {
    const cancel = new AbortController();
    const over = new AbortController();
    const lost = this.#extend(message, over.signal, cancel).then((error) => {
      if (error) cancel.abort(error);
      return error;
    });
    const end = () => cancel.abort(new Error("the worker stops"));
    this.#ending.signal.addEventListener("abort", end, { once: true });
    let verdict: Verdict | undefined;
    try {
      verdict = (await this.#handler(message, { signal: cancel.signal })) ?? undefined;
    } catch (error) {
      verdict = error instanceof Verdict ? error : new Verdict({ reason: error instanceof Error ? error.message : String(error) }, "");
      // The stop is to blame, not the message.
      if (this.#ending.signal.aborted && error !== verdict) verdict = notYet({ delayMs: 0 }, "the worker stops");
    }
    this.#ending.signal.removeEventListener("abort", end);
    over.abort();
    const error = await lost;
    // Work that is done may count all the same: the server says so.
    if (error && verdict && verdict.fields.result === undefined) return this.#report(error, message);
    await this.#settle(message, verdict);
  }

  /** Extends the lease at half its time until the handler is done; the error if the lease is lost. */
  async #extend(message: Message, over: AbortSignal, cancel: AbortController): Promise<DuewheelError | undefined> {
    const leaseMs = this.#options.leaseMs ?? message.leaseMs;
    const halfMs = Math.min(leaseMs, MAX_TIMER_MS) / 2;
    // Without an answer the lease ends all the same, and another consumer may have the message.
    const ended = () => cancel.abort(new DuewheelError("lease_lost", "the lease has ended, and no extend was answered", "unknown"));
    const ends = (ms: number) => setTimeout(ended, Math.min(ms, MAX_TIMER_MS));
    let timer = ends(message.leaseMs);
    over.addEventListener("abort", () => clearTimeout(timer), { once: true });
    // An attempt over a connection that is dead leaves time for others.
    const timeoutMs = Math.max(leaseMs / 6, 1000);
    let pause = halfMs;
    for (let failures = 0; ; ) {
      try {
        await sleep(pause, over);
        await this.#client.extend(message, { leaseMs }, { signal: over, timeoutMs });
        clearTimeout(timer);
        if (!over.aborted) timer = ends(leaseMs);
        pause = halfMs;
        failures = 0;
      } catch (error) {
        if (over.aborted) return undefined;
        // Anything else says nothing about the lease.
        if (isDuewheelError(error, "lease_lost", "message_not_found")) return error;
        this.#report(error instanceof DuewheelError ? error : internal(error), message);
        pause = backoff(failures++);
      }
    }
  }

  async #settle(message: Message, verdict: Verdict | undefined): Promise<void> {
    // After the end of a stop there is a moment for each settle, and no more.
    const options = this.#ending.signal.aborted ? { signal: AbortSignal.timeout(1500) } : { signal: this.#ending.signal };
    try {
      const { result, ...fields } = verdict?.fields ?? { result: null };
      if (result === undefined) await this.#client.nack(message, fields, options);
      else await this.#client.ack(message, { ...options, ...(result === null ? {} : { result }) });
    } catch (error) {
      if (verdict?.fields.result !== undefined && isDuewheelError(error, "bad_request", "body_too_large")) {
        // The work is done all the same.
        this.#report(error, message);
        return this.#settle(message, undefined);
      }
      if (error instanceof DuewheelError) return this.#report(error, message);
      if (!options.signal.aborted) throw error;
    }
  }

  #report(error: DuewheelError, message?: Message): void {
    try {
      this.#options.onError?.(error, message);
    } catch (thrown) {
      // The message is settled all the same.
      console.error(thrown);
    }
  }
}

function internal(error: unknown): DuewheelError {
  return new DuewheelError("internal", String(error), "unknown", {}, { cause: error });
}

/** Whether waiting helps. */
function passes(error: DuewheelError): boolean {
  return error.code === "connection" || error.status === 429 || (error.status ?? 0) >= 500;
}
