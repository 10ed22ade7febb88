import { badRequest, wellFormed } from "./types.js";
import { DuewheelError, fromProblem } from "./errors.js";

/** Where the server is, and how patient a client is. */
export interface ClientOptions {
  /** The server's address, `http://localhost:7788`; a path in it goes before every call's. */
  url?: string;
  /** A token of the server, `dw_…`. */
  token?: string;
  /** How long a call is repeated after a lost connection, 429 or 503, in milliseconds; 30 s by default. */
  retryForMs?: number;
  /** How long one attempt may take, beyond the time that a reserve waits; 30 s by default. */
  timeoutMs?: number;
  /** In place of the global `fetch`. */
  fetch?: typeof fetch;
}

/** A call that can be ended from outside. Ending it says nothing about what it has done. */
export interface CallOptions {
  signal?: AbortSignal | undefined;
}

export interface Call extends CallOptions {
  method: string;
  /** Parts of the path, not yet percent-encoded. */
  path: string[];
  query?: Record<string, string | number | undefined> | undefined;
  /** The request's body, with its type. JSON unless it says otherwise. */
  body?: unknown;
  lines?: string | undefined;
  /** Repeated until it is answered: acks, nacks, extends. */
  settles?: boolean | undefined;
  /** `false`: not repeated when it may have been applied. */
  repeatable?: boolean | undefined;
  /** How long one attempt may take; as the client's options say by default. */
  timeoutMs?: number | undefined;
  /** How long the server may hold its answer back. */
  waitMs?: number | undefined;
}

/** What came of one attempt: an answer, or an error that says whether another attempt makes sense. */
export type Answer = { status: number; text: string; whole: boolean } | { error: DuewheelError; again: boolean };

/** Whether another attempt may be answered otherwise. A settle has nobody else who would repeat it. */
export function passes(status: number | undefined, settles = false): boolean {
  return status === 429 || status === 503 || (settles && (status ?? 0) >= 500);
}

/** The pauses between the attempts of a call, and their end. */
export class Attempts {
  readonly #ends: number;
  #count = 0;
  /** An attempt may have been applied. */
  unknown = false;

  constructor(forMs: number) {
    this.#ends = performance.now() + forMs;
  }

  /** Waits for the next attempt, or throws `error` if there is none. */
  async next(error: DuewheelError, signal: AbortSignal | undefined): Promise<void> {
    const pause = error.retryAfterMs === undefined ? backoff(this.#count) : error.retryAfterMs + Math.random() * 100;
    if (performance.now() + pause > this.#ends) throw this.final(error);
    this.#count += 1;
    if (error.outcome === "unknown") this.unknown = true;
    await sleep(pause, signal);
  }

  /** The error of the whole call: an earlier attempt without an answer may have been applied. */
  final(error: DuewheelError): DuewheelError {
    if (!this.unknown || error.outcome === "unknown") return error;
    const { name: _name, code, detail, outcome: _outcome, ...details } = error;
    return new DuewheelError(code, detail, "unknown", details, { cause: error });
  }
}

/** The longest time of a timer: a longer one is over at once. */
export const MAX_TIMER_MS = 2 ** 31 - 1;

/** From 100 ms, doubled up to 5 s, of which a random half. */
export function backoff(attempt: number): number {
  return Math.min(5000, 100 * 2 ** Math.min(attempt, 10)) * (0.5 + Math.random() / 2);
}

/** Waits, no longer than a timer can. @throws the signal's reason */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    // A timer may fire up to a millisecond early.
    const timer = setTimeout(done, Math.min(Math.ceil(ms) + 1, MAX_TIMER_MS));
    function done() {
      signal?.removeEventListener("abort", cancelled);
      resolve();
    }
    function cancelled() {
      clearTimeout(timer);
      reject(signal?.reason);
    }
    signal?.addEventListener("abort", cancelled, { once: true });
  });
}

