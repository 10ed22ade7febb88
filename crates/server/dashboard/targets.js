// All targets, and one target: what it does, what it is set to, and which queues are delivered to it.

import { ask, run } from "./acts.js";
import { call, get, may } from "./api.js";
import { badge, card, el, figures, pairs, show, table } from "./dom.js";
import { count, setting, when } from "./format.js";
import { queueLink } from "./tables.js";
import { t } from "./words.js";

// What an answer has beside the settings.
const FIGURES = ["name", "state", "reason", "since", "error", "delivers", "created_at", "counts", "attempts"];
const pathOf = (name) => `/v1/targets/${encodeURIComponent(name)}`;
const link = (name) => el("a", { href: `#/targets/${encodeURIComponent(name)}`, "data-name": `target-${name}` }, name);
const KINDS = { active: "good", slowed: "warn", open: "bad", paused: "warn" };
const signs = (one) => [badge(t(`target-${one.state}`), KINDS[one.state]), one.error && badge(t("not-usable"), "bad")].filter(Boolean);
const links = (queues) => (queues.length === 0 ? "–" : queues.map((queue, n) => [n > 0 && ", ", queueLink(queue)]));

// ----- acts -----

// Lines that are not empty.
const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

function create() {
  ask(t("new-target"), {
    text: t("target-text"),
    fields: [
      { name: "name", label: t("name"), required: true },
      { name: "url", label: t("url"), required: true, hint: "https://shop.example/hook" },
      { name: "secrets", label: t("secrets"), type: "area", hint: "whsec_…" },
      { name: "networks", label: t("networks"), value: "public" },
    ],
    act: async ({ name, url, secrets, networks }) => run(async () => {
      let taken = true;
      try { await get(pathOf(name.trim())); } catch (error) { if (error.status !== 404) throw error; taken = false; }
      if (taken) throw new Error(t("target-taken", { name: name.trim() }));
      const allowed = networks.split(",").map((one) => one.trim()).filter(Boolean);
      return call("PUT", pathOf(name.trim()), { url: url.trim(), secrets: lines(secrets), ...(allowed.length > 0 ? { networks: allowed } : {}) });
    }, (made) => t("target-made", { name: made.name }), () => call("DELETE", pathOf(name.trim()))),
  });
}

function pause(one) {
  const undo = () => call("POST", `${pathOf(one.name)}/resume`, {});
  ask(t("pause"), {
    text: t("target-pause-text"), fields: [{ name: "reason", label: t("reason") }],
    act: ({ reason }) => run(() => call("POST", `${pathOf(one.name)}/pause`, reason.trim() ? { reason: reason.trim() } : {}), t("target-is-paused"), undo),
  });
}

const resume = (one) => run(() => call("POST", `${pathOf(one.name)}/resume`, {}), t("target-is-resumed"),
  () => call("POST", `${pathOf(one.name)}/pause`, { reason: one.reason }));

function test(one) {
  ask(t("send-test"), {
    text: t("send-test-text"), word: t("send-test"),
    act: () => run(async () => {
      const came = await call("POST", `${pathOf(one.name)}/test`, {});
      if (!came.delivered) throw new Error(t("test-failed", { class: came.class, answer: came.answer }));
      return came;
    }, (came) => t("test-taken", { class: came.class, ms: came.ms })),
  });
}

function deliver(one) {
  ask(t("deliver-queue"), {
    text: t("deliver-queue-text", { name: one.name }), fields: [{ name: "queue", label: t("queue"), required: true }],
    act: async ({ queue }) => {
      const path = `/v1/queues/${encodeURIComponent(queue.trim())}/config`;
      let before = null;
      return run(async () => {
        before = (await get(path)).config.target ?? null;
        return call("PATCH", path, { target: one.name });
      }, t("settings-saved"), () => call("PATCH", path, { target: before }));
    },
  });
}

function remove(one) {
  // Its secrets are not shown, so it cannot be made again from here.
  ask(t("remove"), { text: t("target-remove-text", { name: one.name }), danger: true, word: t("remove"), act: () => run(() => call("DELETE", pathOf(one.name)), t("target-removed")) });
}

// ----- pages -----

// The newest attempts of the node that answers, each with its message.
function latest(attempts) {
  const titles = [[t("time")], [t("queue"), "key"], [t("message")], [t("attempt"), "n"], [t("took"), "n"], [t("how")], [t("answer"), "key"]];
  return table(t("latest-attempts"), titles, attempts.map((one) => [
    when(one.at), queueLink(one.queue), may("cancel") ? el("a", { href: `#/messages/${one.message}`, "data-name": `message-${one.message}-${one.attempt}` }, one.message) : one.message,
    count(one.attempt), `${count(one.ms)} ms`, one.class, one.answer,
  ]));
}

export function targets(root, { after }, live) {
  const list = el("div", {});
  root.append(el("h1", {}, t("targets")), card(null, el("div", { class: "bar" }, el("button", { "data-name": "new-target", onclick: create }, t("new-target"))), list));
  live.every(3_000, async () => {
    const page = await get(`/v1/targets?limit=200${after ? `&after=${encodeURIComponent(after)}` : ""}`, live.signal);
    show(list, page.targets.length === 0 ? el("p", { class: "soft" }, t("no-targets"))
      : table(t("targets"), [[t("name"), "key"], [t("url"), "key"], [t("queues"), "key"], [t("state")], [t("reason")]], page.targets.map((one) => [
        link(one.name), one.url ?? "–", links(one.delivers), signs(one), one.error ?? one.reason ?? "–",
      ])),
    page.next && el("a", { href: `#/targets?after=${encodeURIComponent(page.next)}` }, t("more")));
  });
}

export function target(root, { name }, live) {
  const place = el("div", {});
  root.append(el("h1", {}, name), place);
  live.every(3_000, async () => {
    let one;
    try {
      one = await get(pathOf(name), live.signal);
    } catch (error) {
      if (error.status !== 404) throw error;
      show(place, card(null, el("p", {}, t("no-target"))));
      return;
    }
    const settings = Object.entries(one).filter(([field, value]) => !FIGURES.includes(field) && value !== null && value !== "" && !(Array.isArray(value) && value.length === 0));
    show(place,
      el("div", { class: "bar" }, signs(one),
        !one.error && el("button", { "data-name": "test", onclick: () => test(one) }, t("send-test")),
        !one.error && el("button", { "data-name": "deliver", onclick: () => deliver(one) }, t("deliver-queue")),
        one.url && el("button", { "data-name": "pause", onclick: () => (one.state === "paused" ? resume(one) : pause(one)) }, t(one.state === "paused" ? "resume" : "pause")),
        el("button", { "data-name": "remove", class: "danger", onclick: () => remove(one) }, t("remove"))),
      one.error && card(t("not-usable"), el("p", {}, one.error)),
      one.reason && card(t("reason"), el("p", {}, one.reason), one.since && el("p", { class: "soft" }, when(one.since))),
      one.counts && card(t("on-this-node"), figures(Object.entries(one.counts).map(([what, n]) => [t(`push-${what}`), count(n)]))),
      card(t("queues"), el("p", {}, links(one.delivers))),
      one.attempts && card(t("latest-attempts"), latest(one.attempts)),
      card(t("settings"), pairs([[t("created-at"), when(one.created_at)], ...settings.map(([field, value]) => [field, setting(field, value)])])));
  });
}
