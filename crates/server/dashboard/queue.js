// One queue: its messages are the centre, with their filters; around them its figures, its history and its settings.

import * as acts from "./acts.js";
import { note, queueAt as at, spanNow } from "./address.js";
import { get, may, mayList, queryOf, queuePath } from "./api.js";
import { card, el, figures, pairs, show, soft } from "./dom.js";
import { brief, count, rate, span, when } from "./format.js";
import { history } from "./history.js";
import { acts as bulkActs, actsOf } from "./jobs.js";
import { settings } from "./settings.js";
import { chip, context, messageTable, nothingKnown, quotaOf, quotaTable } from "./tables.js";
import { t } from "./words.js";
import { zoomable } from "./zoom.js";

const STATES = ["scheduled", "ready", "leased", "dead", "done"];
// How long a filter rests before it is applied.
const REST = 300;

// An instant as a field for local time has it.
const local = (text) => { const at = new Date(text); return text && at.getTime() === at.getTime() ? new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16) : ""; };

// What the address says as the server's filter: a header is NAME=VALUE.
function filterOf({ state, prefix, header, from, to }) {
  const [name, ...value] = (header ?? "").split("=");
  const given = { state, key_prefix: prefix, due_from: from, due_to: to, ...(name && value.length > 0 ? { [`header.${name.trim()}`]: value.join("=").trim() } : {}) };
  return Object.fromEntries(Object.entries(given).filter(([, one]) => one));
}

// The list of messages with its filters, and what may be done with those that it shows. An act means the filter of the list
// that is on the page: while another one is being typed or read, there is none.
function messages(name, asked, live) {
  const wanted = { state: asked.state ?? "", prefix: asked.prefix ?? "", header: asked.header ?? "", from: asked.from ?? "", to: asked.to ?? "" };
  const [list, bar, tabs] = [el("div", { class: "messages" }), el("div", { class: "bar acts" }), el("div", { class: "tabs", role: "group", "aria-label": t("state") })];
  const chosen = new Map();
  let { after } = asked;
  let [page, shown, counts, done, timer] = [null, null, null, 0, 0];
  // Those that are chosen are changed one by one.
  const each = () => actsOf(wanted.state).filter((action) => may(action === "redrive" ? "admin" : "cancel"));
  const same = () => shown !== null && JSON.stringify(shown) === JSON.stringify(filterOf(wanted));
  const addressOf = (more) => at(name, { ...wanted, ...more, ...spanNow() });

  function drawTabs() {
    const total = counts && counts.scheduled + counts.ready + counts.leased + counts.dead;
    const n = { "": total, ...counts, done };
    show(tabs, ["", ...STATES].map((word) => el("a", { href: addressOf({ state: word }), "data-keeps": "", "data-name": `tab-${word}`, "aria-current": wanted.state === word ? "true" : undefined },
      t(word === "" ? "all" : word === "done" ? "done-messages" : word), counts && el("span", { class: "count" }, brief(n[word] ?? 0)))));
  }
  function drawActs() {
    const off = !same() || page === null;
    if (chosen.size === 0) { show(bar, page?.messages.length > 0 && may("admin") && bulkActs(name, shown ?? {}, off)); return; }
    show(bar, el("b", {}, t("chosen-n", { n: count(chosen.size) })),
      each().map((action) => el("button", { "data-name": `chosen-${action}`, disabled: off, class: action === "cancel" ? "danger" : undefined, onclick: () => acts.several(name, [...chosen.values()], action, () => { chosen.clear(); draw(); }) }, t(`act-${action}`))),
      el("button", { "data-name": "choose-none", onclick: () => { chosen.clear(); draw(); } }, t("choose-none")));
  }
  const offered = (message) => [
    may("cancel") && message.state === "scheduled" && el("button", { "data-name": `fire-${message.id}`, "aria-label": t("fire-id", { id: message.id }), onclick: () => acts.fire(message) }, t("act-fire")),
    may("cancel") && (message.state === "scheduled" || message.state === "ready") && el("button", { "data-name": `postpone-${message.id}`, "aria-label": t("postpone-id", { id: message.id }), onclick: () => acts.postpone(message) }, t("act-postpone")),
    message.state === "dead" && may("admin") && el("button", { "data-name": `redrive-${message.id}`, "aria-label": t("redrive-id", { id: message.id }), onclick: () => acts.redrive(name, message.id) }, t("act-redrive")),
    may("cancel") && message.state !== "leased" && message.state !== "done" && el("button", { "data-name": `cancel-${message.id}`, class: "danger", "aria-label": t("cancel-id", { id: message.id }), onclick: () => acts.cancel(message) }, t("act-cancel")),
  ];
  const choose = {
    chosen, acts: offered,
    change(some, on) { for (const one of some) if (on) chosen.set(one.id, one); else chosen.delete(one.id); draw(); },
  };
  function draw() {
    drawActs();
    if (page === null) return;
    list.classList.toggle("stale", !same());
    show(list, page.messages.length === 0 ? soft(t(page.next ? "none-so-far" : "no-messages")) : messageTable(page.messages, t("in-due-order"), each().length > 0 && choose),
      page.next && el("a", { href: addressOf({ after: page.next }), "data-keeps": "", "data-name": "more" }, t("more")));
  }
  async function look() {
    const filter = filterOf(wanted);
    const found = await get(`${queuePath(name)}/messages${queryOf({ limit: 25, ...filter, after })}`, live.signal);
    // Another filter has been typed: what was found is of the former one.
    if (JSON.stringify(filter) !== JSON.stringify(filterOf(wanted))) return;
    [page, shown] = [found, filter];
    const there = new Map(found.messages.map((one) => [one.id, one]));
    for (const id of chosen.keys()) if (there.has(id)) chosen.set(id, there.get(id)); else chosen.delete(id);
    draw();
  }
  function change(values) {
    Object.assign(wanted, values);
    after = undefined;
    chosen.clear();
    draw();
    clearTimeout(timer);
    timer = setTimeout(() => { if (live.signal.aborted) return; note({ ...wanted, after: "" }); drawTabs(); anyTime.hidden = !wanted.from && !wanted.to; again(); }, REST);
  }
  const field = (word, type, value, read) => el("label", { class: "filter" }, el("span", {}, t(word)), el("input", { type, name: word, value, placeholder: type === "search" ? t(`${word}-hint`) : undefined, oninput: (event) => change(read(event.target.value)) }));
  const iso = (value) => (value ? new Date(value).toISOString() : "");
  const [dueFrom, dueTo] = [field("due-after", "datetime-local", local(wanted.from), (value) => ({ from: iso(value) })), field("due-before", "datetime-local", local(wanted.to), (value) => ({ to: iso(value) }))];
  const anyTime = el("button", { type: "button", hidden: !wanted.from && !wanted.to, onclick: () => { for (const one of [dueFrom, dueTo]) one.querySelector("input").value = ""; change({ from: "", to: "" }); } }, t("any-time"));
  const filters = el("form", { class: "filters", role: "search", "aria-label": t("filters") }, field("key-prefix", "search", wanted.prefix, (value) => ({ prefix: value })), field("header", "search", wanted.header, (value) => ({ header: value })), dueFrom, dueTo, anyTime);
  filters.addEventListener("submit", (event) => event.preventDefault());
  drawTabs();
  const again = live.every(5_000, look);
  return { box: card(t("messages"), tabs, filters, bar, list), figures: (now) => { [counts, done] = [now.counts, now.done]; drawTabs(); } };
}

