// The public HTTP interface, and nothing else. The token lies in this tab's session storage and goes out as a header.

const TOKEN = "duewheel-token";
const SCOPES = ["enqueue", "consume", "cancel", "admin", "metrics", "push-any"];

export const identity = { known: false, open: false, name: "", scopes: [], queues: null, expires: null };

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? body.title ?? `HTTP ${status}`);
    this.status = status;
    this.code = body.code ?? "";
    this.field = body.field;
    this.matched = body.matched;
  }
}

const token = () => sessionStorage.getItem(TOKEN);
export const hasToken = () => token() !== null;

export function setToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

function request(method, path, body, signal) {
  const headers = {};
  if (token()) headers.authorization = `Bearer ${token()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  return fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-store", credentials: "omit" });
}

// The JSON of an answer that is no problem. (Ids are strings in it, because a double cannot hold each of them.)
export async function call(method, path, body, signal) {
  const answer = await request(method, path, body, signal);
  const text = await answer.text();
  let value = {};
  try { value = text ? JSON.parse(text) : {}; } catch { value = { detail: text.slice(0, 300) }; }
  if (!answer.ok) throw new Problem(answer.status, value);
  return value;
}

export const get = (path, signal) => call("GET", path, undefined, signal);
// What is under a path, or null where there is nothing.
export const find = (path, signal) => get(path, signal).catch((error) => { if (error.status === 404) return null; throw error; });
export const queuePath = (queue) => `/v1/queues/${encodeURIComponent(queue)}`;

// Parameters as an address has them; those without a value are left out. A space is %20: the server takes a + for what it is.
export function queryOf(values) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value)).toString().replaceAll("+", "%20");
  return query && `?${query}`;
}

// All queues by name, page by page; of more than 10,000 the first, and `more` says that there may be others.
export async function allQueues(signal) {
  const queues = [];
  let next = null;
  for (let n = 0; n < 10 && (n === 0 || next !== null); n += 1) {
    const page = await get(`/v1/queues${queryOf({ limit: 1_000, after: next })}`, signal);
    queues.push(...page.queues);
    next = page.next;
  }
  return { queues, more: next !== null };
}

// Nothing is asked for by itself while updates are held or the page is hidden.
export const updates = { held: false };
export const idle = () => updates.held || document.hidden;

export async function whoAmI() {
  const answer = await get("/v1/token");
  const holder = answer.token;
  Object.assign(identity, answer.open
    ? { known: true, open: true, name: "", scopes: SCOPES, queues: null, expires: null }
    : { known: true, open: false, name: holder.name, scopes: holder.scopes, queues: holder.queues, expires: holder.expires });
}

export const may = (scope) => identity.scopes.includes(scope);
// Whether the caller may see the messages of a queue.
export const mayList = () => may("consume") || may("admin");
// Whether the caller may see and do what concerns the whole server.
export const mayAll = (scope) => may(scope) && identity.queues === null;

// Reads server-sent events until the signal ends it; the header with the token is why this is no EventSource.
export async function events(path, signal, each) {
  const answer = await request("GET", path, undefined, signal);
  if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => ({})));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
      if (data) each(JSON.parse(data));
    }
  }
}
