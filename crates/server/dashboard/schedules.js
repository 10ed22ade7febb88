// All schedules, and one schedule with its next and latest occurrences.

import { ask, run } from "./acts.js";
import { call, get, may } from "./api.js";
import { badge, card, el, figures, pairs, show, table } from "./dom.js";
import { brief, count, setting, when, zone } from "./format.js";
import { queueLink } from "./tables.js";
import { t } from "./words.js";

const pathOf = (name) => `/v1/schedules/${encodeURIComponent(name)}`;
const link = (name) => el("a", { href: `#/schedules/${encodeURIComponent(name)}`, "data-name": `schedule-${name}` }, name);
const OUTCOMES = { entered: "good", missed: "bad", skipped: "warn", unsure: "bad" };
// What an answer has beside the settings.
const FIGURES = ["name", "created_at", "next", "latest", "counts", "waits", "error"];

const settingsOf = (one) => Object.fromEntries(Object.entries(one).filter(([name, value]) => !FIGURES.includes(name) && value !== null));
const signs = (one) => [one.paused && badge(t("schedule-paused"), "warn"), one.error && badge(t("does-not-run"), "bad")].filter(Boolean);

// Minutes ahead of UTC, as people write them.
function ahead(seconds) {
  const minutes = Math.round(Math.abs(seconds) / 60);
  return `${seconds < 0 ? "−" : "+"}${String(Math.floor(minutes / 60)).padStart(2, "0")}:${String(minutes % 60).padStart(2, "0")}`;
}

// ----- acts -----

const textOf = (one) => one.body ?? (one.json === undefined ? "" : JSON.stringify(one.json));
const fieldsOf = (one) => [
  { name: "cron", label: t("cron"), hint: "0 9 * * MON", value: one.cron ?? "" },
  { name: "every", label: t("every"), hint: "24h", value: one.every ?? "" },
  { name: "zone", label: t("zone"), value: one.zone ?? "" },
];

function create() {
  ask(t("new-schedule"), {
    text: t("recurrence-text"),
    fields: [{ name: "name", label: t("name"), required: true }, { name: "queue", label: t("queue"), required: true }, ...fieldsOf({ zone }), { name: "body", label: t("body"), type: "area" }],
    act: async ({ name, body, ...given }) => {
      const wanted = { body, ...Object.fromEntries(Object.entries(given).map(([field, value]) => [field, value.trim()]).filter(([, value]) => value)) };
      // What has no time of day has no zone.
      if (!wanted.cron) delete wanted.zone;
      return run(async () => {
        let taken = true;
        try { await get(pathOf(name.trim())); } catch (error) { if (error.status !== 404) throw error; taken = false; }
        if (taken) throw new Error(t("schedule-taken", { name: name.trim() }));
        return call("PUT", pathOf(name.trim()), wanted);
      }, (made) => t("schedule-made", { name: made.name }), () => call("DELETE", pathOf(name.trim())));
    },
  });
}

function edit(one) {
  const hasText = one.body_base64 === undefined;
  ask(t("edit"), {
    text: t("recurrence-text"),
    fields: [...(one.at === undefined ? fieldsOf(one) : []), ...(hasText ? [{ name: "body", label: t("body"), type: "area", value: textOf(one) }] : []), { name: "note", label: t("note"), value: one.note ?? "" }],
    act: (values) => {
      // Only what was changed is sent; an empty field is reset.
      const before = { cron: one.cron ?? "", every: one.every ?? "", zone: one.zone ?? "", body: textOf(one), note: one.note ?? "" };
      const changed = Object.entries(values).filter(([name, value]) => value.trim() !== before[name].trim());
      const next = Object.fromEntries(changed.map(([name, value]) => [name === "body" && one.json !== undefined ? "json" : name, value.trim() === "" && name !== "body" ? null : value]));
      if (typeof next.json === "string") { try { next.json = JSON.parse(next.json); } catch (error) { return run(() => { throw error; }); } }
      const back = Object.fromEntries(Object.keys(next).map((name) => [name, one[name] ?? null]));
      return run(() => call("PATCH", pathOf(one.name), next), t("settings-saved"), () => call("PATCH", pathOf(one.name), back));
    },
  });
}

function trigger(one) {
  ask(t("trigger"), {
    text: t("trigger-text", { queue: one.queue }), word: t("trigger"),
    act: () => run(() => call("POST", `${pathOf(one.name)}/trigger`, {}), (made) => t("enqueued-id", { id: made.id }),
      may("cancel") ? (made) => call("DELETE", `/v1/messages/${made.id}`) : undefined),
  });
}