export function queue(root, { name, ...asked }, live) {
  const [bar, top, quota, sums] = [el("div", { class: "bar" }), el("div"), el("div"), el("div")];
  root.append(el("div", { class: "head" }, el("h1", {}, name), bar), top, quota);
  const list = mayList() ? messages(name, asked, live) : null;
  root.append(list?.box ?? card(t("messages"), soft(t("needs-scope", { scope: "consume / admin" }))));
  const enqueue = () => may("enqueue") && el("button", { "data-name": "enqueue", class: "main", onclick: () => acts.enqueue(name) }, t("enqueue"));
  const dead = () => el("a", { href: `#/dead/${encodeURIComponent(name)}` }, t("dead-letters"));
  if (!may("metrics")) {
    // Whether it is paused is not shown to this token.
    show(bar, enqueue(), may("admin") && [el("button", { "data-name": "pause", onclick: () => acts.pause(name) }, t("pause")), el("button", { "data-name": "resume", onclick: () => acts.resume(name) }, t("resume"))], mayList() && dead());
    show(top, card(null, soft(t("figures-need", { scope: "metrics" }))));
    return;
  }
  const inSpan = mayList() && ((start, end, same) => at(name, { from: new Date(start).toISOString(), to: new Date(end).toISOString(), ...same }));
  root.append(el("div", { class: "grid" }, card(t("flow"), history(live, name, asked, ["rates", "waiting"])), card(t("due-when"), zoomable(`${queuePath(name)}/histogram`, live, asked, inSpan))), settings(name, live, sums));
  let known = nothingKnown;
  live.every(2_000, async () => {
    const now = await get(queuePath(name), live.signal);
    const { counts, rates } = now;
    list?.figures(now);
    show(bar, chip(now, known), enqueue(),
      may("admin") && (now.paused ? el("button", { "data-name": "resume", onclick: () => acts.resume(name) }, t("resume")) : el("button", { "data-name": "pause", onclick: () => acts.pause(name) }, t("pause"))),
      counts.dead > 0 && mayList() && dead(),
      may("admin") && el("button", { "data-name": "purge", class: "danger", onclick: () => acts.purge(name) }, t("act-purge")));
    show(top, figures([
      ...(list ? [] : ["scheduled", "ready", "leased", "dead"].map((word) => [t(word), count(counts[word])])),
      [t("oldest-overdue"), now.oldest_overdue_ms > 0 ? span(now.oldest_overdue_ms) : "–"], [t("waiters"), count(now.waiters)],
      [t("enqueued"), rate(rates.enqueued)], [t("granted"), rate(rates.granted)], [t("acked"), rate(rates.acked)],
      now.pause_left_ms !== null && [t("pause-left"), span(now.pause_left_ms)],
    ]));
    show(sums, el("details", { class: "data", "data-name": "totals" }, el("summary", { "data-name": "totals-summary" }, t("totals")),
      pairs([...Object.entries(now.totals).map(([key, value]) => [t(key), count(value)]), now.oldest_overdue && [t("oldest-due"), when(now.oldest_overdue)]])));
  });
  live.every(5_000, async () => {
    known = await context(live.signal);
    const one = quotaOf(name, known.quotas);
    show(quota, one && card(t("quota-shared"), quotaTable([one])));
  });
}
