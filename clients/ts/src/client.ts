import { DuewheelError, fromProblem } from "./errors.js";
import { Message, View } from "./message.js";
import { Transport, connection, passes, type CallOptions, type ClientOptions } from "./transport.js";
import { badRequest, fromWire, toWire } from "./types.js";
import type { Change, Duration, Durability, Enqueued, NewMessage, Which } from "./types.js";

/** How long the server remembers an id that the client made: longer than any call is repeated. */
const OWN_WINDOW_MS = 15 * 60_000;
/** Below the server's limits of a batch, 10,000 messages and 16 MiB. */
const BATCH_MESSAGES = 10_000;
const BATCH_BYTES = 12 << 20;

/** The proof of a lease. A {@link Message} is one. */
export interface Lease {
  readonly id: string;
  readonly leaseToken: string;
  /** How long it was granted for: the length of an extend that names none. */
  readonly leaseMs?: number;
}

export interface ReserveOptions extends CallOptions {
  /** The largest number of messages; 1 by default. */
  max?: number;
  /** How long to wait for the first one; 0 by default. */
  waitMs?: number;
  wait?: Duration;
  leaseMs?: number;
  lease?: Duration;
}

export interface NackOptions {
  /** Before the next attempt; without it the backoff decides. */
  delayMs?: number;
  delay?: Duration;
  /** Kept in the message's history, cut to 256 bytes. */
  reason?: string;
  /** The message is dead at once. */
  dead?: true;
  /** `false`: not yet. This delivery does not count against `maxAttempts`. */
  attempt?: boolean;
}

export interface Settled {
  readonly result: "acked" | "already" | "again" | "dead" | "superseded" | "extended" | (string & {});
  readonly durability?: Durability;
  readonly dueAt?: Date;
  readonly deadReason?: string;
  readonly leaseUntil?: Date;
}

/** What `get` shows, after a change: without content and history. */
export type Changed = Omit<View, "text" | "bytes" | "isText" | "json" | "history" | "headers">;

export interface QueueView {
  readonly queue: string;
  readonly counts: { scheduled: number; ready: number; leased: number; dead: number; estimated: boolean };
  readonly paused: boolean;
  readonly waiters: number;
  readonly oldestOverdue: Date | null;
  readonly config: Record<string, unknown>;
}

/** Settings of a queue; `null` resets one to the server's default. */
export interface QueueSettings {
  leaseMs?: number | null;
  maxAttempts?: number | null;
  priority?: number | null;
  backoff?: { minMs: number; maxMs: number } | null;
  dedupeWindowMs?: number | null;
  deadTtlMs?: number | null;
  keepDoneMs?: number | null;
  rate?: { perSecond: number; burst?: number } | null;
  catchupRate?: number | null;
  concurrency?: number | null;
  expiresInMs?: number | null;
  onExpiry?: "deliver_late" | "dead" | "drop" | null;
  order?: "due" | "arrival" | null;
  target?: string | null;
}

/**
 * A client of one server.
 *
 * Each call is repeated for 30 s after a lost connection, a 429 or a 503, as the server's `Retry-After` says. An enqueue
 * is repeated under one `dedupeId`, so that a lost answer never makes a second message. Acks, nacks and extends are
 * repeated until they are answered. Everything else that goes wrong is a {@link DuewheelError}.
 */
export class Client {
  readonly #transport: Transport;

  constructor(options: ClientOptions = {}) {
    this.#transport = new Transport(options);
  }

