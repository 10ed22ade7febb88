// The first page: the ring, what is due when, rates and lateness, live.

import { allQueues, mayAll } from "./api.js";
import { lines, ring } from "./charts.js";
import { card, el, figures, show } from "./dom.js";
import { brief, bytes, count, rate, span } from "./format.js";
import { again, ofAll, queueTable, shownOf } from "./tables.js";
import { t } from "./words.js";
import { zoomable } from "./zoom.js";

const SAMPLES = 120;

// The share of grants in the last samples that were at most so late, as the edge of a column.
function percentile(columnsOf, edges, part) {
  const total = columnsOf.reduce((sum, n) => sum + n, 0);
  if (total === 0) return null;
  let sum = 0;
  for (const [n, value] of columnsOf.entries()) {
    sum += value;
    if (sum >= part * total) return edges[n] ?? Infinity;
  }
  return Infinity;
}

const late = (ms) => (ms === null ? "–" : ms === Infinity ? t("over", { span: span(3_600_000) }) : ms === 0 ? t("on-time") : `≤ ${span(ms)}`);

// The lateness of what was granted while these samples were taken. The counts begin anew with a server that has started since
// the first of them: then what it has counted is all of it.
function latenessIn(samples) {
  const countsOf = (one) => one.lateness.counts;
  const starts = samples.findLastIndex((one, n) => n > 0 && countsOf(one).some((count, k) => count < (countsOf(samples[n - 1])[k] ?? 0)));
  const before = starts > 0 ? [] : countsOf(samples[0]);
  return countsOf(samples.at(-1)).map((count, k) => count - (before[k] ?? 0));
}

export function overview(root, drawn, live) {
  const top = el("div", {});
  const drawings = el("div", {});
  const rates = el("div", {});
  const queues = el("div", {});
  root.append(el("h1", {}, t("overview")), top);
  if (mayAll("metrics")) {
    root.append(el("div", { class: "grid" }, card(t("ring"), drawings), el("div", {}, card(t("due-when"), zoomable("/v1/histogram", live, drawn)), card(t("rates"), rates))));
    const seen = [];
    live.stream("/v1/stats/stream", (stats) => {
      seen.push(stats);
      if (seen.length > SAMPLES + 1) seen.shift();
      const speed = (name) => seen.slice(1).map((one, n) => {
        const seconds = (Date.parse(one.at) - Date.parse(seen[n].at)) / 1_000;
        return seconds > 0 ? Math.max(0, one.totals[name] - seen[n].totals[name]) / seconds : 0;
      });
      const recent = latenessIn(seen);
      const window = recent.some((n) => n > 0) ? recent : stats.lateness.counts;
      const { counts } = stats;
      show(top, figures([
        [t("scheduled"), brief(counts.scheduled)], [t("ready"), brief(counts.ready)], [t("leased"), brief(counts.leased)], [t("dead"), brief(counts.dead)],
        [t("lateness-p50"), late(percentile(window, stats.lateness.edges_ms, 0.5))], [t("lateness-p99"), late(percentile(window, stats.lateness.edges_ms, 0.99))],
        [t("queues"), brief(stats.queues)], [t("waiters"), brief(stats.waiters)], [t("stored"), bytes(stats.bytes)],
      ]));
      show(drawings, ring(stats));
      show(rates, lines([[t("enqueued"), speed("enqueued")], [t("granted"), speed("granted")], [t("acked"), speed("acked")]], seen.slice(1).map((one) => Date.parse(one.at)), rate));
    });
  } else {
    top.append(el("p", { class: "soft" }, t("no-metrics")));
  }
  root.append(card(t("overdue-queues"), queues));
  live.every(3_000, async () => {
    const found = await allQueues(live.signal);
    const some = found.queues.filter((one) => one.oldest_overdue_ms > 0 || one.counts.dead > 0 || one.paused)
      .sort((a, b) => b.oldest_overdue_ms - a.oldest_overdue_ms);
    const worst = some.slice(0, 8);
    show(queues, ofAll(found, some, t("all-well", { n: count(found.queues.length) })), worst.length > 0 && queueTable(worst, t("overdue-queues")), shownOf(worst.length, some.length));
    return again(found);
  });
}
