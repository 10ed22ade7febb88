// All schedules, and one schedule with its next and latest occurrences.

import { ask, mustBeFree, perform, run } from "./acts.js";
import { call, find, get, may, queryOf } from "./api.js";
import { cronWords } from "./cron.js";
import { badge, card, el, figures, pairs, show, soft, table } from "./dom.js";
import { away, count, inZone, setting, when, zone } from "./format.js";
import { moreOf, number, queueLink, twoParts } from "./tables.js";
import { locale, t } from "./words.js";

const pathOf = (name) => `/v1/schedules/${encodeURIComponent(name)}`;
const link = (name) => el("a", { href: `#/schedules/${encodeURIComponent(name)}`, "data-name": `schedule-${name}` }, name);
const OUTCOMES = { entered: "good", missed: "bad", skipped: "warn", unsure: "bad" };
// What an answer has beside the settings.
const FIGURES = ["name", "created_at", "next", "latest", "counts", "waits", "error"];

const settingsOf = (one) => Object.fromEntries(Object.entries(one).filter(([name, value]) => !FIGURES.includes(name) && value !== null && JSON.stringify(value) !== "{}"));
const signs = (one) => [one.paused && badge(t("paused"), "warn"), one.error && badge(t("does-not-run"), "bad")].filter(Boolean);

// Minutes ahead of UTC, as people write them.
function ahead(seconds) {
  const minutes = Math.round(Math.abs(seconds) / 60);
  return `${seconds < 0 ? "−" : "+"}${String(Math.floor(minutes / 60)).padStart(2, "0")}:${String(minutes % 60).padStart(2, "0")}`;
}

// ----- acts -----

const fieldsOf = (one) => [
  { name: "cron", label: t("cron"), hint: "0 9 * * MON", value: one.cron ?? "" },
  { name: "every", label: t("every"), hint: "24h", value: one.every ?? "" },
  { name: "zone", label: t("zone"), value: one.zone ?? "" },
];

function create() {
  ask(t("new-schedule"), {
    text: t("recurrence-text"),
    fields: [{ name: "name", label: t("name"), required: true }, { name: "queue", label: t("queue"), required: true }, ...fieldsOf({ zone }), { name: "body", label: t("set-body"), type: "area" }],
    act: async ({ name, body, ...given }) => {
      const wanted = { body, ...Object.fromEntries(Object.entries(given).map(([field, value]) => [field, value.trim()]).filter(([, value]) => value)) };
      // What has no time of day has no zone.
      if (!wanted.cron) delete wanted.zone;
      return perform(async () => {
        await mustBeFree(pathOf(name.trim()), t("schedule-taken", { name: name.trim() }));
        return call("PUT", pathOf(name.trim()), wanted);
      }, (made) => t("schedule-made", { name: made.name }), () => call("DELETE", pathOf(name.trim())));
    },
  });
}

function edit(one) {
  const hasText = one.body_base64 === undefined;
  ask(t("edit"), {
    text: t("recurrence-text"),
    fields: [...(one.at === undefined ? fieldsOf(one) : []), ...(hasText ? [{ name: "body", label: t("set-body"), type: "area", value: one.body }] : []), { name: "note", label: t("set-note"), value: one.note ?? "" }],
    act: (values) => {
      // Only what was changed is sent; an empty field is reset.
      const before = { cron: one.cron ?? "", every: one.every ?? "", zone: one.zone ?? "", body: one.body ?? "", note: one.note ?? "" };
      const changed = Object.entries(values).filter(([name, value]) => value.trim() !== before[name].trim());
      const next = Object.fromEntries(changed.map(([name, value]) => [name, value.trim() === "" && name !== "body" ? null : value]));
      const back = Object.fromEntries(Object.keys(next).map((name) => [name, one[name] ?? null]));
      return perform(() => call("PATCH", pathOf(one.name), next), t("settings-saved"), () => call("PATCH", pathOf(one.name), back));
    },
  });
}