  /** Schedules one message. It is durable when this returns. */
  async enqueue(queue: string, message: NewMessage, options: CallOptions = {}): Promise<Enqueued> {
    const line = new Line(message);
    const call = { method: "POST", path: ["v1", "queues", queue, "messages"], ...options };
    try {
      return enqueued(await this.#transport.json({ ...call, body: line.wire }));
    } catch (error) {
      if (!line.windowRefused(error)) throw error;
      return enqueued(await this.#transport.json({ ...call, body: line.wire }));
    }
  }

  /**
   * Schedules many messages, in order, not as one transaction. The result has an item for each: what was accepted, or
   * the error. It throws only if nothing was accepted, for a reason that concerns all.
   */
  async enqueueMany(queue: string, messages: Iterable<NewMessage>, options: CallOptions = {}): Promise<(Enqueued | DuewheelError)[]> {
    // All are encoded before the first is sent: one that cannot be throws while nothing is accepted.
    const parts: Line[][] = [];
    let bytes = Infinity;
    for (const message of messages) {
      const line = new Line(message);
      // A character has at most three bytes in UTF-8.
      const size = JSON.stringify(line.wire).length * 3;
      if (bytes + size > BATCH_BYTES || parts.at(-1)!.length >= BATCH_MESSAGES) {
        parts.push([]);
        bytes = 0;
      }
      parts.at(-1)!.push(line);
      bytes += size;
    }
    const results: (Enqueued | DuewheelError)[] = [];
    for (const lines of parts) results.push(...(await this.#enqueuePart(queue, lines, results.length > 0, options)));
    return results;
  }

  async #enqueuePart(queue: string, lines: Line[], begun: boolean, options: CallOptions) {
    const attempts = this.#transport.attempts();
    const results = new Map<Line, Enqueued | DuewheelError>();
    for (;;) {
      const open = lines.filter((line) => !results.has(line));
      const call = { method: "POST", path: ["v1", "queues", queue, "messages"], ...options };
      const text = open.map((line) => JSON.stringify(line.wire) + "\n").join("");
      const answer = await this.#transport.once({ ...call, lines: text });
      let missing: DuewheelError | undefined;
      const wait = (error: DuewheelError) => {
        if (missing === undefined || (error.retryAfterMs ?? 0) > (missing.retryAfterMs ?? 0)) missing = error;
      };
      if ("error" in answer) {
        if (!answer.again && !begun && results.size === 0) throw attempts.final(answer.error);
        if (!answer.again) for (const line of open) results.set(line, attempts.final(answer.error));
        else wait(answer.error);
      } else {
        const answers = answer.text.split("\n").slice(0, -1);
        open.forEach((line, index) => {
          const item = parse(answers[index]);
          if (item === undefined) return wait(connection(new Error("the answer ends early")));
          if (typeof item["id"] === "string") return results.set(line, enqueued(item));
          const error = fromProblem(item, Number(item["status"]));
          if (passes(error.status)) return wait(error);
          if (!line.windowRefused(error)) results.set(line, attempts.final(error));
        });
      }
      const rest = lines.filter((line) => !results.has(line));
      if (rest.length === 0) return lines.map((line) => results.get(line)!);
      if (missing === undefined) continue;
      try {
        await attempts.next(missing, options.signal);
      } catch (error) {
        if (!(error instanceof DuewheelError) || (!begun && results.size === 0)) throw error;
        for (const line of rest) results.set(line, error);
        return lines.map((line) => results.get(line)!);
      }
    }
  }

  /** The present state of a message. @throws `message_not_found` if it was delivered, cancelled, or never there */
  async get(which: Which, options: CallOptions = {}): Promise<View> {
    return new View(await this.#transport.json({ method: "GET", path: path(which), ...options }));
  }

  /**
   * Removes a message that no consumer has. @throws `leased` if it was too late, `message_not_found` if nothing is
   * pending; with `outcome: "unknown"` an earlier attempt of this call may have cancelled it.
   */
  async cancel(which: Which, options: CallOptions & { forgetDedupe?: boolean } = {}): Promise<{ result: "cancelled"; id: string }> {
    const { signal, ...fields } = options;
    const body = fields.forgetDedupe === undefined ? undefined : toWire(fields);
    return settled(await this.#transport.json({ method: "DELETE", path: path(which), body, signal }));
  }

  /** Cancels many messages of a queue: a result for each, keys first. */
  async cancelMany(
    queue: string,
    which: { keys?: string[]; ids?: string[]; forgetDedupe?: boolean },
    options: CallOptions = {},
  ): Promise<({ result: "cancelled"; key?: string; id?: string } | DuewheelError)[]> {
    const { keys = [], ids = [], ...rest } = toWire(which) as { keys?: string[]; ids?: string[] };
    const items = [...keys.map((key) => ({ key })), ...ids.map((id) => ({ id }))];
    if (items.length === 0) throw badRequest("keys", "keys: neither keys nor ids; give one at least");
    const body = (open: { key?: string; id?: string }[]) => {
      const named = { keys: open.flatMap(({ key }) => key ?? []), ids: open.flatMap(({ id }) => id ?? []) };
      return { ...rest, ...(named.keys.length > 0 && { keys: named.keys }), ...(named.ids.length > 0 && { ids: named.ids }) };
    };
    return this.#items(["v1", "queues", queue, "cancel"], items, body, false, options);
  }

  /** Changes due time, content or settings of a scheduled or ready message. */
  async postpone(which: Which, change: Change, options: CallOptions = {}): Promise<Changed> {
    return settled(await this.#transport.json({ method: "PATCH", path: path(which), body: toWire(change), ...options }));
  }

  /** Makes a message due now. */
  async fire(which: Which, options: CallOptions = {}): Promise<Changed> {
    return settled(await this.#transport.json({ method: "POST", path: [...path(which), "fire"], ...options }));
  }

  /** A new message with the content of a done or dead one, due now. */
  async replay(id: string, fields: { key?: string } = {}, options: CallOptions = {}): Promise<Enqueued> {
    const body = { ...toWire(fields), dedupe_id: crypto.randomUUID() };
    return enqueued(await this.#transport.json({ method: "POST", path: ["v1", "messages", id, "replay"], body, ...options }));
  }

  /** Leases messages of one or more queues, the best ones first. Empty if none came while it waited. */
  async reserve(queues: string | string[], options: ReserveOptions = {}): Promise<Message[]> {
    return (await this.reserveWithReason(queues, options)).messages;
  }

  /** As {@link reserve}, with the reason why there are no messages although some are ready. */
  async reserveWithReason(
    queues: string | string[],
    { signal, ...options }: ReserveOptions = {},
  ): Promise<{ messages: Message[]; heldBack?: "leases" | "rate" }> {
    const body = { queues: [queues].flat().map((queue) => toWire({ queue })), ...toWire(options) };
    const waitMs = options.waitMs ?? (options.wait === undefined ? 0 : 600_000);
    const wire = await this.#transport.json<{ messages: Record<string, unknown>[]; held_back?: "leases" | "rate" }>({
      method: "POST",
      path: ["v1", "reserve"],
      body,
      waitMs,
      signal,
    });
    const messages = wire.messages.map((message) => new Message(message));
    return wire.held_back === undefined ? { messages } : { messages, heldBack: wire.held_back };
  }

  /**
   * The message is done, with a `result`: JSON of at most 16 KiB, which a queue with `keepDoneMs` keeps. Repeated until it
   * is answered. @throws `lease_lost` if another consumer has it, or had it
   */
  async ack(lease: Lease, options: CallOptions & { result?: unknown } = {}): Promise<Settled> {
    const { result, ...rest } = options;
    return this.#settle("ack", lease, { result }, rest);
  }

  /** The message is not done: it comes again, or is dead. Repeated until it is answered. */
  async nack(lease: Lease, fields: NackOptions = {}, options: CallOptions = {}): Promise<Settled> {
    return this.#settle("nack", lease, fields, options);
  }

  /**
   * Keeps the lease for so long from now, by default `leaseMs` of the lease; without that as long as the message's or its
   * queue's lease is now, and never shorter than it is. Repeated until it is answered; each attempt may take `timeoutMs`,
   * if that is less than the client's: give a part of the lease.
   */
  async extend(
    lease: Lease,
    fields: { leaseMs?: number; lease?: Duration } = {},
    options: CallOptions & { timeoutMs?: number } = {},
  ): Promise<Settled> {
    return this.#settle("extend", lease, extension(lease, fields), options);
  }

  /** Settles many messages: a result for each, in order. `results` are those of {@link ack}. */
  async ackMany(leases: Lease[], options: CallOptions & { results?: unknown[] } = {}): Promise<(Settled | DuewheelError)[]> {
    const { results = [], ...rest } = options;
    return this.#settleMany("ack", leases, (index) => ({ result: results[index] }), rest);
  }

  async nackMany(leases: Lease[], fields: NackOptions = {}, options: CallOptions = {}): Promise<(Settled | DuewheelError)[]> {
    return this.#settleMany("nack", leases, () => fields, options);
  }

  async extendMany(leases: Lease[], fields: { leaseMs?: number; lease?: Duration } = {}, options: CallOptions = {}) {
    return this.#settleMany("extend", leases, (index) => extension(leases[index]!, fields), options);
  }

  /** A page of a queue's messages in due order. Give `next` as `after` for the next one. Scope `admin`. */
  async list(
    queue: string,
    { signal, ...filter }: CallOptions & { state?: string; keyPrefix?: string; after?: string; limit?: number } = {},
  ): Promise<{ messages: View[]; next: string | null }> {
    const query = toWire(filter) as Record<string, string | number>;
    const call = { method: "GET", path: ["v1", "queues", queue, "messages"], query, signal };
    const wire = await this.#transport.json<{ messages: Record<string, unknown>[]; next: string | null }>(call);
    return { messages: wire.messages.map((message) => new View(message)), next: wire.next };
  }

  /** Counts and settings of a queue. */
  async queue(queue: string, options: CallOptions = {}): Promise<QueueView> {
    return settled(await this.#transport.json({ method: "GET", path: ["v1", "queues", queue], ...options }));
  }

  /** Changes the settings that are named. Scope `admin`. */
  async configure(queue: string, settings: QueueSettings, options: CallOptions = {}): Promise<QueueView> {
    const call = { method: "PATCH", path: ["v1", "queues", queue, "config"], body: toWire(settings), ...options };
    return settled(await this.#transport.json(call));
  }

  /** Makes dead messages ready again: those with these ids, at most `max` (not repeated when its answer is lost), or all. Scope `admin`. */
  async redrive(queue: string, fields: { ids?: string[]; max?: number; toQueue?: string } = {}, options: CallOptions = {}) {
    const repeatable = fields.max === undefined;
    const call = { method: "POST", path: ["v1", "queues", queue, "redrive"], body: toWire(fields), repeatable, ...options };
    return settled<{ redriven: number; refused?: { code: string; messages: number; ids: string[] }[] }>(
      await this.#transport.json(call),
    );
  }

  /** Lets time pass on a server with `--virtual-clock`, for tests. Not repeated: time would pass twice. */
  async advance(fields: { byMs: number } | { by: Duration }, options: CallOptions = {}): Promise<{ now: Date }> {
    const answer = await this.#transport.once({ method: "POST", path: ["v1", "clock", "advance"], body: toWire(fields), ...options });
    if ("error" in answer) throw answer.error;
    return settled(JSON.parse(answer.text) as Record<string, unknown>);
  }

  async #settle(verb: string, lease: Lease, fields: object, options: CallOptions): Promise<Settled> {
    const body = { lease_token: lease.leaseToken, ...toWire(fields) };
    const call = { method: "POST", path: ["v1", "messages", lease.id, verb], body, settles: true, ...options };
    return settled(await this.#transport.json(call));
  }

  async #settleMany(verb: string, leases: Lease[], fields: (index: number) => object, options: CallOptions) {
    const messages = leases.map(({ id, leaseToken }, index) => ({ id, lease_token: leaseToken, ...toWire(fields(index)) }));
    return this.#items<Settled, object>(["v1", verb], messages, (open) => ({ messages: open }), true, options);
  }

  /** The results of items. Those that are refused for the moment are sent again, as whole calls are. */
  async #items<T, Item>(
    path: string[],
    items: Item[],
    body: (open: Item[]) => object,
    settles: boolean,
    options: CallOptions,
  ): Promise<(T | DuewheelError)[]> {
    const attempts = this.#transport.attempts(settles);
    const results: (T | DuewheelError)[] = [];
    for (let open = items.map((_, index) => index); open.length > 0; ) {
      const waiting: number[] = [];
      let longest: DuewheelError | undefined;
      try {
        const call = { method: "POST", path, body: body(open.map((index) => items[index]!)), settles, ...options };
        const answer = await this.#transport.json<{ results: Record<string, unknown>[] }>(call, attempts);
        open.forEach((index, at) => {
          const item = answer.results[at] ?? { code: "bad_answer", detail: "the answer has no result for this one", outcome: "unknown" };
          if (item["result"] !== undefined) return (results[index] = settled<T>(item));
          const error = fromProblem(item, Number(item["status"] ?? 200));
          results[index] = attempts.final(error);
          if (!passes(error.status, settles)) return;
          waiting.push(index);
          if (error.outcome === "unknown") attempts.unknown = true;
          if (longest === undefined || (error.retryAfterMs ?? 0) > (longest.retryAfterMs ?? 0)) longest = error;
        });
        if (longest !== undefined) await attempts.next(longest, options.signal);
        open = waiting;
      } catch (error) {
        // What was answered stays answered; of the rest nothing more is known than this.
        if (!(error instanceof DuewheelError) || results.length === 0) throw error;
        for (const index of longest === undefined ? open : []) results[index] = attempts.final(error);
        break;
      }
    }
    return results;
  }
}

function extension({ leaseMs }: Lease, fields: { leaseMs?: number; lease?: Duration }) {
  return fields.leaseMs === undefined && fields.lease === undefined ? { leaseMs } : fields;
}

/** A message as it is sent, each time with the same id. */
class Line {
  readonly wire: Record<string, unknown>;
  #ownWindow = false;

  constructor(message: NewMessage) {
    this.wire = toWire(message);
    // A window without an id is refused by the server.
    if (["dedupe_id", "dedupe_window", "dedupe_window_ms"].some((name) => this.wire[name] !== undefined)) return;
    this.wire["dedupe_id"] = crypto.randomUUID();
    this.#ownWindow = true;
    this.wire["dedupe_window_ms"] = OWN_WINDOW_MS;
  }

  /** The queue remembers for a shorter time than ours; then its own time must do. True once. */
  windowRefused(error: unknown): boolean {
    if (!this.#ownWindow || !(error instanceof DuewheelError)) return false;
    if (error.code !== "bad_request" || error.field !== "dedupe_window") return false;
    this.#ownWindow = false;
    delete this.wire["dedupe_window_ms"];
    return true;
  }
}

function path(which: Which): string[] {
  if ("id" in which) return ["v1", "messages", which.id];
  if (which.key === "") throw badRequest("key", "key: it is empty; give 1 to 512 bytes");
  return ["v1", "queues", which.queue, "keys", which.key];
}

function enqueued(wire: Record<string, unknown>): Enqueued {
  return { replayed: false, ...(fromWire(wire) as Omit<Enqueued, "replayed">) };
}

function settled<T>(wire: Record<string, unknown>): T {
  return fromWire(wire) as T;
}

function parse(line: string | undefined): Record<string, unknown> | undefined {
  try {
    return line === undefined ? undefined : (JSON.parse(line) as Record<string, unknown>);
  } catch {
    return undefined;
  }
}
