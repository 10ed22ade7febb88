// What changes something: asks first where it destroys, says what happened, and offers the way back where there is one.

import { Problem, call, find, get, idle, may, queuePath } from "./api.js";
import { el } from "./dom.js";
import { count } from "./format.js";
import { t } from "./words.js";

const toasts = document.getElementById("toasts");

// A line at the bottom of the page, with a way back if there is one; `stays` until it is closed. Of the others the oldest make room.
export function say(text, { bad, undo, stays } = {}) {
  const words = el("span", {}, text);
  const line = el("div", { class: bad ? "toast bad" : "toast", "data-stays": stays && "" }, words);
  const away = () => line.remove();
  const offer = (back) => words.after(el("button", { onclick: async () => { away(); await run(back, (value) => (value?.quiet ? null : t("undone"))); } }, t("undo")));
  line.append(el("button", { "aria-label": t("close"), onclick: away }, "×"));
  if (undo) offer(undo);
  toasts.append(line);
  if (!stays) setTimeout(away, undo ? 20_000 : 8_000);
  for (const old of [...toasts.querySelectorAll(":scope > :not([data-stays], :last-child)")].slice(0, Math.max(toasts.children.length - 4, 0))) old.remove();
  return { line, words, offer, away };
}

export function fail(error) {
  if (error.name === "AbortError") return;
  say(error instanceof Problem && error.code ? `${error.message} (${error.code})` : error.message, { bad: true });
}

// Runs an act, says how it went, and lets the page look again. What it throws is for the dialog.
export async function perform(act, done, undo) {
  const value = await act();
  const words = typeof done === "function" ? done(value) : done;
  if (words) say(words, { undo: undo && (() => undo(value)) });
  document.dispatchEvent(new Event("changed"));
}

// The same where there is no dialog.
export async function run(act, done, undo) {
  try { await perform(act, done, undo); } catch (error) { fail(error); }
}

const pass = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
// A server that restarts or has much to do answers later: the job goes on.
const passes = (error) => !(error instanceof Problem) || error.status === 429 || error.status >= 500;

// Shows how a job goes on until it has ended, and then what it did, with its way back; the pages look again.
export async function follow(begun, undo) {
  let job = await begun;
  const { words, line, offer, away } = say("", { stays: true });
  try {
    for (let wait = 250; ; wait = Math.min(2 * wait, 1_000)) {
      const n = job.done + job.leased + job.changed + job.refused;
      words.replaceChildren(t(`job-does-${job.action}`, { queue: job.queue, done: count(job.done), n: count(job.matched) }), el("progress", { max: Math.max(job.matched, 1), "aria-label": t("done"), value: n }));
      if (job.ended_at !== undefined) break;
      await pass(wait);
      if (idle()) continue;
      try { job = await get(`/v1/jobs/${encodeURIComponent(job.id)}`); } catch (error) {
        if (!passes(error)) throw error;
        await pass(1_000);
      }
    }
  } catch (error) { away(); throw error; }
  if (job.state === "cancelled" && job.matched > (job.expect ?? Infinity)) { away(); throw new Wrong(t("changed-n", { n: count(job.matched) })); }
  const left = [["leased", job.leased], ["changed", job.changed], ["refused", job.refused]].filter(([, n]) => n > 0).map(([why, n]) => t(`left-${why}`, { n: count(n) }));
  words.textContent = [t(`job-did-${job.action}`, { n: count(job.done), queue: job.queue }), ...left].join(" ");
  if (undo && job.done > 0) offer(() => undo(job));
  else setTimeout(away, 20_000);
  line.dataset.job = job.id;
  document.dispatchEvent(new Event("changed"));
  return { quiet: true };
}

// What a job or a purge has removed is there again, as it was.
export const restore = (queue, act) => follow(call("POST", `${queuePath(queue)}/bulk`, { action: "restore", act }));

// Throws if there is something under the path already: it is not replaced by what is made anew.
export async function mustBeFree(path, words) {
  if (await find(path)) throw new Wrong(words, "name");
}

// What is wrong with what was given, at the field where it is.
export class Wrong extends Error {
  constructor(message, field) {
    super(message);
    this.field = field;
  }
}

