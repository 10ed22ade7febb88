// All queues, and one queue.

import * as acts from "./acts.js";
import { note, queueAt as at, queuesAt, spanNow } from "./address.js";
import { get, may, queuePath } from "./api.js";
import { card, el, figures, pairs, show } from "./dom.js";
import { count, rate, setting, span, when } from "./format.js";
import * as jobs from "./jobs.js";
import { messageTable, queueTable, quotaOf, quotaTable, signs } from "./tables.js";
import { t } from "./words.js";
import { zoomable } from "./zoom.js";

export function queues(root, { after, filter = "" }, live) {
  const list = el("div", {});
  const more = el("div", { class: "bar" });
  const input = el("input", { type: "search", value: filter, "aria-label": t("filter-queues"), placeholder: t("filter-queues"), oninput: (event) => { filter = event.target.value; note({ filter }); draw(); } });
  root.append(el("h1", {}, t("queues")), card(null, el("div", { class: "bar" }, input,
    may("enqueue") && el("button", { onclick: () => acts.enqueue() }, t("enqueue"))), list, more));
  let [found, quotas] = [{ queues: [], next: null }, []];
  function draw() {
    const shown = found.queues.filter((queue) => queue.queue.toLowerCase().includes(filter.toLowerCase()));
    show(list, shown.length === 0 ? el("p", { class: "soft" }, t(found.queues.length > 0 ? "none-named-so" : "no-queues")) : queueTable(shown, t("queues-by-name"), quotas));
    show(more, found.next && el("a", { href: queuesAt({ after: found.next, filter }) }, t("more")));
  }
  if (!may("metrics")) {
    // There is no list for this token, but what it may do with a queue is on the queue's page.
    const byName = el("form", { class: "bar" }, el("input", { type: "search", name: "name", required: true, "aria-label": t("queue"), placeholder: t("queue") }), el("button", { type: "submit" }, t("open-queue")));
    byName.addEventListener("submit", (event) => { event.preventDefault(); location.hash = at(new FormData(byName).get("name").trim(), {}); });
    input.hidden = true;
    show(list, el("p", { class: "soft" }, t("page-needs", { scope: "metrics" })), byName);
    return;
  }
  live.every(2_000, async () => {
    found = await get(`/v1/queues?limit=200${after ? `&after=${encodeURIComponent(after)}` : ""}`, live.signal);
    draw();
  });
  live.every(5_000, async () => {
    ({ quotas } = await get("/v1/quotas", live.signal));
    if (quotas.length > 0) draw();
  });
}

