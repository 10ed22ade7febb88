// The ring, columns and lines, as SVG; behind each there is a table for those who do not see it.

import { el, svg, table } from "./dom.js";
import { brief, clock, count, round, span, tick } from "./format.js";
import { locale, t } from "./words.js";

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

// How much of a part is drawn, on a linear scale: one message is seen.
const share = (n, most) => (n === 0 ? 0 : 0.1 + 0.9 * (n / most));
// A turn leaves a gap for its name.
const [TURN, PART] = [0.93, 0.9];

// The turns of the ring, the innermost first: what each part of it holds, and how long a part is.
function turnsOf({ ring: now, later }) {
  const names = [["hour", 24], ["day", 30], ["year", 10]].map(([unit, n]) => t(`unit-${unit}`, { n }));
  return [
    { name: t("ring-now"), kind: "slot", inner: 96, outer: 124, counts: now.segments, width: (now.slots * now.tick_ms) / now.segments.length },
    ...later.map((one, n) => ({ name: names[n] ?? "", kind: "later", inner: 130 + n * 21, outer: 147 + n * 21, counts: one.counts, width: one.width_ms })),
  ];
}

// The ring in memory, which begins at the pointer, and around it the turns behind: a day, a month, ten years. `picked` is the
// part that is looked at, as {turn, part} or null, and stays while new figures are drawn; `open` is given the instants of one.
export function ring(stats, picked, open) {
  const turns = turnsOf(stats);
  const at = Date.parse(stats.at);
  const words = (turn, part) => {
    const { counts, width } = turns[turn];
    const [from, to] = [part * width, (part + 1) * width];
    return t("ring-part", { n: count(counts[part]), from: span(from), to: span(to), at: clock(at + from), until: clock(at + to) });
  };
  const said = el("p", { class: "ring-said", role: "status" });
  const marks = [];
  const pick = (place) => {
    picked.at = place;
    for (const { mark, turn, part } of marks) mark.classList.toggle("picked", place?.turn === turn && place.part === part);
    said.textContent = place ? words(place.turn, place.part) : t("ring-hint");
  };
  const go = ({ turn, part }) => open(at + part * turns[turn].width, at + (part + 1) * turns[turn].width);
  const parts = turns.map(({ counts, inner, outer, kind }, turn) => {
    const most = Math.max(1, ...counts);
    return counts.map((n, part) => {
      const [from, to] = [(part / counts.length) * TURN, ((part + PART) / counts.length) * TURN];
      const mark = svg("g", { class: "part", onpointermove: () => pick({ turn, part }), onclick: () => go({ turn, part }) },
        svg("path", { class: "empty", d: arc(from, to, inner, outer) }),
        n > 0 && svg("path", { class: kind, d: arc(from, to, inner, inner + (outer - inner) * share(n, most)) }));
      marks.push({ mark, turn, part });
      return mark;
    });
  });
  function onkeydown(event) {
    const now = picked.at ?? { turn: 0, part: 0 };
    const [around, out] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key] ?? [0, 0];
    if (event.key === "Enter" && picked.at) go(picked.at);
    else if (event.key === "Escape") pick(null);
    else if (around || out) {
      const turn = Math.min(turns.length - 1, Math.max(0, now.turn + out));
      const { length } = turns[turn].counts;
      pick({ turn, part: picked.at ? (Math.floor((now.part / turns[now.turn].counts.length) * length) + around + length) % length : 0 });
    } else return;
    event.preventDefault();
  }
  const { messages } = stats.ring;
  const turn = turns[0].width * turns[0].counts.length;
  const names = turns.map(({ name, inner, outer }) => svg("text", { class: "turn", x: -4, y: -(inner + outer) / 2 + 4, "text-anchor": "end" }, name));
  const hours = [0.25, 0.5, 0.75].map((part) => {
    const angle = part * TURN * 2 * Math.PI - Math.PI / 2;
    return svg("text", { "text-anchor": ["end", "middle", "start"][part * 4 - 1], x: (90 * Math.cos(angle)).toFixed(1), y: (84 * Math.sin(angle) + 4).toFixed(1) }, span(turn * part));
  });
  const drawing = svg("svg", { class: "ring", viewBox: "-194 -194 388 388", tabindex: 0, role: "group", "data-name": "ring-parts", "aria-label": t("ring-label", { n: count(messages) }), onkeydown, onpointerleave: () => document.activeElement !== drawing && pick(null), onblur: () => drawing.isConnected && pick(null) },
    parts, names, hours, svg("path", { class: "pointer", d: "M-4 -89L4 -89L0 -128Z" }),
    svg("text", { class: "big", "text-anchor": "middle", y: -18 }, brief(messages)), svg("text", { "text-anchor": "middle", y: 0 }, t("in-memory")),
    svg("text", { class: "now", "text-anchor": "middle", y: 22 }, new Intl.DateTimeFormat(locale, { timeStyle: "medium" }).format(at)));
  pick(picked.at);
  const rows = turns[0].counts.map((n, k) => [span(k * turns[0].width), count(n)]).filter((row) => row[1] !== "0");
  const names2 = ["ring-day", "ring-month", "ring-years"];
  const later = stats.later.map((one, n) => [t(names2[n] ?? "ring-years"), count(one.counts.reduce((sum, x) => sum + x, 0))]);
  return el("div", {}, drawing, said,
    el("p", { class: "legend" }, el("span", {}, el("i"), t("ring-turn", { turn: span(turn), part: span(turns[0].width), most: count(Math.max(...turns[0].counts)) })),
      el("span", { class: "two" }, el("i"), t("ring-later", { parts: turns.slice(1).map(({ name, width }) => `${name}: ${span(width)}`).join(" · ") }))),
    behind("ring", t("ring-table"), [[t("due-in")], [t("messages"), "n"]], [...later, ...rows]));
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
    return Math.min(n - 1, Math.max(0, Math.floor((((event.clientX - left) / wide) * (w + EDGE) - EDGE) / step)));
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
export function columns(histogram, pick, band, wide) {
  const { buckets, width_ms: width } = histogram;
  const most = Math.max(1, ...buckets.map((bucket) => bucket.count));
  const [w, h] = [(narrow() ? 340 : wide ? 1_280 : 640) - EDGE, 170];
  const step = w / buckets.length;
  const ticks = ticksTo(most, 1);
  const top = ticks.at(-1);
  let key = () => false;
  const bars = buckets.map((bucket, n) => {
    const from = Date.parse(bucket.from);
    const height = bucket.count === 0 ? 0 : Math.max(3, (bucket.count / top) * h);
    const label = `${tick(from, width)}: ${count(bucket.count)}`;
    const chosen = () => pick?.(from, from + width);
    return bucket.count > 0 && svg("rect", {
      class: "column", x: n * step + 1, y: h - height, width: Math.max(1, step - 2), height,
      tabindex: pick ? 0 : undefined, role: pick ? "button" : undefined, "aria-label": label, "data-name": `bar-${bucket.from}`,
      onclick: chosen, onkeydown: (event) => { if (!key(event, n) && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); chosen(); } },
    }, svg("title", {}, label));
  });
  const first = Date.parse(buckets[0].from);
  const marks = timeMarks(first, first + width * buckets.length, 0, w, h);
  const shade = svg("rect", { class: "band", x: 0, y: -14, width: 0, height: h + 14 });
  const drawing = svg("svg", { class: "spans", viewBox: `${-EDGE} -14 ${w + EDGE} ${h + 36}`, role: "group", "aria-label": t("histogram-label") },
    svg("line", { class: "axis", x1: 0, x2: w, y1: h, y2: h }),
    ticks.slice(1).map((n) => [svg("line", { class: "mark", x1: 0, x2: w, y1: h - (n / top) * h, y2: h - (n / top) * h }), svg("text", { x: -6, y: h - (n / top) * h + 4, "text-anchor": "end" }, round(n))]), bars, shade, marks);
  key = choosing(drawing, shade, { first, width, step, w, n: buckets.length }, band);
  return el("div", {}, drawing,
    behind("columns", t("histogram-label"), [[t("due-from")], [t("messages"), "n"]],
      buckets.filter((bucket) => bucket.count > 0).map((bucket) => [tick(Date.parse(bucket.from), width), count(bucket.count)])));
}