/** Sends requests: the connection's errors, 429 and 503 are repeated, everything else is not. */
export class Transport {
  readonly retryForMs: number;
  readonly #base: string;
  readonly #headers: Record<string, string>;
  readonly #timeoutMs: number;
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions) {
    const url = options.url ?? "http://localhost:7788";
    if (!/^https?:\/\/[^/?#@]+(\/[^?#]*)?$/.test(url)) {
      const shown = url.replace(/^([a-z]+:\/\/)?.*@/is, "$1").replace(/[?#].*/s, "");
      throw badRequest("url", `url: ${shown} is no address of a server; give one such as http://localhost:7788, and a token as token`);
    }
    this.#base = url.replace(/\/+$/, "");
    this.#headers = options.token === undefined ? {} : { authorization: `Bearer ${options.token}` };
    this.retryForMs = options.retryForMs ?? 30_000;
    this.#timeoutMs = options.timeoutMs ?? 30_000;
    const given = options.fetch;
    this.#fetch = given ?? ((...request) => fetch(...request));
  }

  attempts(settles = false): Attempts {
    return new Attempts(settles ? Infinity : this.retryForMs);
  }

  /** The answer to a call, as JSON. */
  async json<T = Record<string, unknown>>(call: Call, attempts = this.attempts(call.settles)): Promise<T> {
    for (;;) {
      const answer = await this.once(call);
      if ("error" in answer) {
        if (!answer.again) throw attempts.final(answer.error);
        await attempts.next(answer.error, call.signal);
        continue;
      }
      try {
        return JSON.parse(answer.text) as T;
      } catch (cause) {
        if (!answer.whole) {
          if (call.repeatable === false) throw attempts.final(connection(cause));
          await attempts.next(connection(cause), call.signal);
          continue;
        }
        throw new DuewheelError("bad_answer", `no JSON: ${answer.text.slice(0, 100)}`, "unknown", { status: answer.status }, { cause });
      }
    }
  }

  /** One attempt. @throws the signal's reason, if it ends the call */
  async once(call: Call): Promise<Answer> {
    const limitMs = Math.min(call.timeoutMs ?? Infinity, this.#timeoutMs) + (call.waitMs ?? 0);
    const limit = AbortSignal.timeout(Math.min(Math.ceil(limitMs), MAX_TIMER_MS));
    const headers = { ...this.#headers };
    let body: string | undefined;
    if (call.lines !== undefined) {
      headers["content-type"] = "application/x-ndjson";
      body = call.lines;
    } else if (call.body !== undefined) {
      headers["content-type"] = "application/json";
      body = JSON.stringify(call.body);
    }
    const signal = call.signal ? AbortSignal.any([call.signal, limit]) : limit;
    const request: RequestInit = { method: call.method, headers, signal, redirect: "manual" };
    if (body !== undefined) request.body = body;
    const address = this.#address(call);
    let response: Response;
    try {
      response = await this.#fetch(address, request);
    } catch (cause) {
      if (call.signal?.aborted) throw call.signal.reason;
      return { error: connection(cause), again: call.repeatable !== false };
    }
    const { text, whole } = await read(response);
    // What has come whole counts, such as messages that are leased by it.
    if (!whole && call.signal?.aborted) throw call.signal.reason;
    if (response.ok) return { status: response.status, text, whole };
    return this.#refused(call, response, text);
  }

  #address(call: Call): string {
    call.path.forEach((part, index) => {
      const field = ({ queues: "queue", keys: "key" } as Record<string, string>)[call.path[index - 1] ?? ""] ?? "id";
      wellFormed(field, part);
      // URLs fold these two, also percent-encoded ones.
      if (part === "." || part === "..") throw badRequest(field, `${field}: ${part} cannot be a part of a URL; give another ${field}`);
    });
    const query = Object.entries(call.query ?? {})
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`);
    return `${this.#base}/${call.path.map(encodeURIComponent).join("/")}${query.length > 0 ? `?${query.join("&")}` : ""}`;
  }

  #refused(call: Call, response: Response, text: string): Answer {
    const seconds = response.headers.get("retry-after");
    const after = seconds !== null && /^\d+$/.test(seconds) ? Number(seconds) * 1000 : undefined;
    const again = passes(response.status, call.settles);
    let problem: unknown;
    try {
      problem = JSON.parse(text);
    } catch {
      problem = undefined;
    }
    if (typeof problem === "object" && problem !== null && typeof (problem as { code?: unknown }).code === "string") {
      const error = fromProblem(problem as Record<string, unknown>, response.status, after);
      return { error, again: again && (call.repeatable !== false || error.outcome === "not_applied") };
    }
    const details = after === undefined ? { status: response.status } : { status: response.status, retryAfterMs: after };
    const detail = `status ${response.status}, and not from duewheel: ${text.slice(0, 100)}`;
    return { error: new DuewheelError("bad_answer", detail, "unknown", details), again: again && call.repeatable !== false };
  }
}

/** As much of an answer as has come. */
async function read(response: Response): Promise<{ text: string; whole: boolean }> {
  const decoder = new TextDecoder();
  let text = "";
  try {
    const reader = response.body?.getReader();
    for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
      text += decoder.decode(part.value, { stream: true });
    }
    return { text: text + decoder.decode(), whole: true };
  } catch {
    return { text, whole: false };
  }
}

export function connection(cause: unknown): DuewheelError {
  const inner = cause instanceof Error && cause.cause instanceof Error ? cause.cause.message : "";
  const detail = `no answer from the server: ${cause instanceof Error ? cause.message : String(cause)}${inner && `: ${inner}`}`;
  return new DuewheelError("connection", detail, "unknown", {}, { cause });
}
