// The first page: what needs somebody, the figures, the ring, the last hour, and what is due when.

import { attention } from "./attention.js";
import { allQueues, get, identity, mayAll, queryOf } from "./api.js";
import { ring } from "./charts.js";
import { card, command, el, figures, show, soft } from "./dom.js";
import { brief, bytes, span } from "./format.js";
import { history } from "./history.js";
import { bridges } from "./stack.js";
import { again, context } from "./tables.js";
import { t } from "./words.js";
import { zoomable } from "./zoom.js";

// The share of grants that were at most so late, as the edge of a column.
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

// A server without queues: the first commands, as they work here.
function firstCommands() {
  const server = location.port === "7788" ? "" : ` --server ${location.origin}`;
  const [program, bearer] = identity.open ? ["duewheel", ""] : ["DUEWHEEL_TOKEN=dw_… duewheel", " -H 'Authorization: Bearer dw_…'"];
  return card(t("first-steps"), soft(t("first-text")), el("ol", { class: "commands" }, [
    ["first-enqueue", `${program} enqueue greetings "hello" --delay 10s --key first${server}`],
    ["first-work", `${program} work greetings${server} -- cat`],
    ["first-curl", `curl ${location.origin}/v1/queues/greetings/messages${bearer} -d '{"body": "hello", "delay": "10s"}'`],
  ].map(([what, text]) => el("li", {}, t(what), command(text, t("copy"), t("copied"))))));
}

export function overview(root, drawn, live) {
  const [needs, top, first, rings] = [el("div"), el("div"), el("div"), el("div")];
  root.append(el("h1", {}, t("overview")), needs, top, first);
  if (mayAll("metrics")) {
    const graphics = el("div", { hidden: true },
      el("div", { class: "thirds" }, card(t("ring"), rings), card(t("flow"), history(live, null, drawn, ["rates", "lateness"]))),
      card(t("due-when"), zoomable("/v1/histogram", live, drawn, null, true)));
    root.append(graphics);
    const picked = { at: null };
    live.stream("/v1/stats/stream", (stats) => {
      const { counts, lateness } = stats;
      const empty = stats.queues === 0 && stats.totals.enqueued === 0;
      graphics.hidden = empty;
      show(first, empty && firstCommands());
      show(top, !empty && figures([
        [t("scheduled"), brief(counts.scheduled)], [t("ready"), brief(counts.ready)], [t("leased"), brief(counts.leased)], [t("dead"), brief(counts.dead)],
        [t("lateness-p50"), late(percentile(lateness.counts, lateness.edges_ms, 0.5))], [t("lateness-p99"), late(percentile(lateness.counts, lateness.edges_ms, 0.99))],
        [t("queues"), brief(stats.queues)], [t("waiters"), brief(stats.waiters)], [t("stored"), bytes(stats.bytes)],
      ]));
      if (!empty) show(rings, ring(stats, picked, (from, to) => { location.hash = `#/search${queryOf({ from: new Date(from).toISOString(), to: new Date(to).toISOString() })}`; }));
    });
  } else {
    top.append(soft(t("no-metrics")));
  }
  const stack = { bridges: [], databases: [] };
  if (mayAll("admin")) live.every(10_000, async () => {
    const [{ databases }, all] = await Promise.all([get("/v1/status", live.signal), bridges(live.signal)]);
    Object.assign(stack, { bridges: all, databases });
  });
  live.every(3_000, async () => {
    const [found, known] = await Promise.all([allQueues(live.signal), context(live.signal)]);
    show(needs, attention(found, { ...known, ...stack }));
    return again(found);
  });
}