// On a phone a drawing has fewer units, so that its words can be read.
const narrow = () => innerWidth < 700;

// Round steps of an axis up to a number, at most four, and none smaller than `least`; those of a length of time are halves
// and quarters of minutes and hours.
export function ticksTo(most, least = 0, times = false) {
  const size = 10 ** Math.floor(Math.log10(most / 4));
  const lengths = times ? [60_000, 3_600_000].flatMap((unit) => [0.25, 0.5, 1, 2, 5, 10].map((n) => n * unit)) : [];
  const step = [...(times && most > 40_000 ? lengths : []), ...[1, 2, 5, 10, 20, 50].map((n) => n * size)].find((one) => most / one <= 4 && one >= least);
  return Array.from({ length: Math.ceil(most / step) + 1 }, (_, n) => n * step);
}

// The instants of a span that people call round, at most seven of them, and how far apart they are: minutes, hours, days,
// or the beginnings of months.
const DAY = 86_400_000;
function roundTimes(from, to) {
  const most = narrow() ? 4 : 7;
  const step = [60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 10_800_000, 21_600_000, 43_200_000, DAY, 5 * DAY].find((one) => (to - from) / one <= most);
  if (!step) {
    const months = [1, 2, 6, 12, 24, 60].find((n) => (to - from) / (n * 30 * DAY) <= most) ?? 120;
    const start = new Date(from);
    const at = (n) => new Date(start.getFullYear(), Math.ceil((start.getMonth() + 1) / months) * months + n * months, 1).getTime();
    return [Array.from({ length: most + 2 }, (_, n) => at(n)).filter((one) => one <= to), months * 30 * DAY];
  }
  const ahead = new Date(from).getTimezoneOffset() * 60_000;
  const first = Math.ceil((from - ahead) / step) * step + ahead;
  return [Array.from({ length: Math.max(0, Math.floor((to - first) / step) + 1) }, (_, n) => first + n * step), step];
}
// They and their names on an axis from `left` to `w`, below the height `h`.
function timeMarks(from, to, left, w, h) {
  const [times, step] = roundTimes(from, to);
  return times.map((at) => {
    const x = left + ((at - from) / (to - from)) * (w - left);
    return [svg("line", { class: "mark", x1: x, x2: x, y1: h, y2: h + 4 }), svg("text", { x: x > w - 36 ? w : x, y: h + 17, "text-anchor": x > w - 36 ? "end" : "middle" }, step < DAY ? clock(at) : tick(at, step))];
  });
}
// The room of an axis at the left.
const EDGE = 52;

