// Tables of queues and of messages, which several pages have.

import { get, may, mayAll, queryOf } from "./api.js";
import { badge, el, soft, table } from "./dom.js";
import { attempts, both, brief, bytes, count, pace, rate, span } from "./format.js";
import { t } from "./words.js";

export const queueLink = (name, rest = "") => el("a", { href: `#/queues/${encodeURIComponent(name)}${rest}`, "data-name": `queue-${name}${rest}` }, name);

// What is known of all targets and quotas, for the state of queues; each only to those who may see it.
export async function context(signal) {
  const [targets, quotas] = await Promise.all([
    mayAll("admin") ? get("/v1/targets?limit=1000", signal).then((page) => page.targets) : [],
    may("metrics") ? get("/v1/quotas", signal).then((page) => page.quotas) : [],
  ]);
  return { targets, quotas };
}
export const nothingKnown = { targets: [], quotas: [] };
// Why a target takes nothing, or how it answered: a status is its number.
export const becauseOf = (reason) => reason?.replace(/^status_/, "") ?? "–";
export const targetOf = (name, { targets }) => targets.find((one) => one.delivers.includes(name));

const RESOURCES = [["messages", "messages"], ["bytes", "bytes"], ["leases", "leased"], ["enqueues_per_second", "enqueues"]];
export const fullest = (quota) => RESOURCES.map(([field, word]) => ({ word, ...quota?.[field] })).filter(({ limit }) => limit).sort((a, b) => b.used / b.limit - a.used / a.limit)[0];

// The state of a queue with its cause, the worst there is: [kind, words, rank].
export function stateOf(queue, known = nothingKnown) {
  const target = targetOf(queue.queue, known);
  const full = fullest(quotaOf(queue.queue, known.quotas));
  if (queue.paused) return ["warn", queue.pause_left_ms ? t("paused-left", { span: span(queue.pause_left_ms) }) : t("paused"), 3];
  if (target && target.state !== "active") return [target.state === "open" ? "bad" : "warn", t(`chip-${target.state}`, { name: target.name }), 4];
  if (queue.counts.ready > 0 && !queue.attended) return ["bad", t("unattended"), 5];
  if (full && full.used >= full.limit) return ["bad", t("over-quota"), 2];
  if (queue.oldest_overdue_ms > 60_000) return ["bad", t("overdue", { span: span(queue.oldest_overdue_ms) }), 6];
  if (queue.counts.ready + queue.counts.leased > 0 || queue.rates.granted > 0) return ["good", t("working"), 1];
  return ["", t("idle"), 0];
}
export const chip = (queue, known) => { const [kind, words] = stateOf(queue, known); return badge(words, `chip ${kind}`); };

// Nothing is there: dim, and on a phone left out.
const nothing = () => el("span", { class: "zero" }, "–");

// What limits the grants of a queue.
function limitsOf({ rate: most, catchup_rate: overdue, concurrency }) {
  const said = [most && pace(most.per_second), overdue && t("limit-overdue", { rate: pace(overdue) }), concurrency && t("limit-leased", { n: count(concurrency) })];
  return said.filter(Boolean).join(", ") || nothing();
}

// How much of its quota is used up: the fullest resource as a bar, all of them in words.
export function quotaBar(quota) {
  const full = fullest(quota);
  if (!full) return nothing();
  const said = RESOURCES.filter(([field]) => quota[field].limit !== null).map(([field, word]) => `${t(word)} ${count(quota[field].used)} / ${count(quota[field].limit)}`);
  return el("span", { class: "quota", title: `${quota.prefix}: ${said.join(", ")}` },
    el("meter", { min: 0, max: full.limit, high: full.limit * 0.9, value: Math.min(full.used, full.limit), "aria-label": t("quota-used", { prefix: quota.prefix }) }), `${brief(full.used)} / ${brief(full.limit)}`, full.word !== "messages" && ` ${t(full.word)}`);
}

// A number in a table: nothing is dim, and what is bad has its colour.
export const number = (n, kind, text = brief(n)) => el("span", { class: n === 0 ? "zero" : kind }, text);

// By what queues are sorted: a value of each.
const BY = {
  queue: (queue) => queue.queue, state: (queue, known) => stateOf(queue, known)[2], scheduled: (queue) => queue.counts.scheduled, ready: (queue) => queue.counts.ready, leased: (queue) => queue.counts.leased,
  dead: (queue) => queue.counts.dead, overdue: (queue) => queue.oldest_overdue_ms, enqueued: (queue) => queue.rates.enqueued, granted: (queue) => queue.rates.granted, acked: (queue) => queue.rates.acked,
};
export function sorted(queues, { by, down }, known) {
  const value = BY[by] ?? BY.queue;
  const order = (a, b) => { const [x, y] = [value(a, known), value(b, known)]; return x < y ? -1 : x > y ? 1 : 0; };
  return [...queues].sort((a, b) => (down ? order(b, a) : order(a, b)) || (a.queue < b.queue ? -1 : 1));
}