const setPaused = (one, paused) => run(() => call("PATCH", pathOf(one.name), { paused }), t(paused ? "schedule-is-paused" : "schedule-is-resumed"),
  () => call("PATCH", pathOf(one.name), { paused: !paused }));

function remove(one) {
  ask(t("remove"), {
    text: t("remove-text", { name: one.name }), danger: true, word: t("remove"),
    // What is removed may differ from what the page has shown: its undo sets what was there.
    act: () => run(async () => {
      const last = one.error ? one : await get(pathOf(one.name));
      await call("DELETE", pathOf(one.name));
      return last;
    }, t("schedule-removed"), one.error ? undefined : (last) => call("PUT", pathOf(one.name), { ...settingsOf(last), past: "keep" })),
  });
}

// ----- pages -----

export function schedules(root, { after }, live) {
  const list = el("div", {});
  root.append(el("h1", {}, t("schedules")), card(null, el("div", { class: "bar" }, el("button", { "data-name": "new-schedule", onclick: create }, t("new-schedule"))), list));
  live.every(3_000, async () => {
    const page = await get(`/v1/schedules?limit=200${after ? `&after=${encodeURIComponent(after)}` : ""}`, live.signal);
    show(list, page.schedules.length === 0 ? el("p", { class: "soft" }, t("no-schedules"))
      : table(t("schedules"), [[t("name"), "key"], [t("queue"), "key"], [t("next")], [t("entered"), "n"], [t("missed"), "n"], [t("state")]], page.schedules.map((one) => [
        link(one.name), one.queue ? queueLink(one.queue) : "–", when(one.next), brief(one.counts.entered), brief(one.counts.missed), signs(one),
      ])),
    page.next && el("a", { href: `#/schedules?after=${encodeURIComponent(page.next)}` }, t("more")),
    el("p", { class: "soft" }, t("zone-data", { name: page.zone_data })));
  });
}

export function schedule(root, { name }, live) {
  const place = el("div", {});
  root.append(el("h1", {}, name), place);
  live.every(3_000, async () => {
    let one;
    try {
      one = await get(pathOf(name), live.signal);
    } catch (error) {
      if (error.status !== 404) throw error;
      show(place, card(null, el("p", {}, t("no-schedule"))));
      return;
    }
    const settings = Object.entries(settingsOf(one)).filter(([field]) => field !== "queue" && field !== "paused");
    show(place,
      el("div", { class: "bar" }, signs(one),
        !one.error && el("button", { "data-name": "trigger", onclick: () => trigger(one) }, t("trigger")),
        !one.error && el("button", { "data-name": "pause", onclick: () => setPaused(one, !one.paused) }, t(one.paused ? "resume" : "pause")),
        !one.error && el("button", { "data-name": "edit", onclick: () => edit(one) }, t("edit")),
        el("button", { "data-name": "remove", class: "danger", onclick: () => remove(one) }, t("remove"))),
      one.error && card(t("does-not-run"), el("p", {}, one.error)),
      one.waits && card(t("waits"), el("p", {}, one.waits.why), el("p", { class: "soft" }, when(one.waits.until ?? one.waits.at))),
      card(null, figures(Object.entries(one.counts).map(([what, n]) => [t(what), count(n)]))),
      card(t("next"), one.next.length === 0 ? el("p", { class: "soft" }, t("no-next"))
        : table(t("next"), [[t("occurs")], [t("in-zone")], [t("note")]], one.next.map(({ at, offset, note }) => [when(at), `${one.zone ?? "UTC"} (UTC${ahead(offset)})`, note ? badge(t(note), "warn") : "–"]))),
      one.latest.length > 0 && card(t("latest"), table(t("latest"), [[t("occurs")], [t("state")], [t("message")]], [...one.latest].reverse().map(({ at, outcome, message }) => [
        when(at), badge(t(outcome), OUTCOMES[outcome]), message && may("cancel") ? el("a", { href: `#/messages/${message}`, "data-name": `message-${message}` }, message) : message ?? "–"]))),
      card(t("settings"), pairs([[t("queue"), one.queue ? queueLink(one.queue) : "–"], [t("created-at"), when(one.created_at)],
        ...settings.map(([field, value]) => [field, setting(field, value)])])));
  });
}
