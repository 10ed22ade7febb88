// What needs somebody: each line a cause and its acts, the worst first; one line if there is nothing.

import * as acts from "./acts.js";
import { may, mayList } from "./api.js";
import { badge, card, el } from "./dom.js";
import { brief, clock, count, span } from "./format.js";
import { causesOf } from "./stack.js";
import { becauseOf, fullest, ofAll, queueLink, quotaOf, shownOf, targetOf } from "./tables.js";
import { pauseTarget, resumeTarget, testTarget } from "./targets.js";
import { t } from "./words.js";

const [SHOWN, MOST] = [8, 200];
const button = (name, word, onclick) => el("button", { "data-name": name, onclick }, t(word));
const link = (href, word) => el("a", { href, "data-name": `${word}-${href}` }, t(word));

// The cause of one queue: {rank, kind, of, why, acts}; null if it is well.
function causeOf(queue, known) {
  const { queue: name, counts, paused, attended, oldest_overdue_ms: overdue } = queue;
  const path = `#/queues/${encodeURIComponent(name)}`;
  const quota = quotaOf(name, known.quotas);
  const full = fullest(quota);
  const open = link(path, "look-at");
  if (paused) {
    const why = queue.pause_left_ms ? t("why-paused-left", { n: brief(counts.ready), span: span(queue.pause_left_ms) }) : t("why-paused", { n: brief(counts.ready) });
    return { rank: overdue > 0 ? 3 : 2, kind: "warn", why, acts: [may("admin") && button(`resume-${name}`, "resume", () => acts.resume(name)), open] };
  }
  if (counts.ready > 0 && !attended && !targetOf(name, known)) {
    return { rank: 5, kind: "bad", why: t("why-unattended", { n: brief(counts.ready), span: span(overdue) }), acts: [open, may("admin") && button(`pause-${name}`, "pause", () => acts.pause(name))] };
  }
  if (overdue > 60_000) return { rank: 4, kind: "bad", why: t("why-overdue", { n: brief(counts.ready), span: span(overdue), leased: brief(counts.leased) }), acts: [open] };
  if (full && full.used >= full.limit) return { rank: 3, kind: "warn", why: t("why-quota", { prefix: quota.prefix, word: t(full.word).toLowerCase(), limit: count(full.limit) }), acts: [open] };
  if (counts.dead > 0) return { rank: 1, kind: "bad", why: t("why-dead", { n: brief(counts.dead) }), acts: [mayList() ? link(`#/dead/${encodeURIComponent(name)}`, "dead-letters") : open] };
  return null;
}

// A target that does not take messages, with the queues that wait for it.
function causeOfTarget(target, queues) {
  if (target.state === "active" && !target.error) return null;
  const of = queues.filter(({ queue }) => target.delivers.includes(queue));
  const why = t(target.error ? "why-target-error" : `why-target-${target.state}`, {
    name: target.name, why: target.error ?? becauseOf(target.reason), since: target.since ? clock(Date.parse(target.since)) : "–", n: brief(of.reduce((sum, { counts }) => sum + counts.ready, 0)),
  });
  return { rank: target.state === "open" || target.error ? 7 : 3, kind: target.state === "open" || target.error ? "bad" : "warn", of: of.map(({ queue }) => queue), at: `#/targets/${encodeURIComponent(target.name)}`, name: target.name, why, acts: [
    !target.error && button(`test-${target.name}`, "send-test", () => testTarget(target)),
    !target.error && (target.state === "paused" ? button(`resume-target-${target.name}`, "resume", () => resumeTarget(target)) : button(`pause-target-${target.name}`, "pause", () => pauseTarget(target))),
  ] };
}

// The card for these queues; `found` says whether all were looked at.
export function attention(found, known) {
  const ofTargets = known.targets.map((target) => causeOfTarget(target, found.queues)).filter(Boolean);
  const delivered = new Set(ofTargets.flatMap(({ of }) => of));
  const ofQueues = found.queues.filter(({ queue, paused }) => paused || !delivered.has(queue)).map((queue) => { const cause = causeOf(queue, known); return cause && { ...cause, of: [queue.queue] }; }).filter(Boolean);
  const all = [...ofTargets, ...ofQueues, ...causesOf(known)].sort((a, b) => b.rank - a.rank);
  const lines = (some) => el("ul", { class: "causes" }, some.map(({ kind, of, at, name, why, acts: offered }) => el("li", { class: kind },
    el("span", { class: "of" }, of.length > 0 ? of.slice(0, 3).map((queue, n) => [n > 0 && ", ", queueLink(queue)]) : el("a", { href: at, "data-name": `cause-${name}` }, name), of.length > 3 && badge(`+${of.length - 3}`)),
    el("span", { class: "why" }, why), el("span", { class: "bar" }, offered))));
  const rest = all.slice(SHOWN, MOST);
  return card(t("attention"), ofAll(found, all, t("all-well", { n: count(found.queues.length) })), all.length > 0 && lines(all.slice(0, SHOWN)),
    rest.length > 0 && el("details", { class: "data", "data-name": "causes" }, el("summary", { "data-name": "causes-summary" }, t("more-n", { n: count(all.length - SHOWN) })), lines(rest), shownOf(SHOWN + rest.length, all.length)));
}
