// The first page: the ring, what is due when, rates and lateness, live.

import { allQueues, get, mayAll } from "./api.js";
import { lines, ring } from "./charts.js";
import { card, el, figures, show } from "./dom.js";
import { brief, bytes, count, rate, span } from "./format.js";
import { again, ofAll, queueTable, shownOf } from "./tables.js";
import { t } from "./words.js";
import { zoomable } from "./zoom.js";

const late = (ms) => (ms === undefined ? "–" : ms === 0 ? t("on-time") : `≤ ${span(ms)}`);

export function overview(root, drawn, live) {
  const top = el("div", {});
  const drawings = el("div", {});
  const rates = el("div", {});
  const queues = el("div", {});
  root.append(el("h1", {}, t("overview")), top);
  if (mayAll("metrics")) {
    root.append(el("div", { class: "grid" }, card(t("ring"), drawings), el("div", {}, card(t("due-when"), zoomable("/v1/histogram", live, drawn)), card(t("rates"), rates))));
    let series;
    const newest = (name) => series?.[name].findLast((value) => value !== null);
    live.every(10_000, async () => {
      const history = await get("/v1/history", live.signal);
      ({ series } = history);
      // The last step is not over.
      const known = series.enqueued.slice(0, -1).flatMap((value, step) => (value === null ? [] : [step]));
      const speed = (name) => known.map((step) => series[name][step] * 1_000 / history.step_ms);
      const from = Date.parse(history.from);
      show(rates, lines([[t("enqueued"), speed("enqueued")], [t("granted"), speed("granted")], [t("acked"), speed("settled")]], known.map((step) => from + step * history.step_ms), rate));
    });
    live.stream("/v1/stats/stream", (stats) => {
      const { counts } = stats;
      show(top, figures([
        [t("scheduled"), brief(counts.scheduled)], [t("ready"), brief(counts.ready)], [t("leased"), brief(counts.leased)], [t("dead"), brief(counts.dead)],
        [t("lateness-p50"), late(newest("lateness_p50_ms"))], [t("lateness-p99"), late(newest("lateness_p99_ms"))],
        [t("queues"), brief(stats.queues)], [t("waiters"), brief(stats.waiters)], [t("stored"), bytes(stats.bytes)],
      ]));
      show(drawings, ring(stats));
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