// The field of the form that an answer means: `delay_ms` is that of `delay`, `rate.per_second` that of `rate`.
const fieldOf = (name, inputs) => [name, name?.replace(/_ms$/, ""), name?.split(/[.[]/)[0]].find((one) => inputs.has(one));

// A dialog with fields; `act` is given their values and the dialog, and what it throws is said at its field. With `typed` this
// name is to be typed. `first` is done while the dialog opens. Nothing happens when it is left, and it ends with its page.
export function ask(title, { text, fields = [], danger, word, dismiss, typed, first, act }) {
  const inputs = new Map();
  const wanted = typed === undefined ? fields : [...fields, { name: "typed", label: t("type-queue"), hint: typed, required: true }];
  const rows = wanted.map(({ name, label, type = "text", value = "", hint, options, required }) => {
    const id = `field-${name}`;
    const input = options ? el("select", { id, name }, options.map(([key, shown]) => el("option", { value: key, selected: key === value }, shown)))
      : type === "area" ? el("textarea", { id, name, value, required, placeholder: hint })
      : el("input", { id, name, type, step: type === "number" ? "any" : undefined, value, placeholder: hint, required, autocomplete: "off", spellcheck: "false" });
    const wrong = el("p", { id: `${id}-wrong`, class: "wrong", hidden: true });
    inputs.set(name, { input, wrong });
    return el("div", { class: "field" }, el("label", { for: id }, label), input, wrong);
  });
  const words = el("div", { class: "which" }, text && el("p", {}, text));
  const failed = el("p", { class: "wrong", role: "alert", hidden: true });
  const go = el("button", { type: "submit", class: danger ? "danger" : "main" }, word ?? t("do-it"));
  const form = el("form", { class: "fields", method: "dialog" }, words, rows, failed,
    el("div", { class: "bar" }, go, el("button", { type: "button", onclick: () => box.close() }, dismiss || t("leave-it"))));
  const box = el("dialog", { "aria-labelledby": "dialog-title" }, el("h2", { id: "dialog-title" }, title), form);
  const ui = {
    say: (...lines) => words.replaceChildren(...lines.filter(Boolean).map((line) => (typeof line === "string" ? el("p", {}, line) : line))),
    word: (next) => { go.textContent = next; },
    form: rows,
  };
  function mark(error) {
    for (const { input, wrong } of inputs.values()) { input.removeAttribute("aria-invalid"); input.removeAttribute("aria-describedby"); wrong.hidden = true; }
    failed.hidden = true;
    if (!error) return;
    const at = inputs.get(fieldOf(error.field, inputs));
    const place = at?.wrong ?? failed;
    place.textContent = error instanceof Problem || error instanceof Wrong ? error.message : t("unreachable");
    place.hidden = false;
    if (at) { at.input.setAttribute("aria-invalid", "true"); at.input.setAttribute("aria-describedby", place.id); at.input.focus(); }
  }
  // Runs a step of the dialog; meanwhile it cannot be run again.
  async function step(what) {
    go.disabled = true;
    try {
      mark(null);
      return await what();
    } catch (error) {
      mark(error);
      return false;
    } finally { go.disabled = false; }
  }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { typed: name, ...values } = Object.fromEntries(new FormData(form));
    const done = await step(async () => {
      if (typed !== undefined && name.trim() !== typed) throw new Wrong(t("wrong-queue"), "typed");
      return act(values, ui);
    });
    if (done !== false) box.close();
  });
  const leave = () => box.close();
  addEventListener("hashchange", leave);
  box.addEventListener("close", () => { removeEventListener("hashchange", leave); box.remove(); });
  document.body.append(box);
  box.showModal();
  if (first) step(() => first(ui)).then((done) => { if (done === false) go.disabled = true; });
}

export const byId = (message) => `/v1/messages/${message.id}`;

// Does something to a message, and gives the message as it was just before: it may differ from what the page has shown.
export async function before(message, act) {
  const last = await get(byId(message));
  await act();
  return last;
}

// Due again when it was.
export async function dueAgain(message) {
  const set = (at) => call("PATCH", byId(message), { due_at: new Date(at).toISOString(), past: "keep" });
  const due = Date.parse(message.due_at);
  const { due_at: drawn } = await set(due);
  // A spread is added to each due time that is set, and always the same: what it adds is taken off.
  if (message.own?.spread_ms && due > Date.now()) await set(due - (Date.parse(drawn) - due));
}

export function postpone(message) {
  ask(t("act-postpone"), {
    text: t("postpone-text"),
    fields: [{ name: "delay", label: t("delay"), hint: "2h", required: true }],
    act: ({ delay }) => perform(() => before(message, () => call("PATCH", byId(message), { delay: delay.trim() })), t("postponed"), dueAgain),
  });
}

export function fire(message) {
  ask(t("act-fire"), {
    text: t("fire-text"), word: t("act-fire"),
    act: () => perform(() => before(message, () => call("POST", `${byId(message)}/fire`)), t("fired"), dueAgain),
  });
}

// What is cancelled can be put again: the same content, under a new id, with the settings that the message had itself. All
// others stay its queue's. Its spread has chosen the due time already.
export function again(message) {
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
    text: t("cancel-text", { id: message.id }), danger: true, word: t("cancel"), dismiss: t("keep-it"),
    act: () => perform(() => before(message, () => call("DELETE", byId(message))), t("cancelled"), mayPut(message) && message.state !== "dead" ? again : undefined),
  });
}

