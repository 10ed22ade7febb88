import { DuewheelError } from "./errors.js";

/** A length of time: milliseconds in a field that ends in `Ms`, else text such as `250ms`, `48h`, `2 days`, `PT48H`. */
export type Duration = string;

/** When a message is due: exactly one of the three. */
export interface Due {
  /** After this time, by elapsed time. */
  delay?: Duration;
  delayMs?: number;
  /** At this instant, by the wall clock. A text is RFC 3339. */
  dueAt?: Date | string;
}

/** The content of a message: exactly one of the two. */
export interface Content {
  /** Text, or bytes. */
  body?: string | Uint8Array;
  /** A value of JSON. The message gets `content-type: application/json`. */
  json?: unknown;
}

/** A message to enqueue. Everything but content and due time may be left out: settings of the queue then apply. */
export interface NewMessage extends Due, Content {
  /** Your own name for the message, unique among the unsettled ones of its queue, 1 to 512 bytes. */
  key?: string;
  /** If the key is taken: refuse (the default), keep that message, or replace it; `supersede` also while it is leased. */
  ifExists?: "reject" | "keep" | "replace" | "supersede";
  /** Makes a repeated enqueue get the first answer. Without one the client makes one for this call. */
  dedupeId?: string;
  /** How long that is remembered. */
  dedupeWindow?: Duration;
  dedupeWindowMs?: number;
  /** A `dueAt` that has passed: refuse (the default), due now, or keep the instant. */
  past?: "refuse" | "fire" | "keep";
  /** Lower first; 1024 by default. */
  priority?: number;
  lease?: Duration;
  leaseMs?: number;
  /** Deliveries after which it is dead. */
  maxAttempts?: number;
  /** The delay after a failed attempt: from `minMs`, doubled each time, up to `maxMs`. */
  backoff?: { minMs: number; maxMs: number };
  headers?: Record<string, string>;
  /** The URL that it is sent to in place of the queue's target. */
  targetUrl?: string;
  /** Due at an instant of its own within this time after the due time. */
  spread?: Duration;
  spreadMs?: number;
  /** When it expires: so long after its due time, or at an instant. */
  expiresIn?: Duration;
  expiresInMs?: number;
  expiresAt?: Date | string;
}

/** What an answer means: on the disk, handed to the system, or in memory. */
export type Durability = "fsync" | "buffered" | "memory" | (string & {});

/** A message that was accepted, or that existed already. */
export interface Enqueued {
  readonly id: string;
  readonly queue: string;
  readonly key: string | null;
  readonly dueAt: Date;
  readonly generation: number;
  /** `false` if `ifExists: "keep"` kept another message. */
  readonly created: boolean;
  /** The `dedupeId` was known: this is the answer to an earlier enqueue. */
  readonly replayed: boolean;
  readonly durability: Durability;
  /** The message that this one has replaced. */
  readonly replaced?: string;
  /** The leased message whose key this one has taken. */
  readonly superseded?: string;
  /** The state of the message that was kept. */
  readonly state?: string;
}

/** One message: by its id, or by queue and key. */
export type Which = { id: string } | { queue: string; key: string };

/** A change of a scheduled or ready message. What is left out stays. */
export interface Change extends Due, Content {
  past?: "refuse" | "fire" | "keep";
  headers?: Record<string, string>;
  targetUrl?: string | null;
  priority?: number;
  maxAttempts?: number;
  lease?: Duration;
  leaseMs?: number;
  /** Only if this is the message's generation; else `generation_mismatch`. */
  ifGeneration?: number;
}

/** Names of HTTP in the caller's spelling: `delay_ms` is `delayMs`. */
const camel = (name: string) => name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
const snake = (name: string) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const instants = /_(at|until)$/;

/** An answer with our names, instants as dates, and nothing in `headers`, results or bodies touched. */
export function fromWire(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(fromWire);
  if (typeof value !== "object" || value === null) return value;
  const out: Record<string, unknown> = {};
  for (const [name, member] of Object.entries(value)) {
    if (name === "headers" || name === "result") out[name] = member;
    else if (instants.test(name) && typeof member === "string") out[camel(name)] = new Date(member);
    else out[camel(name)] = fromWire(member);
  }
  return out;
}

/** A request's fields as HTTP names them. `undefined` is left out; the content becomes `body`, `json` or `body_base64`. */
export function toWire(value: object): Record<string, unknown> {
  const out: Record<string, unknown> = {};
  for (const [name, member] of Object.entries(value)) {
    if (member === undefined) continue;
    // A reason is for people, and often the message of a foreign error: it is no ground to refuse a nack.
    if (name === "reason") out[name] = String(member).replace(half, "\ufffd");
    else if (name === "headers" || name === "json" || name === "result") out[name] = member;
    else if (name === "body" && member instanceof Uint8Array) out["body_base64"] = toBase64(member);
    else if (name.endsWith("Ms")) out[snake(name)] = milliseconds(snake(name), member);
    else if (member instanceof Date) out[snake(name)] = instant(snake(name), member);
    else if (typeof member === "object" && member !== null && !Array.isArray(member)) out[snake(name)] = toWire(member);
    else out[snake(name)] = member;
    if (name !== "json" && name !== "result" && name !== "reason") wellFormed(snake(name), member);
  }
  return out;
}

/** Half of a surrogate pair: UTF-8 has no bytes for it. */
const half = /\p{Surrogate}/gu;

/** Refuses text, or a list or a record of texts, with half of a surrogate pair. */
export function wellFormed(field: string, value: unknown): void {
  if (typeof value === "string") {
    if (value.search(half) < 0) return;
    throw badRequest(field, `${field}: half of a surrogate pair is no text; give whole characters`);
  }
  if (typeof value !== "object" || value === null || value instanceof Uint8Array) return;
  for (const each of Object.entries(value).flat()) if (typeof each === "string") wellFormed(field, each);
}

/** Whole milliseconds; what is finer is rounded up, so that nothing is early. */
function milliseconds(field: string, value: unknown): unknown {
  if (value === null) return value;
  if (typeof value !== "number" || !Number.isFinite(value) || value < 0) {
    throw badRequest(field, `${field}: ${String(value)} is no number of milliseconds; give one that is 0 or more`);
  }
  return Math.ceil(value);
}

function instant(field: string, value: Date): string {
  if (Number.isNaN(value.getTime())) throw badRequest(field, `${field}: an invalid Date; give an instant`);
  return value.toISOString();
}

/** A refusal of ours, before anything is sent. */
export function badRequest(field: string, detail: string): DuewheelError {
  return new DuewheelError("bad_request", detail, "not_applied", { field });
}

export function toBase64(bytes: Uint8Array): string {
  let text = "";
  // In parts: a call has no room for all bytes of a large body as arguments.
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
