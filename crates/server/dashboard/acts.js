// What changes something: asks first where it destroys, says what happened, and offers the way back where there is one.

import { Problem, call, queuePath } from "./api.js";
import { el } from "./dom.js";
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
      : el("input", { id, name, type, value, placeholder: hint, required, autocomplete: "off" });
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

export function postpone(message) {
  ask(t("postpone"), {
    text: t("postpone-text"),
    fields: [{ name: "delay", label: t("delay"), hint: "2h", required: true }],
    act: ({ delay }) => run(() => call("PATCH", byId(message), { delay: delay.trim() }), t("postponed"),
      () => call("PATCH", byId(message), { due_at: message.due_at })),
  });
}

export function fire(message) {
  ask(t("fire"), {
    text: t("fire-text"), word: t("fire"),
    act: () => run(() => call("POST", `${byId(message)}/fire`), t("fired"), () => call("PATCH", byId(message), { due_at: message.due_at })),
  });
}

// What is cancelled can be put again: the same content, under a new id.
function again(message) {
  const { body, body_base64, headers, target_url, key, due_at, priority, lease_ms, max_attempts } = message;
  const content = { ...(body === undefined ? { body_base64 } : { body }), headers, target_url, due_at, priority, lease_ms, max_attempts, past: "fire" };
  return call("POST", `${queuePath(message.queue)}/messages`, key === null ? content : { ...content, key });
}

export function cancel(message, mayEnqueue) {
  ask(t("cancel"), {
    text: t("cancel-text", { id: message.id }), danger: true, word: t("cancel"),
    act: () => run(() => call("DELETE", byId(message)), t("cancelled"), mayEnqueue && message.state !== "dead" ? () => again(message) : undefined),
  });
}

export function replay(message) {
  ask(t("replay"), {
    text: t("replay-text"), word: t("replay"),
    fields: [{ name: "key", label: t("key") }],
    act: ({ key }) => run(() => call("POST", `${byId(message)}/replay`, key ? { key } : {}),
      (answer) => t("enqueued-id", { id: answer.id }), (answer) => call("DELETE", `/v1/messages/${answer.id}`)),
  });
}

export function pause(queue) {
  ask(t("pause"), {
    text: t("pause-text"),
    fields: [{ name: "for", label: t("pause-for"), hint: t("pause-for-hint") }],
    act: (values) => run(() => call("POST", `${queuePath(queue)}/pause`, values.for.trim() ? { for: values.for.trim() } : {}), t("is-paused"),
      () => call("POST", `${queuePath(queue)}/resume`)),
  });
}

export const resume = (queue) => run(() => call("POST", `${queuePath(queue)}/resume`), t("is-resumed"), () => call("POST", `${queuePath(queue)}/pause`));

export function purge(queue, counts) {
  const n = counts.scheduled + counts.ready + counts.dead;
  ask(t("purge"), {
    text: t("purge-text", { n, queue }), danger: true, word: t("purge-word", { n }),
    fields: [{ name: "queue", label: t("type-queue"), required: true }],
    act: async (values) => {
      if (values.queue.trim() !== queue) { say(t("wrong-queue"), { bad: true }); return false; }
      return run(() => call("POST", `${queuePath(queue)}/purge`), (answer) => t("purged-n", { n: answer.purged }));
    },
  });
}

// Dead messages go back in batches that the server takes.
export function redrive(queue, ids) {
  ask(t("redrive"), {
    text: t("redrive-text", { n: ids.length }), word: t("redrive-word", { n: ids.length }),
    act: () => run(async () => {
      let done = 0;
      for (let n = 0; n < ids.length; n += 1_000) {
        const answer = await call("POST", `${queuePath(queue)}/redrive`, { ids: ids.slice(n, n + 1_000) });
        done += answer.redriven;
      }
      return done;
    }, (done) => t("redriven", { n: done })),
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
      (answer) => t("enqueued-id", { id: answer.id }), (answer) => call("DELETE", `/v1/messages/${answer.id}`)),
  });
}

const SETTINGS = ["lease_ms", "max_attempts", "priority", "dedupe_window_ms", "dead_ttl_ms", "rate", "catchup_rate", "concurrency", "expires_in_ms", "keep_done_ms"];

export function configure(queue, config) {
  ask(t("settings"), {
    text: t("settings-text"),
    fields: SETTINGS.map((name) => ({ name, label: name, type: "number", value: (name === "rate" ? config.rate?.per_second : config[name]) ?? "" })),
    act: (values) => {
      const next = { ...config };
      for (const name of SETTINGS) next[name] = values[name] === "" ? null : Number(values[name]);
      // A burst that was set with the same rate stays.
      if (next.rate !== null) next.rate = next.rate === config.rate?.per_second ? config.rate : { per_second: next.rate };
      // What is not shown here, such as a target, stays.
      return run(() => call("PATCH", `${queuePath(queue)}/config`, next), t("settings-saved"), () => call("PATCH", `${queuePath(queue)}/config`, config));
    },
  });
}
