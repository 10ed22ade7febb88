// The ring, columns and lines, as SVG; behind each there is a table for those who do not see it.

import { el, svg, table } from "./dom.js";
import { brief, count, span, tick } from "./format.js";
import { t } from "./words.js";

function behind(name, caption, columns, rows) {
  return el("details", { class: "data", "data-name": name }, el("summary", { "data-name": `${name}-summary` }, t("as-table")), table(caption, columns, rows));
}

// A part of a ring, from one share of the turn to another, between two radii.
function arc(from, to, inner, outer) {
  const at = (share, radius) => {
    const angle = share * 2 * Math.PI - Math.PI / 2;
    return `${(radius * Math.cos(angle)).toFixed(2)} ${(radius * Math.sin(angle)).toFixed(2)}`;
  };
  const large = to - from > 0.5 ? 1 : 0;
  return `M${at(from, inner)}L${at(from, outer)}A${outer} ${outer} 0 ${large} 1 ${at(to, outer)}L${at(to, inner)}A${inner} ${inner} 0 ${large} 0 ${at(from, inner)}Z`;
}

// How much of a part is drawn: one message is seen, and a million is no more than full.
const share = (n, most) => (n === 0 ? 0 : 0.15 + 0.85 * (Math.log1p(n) / Math.log1p(most)));

// One ring of parts, each filled from its inner edge.
function circle(counts, inner, outer, kind, label) {
  const most = Math.max(1, ...counts);
  return counts.map((n, k) => {
    const [from, to] = [k / counts.length, (k + 0.86) / counts.length];
    return [
      svg("path", { class: "empty", d: arc(from, to, inner, outer) }),
      n > 0 && svg("path", { class: kind, d: arc(from, to, inner, inner + (outer - inner) * share(n, most)) }, svg("title", {}, label(k, n))),
    ];
  });
}

// The ring in memory with its pointer, and around it the turns behind: a day, a month, ten years.
export function ring({ ring: now, later }) {
  const turn = now.slots * now.tick_ms;
  const part = turn / now.segments.length;
  const label = (width) => (k, n) => t("ring-part", { n: count(n), from: span(k * width), to: span((k + 1) * width) });
  const angle = ((now.pointer % now.slots) / now.slots) * 2 * Math.PI - Math.PI / 2;
  const names = ["ring-day", "ring-month", "ring-years"];
  const drawing = svg("svg", { viewBox: "-180 -180 360 360", role: "img", "aria-label": t("ring-label", { n: count(now.messages) }) },
    svg("g", { transform: `rotate(${((angle + Math.PI / 2) * 180) / Math.PI})` }, circle(now.segments, 62, 104, "slot", label(part))),
    later.map((one, n) => circle(one.counts, 110 + n * 23, 128 + n * 23, "later", label(one.width_ms))),
    svg("line", { class: "pointer", x1: 40 * Math.cos(angle), y1: 40 * Math.sin(angle), x2: 106 * Math.cos(angle), y2: 106 * Math.sin(angle) }),
    svg("text", { class: "big", "text-anchor": "middle", y: 2 }, brief(now.messages)),
    svg("text", { "text-anchor": "middle", y: 20 }, t("in-memory")));
  const rows = now.segments.map((n, k) => [span(k * part), count(n)]).filter((row) => row[1] !== "0");
  const tables = later.map((one, n) => [t(names[n] ?? "ring-years"), one.counts.reduce((sum, x) => sum + x, 0)]);
  return el("div", {}, drawing,
    el("p", { class: "legend" }, el("span", {}, el("i"), t("ring-turn", { turn: span(turn) })), el("span", { class: "two" }, el("i"), t("ring-later"))),
    behind("ring", t("ring-table"), [[t("due-in")], [t("messages"), "n"]], [...tables.map(([name, n]) => [name, count(n)]), ...rows]));
}

