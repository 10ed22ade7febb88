// All targets, and one target: what it does, what it is set to, and which queues are delivered to it.

import { ask, mustBeFree, perform, run } from "./acts.js";
import { call, find, get, may, queryOf } from "./api.js";
import { badge, card, el, figures, pairs, show, soft, table } from "./dom.js";
import { clock, count, setting, span, when } from "./format.js";
import { becauseOf, moreOf, queueLink, whenCell } from "./tables.js";
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
      { name: "url", label: t("set-url"), required: true, hint: "https://shop.example/hook" },
      { name: "secrets", label: t("secrets"), type: "area", hint: "whsec_…" },
      { name: "networks", label: t("networks"), value: "public" },
    ],
    act: ({ name, url, secrets, networks }) => perform(async () => {
      await mustBeFree(pathOf(name.trim()), t("target-taken", { name: name.trim() }));
      const allowed = networks.split(",").map((one) => one.trim()).filter(Boolean);
      return call("PUT", pathOf(name.trim()), { url: url.trim(), secrets: lines(secrets), ...(allowed.length > 0 ? { networks: allowed } : {}) });
    }, (made) => t("target-made", { name: made.name }), () => call("DELETE", pathOf(name.trim()))),
  });
}

export function pauseTarget(one) {
  const undo = () => call("POST", `${pathOf(one.name)}/resume`, {});
  ask(t("pause"), {
    text: t("target-pause-text"), fields: [{ name: "reason", label: t("reason") }],
    act: ({ reason }) => perform(() => call("POST", `${pathOf(one.name)}/pause`, reason.trim() ? { reason: reason.trim() } : {}), t("target-is-paused"), undo),
  });
}

export const resumeTarget = (one) => run(() => call("POST", `${pathOf(one.name)}/resume`, {}), t("target-is-resumed"),
  () => call("POST", `${pathOf(one.name)}/pause`, { reason: one.reason }));

// One test message; that the target does not take it is a result as any other, and stays to be read.
export function testTarget(one) {
  ask(t("send-test"), {
    text: t("send-test-text"), word: t("send-test"), dismiss: t("close"),
    act: async (_, ui) => {
      ui.say(t("send-test-text"), t("test-runs"));
      const came = await call("POST", `${pathOf(one.name)}/test`, {});
      ui.say(el("p", { role: "status" }, badge(t(came.delivered ? "test-taken" : "test-failed"), came.delivered ? "good" : "bad"), ` ${becauseOf(came.class)} · ${count(came.ms)} ms`), came.answer && el("pre", { tabindex: "0", "aria-label": t("answer") }, came.answer));
      ui.word(t("test-again"));
      document.dispatchEvent(new Event("changed"));
      return false;
    },
  });
}

function deliver(one) {
  ask(t("deliver-queue"), {
    text: t("deliver-queue-text", { name: one.name }), fields: [{ name: "queue", label: t("queue"), required: true }],
    act: async ({ queue }) => {
      const path = `/v1/queues/${encodeURIComponent(queue.trim())}/config`;
      let before = null;
      return perform(async () => {
        before = (await get(path)).config.target ?? null;
        return call("PATCH", path, { target: one.name });
      }, t("settings-saved"), () => call("PATCH", path, { target: before }));
    },
  });
}

function remove(one) {
  // Its secrets are not shown, so it cannot be made again from here.
  ask(t("remove"), { text: t("target-remove-text", { name: one.name }), danger: true, word: t("remove"), act: () => perform(() => call("DELETE", pathOf(one.name)), t("target-removed")) });
}

// ----- pages -----

const beginning = (text) => (text.length > 40 ? `${text.slice(0, 40)}…` : text);

// What its state is, since when, because of what.
const why = ({ reason }) => (reason ? t("because", { why: becauseOf(reason) }) : "");
const stateWords = (one) => (one.error ?? `${one.since ? t("since-at", { at: clock(Date.parse(one.since)) }) : ""}${why(one)}`) || "–";