export function queue(root, { name, state, after, prefix, from, to, ...drawn }, live) {
  const filter = Object.fromEntries(Object.entries({ state, key_prefix: prefix, due_from: from, due_to: to }).filter(([, value]) => value));
  const top = el("div", {});
  const bar = el("div", { class: "bar" });
  const settings = el("div", {});
  const messages = el("div", {});
  const quota = el("div", {});
  root.append(el("h1", {}, name), bar, top, quota, el("div", { class: "grid" }, may("metrics") && card(t("due-when"), zoomable(`${queuePath(name)}/histogram`, live, drawn, may("admin") && ((start, end, same) => at(name, { from: new Date(start).toISOString(), to: new Date(end).toISOString(), ...same })))), may("metrics") && card(t("settings"), settings)));
  if (may("metrics")) {
    live.every(2_000, async () => {
      const now = await get(queuePath(name), live.signal);
      const { counts, rates, totals, config } = now;
      show(bar, signs(now),
        may("enqueue") && el("button", { "data-name": "enqueue", onclick: () => acts.enqueue(name) }, t("enqueue")),
        may("admin") && (now.paused ? el("button", { "data-name": "resume", onclick: () => acts.resume(name) }, t("resume")) : el("button", { "data-name": "pause", onclick: () => acts.pause(name) }, t("pause"))),
        may("admin") && el("button", { "data-name": "configure", onclick: () => acts.configure(name, config) }, t("settings")),
        counts.dead > 0 && may("admin") && el("a", { href: `#/dead/${encodeURIComponent(name)}` }, t("dead-letters")),
        may("admin") && el("button", { "data-name": "purge", class: "danger", onclick: () => acts.purge(name, counts) }, t("purge")));
      show(top, card(null, figures([
        [t("scheduled"), count(counts.scheduled)], [t("ready"), count(counts.ready)], [t("leased"), count(counts.leased)], [t("dead"), count(counts.dead)], ...(now.done > 0 ? [[t("done-messages"), count(now.done)]] : []),
        [t("oldest-overdue"), now.oldest_overdue_ms > 0 ? span(now.oldest_overdue_ms) : "–"], [t("waiters"), count(now.waiters)],
        [t("enqueued"), rate(rates.enqueued)], [t("granted"), rate(rates.granted)], [t("acked"), rate(rates.acked)],
      ])));
      show(settings, pairs([
        ...Object.entries(config).map(([key, value]) => [key, value === null ? t("default") : setting(key, value)]),
        ...Object.entries(totals).map(([key, value]) => [t("total-of", { name: t(key) }), count(value)]),
        now.pause_left_ms !== null && [t("pause-left"), span(now.pause_left_ms)],
        now.oldest_overdue && [t("oldest-due"), when(now.oldest_overdue)],
      ]));
    });
    live.every(5_000, async () => {
      const one = quotaOf(name, (await get("/v1/quotas", live.signal)).quotas);
      show(quota, one && card(t("quota-shared"), quotaTable([one])));
    });
  } else {
    // Whether it is paused is not shown to this token.
    show(bar, may("enqueue") && el("button", { "data-name": "enqueue", onclick: () => acts.enqueue(name) }, t("enqueue")),
      may("admin") && [el("button", { "data-name": "pause", onclick: () => acts.pause(name) }, t("pause")), el("button", { "data-name": "resume", onclick: () => acts.resume(name) }, t("resume")),
        el("a", { href: `#/dead/${encodeURIComponent(name)}` }, t("dead-letters"))]);
    show(top, card(null, el("p", { class: "soft" }, t("figures-need", { scope: "metrics" }))));
  }
  if (may("admin")) {
    const link = (word, text) => el("a", { href: at(name, { state: word, prefix, from, to, ...spanNow() }), "data-keeps": "", "aria-current": (state ?? "") === word ? "true" : undefined }, text);
    const byKey = el("form", { class: "bar" }, el("input", { type: "search", name: "prefix", value: prefix ?? "", "aria-label": t("key-prefix"), placeholder: t("key-prefix") }));
    byKey.addEventListener("submit", (event) => { event.preventDefault(); location.hash = at(name, { state, from, to, prefix: new FormData(byKey).get("prefix"), ...spanNow() }); });
    // Dead messages are redriven on their own page, leased ones are their consumers', and done ones have ended.
    const changes = state !== "dead" && state !== "leased" && state !== "done";
    root.append(card(t("messages"), el("div", { class: "bar" }, link("", t("all")), ["scheduled", "ready", "leased", "dead"].map((word) => link(word, t(word))), link("done", t("done-messages")), byKey),
      (from || to) && el("p", { class: "bar" }, t("due-between", { from: from ? when(from) : "…", to: to ? when(to) : "…" }), el("a", { href: at(name, { state, prefix, ...spanNow() }), "data-keeps": "" }, t("any-time"))),
      changes && jobs.acts(name, filter), messages));
    live.every(5_000, async () => {
      // Spaces as %20: a + is a plus, because instants have one.
      const query = new URLSearchParams({ limit: 50, ...filter, ...(after ? { after } : {}) }).toString().replaceAll("+", "%20");
      const page = await get(`${queuePath(name)}/messages?${query}`, live.signal);
      show(messages, page.messages.length === 0 ? el("p", { class: "soft" }, t("no-messages")) : messageTable(page.messages, t("in-due-order")),
        page.next && el("a", { href: at(name, { state, prefix, from, to, after: page.next, ...spanNow() }), "data-keeps": "" }, t("more")));
    });
  } else {
    root.append(card(t("messages"), el("p", { class: "soft" }, t("needs-scope", { scope: "admin" }))));
  }
}
