import { DuewheelError } from "./errors.js";
import { fromBase64 } from "./types.js";

export interface WebhookRequest {
  /** The secrets of the target: `whsec_…`, or `whpk_…` for the public half of a `whsk_…`. One that fits is enough. */
  secrets: string | string[];
  /** The request's headers, in any spelling. */
  headers: Headers | Record<string, string | string[] | undefined>;
  /** The request's body, byte for byte. */
  body: string | Uint8Array;
  /** How old, or how far ahead, the request may be; 5 minutes by default. */
  toleranceMs?: number;
  /** The clock. */
  now?: Date;
}

/** What the headers of an accepted webhook say. */
export interface Webhook {
  /** The same over all attempts: compare it to ignore what was seen before. */
  readonly id: string;
  /** When this attempt was made. */
  readonly timestamp: Date;
  readonly queue: string | undefined;
  readonly key: string | undefined;
  /** Deliveries so far, this one included. */
  readonly attempt: number | undefined;
  readonly dueAt: Date | undefined;
}

/**
 * Checks that a webhook is from your duewheel: one of its signatures must be by one of the secrets (Standard Webhooks 1.0,
 * `v1` and `v1a`), and its time must be near. @throws {@link DuewheelError} `webhook_header`, `webhook_timestamp`,
 * `webhook_signature` or `webhook_secret`; answer 400.
 */
export async function verifyWebhook(request: WebhookRequest): Promise<Webhook> {
  const header = (name: string) => value(request.headers, name);
  const needed = (name: string) => header(name) ?? refuse("webhook_header", `${name} is missing: the request is no webhook`);
  const id = needed("webhook-id");
  const time = needed("webhook-timestamp");
  const signatures = needed("webhook-signature");
  const keys = [request.secrets].flat().map(key);
  if (keys.length === 0) refuse("webhook_secret", "there is no secret; give those of the target");
  if (!/^\d{1,12}$/.test(time)) refuse("webhook_timestamp", `${time} is no number of seconds`);
  const off = Math.abs((request.now ?? new Date()).getTime() - Number(time) * 1000);
  if (off > (request.toleranceMs ?? 300_000)) refuse("webhook_timestamp", `the request is ${Math.round(off / 1000)} s from now`);

  const body = typeof request.body === "string" ? new TextEncoder().encode(request.body) : request.body;
  const head = new TextEncoder().encode(`${id}.${time}.`);
  const signed = new Uint8Array(head.length + body.length);
  signed.set(head);
  signed.set(body, head.length);
  if (!(await anyHolds(signatures, keys, signed))) {
    refuse("webhook_signature", "no signature is by one of the secrets: the body was changed, or the secret is another");
  }

  const number = header("duewheel-attempt");
  const due = header("duewheel-due-at");
  return {
    id,
    timestamp: new Date(Number(time) * 1000),
    queue: decoded(header("duewheel-queue")),
    key: decoded(header("duewheel-key")),
    attempt: number === undefined ? undefined : Number(number),
    dueAt: due === undefined ? undefined : new Date(due),
  };
}

interface Key {
  version: "v1" | "v1a";
  bytes: Uint8Array<ArrayBuffer>;
}

async function anyHolds(signatures: string, keys: Key[], signed: Uint8Array<ArrayBuffer>): Promise<boolean> {
  for (const signature of signatures.split(" ")) {
    const comma = signature.indexOf(",");
    const bytes = comma < 0 ? undefined : strict(signature.slice(comma + 1));
    for (const key of keys) {
      if (bytes && key.version === signature.slice(0, comma) && (await holds(key, bytes, signed))) return true;
    }
  }
  return false;
}

/** WebCrypto compares in constant time. */
async function holds(key: Key, signature: Uint8Array<ArrayBuffer>, signed: Uint8Array<ArrayBuffer>): Promise<boolean> {
  const algorithm = key.version === "v1" ? { name: "HMAC", hash: "SHA-256" } : { name: "Ed25519" };
  const imported = await crypto.subtle.importKey("raw", key.bytes, algorithm, false, ["verify"]);
  return crypto.subtle.verify(algorithm.name, imported, signature, signed);
}

function key(secret: string): Key {
  const publicKey = secret.startsWith("whpk_");
  if (secret.startsWith("whsk_")) refuse("webhook_secret", "whsk_… is the private key of the sender; give its public half, whpk_…");
  const bytes = strict(publicKey || secret.startsWith("whsec_") ? secret.slice(secret.indexOf("_") + 1) : secret);
  if (!bytes || bytes.length === 0) return refuse("webhook_secret", "a secret is whsec_ and base64; this one is not");
  if (publicKey && bytes.length !== 32) refuse("webhook_secret", "a public key is whpk_ and 32 bytes in base64");
  return { version: publicKey ? "v1a" : "v1", bytes };
}

/** Base64 with its padding, and nothing else. */
function strict(text: string): Uint8Array<ArrayBuffer> | undefined {
  return text.length % 4 === 0 && /^[A-Za-z0-9+/]*={0,2}$/.test(text) ? fromBase64(text) : undefined;
}

function value(headers: WebhookRequest["headers"], name: string): string | undefined {
  if (headers instanceof Headers) return headers.get(name) ?? undefined;
  const found = Object.entries(headers).find(([each]) => each.toLowerCase() === name)?.[1];
  return Array.isArray(found) ? found.join(",") : found;
}

function decoded(text: string | undefined): string | undefined {
  try {
    return text === undefined ? undefined : decodeURIComponent(text);
  } catch {
    return text;
  }
}

function refuse(code: string, detail: string): never {
  throw new DuewheelError(code, detail, "not_applied");
}