// Choosing a span of columns: by dragging over them, or from a column with Shift and an arrow key. `span` is a pair of
// instants or null; `change` is told of another, `go` that it is chosen, and nothing is drawn anew while `held`.
function choosing(drawing, shade, { first, width, step, w, n }, band) {
  const shown = (span) => {
    const [from, to] = (span ?? [first, first]).map((at) => Math.min(w, Math.max(0, ((at - first) / width) * step)));
    shade.setAttribute("x", from);
    shade.setAttribute("width", to - from);
  };
  const over = (one, other) => [first + Math.min(one, other) * width, first + (Math.max(one, other) + 1) * width];
  const set = (span) => { shown(span); band.change(span); };
  const at = (event) => {
    const { left, width: wide } = drawing.getBoundingClientRect();
    return Math.min(n - 1, Math.max(0, Math.floor((((event.clientX - left) / wide) * w) / step)));
  };
  let begun = null;
  const end = () => { begun = null; band.held = false; };
  drawing.addEventListener("pointerdown", (event) => { if (event.button === 0) begun = { x: event.clientX, column: at(event) }; });
  drawing.addEventListener("pointermove", (event) => {
    // A click may tremble.
    if (!begun || (!band.held && Math.abs(event.clientX - begun.x) < 6)) return;
    // From here on it is no click on a column.
    if (!band.held) drawing.setPointerCapture(event.pointerId);
    band.held = true;
    set(over(begun.column, at(event)));
  });
  drawing.addEventListener("pointerup", () => { const chosen = band.held; end(); if (chosen) band.go(); });
  drawing.addEventListener("pointercancel", () => { end(); set(null); });
  shown(band.span);
  // What a key on a column does; true if it was about the span.
  return (event, column) => {
    const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.shiftKey && side) {
      if (!band.span || band.from !== first + column * width) [band.from, band.reach] = [first + column * width, 0];
      band.reach = Math.min(n - 1 - column, Math.max(-column, band.reach + side));
      set(over(column, column + band.reach));
    } else if (event.key === "Escape" && band.span) set(null);
    else if (event.key === "Enter" && band.span) band.go();
    else return false;
    event.preventDefault();
    return true;
  };
}

// Columns by due time; `pick` is told the edges of the one that is chosen, `band` is a span of them.
export function columns(histogram, pick, band) {
  const { buckets, width_ms: width } = histogram;
  const most = Math.max(1, ...buckets.map((bucket) => bucket.count));
  const [w, h] = [640, 190];
  const step = w / buckets.length;
  let key = () => false;
  const bars = buckets.map((bucket, n) => {
    const from = Date.parse(bucket.from);
    const height = bucket.count === 0 ? 0 : Math.max(3, (bucket.count / most) * h);
    const label = `${tick(from, width)}: ${count(bucket.count)}`;
    const chosen = () => pick?.(from, from + width);
    return bucket.count > 0 && svg("rect", {
      class: "column", x: n * step + 1, y: h - height, width: Math.max(1, step - 2), height,
      tabindex: pick ? 0 : undefined, role: pick ? "button" : undefined, "aria-label": label, "data-name": `bar-${bucket.from}`,
      onclick: chosen, onkeydown: (event) => { if (!key(event, n) && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); chosen(); } },
    }, svg("title", {}, label));
  });
  const marks = [0, 0.25, 0.5, 0.75].map((place) => {
    const n = Math.floor(place * buckets.length);
    return buckets[n] && svg("text", { x: n * step + 2, y: h + 16 }, tick(Date.parse(buckets[n].from), width));
  });
  const shade = svg("rect", { class: "band", x: 0, y: -14, width: 0, height: h + 14 });
  const drawing = svg("svg", { class: "spans", viewBox: `0 -14 ${w} ${h + 36}`, role: "group", "aria-label": t("histogram-label") },
    svg("line", { class: "axis", x1: 0, x2: w, y1: h, y2: h }), bars, shade, marks, svg("text", { x: w - 4, y: -3, "text-anchor": "end" }, t("most", { n: count(most) })));
  key = choosing(drawing, shade, { first: Date.parse(buckets[0].from), width, step, w, n: buckets.length }, band);
  return el("div", {}, drawing,
    behind("columns", t("histogram-label"), [[t("due-from")], [t("messages"), "n"]],
      buckets.filter((bucket) => bucket.count > 0).map((bucket) => [tick(Date.parse(bucket.from), width), count(bucket.count)])));
}

// Lines over the last samples: each series is [name, values], and `at` says when each sample was taken.
export function lines(series, at, unit) {
  const [w, h] = [640, 130];
  const most = Math.max(1, ...series.flatMap(([, values]) => values));
  const kinds = ["", "two", "three"];
  const drawn = series.map(([, values], n) => {
    const step = w / Math.max(1, values.length - 1);
    const points = values.map((value, k) => `${(k * step).toFixed(1)},${(h - (value / most) * h).toFixed(1)}`).join(" ");
    return svg("polyline", { class: `line ${kinds[n]}`, points });
  });
  return el("div", {},
    svg("svg", { viewBox: `0 -14 ${w} ${h + 18}`, role: "img", "aria-label": series.map(([name]) => name).join(", ") },
      svg("line", { class: "axis", x1: 0, x2: w, y1: h, y2: h }), drawn, svg("text", { x: w - 4, y: -3, "text-anchor": "end" }, unit(most))),
    el("p", { class: "legend" }, series.map(([name, values], n) => el("span", { class: kinds[n] }, el("i"), `${name} ${unit(values.at(-1) ?? 0)}`))),
    behind("lines", t("rates-by-time"), [[t("time")], ...series.map(([name]) => [name, "n"])],
      at.map((time, k) => [tick(time, 1_000), ...series.map(([, values]) => unit(values[k]))]).reverse()));
}