function trigger(one) {
  ask(t("trigger"), {
    text: t("trigger-text", { queue: one.queue }), word: t("trigger"),
    act: () => perform(() => call("POST", `${pathOf(one.name)}/trigger`, {}), (made) => t("enqueued-id", { id: made.id }),
      may("cancel") ? (made) => call("DELETE", `/v1/messages/${made.id}`) : undefined),
  });
}

const setPaused = (one, paused) => run(() => call("PATCH", pathOf(one.name), { paused }), t(paused ? "schedule-is-paused" : "schedule-is-resumed"),
  () => call("PATCH", pathOf(one.name), { paused: !paused }));

function remove(one) {
  ask(t("remove"), {
    text: t("remove-text", { name: one.name }), danger: true, word: t("remove"),
    // What is removed may differ from what the page has shown: its undo sets what was there.
    act: () => perform(async () => {
      const last = one.error ? one : await get(pathOf(one.name));
      await call("DELETE", pathOf(one.name));
      return last;
    }, t("schedule-removed"), one.error ? undefined : (last) => call("PUT", pathOf(one.name), { ...settingsOf(last), past: "keep" })),
  });
}

// ----- pages -----

// An instant in the zone of the schedule, and here if that is another one.
function occurs(at, one) {
  const when = Date.parse(at);
  const theirs = one?.zone ?? "UTC";
  return inZone(when, one && !one.cron ? zone : theirs);
}
const recurrence = (one) => (one === undefined ? "…" : one.cron ? cronWords(one.cron) : one.every ? t("every-span", { every: one.every }) : t("some-instants"));

export function schedules(root, { after }, live) {
  const list = el("div");
  root.append(el("div", { class: "head" }, el("h1", {}, t("schedules")), el("button", { "data-name": "new-schedule", class: "main", onclick: create }, t("new-schedule"))), card(null, list));
  // A list has no expressions: those of the first are read once, six at a time.
  const whole = new Map();
  let page = null;
  function draw() {
    show(list, page.schedules.length === 0 ? soft(t("no-schedules"))
      : table(t("schedules"), [[t("name"), "key"], [t("occurs"), "key"], [t("queue"), "key"], [t("next"), "when"], [t("entered"), "n"], [t("missed"), "n"], [t("state")]], page.schedules.map((one) => [
        link(one.name), el("span", { title: whole.get(one.name)?.cron }, recurrence(whole.get(one.name))), one.queue ? queueLink(one.queue) : "–",
        one.next ? twoParts(occurs(one.next, whole.get(one.name)), away(Date.parse(one.next) - Date.now())) : "–", number(one.counts.entered), number(one.counts.missed, "bad"), signs(one),
      ]), { cards: true }),
    moreOf("/schedules", page.next),
    soft(t("zone-data", { name: page.zone_data })));
  }
  live.every(3_000, async () => {
    page = await get(`/v1/schedules${queryOf({ limit: 200, after })}`, live.signal);
    const names = page.schedules.filter(({ name, error }) => !error && !whole.has(name)).slice(0, 60).map(({ name }) => name);
    draw();
    for (let n = 0; n < names.length; n += 6) await Promise.all(names.slice(n, n + 6).map(async (name) => { const one = await find(pathOf(name), live.signal); if (one) whole.set(name, one); }));
    if (names.length > 0) draw();
  });
  live.every(30_000, async () => { whole.clear(); });
}

