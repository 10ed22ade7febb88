// Other systems: databases with an outbox, and bridges to brokers.

import { ask, perform, run } from "./acts.js";
import { call, get } from "./api.js";
import { badge, card, el, table } from "./dom.js";
import { count, span } from "./format.js";
import { queueLink } from "./tables.js";
import { t } from "./words.js";

const STATES = { running: "good", standby: "", open: "bad", paused: "warn" };
const act = (one, word) => (words) => call("POST", `/v1/bridges/${encodeURIComponent(one.name)}/${word}`, words);

function pause(one) {
  ask(t("pause"), { text: t("bridge-pause-text"), fields: [{ name: "reason", label: t("reason") }],
    act: ({ reason }) => perform(() => act(one, "pause")(reason.trim() ? { reason: reason.trim() } : {}), t("bridge-is-paused"), act(one, "resume")) });
}
const resume = (one) => run(act(one, "resume"), t("bridge-is-resumed"), () => act(one, "pause")({ reason: one.reason }));
const button = (one) => el("button", { "data-name": `bridge-${one.name}`, onclick: () => (one.state === "paused" ? resume(one) : pause(one)) }, t(one.state === "paused" ? "resume" : "pause"));
const numbers = (all) => all.map((n) => count(n));

// Those that cannot be read, because a shard is away, hide nothing else.
export const bridges = (signal) => get("/v1/bridges", signal).then((answer) => answer.bridges, () => []);

export function bridgeCard(all) {
  return all.length > 0 && card(t("bridges"), table(t("bridges"), [[t("name"), "key"], [t("state")], [t("queue"), "key"], ...["oldest-overdue", "taken-in", "sent-out", "set-aside", "duplicates"].map((word) => [t(word), "n"]), [t("act"), "acts"]],
    all.map((one) => [one.name, [badge(t(`bridge-${one.state}`), STATES[one.state]), " ", one.last_error ?? one.reason], queueLink(one.queue), one.lag_ms > 0 ? span(one.lag_ms) : "–",
      ...numbers([one.counts.in, one.counts.out, one.counts.rejected, one.counts.duplicates]), button(one)]), { cards: true }));
}

export function databaseCard(all) {
  return all.length > 0 && card(t("databases"), table(t("databases"), [[t("name"), "key"], [t("state")], [t("rows-waiting"), "n"], [t("oldest-row"), "n"], [t("set-aside"), "n"]],
    all.map((one) => [one.name, [badge(t(one.up ? "database-up" : "database-away"), one.up ? "good" : "bad"), " ", one.last_error], ...numbers([one.waiting]), one.waiting > 0 ? span(one.oldest_ms) : "–", ...numbers([one.rejected])]), { cards: true }));
}

// What needs somebody among them, as lines of `attention`.
export function causesOf({ bridges: known, databases }) {
  const line = (name, why, acts = []) => ({ rank: 7, kind: "bad", of: [], at: "#/server", name, why, acts });
  return [
    ...databases.filter(({ up }) => !up).map((one) => line(one.name, t("why-database", { why: one.last_error ?? "–" }))),
    ...known.filter(({ state }) => state === "open").map((one) => line(one.name, t("why-bridge", { why: one.last_error ?? "–" }), [button(one)])),
    ...known.filter(({ state }) => state === "paused").map((one) => ({ ...line(one.name, t("why-bridge-paused", { why: one.reason }), [button(one)]), rank: 3, kind: "warn" })),
  ];
}
