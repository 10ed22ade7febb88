// What changes something: asks first where it destroys, says what happened, and offers the way back where there is one.

import { Problem, call, get, may, queuePath } from "./api.js";
import { el } from "./dom.js";
import { count } from "./format.js";
import { t } from "./words.js";

const toasts = document.getElementById("toasts");

// A line at the bottom of the page, with a way back if there is one.
export function say(text, { bad, undo } = {}) {
  const line = el("div", { class: bad ? "toast bad" : "toast" }, el("span", {}, text));
  const away = () => line.remove();
  if (undo) line.append(el("button", { onclick: async () => { away(); await run(undo, t("undone")); } }, t("undo")));
  line.append(el("button", { "aria-label": t("close"), onclick: away }, "×"));
  toasts.append(line);
  setTimeout(away, undo ? 20_000 : 8_000);
  while (toasts.children.length > 4) toasts.firstChild.remove();
}

export function fail(error) {
  if (error.name === "AbortError") return;
  say(error instanceof Problem && error.code ? `${error.message} (${error.code})` : error.message, { bad: true });
}

// Runs an act, says how it went, and lets the page look again.
export async function run(act, done, undo) {
  try {
    const value = await act();
    say(typeof done === "function" ? done(value) : done, { undo: undo && (() => undo(value)) });
    document.dispatchEvent(new Event("changed"));
    return true;
  } catch (error) {
    fail(error);
    return false;
  }
}

// A dialog with fields; `act` is told their values. Nothing happens when it is left.
export function ask(title, { text, fields = [], danger, word, act }) {
  const inputs = fields.map(({ name, label, type = "text", value = "", hint, options, required }) => {
    const id = `field-${name}`;
    const input = options ? el("select", { id, name }, options.map(([key, shown]) => el("option", { value: key, selected: key === value }, shown)))
      : type === "area" ? el("textarea", { id, name, value, required })
      : el("input", { id, name, type, step: type === "number" ? "any" : undefined, value, placeholder: hint, required, autocomplete: "off" });
    return el("label", { for: id }, label, input);
  });
  const go = el("button", { type: "submit", class: danger ? "danger" : "main" }, word ?? t("do-it"));
  const form = el("form", { class: "fields", method: "dialog" }, text && el("p", {}, text), inputs,
    el("div", { class: "bar" }, go, el("button", { type: "button", onclick: () => box.close() }, t("leave-it"))));
  const box = el("dialog", { "aria-labelledby": "dialog-title" }, el("h2", { id: "dialog-title" }, title), form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    const values = Object.fromEntries(new FormData(form));
    if (await act(values)) box.close();
    else go.disabled = false;
  });
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

const byId = (message) => `/v1/messages/${message.id}`;

// Does something to a message, and gives the message as it was just before: it may differ from what the page has shown.
async function before(message, act) {
  const last = await get(byId(message));
  await act();
  return last;
}

// Due again when it was.
async function dueAgain(message) {
  const set = (at) => call("PATCH", byId(message), { due_at: new Date(at).toISOString(), past: "keep" });
  const due = Date.parse(message.due_at);
  const { due_at: drawn } = await set(due);
  // A spread is added to each due time that is set, and always the same: what it adds is taken off.
  if (message.own?.spread_ms && due > Date.now()) await set(due - (Date.parse(drawn) - due));
}

export function postpone(message) {
  ask(t("postpone"), {
    text: t("postpone-text"),
    fields: [{ name: "delay", label: t("delay"), hint: "2h", required: true }],
    act: ({ delay }) => run(() => before(message, () => call("PATCH", byId(message), { delay: delay.trim() })), t("postponed"), dueAgain),
  });
}

export function fire(message) {
  ask(t("fire"), {
    text: t("fire-text"), word: t("fire"),
    act: () => run(() => before(message, () => call("POST", `${byId(message)}/fire`)), t("fired"), dueAgain),
  });
}

// What is cancelled can be put again: the same content, under a new id, with the settings that the message had itself. All
// others stay its queue's. Its spread has chosen the due time already.
function again(message) {
  const { body, body_base64, headers, target_url, key, due_at, expires_at, priority } = message;
  const { spread_ms: _, ...own } = message.own ?? {};
  if (Date.parse(due_at) <= Date.now() && (own.expires_at ?? own.expires_in_ms) !== undefined) {
    // It is due now, and expires when it did: not so long after now, and at once if that has passed.
    delete own.expires_at;
    delete own.expires_in_ms;
    Object.assign(own, Date.parse(expires_at) > Date.now() ? { expires_at } : { expires_in_ms: 1 });
  }
  return call("POST", `${queuePath(message.queue)}/messages`, {
    ...(body === undefined ? { body_base64 } : { body }), headers, target_url, key: key ?? undefined, due_at, past: "keep", priority, ...own,
  });
}

// Whether the caller may enqueue what a message has in it.
export const mayPut = (message) => may("enqueue") && (!message.target_url || may("push-any"));
// The way back of what enqueues: a cancel, for those who may.
const takeBack = () => (may("cancel") ? (answer) => call("DELETE", byId(answer)) : undefined);