// The days of the next month with an occurrence: a strip of dots. What is behind the last of so many is not known.
const MOST = 1_000;
function month(next) {
  const day = (at) => { const date = new Date(at); return new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime(); };
  const counts = new Map();
  const end = next.length < MOST ? Infinity : day(Date.parse(next.at(-1).at));
  for (const { at } of next) counts.set(day(Date.parse(at)), (counts.get(day(Date.parse(at))) ?? 0) + 1);
  const today = new Date();
  const days = Array.from({ length: 31 }, (_, n) => new Date(today.getFullYear(), today.getMonth(), today.getDate() + n));
  return el("ol", { class: "month", "aria-label": t("next-month") }, days.map((date) => {
    const n = counts.get(date.getTime()) ?? 0;
    const name = new Intl.DateTimeFormat(locale, { weekday: "short", month: "short", day: "numeric" }).format(date);
    const words = date.getTime() < end ? t("on-day", { day: name, n: count(n) }) : `${name}: …`;
    return el("li", { class: n > 0 ? "on" : date.getTime() > end ? "unsure" : undefined, title: words }, el("span", { "aria-hidden": "true" }, date.getDate()), el("span", { class: "unseen" }, words));
  }));
}

export function schedule(root, { name }, live) {
  const place = el("div");
  const strip = el("div");
  root.append(el("h1", {}, name), place);
  // What is to come in a month; of a schedule that occurs more often the first thousand times.
  const look = async (one) => {
    const { queue: _, ...timing } = Object.fromEntries(Object.entries(settingsOf(one)).filter(([field]) => !["paused", "note", "body", "body_base64", "headers"].includes(field)));
    try { const { next } = await call("POST", "/v1/schedules/preview", { ...timing, queue: one.queue, count: MOST }, live.signal); show(strip, month(next)); } catch (error) { if (error.name === "AbortError") throw error; strip.replaceChildren(); }
  };
  let drawn = "";
  live.every(3_000, async () => {
    const one = await find(pathOf(name), live.signal);
    if (!one) { show(place, card(null, el("p", {}, t("no-schedule")))); return; }
    const settings = Object.entries(settingsOf(one)).filter(([field]) => field !== "queue" && field !== "paused");
    const timing = JSON.stringify([one.cron, one.every, one.at, one.zone, one.start, one.end]);
    if (timing !== drawn && !one.error) { drawn = timing; await look(one); }
    show(place,
      el("div", { class: "bar" }, signs(one),
        !one.error && el("button", { "data-name": "trigger", onclick: () => trigger(one) }, t("trigger")),
        !one.error && el("button", { "data-name": "pause", onclick: () => setPaused(one, !one.paused) }, t(one.paused ? "resume" : "pause")),
        !one.error && el("button", { "data-name": "edit", onclick: () => edit(one) }, t("edit")),
        el("button", { "data-name": "remove", class: "danger", onclick: () => remove(one) }, t("remove"))),
      one.error && card(t("does-not-run"), el("p", {}, one.error)),
      one.waits && card(t("waits"), el("p", {}, one.waits.why), soft(when(one.waits.until ?? one.waits.at))),
      figures(Object.entries(one.counts).map(([what, n]) => [t(what), count(n)])),
      card(t("next"), el("p", { class: "lead" }, recurrence(one)), one.next.length === 0 ? soft(t("no-next")) : strip, one.next.length > 0
        && table(t("next"), [[t("occurs")], [t("in-zone")], [t("set-note")]], one.next.map(({ at, offset, note }) => [twoParts(occurs(at, one), away(Date.parse(at) - Date.now())), `${one.zone ?? "UTC"} (UTC${ahead(offset)})`, note && badge(t(note), "warn")]), { cards: true })),
      one.latest.length > 0 && card(t("latest"), table(t("latest"), [[t("occurs")], [t("state")], [t("message")]], [...one.latest].reverse().map(({ at, outcome, message }) => [
        when(at), badge(t(outcome), OUTCOMES[outcome]), message && may("cancel") ? el("a", { href: `#/messages/${message}`, "data-name": `message-${message}` }, message) : message ?? "–"]), { cards: true })),
      card(t("settings"), pairs([[t("queue"), one.queue ? queueLink(one.queue) : "–"], [t("created-at"), when(one.created_at)],
        ...settings.map(([field, value]) => [t(`set-${field}`), field === "cron" ? `${value} (${cronWords(value)})` : field === "body" ? String(value) : setting(field, value)])])));
  });
}