// The share of attempts that it took, and how long it took to answer the latest ones.
function rates({ counts, attempts = [] }) {
  const tried = counts.delivered + counts.failed + counts.dead;
  const times = attempts.map(({ ms }) => ms).sort((a, b) => a - b);
  const part = (share) => (times.length === 0 ? "–" : span(times[Math.min(times.length - 1, Math.ceil(share * times.length) - 1)]));
  return [[t("success"), tried === 0 ? "–" : `${(Math.floor((counts.delivered / tried) * 1_000) / 10).toFixed(1)} %`], [t("answer-p50"), part(0.5)], [t("answer-p99"), part(0.99)]];
}

// The newest attempts of the node that answers, each with its message.
function latest(attempts) {
  const titles = [[t("time")], [t("queue"), "key"], [t("message")], [t("attempt"), "n"], [t("took"), "n"], [t("how")], [t("answer"), "key"]];
  return table(t("latest-attempts"), titles, attempts.map((one) => [
    whenCell(one.at), queueLink(one.queue), may("cancel") ? el("a", { href: `#/messages/${one.message}`, "data-name": `message-${one.message}-${one.attempt}` }, one.message) : one.message,
    count(one.attempt), `${count(one.ms)} ms`, badge(becauseOf(one.class), one.class.startsWith("status_2") ? "good" : "bad"), one.answer ? el("details", { "data-name": `answer-${one.message}-${one.attempt}` }, el("summary", { "data-name": `answer-${one.message}-${one.attempt}-summary` }, beginning(one.answer)), el("pre", {}, one.answer)) : "–",
  ]), { cards: true });
}

export function targets(root, { after }, live) {
  const list = el("div");
  root.append(el("div", { class: "head" }, el("h1", {}, t("targets")), el("button", { "data-name": "new-target", class: "main", onclick: create }, t("new-target"))), card(null, list));
  live.every(3_000, async () => {
    const page = await get(`/v1/targets${queryOf({ limit: 200, after })}`, live.signal);
    show(list, page.targets.length === 0 ? soft(t("no-targets"))
      : table(t("targets"), [[t("name"), "key"], [t("set-url"), "key"], [t("queues"), "key"], [t("state")], [t("reason"), "key"]], page.targets.map((one) => [
        link(one.name), one.url ?? "–", links(one.delivers), signs(one), stateWords(one),
      ]), { cards: true }),
    moreOf("/targets", page.next));
  });
}

export function target(root, { name }, live) {
  const place = el("div");
  root.append(el("h1", {}, name), place);
  live.every(3_000, async () => {
    const one = await find(pathOf(name), live.signal);
    if (!one) { show(place, card(null, el("p", {}, t("no-target")))); return; }
    const settings = Object.entries(one).filter(([field, value]) => !FIGURES.includes(field) && value !== null && value !== "" && !(Array.isArray(value) && value.length === 0));
    show(place,
      el("div", { class: "bar" }, signs(one),
        !one.error && el("button", { "data-name": "test", onclick: () => testTarget(one) }, t("send-test")),
        !one.error && el("button", { "data-name": "deliver", onclick: () => deliver(one) }, t("deliver-queue")),
        one.url && el("button", { "data-name": "pause", onclick: () => (one.state === "paused" ? resumeTarget(one) : pauseTarget(one)) }, t(one.state === "paused" ? "resume" : "pause")),
        el("button", { "data-name": "remove", class: "danger", onclick: () => remove(one) }, t("remove"))),
      one.error && card(t("not-usable"), el("p", {}, one.error)),
      one.state !== "active" && card(null, el("p", { class: "lead" }, `${t("state-since", { state: t(`target-${one.state}`), at: when(one.since) })}${why(one)}`)),
      one.counts && card(t("on-this-node"), figures([...rates(one), ...Object.entries(one.counts).map(([what, n]) => [t(`push-${what}`), count(n)])])),
      card(t("queues"), el("p", {}, links(one.delivers))),
      one.attempts && card(t("latest-attempts"), latest(one.attempts)),
      card(t("settings"), pairs([[t("created-at"), when(one.created_at)], ...settings.map(([field, value]) => [t(field === "concurrency" ? "requests-at-once" : `set-${field.replace(/_ms$/, "")}`), setting(field, value)])])));
  });
}