// Queues; those of a server with quotas have a column for them, and those of which it is known a line of the last hour.
export function queueTable(queues, caption, known, { sort, lineOf } = {}) {
  const column = (word, kind) => [t(word === "overdue" ? "oldest-overdue" : word), kind, word];
  const titles = [column("queue", "key name"), column("state"), column("scheduled", "n"), column("ready", "n"), column("leased", "n"), column("dead", "n"), column("overdue", "n"), column("enqueued", "n"), column("granted", "n"), column("acked", "n"),
    ...(lineOf ? [[t("last-hour"), "spark"]] : []), ...(known.quotas.length > 0 ? [[t("quota")]] : []), [t("limits"), "some"]];
  return table(caption, titles, queues.map((queue) => [
    queueLink(queue.queue), chip(queue, known), number(queue.counts.scheduled), number(queue.counts.ready, queue.attended ? "" : "warn"), number(queue.counts.leased), number(queue.counts.dead, "bad"),
    queue.oldest_overdue_ms > 0 ? number(1, queue.oldest_overdue_ms > 60_000 ? "bad" : "", span(queue.oldest_overdue_ms)) : nothing(),
    ...["enqueued", "granted", "acked"].map((name) => number(queue.rates[name], "", rate(queue.rates[name]))),
    ...(lineOf ? [lineOf(queue.queue)] : []), ...(known.quotas.length > 0 ? [quotaBar(quotaOf(queue.queue, known.quotas))] : []), limitsOf(queue.config),
  ]), { cards: true, sort });
}

export function quotaTable(quotas) {
  const use = ({ limit, used, refused }, said = count) => `${said(used)} / ${limit === null ? "∞" : said(limit)}${refused > 0 ? ` (${t("refused", { n: count(refused) })})` : ""}`;
  return table(t("quotas"), [[t("prefix"), "key"], [t("messages"), "n"], [t("bytes"), "n"], [t("leased"), "n"], [t("enqueues"), "n"]],
    quotas.map((one) => [one.prefix, use(one.messages), use(one.bytes, bytes), use(one.leases), use(one.enqueues_per_second)]));
}

// The quota of a queue: of those whose prefix its name has, the one with the longest.
export const quotaOf = (name, quotas) => quotas.filter(({ prefix }) => name.startsWith(prefix)).sort((a, b) => b.prefix.length - a.prefix.length)[0];

// What is said of all queues, with `none` where there are none such. Where not all were looked at it is no all-clear.
export function ofAll({ queues, more }, some, none) {
  return [
    some.length === 0 && el("p", { class: more ? "soft" : "well" }, more ? t("none-of-these") : none),
    more && el("p", {}, badge(t("first-queues", { n: count(queues.length) }), "warn")),
  ];
}
// The link to the next page of a list.
export const moreOf = (path, after) => after && el("a", { href: `#${path}${queryOf({ after })}` }, t("more"));
export const shownOf = (n, all) => all > n && soft(t("shown-of", { n: count(n), all: count(all) }));
// How soon all queues are looked at again: many of them seldom.
export const again = ({ queues }) => (queues.length > 1_000 ? 15_000 : 3_000);

export const KINDS = { scheduled: "", ready: "warn", leased: "good", dead: "bad" };
export const stateBadge = (message) => badge(t(message.state === "done" ? `done-${message.outcome}` : message.state), KINDS[message.state]);
// A message has a page for those who may see one by its id.
const messageLink = (message) => !may("cancel") ? message.id : el("a", { href: `#/messages/${message.id}`, "data-name": `message-${message.id}` }, message.id);
const beginning = (text) => (text.length > 60 ? `${text.slice(0, 60)}…` : text);
const content = (message) => message.body ?? t("binary", { n: message.body_base64?.length ?? 0 });

// An instant in a table: how far away, and when.
export const twoParts = (main, other) => [el("span", {}, main), el("small", {}, other)];
export const whenCell = (text) => twoParts(...both(text));

// Messages; `choose` is {chosen, change, acts}: some of them can be chosen, and each has acts of its own.
export function messageTable(messages, caption, choose) {
  const all = choose && el("input", { type: "checkbox", "aria-label": t("choose-all"), "data-name": "choose-all", checked: messages.length > 0 && messages.every(({ id }) => choose.chosen.has(id)), onchange: (event) => choose.change(messages, event.target.checked) });
  const titles = [[t("id"), "name"], [t("key"), "key"], [t("state")], [t("due"), "when"], [t("attempt"), "n"], [t("set-body"), "key body"]];
  return table(caption, choose ? [[all, "box"], ...titles, [t("act"), "acts"]] : titles, messages.map((message) => {
    const row = [messageLink(message), message.key ?? "–", stateBadge(message), whenCell(message.due_at), `${message.attempt}/${attempts(message.max_attempts)}`, beginning(content(message))];
    if (!choose) return row;
    const box = el("input", { type: "checkbox", "aria-label": t("choose", { id: message.id }), "data-name": `choose-${message.id}`, checked: choose.chosen.has(message.id), onchange: (event) => choose.change([message], event.target.checked) });
    return [box, ...row, el("span", { class: "row-acts" }, choose.acts(message))];
  }), { cards: true });
}
