/** What went wrong, in one stable word. Later versions of the server may have further ones. */
export type ErrorCode =
  | "bad_request"
  | "unauthorized"
  | "forbidden"
  | "cross_origin"
  | "not_found"
  | "message_not_found"
  | "method_not_allowed"
  | "request_timeout"
  | "key_exists"
  | "leased"
  | "dead"
  | "not_dead"
  | "not_done"
  | "lease_lost"
  | "generation_mismatch"
  | "changed"
  | "dedupe_mismatch"
  | "in_use"
  | "body_too_large"
  | "unsupported_media_type"
  | "in_the_past"
  | "overloaded"
  | "over_quota"
  | "headers_too_large"
  | "internal"
  | "draining"
  | "storage_unavailable"
  | "unknown"
  | "disk_full"
  /** No answer: refused, cut off, or timed out. */
  | "connection"
  /** An answer that is not duewheel's, such as a proxy's page. */
  | "bad_answer"
  /** A webhook without one of its three headers. */
  | "webhook_header"
  /** A webhook from too long ago, or from the future. */
  | "webhook_timestamp"
  /** A webhook that none of the secrets has signed. */
  | "webhook_signature"
  /** A secret for webhooks that cannot be used. */
  | "webhook_secret"
  | (string & {});

/** The members of an error that not every error has. */
export interface ErrorDetails {
  /** The status of HTTP, if there was an answer. */
  readonly status?: number;
  /** The field, path part or parameter at fault, as HTTP calls it: `delay_ms`. */
  readonly field?: string;
  /** The message because of which the request was refused. */
  readonly existingId?: string;
  /** The state of that message. */
  readonly state?: "scheduled" | "ready" | "leased" | "dead" | "done";
  /** The message's present generation. */
  readonly generation?: number;
  /** When the same request may be accepted. */
  readonly retryAfterMs?: number;
  /** With `over_quota`: prefix, resource, limit and use. */
  readonly quota?: string;
  readonly resource?: string;
  readonly limit?: number;
  readonly used?: number;
}

/** A call that was refused or has failed. Compare `code`; `message` is for people. */
export class DuewheelError extends Error implements ErrorDetails {
  override readonly name = "DuewheelError";
  declare readonly status?: number;
  declare readonly field?: string;
  declare readonly existingId?: string;
  declare readonly state?: "scheduled" | "ready" | "leased" | "dead" | "done";
  declare readonly generation?: number;
  declare readonly retryAfterMs?: number;
  declare readonly quota?: string;
  declare readonly resource?: string;
  declare readonly limit?: number;
  declare readonly used?: number;

  constructor(
    readonly code: ErrorCode,
    /** What went wrong, without the code. */
    readonly detail: string,
    /**
     * `not_applied`: nothing was changed. `unknown`: this request, or an earlier attempt of the same call, may have been
     * applied, and only its answer is missing.
     */
    readonly outcome: "not_applied" | "unknown",
    details: ErrorDetails = {},
    options?: { cause?: unknown },
  ) {
    super(`${code}: ${detail}`, options);
    Object.assign(this, details);
  }
}

/** Whether an error is a {@link DuewheelError} with one of these codes; with any code if none is named. */
export function isDuewheelError(error: unknown, ...codes: ErrorCode[]): error is DuewheelError {
  return error instanceof DuewheelError && (codes.length === 0 || codes.includes(error.code));
}

/** Of what happens to an answer with this status: 4xx, 503 `draining` and 507 change nothing. */
function outcomeOf(status: number, code: string, outcome: unknown): "not_applied" | "unknown" {
  if (outcome === "unknown" || outcome === "not_applied") return outcome;
  return status < 500 || status === 507 || code === "draining" ? "not_applied" : "unknown";
}

/** The error that a problem document, or a refused item of a batch, is. */
export function fromProblem(problem: Record<string, unknown>, status: number, retryAfterMs?: number): DuewheelError {
  const details: Record<string, unknown> = { status };
  for (const [name, member] of [
    ["field", "field"],
    ["existing_id", "existingId"],
    ["state", "state"],
    ["generation", "generation"],
    ["retry_after_ms", "retryAfterMs"],
    ["quota", "quota"],
    ["resource", "resource"],
    ["limit", "limit"],
    ["used", "used"],
  ] as const) {
    if (problem[name] !== undefined && problem[name] !== null) details[member] = problem[name];
  }
  if (retryAfterMs !== undefined) details["retryAfterMs"] ??= retryAfterMs;
  const code = String(problem["code"]);
  return new DuewheelError(code, String(problem["detail"] ?? code), outcomeOf(status, code, problem["outcome"]), details);
}
