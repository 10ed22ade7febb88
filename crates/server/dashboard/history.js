// What the server keeps of the last hour and of the last two days, drawn; the page keeps nothing of it.

import { note } from "./address.js";
import { get, may, queryOf } from "./api.js";
import { spark, timeline } from "./charts.js";
import { el, show, soft } from "./dom.js";
import { brief, decimal, rate, round, span } from "./format.js";
import { t } from "./words.js";

// How far back, in ms: the server has points of 10 s for the hour that it gives by itself, and of 5 min for two days. What its clock
// may be ahead of this one is left out.
const PASTS = { "1h": null, "48h": 48 * 3_600_000 - 300_000 };

const historyOf = (queue, past, signal) => get(`/v1/history${queryOf({ from: past && new Date(Date.now() - past).toISOString(), queue })}`, signal);

// On an axis a length of time is so many of one unit.
function late(ms, axis) {
  if (ms === 0) return "0";
  const [unit, size] = [["hour", 3_600_000], ["minute", 60_000]].find(([, size]) => axis && ms >= size) ?? [];
  return unit ? t(`unit-${unit}`, { n: decimal.format(ms / size) }) : span(ms);
}
// Each chart: its series, and how its values are written.
const CHARTS = {
  rates: (found) => {
    const minutes = found.step_ms >= 60_000;
    const size = found.step_ms / (minutes ? 60_000 : 1_000);
    const unit = (n, axis) => (axis ? round(n) : minutes ? `${brief(Math.round(n * 10) / 10)}/min` : rate(n));
    return { name: t(minutes ? "a-minute" : "a-second"), unit, series: ["enqueued", "granted", "settled", "dead"].map((name) => ({ name: t(name === "dead" ? "died" : name), values: (found.series[name] ?? []).map((n) => (n === null ? null : n / size)) })) };
  },
  lateness: (found) => ({ name: t("lateness"), unit: late, least: 10, times: true, series: [["p99", "lateness_p99_ms"], ["p50", "lateness_p50_ms"]].map(([name, of]) => ({ name, values: found.series[of] ?? [] })) }),
  waiting: (found) => ({ name: t("waiting"), unit: (n, axis) => (axis ? round(n) : brief(n)), least: 4, series: [{ name: t("ready"), values: found.series.ready ?? [] }] }),
};

// The charts of one queue, or of all with null.
export function history(live, queue, { past }, names) {
  const box = el("div");
  const held = Object.fromEntries(names.map((name) => [name, { at: null }]));
  const drawn = el("div", { class: "plots" });
  const choose = el("select", { "aria-label": t("past"), "data-name": "past", onchange: () => { note({ past: choose.value === "1h" ? "" : choose.value }); look(); } },
    Object.keys(PASTS).map((name) => el("option", { value: name, selected: name === past }, t(`past-${name}`))));
  async function look() {
    const found = await historyOf(queue, PASTS[choose.value], live.signal);
    const from = Date.parse(found.from);
    show(drawn, names.map((name) => timeline({ from, step: found.step_ms, ...CHARTS[name](found) }, held[name])), !found.complete && soft(t("history-part")));
    return Math.min(found.step_ms, 30_000);
  }
  box.append(el("div", { class: "bar" }, choose), drawn);
  live.every(10_000, look);
  return box;
}

// Small lines of the last hour for a table: those of the queues that are asked for, each once a minute, and of 40 at most.
export function sparks(live, drawn) {
  const kept = new Map();
  const wanted = new Set();
  let busy = !may("metrics");
  live.every(60_000, async () => {
    kept.clear();
    await more();
  });
  async function more() {
    if (busy) return;
    busy = true;
    try {
      let any = false;
      for (const queue of wanted) {
        if (kept.has(queue) || kept.size >= 40) continue;
        const found = await historyOf(queue, null, live.signal);
        const { granted = [] } = found.series;
        any = true;
        // Two minutes a point, or as many as the server's points have.
        const per = Math.max(1, Math.round(120_000 / found.step_ms));
        kept.set(queue, Array.from({ length: Math.ceil(granted.length / per) }, (_, n) => granted.slice(n * per, (n + 1) * per).reduce((sum, value) => sum + (value ?? 0), 0)));
      }
      if (any) drawn();
    } finally { busy = false; }
  }
  return {
    offered: () => kept.size > 0,
    of: (queue) => { const values = kept.get(queue); return values?.some((n) => n > 0) ? spark(values, t("spark-label", { n: brief(values.reduce((sum, n) => sum + n, 0)) })) : el("span", { class: "zero" }, "–"); },
    // Which queues are shown.
    want: (queues) => { wanted.clear(); for (const queue of queues) wanted.add(queue); more().catch(() => {}); },
  };
}