export function cancel(message) {
  ask(t("cancel"), {
    text: t("cancel-text", { id: message.id }), danger: true, word: t("cancel"),
    act: () => run(() => before(message, () => call("DELETE", byId(message))), t("cancelled"), mayPut(message) && message.state !== "dead" ? again : undefined),
  });
}

export function replay(message) {
  ask(t("replay"), {
    text: t("replay-text"), word: t("replay"),
    fields: [{ name: "key", label: t("key") }],
    act: ({ key }) => run(() => call("POST", `${byId(message)}/replay`, key ? { key } : {}),
      (answer) => t("enqueued-id", { id: answer.id }), takeBack()),
  });
}

// Changes whether a queue is paused, and gives the way back: the pause that there was, with what would be left of it by now.
// Whether there was one is known to those alone who may see the queue.
async function switched(queue, act) {
  const was = may("metrics") ? await get(queuePath(queue)) : null;
  const at = Date.now();
  await act();
  return { was, at };
}

function asPaused(queue, { was, at }) {
  const left = was.pause_left_ms === null ? null : was.pause_left_ms - (Date.now() - at);
  if (!was.paused || (left !== null && left <= 0)) return call("POST", `${queuePath(queue)}/resume`);
  return call("POST", `${queuePath(queue)}/pause`, left === null ? {} : { for_ms: left });
}

export function pause(queue) {
  ask(t("pause"), {
    text: t("pause-text"),
    fields: [{ name: "for", label: t("pause-for"), hint: t("pause-for-hint") }],
    act: (values) => run(() => switched(queue, () => call("POST", `${queuePath(queue)}/pause`, values.for.trim() ? { for: values.for.trim() } : {})), t("is-paused"),
      may("metrics") ? (then) => asPaused(queue, then) : undefined),
  });
}

export const resume = (queue) => run(() => switched(queue, () => call("POST", `${queuePath(queue)}/resume`)), t("is-resumed"),
  may("metrics") ? (then) => asPaused(queue, then) : undefined);

export function purge(queue, counts) {
  const n = counts.scheduled + counts.ready + counts.dead;
  ask(t("purge"), {
    text: t("purge-text", { n: count(n), queue }), danger: true, word: t("purge-word", { n: count(n) }),
    fields: [{ name: "queue", label: t("type-queue"), required: true }],
    act: async (values) => {
      if (values.queue.trim() !== queue) { say(t("wrong-queue"), { bad: true }); return false; }
      return run(() => call("POST", `${queuePath(queue)}/purge`), (answer) => t("purged-n", { n: count(answer.purged) }));
    },
  });
}

export function redrive(queue, id) {
  ask(t("redrive"), {
    text: t("redrive-text", { n: 1 }), word: t("redrive-word", { n: 1 }),
    act: () => run(() => call("POST", `${queuePath(queue)}/redrive`, { ids: [id] }), (answer) => t("redriven", { n: count(answer.redriven) })),
  });
}

export function enqueue(queue) {
  ask(t("enqueue"), {
    fields: [
      { name: "queue", label: t("queue"), value: queue ?? "", required: true },
      { name: "body", label: t("body"), type: "area" },
      { name: "delay", label: t("delay"), value: "10s", required: true },
      { name: "key", label: t("key-optional") },
    ],
    act: ({ queue: name, body, delay, key }) => run(
      () => call("POST", `${queuePath(name.trim())}/messages`, { body, delay: delay.trim(), ...(key ? { key } : {}) }),
      (answer) => t("enqueued-id", { id: answer.id }), takeBack()),
  });
}

const SETTINGS = ["lease_ms", "max_attempts", "priority", "dedupe_window_ms", "dead_ttl_ms", "rate", "catchup_rate", "concurrency", "expires_in_ms", "keep_done_ms"];

export function configure(queue, config) {
  ask(t("settings"), {
    text: t("settings-text"),
    fields: SETTINGS.map((name) => ({ name, label: name, type: "number", value: (name === "rate" ? config.rate?.per_second : config[name]) ?? "" })),
    act: async (values) => {
      const shown = (of, name) => (name === "rate" ? of.rate?.per_second : of[name]) ?? null;
      const given = Object.fromEntries(SETTINGS.map((name) => [name, values[name] === "" ? null : Number(values[name])]));
      // Only what was changed is sent: what is not shown here stays, and so does what somebody else has changed.
      const names = SETTINGS.filter((name) => given[name] !== shown(config, name));
      if (names.length === 0) return true;
      const path = `${queuePath(queue)}/config`;
      return run(async () => {
        const { config: last } = await get(path);
        // The burst is not shown here, and stays.
        const value = (name) => (name === "rate" && given.rate !== null ? { per_second: given.rate, burst: last.rate?.burst ?? null } : given[name]);
        await call("PATCH", path, Object.fromEntries(names.map((name) => [name, value(name)])));
        return Object.fromEntries(names.map((name) => [name, last[name] ?? null]));
      }, t("settings-saved"), (last) => call("PATCH", path, last));
    },
  });
}