export function replay(message) {
  ask(t("replay"), {
    text: t("replay-text"), word: t("replay"),
    fields: [{ name: "key", label: t("key") }],
    act: ({ key }) => perform(() => call("POST", `${byId(message)}/replay`, key ? { key } : {}),
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
    act: (values) => perform(() => switched(queue, () => call("POST", `${queuePath(queue)}/pause`, values.for.trim() ? { for: values.for.trim() } : {})), t("is-paused"),
      may("metrics") ? (then) => asPaused(queue, then) : undefined),
  });
}

export const resume = (queue) => run(() => switched(queue, () => call("POST", `${queuePath(queue)}/resume`)), t("is-resumed"),
  may("metrics") ? (then) => asPaused(queue, then) : undefined);

// Removes all but leased messages, unless there are more by then than the dialog says; for an hour there is a way back.
export function purge(queue) {
  let n = 0;
  const asked = (ui) => { ui.say(t("purge-text", { n: count(n), queue }), t("undo-hour")); ui.word(t("purge-word", { n: count(n) })); };
  ask(t("act-purge"), {
    text: t("counting"), danger: true, word: t("act-purge"), typed: queue,
    first: async (ui) => {
      const { counts } = await get(queuePath(queue));
      n = counts.scheduled + counts.ready + counts.dead;
      asked(ui);
    },
    act: async (_, ui) => {
      try {
        await perform(() => call("POST", `${queuePath(queue)}/purge`, { expect: n, keep: "1h" }), ({ purged, act }) => {
          if (!act) return t("job-did-purge", { n: count(purged), queue });
          follow({ id: act, queue, action: "purge", matched: n, done: 0, leased: 0, changed: 0, refused: 0 }, () => restore(queue, act)).catch(fail);
          return null;
        });
        return true;
      } catch (error) {
        if (error.code !== "changed") throw error;
        n = error.matched;
        asked(ui);
        throw new Wrong(t("changed-n", { n: count(n) }));
      }
    },
  });
}

// The answer has a result for each message: that it was refused is no error of the call.
async function redriven(queue, id) {
  const { results: [one] } = await call("POST", `${queuePath(queue)}/redrive`, { ids: [id] });
  if (one.status >= 400) throw new Problem(one.status, one);
}

export function redrive(queue, id) {
  ask(t("act-redrive"), {
    text: t("redrive-text", { n: 1 }), word: t("redrive-word", { n: 1 }),
    act: () => perform(() => redriven(queue, id), t("redriven", { n: 1 })),
  });
}

// Does the same to some messages that were chosen, six at a time, and says of how many it was refused; what was done is taken back
// together.
export function several(queue, messages, action, chosen) {
  const fields = action === "postpone" ? [{ name: "delay", label: t("delay"), hint: "2h", required: true }] : [];
  const one = {
    postpone: ({ delay }) => (message) => before(message, () => call("PATCH", byId(message), { delay: delay.trim() })),
    fire: () => (message) => before(message, () => call("POST", `${byId(message)}/fire`)),
    cancel: () => (message) => before(message, () => call("DELETE", byId(message))),
    redrive: () => (message) => redriven(queue, message.id),
  }[action];
  const back = { postpone: dueAgain, fire: dueAgain, cancel: messages.every((message) => mayPut(message) && message.state !== "dead") ? again : undefined }[action];
  const each = async (list, act) => {
    const [done, refused] = [[], []];
    for (let n = 0; n < list.length; n += 6) await Promise.all(list.slice(n, n + 6).map(async (message) => { try { done.push(await act(message)); } catch (error) { refused.push(error); } }));
    return { done, refused };
  };
  const left = (refused) => refused.length > 0 && t("left-refused", { n: count(refused.length) });
  const undone = async (list) => {
    const { done, refused } = await each(list, back);
    if (refused.length === 0) return {};
    say([done.length > 0 && t("undone"), left(refused)].filter(Boolean).join(" "), { bad: true });
    return { quiet: true };
  };
  ask(t(`act-${action}`), {
    text: t("chosen-which", { n: count(messages.length), queue }), fields, danger: action === "cancel", dismiss: action === "cancel" && t("keep-them"), word: t("bulk-word", { act: t(`act-${action}`), n: count(messages.length) }),
    act: async (values) => {
      const { done, refused } = await each(messages, one(values));
      if (done.length === 0) throw refused[0];
      chosen();
      await perform(() => done, [t(`job-did-${action}`, { n: count(done.length), queue }), left(refused)].filter(Boolean).join(" "), back && undone);
    },
  });
}

export function enqueue(queue) {
  ask(t("enqueue"), {
    fields: [
      { name: "queue", label: t("queue"), value: queue ?? "", required: true },
      { name: "body", label: t("set-body"), type: "area" },
      { name: "delay", label: t("delay"), value: "10s", required: true },
      { name: "key", label: t("key-optional") },
    ],
    act: ({ queue: name, body, delay, key }) => perform(
      () => call("POST", `${queuePath(name.trim())}/messages`, { body, delay: delay.trim(), ...(key ? { key } : {}) }),
      (answer) => t("enqueued-id", { id: answer.id }), takeBack()),
  });
}
