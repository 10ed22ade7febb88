import { fromBase64, fromWire } from "./types.js";

/** What a message is, wherever it comes from: text, bytes, JSON. */
export abstract class Body {
  declare readonly id: string;
  declare readonly queue: string;
  declare readonly key: string | null;
  declare readonly headers: Readonly<Record<string, string>>;
  declare readonly dueAt: Date;
  /** Deliveries so far; of a reserved message this one included. */
  declare readonly attempt: number;
  declare readonly generation: number;
  declare readonly priority: number;
  declare readonly leaseMs: number;
  declare readonly targetUrl?: string;
  readonly #text: string | undefined;
  readonly #bytes: Uint8Array | undefined;

  /** @internal */
  constructor(wire: Record<string, unknown>) {
    const { body, body_base64: encoded, ...rest } = wire;
    Object.assign(this, fromWire(rest));
    this.#text = typeof body === "string" ? body : undefined;
    this.#bytes = typeof encoded === "string" ? fromBase64(encoded) : undefined;
  }

  /** Whether the body is valid UTF-8. */
  get isText(): boolean {
    return this.#text !== undefined;
  }

  /** The body as text. Bytes that are not UTF-8 become U+FFFD: see {@link isText}. */
  get text(): string {
    return this.#text ?? new TextDecoder().decode(this.#bytes);
  }

  /** The body as bytes. */
  get bytes(): Uint8Array {
    return this.#bytes ?? new TextEncoder().encode(this.#text);
  }

  /** The body, read as JSON. @throws SyntaxError if it is none */
  json<T = unknown>(): T {
    return JSON.parse(this.text) as T;
  }
}

/** A message under a lease: the right to work on it until `leaseUntil`, which `leaseToken` proves. */
export class Message extends Body {
  declare readonly leaseToken: string;
  declare readonly leaseUntil: Date;
  /** How long after its due time it was granted. */
  declare readonly latenessMs: number;
  /** It had expired. */
  declare readonly late?: boolean;
}

/** The present state of a message. */
export class View extends Body {
  declare readonly state: "scheduled" | "ready" | "leased" | "dead" | "done";
  declare readonly dueInMs: number;
  /** Deliveries that do not count against `maxAttempts`. */
  declare readonly forgiven: number;
  declare readonly maxAttempts: number;
  declare readonly enqueuedAt: Date;
  declare readonly leaseUntil?: Date;
  declare readonly expiresAt?: Date;
  declare readonly deadReason?: string;
  declare readonly outcome?: string;
  /** What the ack of a done message has brought. */
  declare readonly result?: unknown;
  declare readonly endedAt?: Date;
  declare readonly supersededBy?: string;
  /** Earlier attempts: when, how they ended, and the reason given. */
  declare readonly history?: readonly { attempt: number; grantedAt: Date; endedAt: Date; how: string; note: string }[];
}
