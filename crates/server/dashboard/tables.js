// Tables of queues and of messages, which several pages have.

import { may } from "./api.js";
import { badge, el, table } from "./dom.js";
import { attempts, away, brief, count, pace, rate, span, when } from "./format.js";
import { t } from "./words.js";

export const queueLink = (name, rest = "") => el("a", { href: `#/queues/${encodeURIComponent(name)}${rest}`, "data-name": `queue-${name}${rest}` }, name);

export function signs(queue) {
  return [
    queue.paused && badge(t("paused"), "warn"),
    queue.counts.ready > 0 && !queue.attended && badge(t("unattended"), "bad"),
    queue.oldest_overdue_ms > 60_000 && badge(t("overdue", { span: span(queue.oldest_overdue_ms) }), "bad"),
  ].filter(Boolean);
}

// What limits the grants of a queue.
function limitsOf({ rate: most, catchup_rate: overdue, concurrency }) {
  const said = [most && pace(most.per_second), overdue && t("limit-overdue", { rate: pace(overdue) }), concurrency && t("limit-leased", { n: count(concurrency) })];
  return said.filter(Boolean).join(", ") || "–";
}

// How much of its quota is used up, of each resource that has a limit.
function quotaUse(quota) {
  if (!quota) return "–";
  const said = [["messages", "messages"], ["bytes", "bytes"], ["leases", "leased"], ["enqueues_per_second", "enqueues"]]
    .filter(([field]) => quota[field].limit !== null).map(([field, word]) => `${t(word)} ${count(quota[field].used)} / ${count(quota[field].limit)}`);
  return `${quota.prefix}: ${said.join(", ")}`;
}

// Queues; those of a server with quotas have a column for them.
export function queueTable(queues, caption, quotas = []) {
  const titles = [[t("queue"), "key"], [t("scheduled"), "n"], [t("ready"), "n"], [t("leased"), "n"], [t("dead"), "n"], [t("oldest-overdue"), "n"], [t("enqueued"), "n"], [t("granted"), "n"], [t("acked"), "n"], [t("state")], [t("limits"), "some"]];
  return table(caption, quotas.length > 0 ? [...titles, [t("quota"), "some"]] : titles, queues.map((queue) => [
    queueLink(queue.queue), brief(queue.counts.scheduled), brief(queue.counts.ready), brief(queue.counts.leased), brief(queue.counts.dead),
    queue.oldest_overdue_ms > 0 ? span(queue.oldest_overdue_ms) : "–", rate(queue.rates.enqueued), rate(queue.rates.granted), rate(queue.rates.acked), signs(queue), limitsOf(queue.config),
    ...(quotas.length > 0 ? [quotaUse(quotaOf(queue.queue, quotas))] : []),
  ]));
}

export function quotaTable(quotas) {
  const use = ({ limit, used, refused }) => `${count(used)} / ${limit === null ? "∞" : count(limit)}${refused > 0 ? ` (${t("refused", { n: count(refused) })})` : ""}`;
  return table(t("quotas"), [[t("prefix"), "key"], [t("messages"), "n"], [t("bytes"), "n"], [t("leased"), "n"], [t("enqueues"), "n"]],
    quotas.map((one) => [one.prefix, use(one.messages), use(one.bytes), use(one.leases), use(one.enqueues_per_second)]));
}

// The quota of a queue: of those whose prefix its name has, the one with the longest.
export const quotaOf = (name, quotas) => quotas.filter(({ prefix }) => name.startsWith(prefix)).sort((a, b) => b.prefix.length - a.prefix.length)[0];

// What is said of all queues, with `none` where there are none such. Where not all were looked at it is no all-clear.
export function ofAll({ queues, more }, some, none) {
  return [
    some.length === 0 && el("p", { class: "soft" }, more ? t("none-of-these") : none),
    more && el("p", {}, badge(t("first-queues", { n: count(queues.length) }), "warn")),
  ];
}
export const shownOf = (n, all) => all > n && el("p", { class: "soft" }, t("shown-of", { n: count(n), all: count(all) }));
// How soon all queues are looked at again: many of them seldom.
export const again = ({ queues }) => (queues.length > 1_000 ? 15_000 : 3_000);

export const KINDS = { scheduled: "", ready: "warn", leased: "good", dead: "bad" };
export const stateBadge = (message) => badge(t(message.state === "done" ? `done-${message.outcome}` : message.state), KINDS[message.state]);
// A message has a page for those who may see one by its id.
const messageLink = (message) => !may("cancel") ? message.id : el("a", { href: `#/messages/${message.id}`, "data-name": `message-${message.id}` }, message.id);
const beginning = (text) => (text.length > 60 ? `${text.slice(0, 60)}…` : text);
const content = (message) => message.body ?? t("binary", { n: message.body_base64?.length ?? 0 });

export function messageTable(messages, caption) {
  return table(caption, [[t("id")], [t("key"), "key"], [t("state")], [t("due")], [t("attempt"), "n"], [t("body"), "key"]], messages.map((message) => [
    messageLink(message), message.key ?? "–", stateBadge(message),
    message.due_in_ms > 0 ? away(message.due_in_ms) : when(message.due_at), `${message.attempt}/${attempts(message.max_attempts)}`, beginning(content(message)),
  ]));
}
