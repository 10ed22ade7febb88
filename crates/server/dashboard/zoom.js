// Messages by due time, with the choice of a span.

import { get } from "./api.js";
import { note } from "./address.js";
import { columns } from "./charts.js";
import { el, show } from "./dom.js";
import { count, when } from "./format.js";
import { t } from "./words.js";

const SPANS = [["10m", 600_000], ["1h", 3_600_000], ["1d", 86_400_000], ["30d", 2_592_000_000], ["1y", 31_557_600_000], ["10y", 315_576_000_000]];

// The shortest span.
const LEAST = 600_000;

// The span that an address has as `2026-01-01T00:00:00.000Z/2026-01-02T00:00:00.000Z`; null if it has none.
function spanOf(text) {
  const [from, to] = (text ?? "").split("/").map((instant) => Date.parse(instant));
  return to > from ? [from, Math.max(to - from, LEAST)] : null;
}

// The histogram of one queue or of all, with its zoom; a click on a column looks closer, and so does a span of them.
// What is drawn is in the address: `span` is the length by its name, `zoom` the span that was chosen.
// With `messagesOf`, which makes the address of a list, the messages of the span are offered, and a click on the
// smallest columns opens theirs.
export function zoomable(path, live, { span, zoom }, messagesOf, wide) {
  const drawn = el("div");
  const [, usual] = SPANS.find(([name]) => name === span) ?? SPANS[2];
  let [from, length] = spanOf(zoom) ?? [null, usual];
  const choose = el("select", { "aria-label": t("zoom"), onchange: () => draw(null, Number(choose.value)) },
    SPANS.map(([name, ms]) => el("option", { value: ms, selected: ms === usual }, t(`span-${name}`))));
  // What the address says of it.
  const same = () => ({
    span: choose.selectedIndex === 2 ? "" : SPANS[choose.selectedIndex][0],
    zoom: from === null ? "" : [from, from + length].map((at) => new Date(at).toISOString()).join("/"),
  });
  // A message this close to the edge of a column may be counted in the next one.
  let edge = 0;
  const listed = (start, end) => messagesOf(start - edge, end + edge, same());
  function draw(start, ms) {
    [from, length] = [start, ms];
    note(same(), { step: true });
    look();
  }
  const told = el("p", { class: "soft", role: "status" }, t("span-hint"));
  const band = {
    span: null, held: false,
    change(span) {
      band.span = span;
      const [start, end] = (span ?? []).map((at) => when(new Date(at).toISOString()));
      told.textContent = span ? t("span-chosen", { from: start, to: end }) : t("span-hint");
    },
    go() {
      const [start, end] = band.span;
      band.change(null);
      if (messagesOf && end - start < LEAST) { location.hash = listed(start, end); return; }
      draw(start, Math.max(end - start, LEAST));
    },
  };
  const back = el("button", { onclick: () => draw(null, Number(choose.value)), hidden: true }, t("zoom-out"));
  const move = (share) => draw(Math.max(Date.now() - length, (from ?? Date.now()) + share * length), length);
  async function look() {
    const start = from ?? Date.now();
    const query = `from=${new Date(start).toISOString()}&to=${new Date(start + length).toISOString()}&buckets=48`;
    const found = await get(`${path}?${query}`, live.signal);
    if (band.held) return;
    edge = found.resolution_ms;
    back.hidden = from === null;
    const total = found.buckets.reduce((sum, bucket) => sum + bucket.count, 0);
    show(drawn,
      columns(found, length > 60_000 * 48 ? (at, to) => draw(at, Math.max(to - at, LEAST)) : messagesOf && ((at, to) => { location.hash = listed(at, to); }), band, wide),
      el("p", { class: "soft" }, t("histogram-sum", { n: count(total), before: count(found.before), after: count(found.after) })),
      messagesOf && total > 0 && el("a", { href: listed(start, start + length), "data-name": "due-then" }, t("due-then")));
  }
  live.every(5_000, look);
  return el("div", {}, el("div", { class: "bar" }, choose, back,
    el("button", { onclick: () => move(-0.5), "aria-label": t("earlier") }, "←"), el("button", { onclick: () => move(0.5), "aria-label": t("later") }, "→")), drawn, told);
}