// Values over time: each series is {name, values}, the first one filled. `held` keeps the instant that is looked at while new
// figures are drawn; a value that is not known is null.
export function timeline({ name, series, from, step, unit, least = 1, times }, held) {
  const [w, h, left] = [narrow() ? 340 : 640, 150, EDGE];
  const n = Math.max(2, ...series.map(({ values }) => values.length));
  const ticks = ticksTo(Math.max(least, ...series.flatMap(({ values }) => values.filter((value) => value !== null))), 0, times);
  const top = ticks.at(-1);
  const x = (k) => left + (k / (n - 1)) * (w - left);
  const y = (value) => h - (value / top) * h;
  const kinds = ["", "two", "three", "four"];
  const point = (value, k) => `${x(k).toFixed(1)} ${y(value).toFixed(1)}`;
  // A gap where nothing is known.
  const path = (values) => values.map((value, k) => (value === null ? "" : `${k === 0 || values[k - 1] === null ? "M" : "L"}${point(value, k)}`)).join("");
  const filled = (values) => {
    const first = values.findIndex((value) => value !== null);
    const last = values.findLastIndex((value) => value !== null);
    return first < 0 ? "" : `M${x(first).toFixed(1)} ${h}${values.slice(first, last + 1).map((value, k) => `L${point(value ?? 0, first + k)}`).join("")}L${x(last).toFixed(1)} ${h}Z`;
  };
  const cursor = svg("line", { class: "cursor", y1: 0, y2: h, visibility: "hidden" });
  const values = series.map(() => el("b", {}));
  const when = el("span", { class: "soft" });
  function look(k) {
    held.at = k;
    const known = k ?? series[0].values.findLastIndex((value) => value !== null);
    for (const [at, { values: all }] of series.entries()) values[at].textContent = known < 0 || (all[known] ?? null) === null ? "–" : unit(all[known]);
    when.textContent = k === null ? "" : tick(from + k * step, step >= 60_000 ? 60_000 : 1_000);
    cursor.setAttribute("visibility", k === null ? "hidden" : "visible");
    if (k !== null) for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(k));
  }
  const onpointermove = (event) => {
    const { left: edge, width } = drawing.getBoundingClientRect();
    const place = ((event.clientX - edge) / width) * w;
    look(Math.min(n - 1, Math.max(0, Math.round(((place - left) / (w - left)) * (n - 1)))));
  };
  const onkeydown = (event) => {
    const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") look(null);
    else if (side) look(Math.min(n - 1, Math.max(0, (held.at ?? n - 1) + side)));
    else return;
    event.preventDefault();
  };
  const drawing = svg("svg", { class: "timeline", viewBox: `0 -8 ${w} ${h + 30}`, tabindex: 0, role: "group", "data-name": `timeline-${name}`, "aria-label": `${name}: ${series.map((one) => one.name).join(", ")}`, onpointermove, onpointerleave: () => look(null), onblur: () => drawing.isConnected && look(null), onkeydown },
    ticks.map((value) => [svg("line", { class: value === 0 ? "axis" : "mark", x1: left, x2: w, y1: y(value), y2: y(value) }), svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, unit(value, true))]),
    timeMarks(from, from + (n - 1) * step, left, w, h),
    svg("path", { class: "area", d: filled(series[0].values) }), series.map((one, k) => svg("path", { class: `line ${kinds[k]}`, d: path(one.values) })), cursor);
  look(held.at === null || held.at === undefined ? null : Math.min(held.at, n - 1));
  const rows = Array.from({ length: n }, (_, k) => k).filter((k) => series.some((one) => (one.values[k] ?? null) !== null)).reverse();
  return el("div", { class: "plot" },
    el("p", { class: "legend" }, el("strong", {}, name), series.map((one, k) => el("span", { class: kinds[k] }, el("i"), one.name, " ", values[k])), when), drawing,
    behind(`lines-${name}`, name, [[t("time")], ...series.map((one) => [one.name, "n"])],
      rows.map((k) => [tick(from + k * step, step >= 60_000 ? 60_000 : 1_000), ...series.map((one) => ((one.values[k] ?? null) === null ? "–" : unit(one.values[k])))])));
}

// A small line without axes, for a table.
export function spark(values, label) {
  const most = Math.max(1, ...values);
  const points = values.map((value, k) => `${((k / Math.max(1, values.length - 1)) * 100).toFixed(1)},${(20 - (value / most) * 18).toFixed(1)}`);
  return svg("svg", { class: "sparkline", viewBox: "0 0 100 22", role: "img", "aria-label": label, preserveAspectRatio: "none" },
    svg("polygon", { class: "area", points: `0,21 ${points.join(" ")} 100,21` }), svg("polyline", { class: "line", points: points.join(" ") }));
}
