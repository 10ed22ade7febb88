// Messages by due time, with the choice of a span.

import { get } from "./api.js";
import { columns } from "./charts.js";
import { el, show } from "./dom.js";
import { count, when } from "./format.js";
import { t } from "./words.js";

const SPANS = [["10m", 600_000], ["1h", 3_600_000], ["1d", 86_400_000], ["30d", 2_592_000_000], ["1y", 31_557_600_000], ["10y", 315_576_000_000]];

// The shortest span.
const LEAST = 600_000;

// The histogram of one queue or of all, with its zoom; a click on a column looks closer, and so does a span of them.
// With `messagesOf`, which makes the address of a list, the messages of the span are offered, and a click on the
// smallest columns opens theirs.
export function zoomable(path, live, messagesOf) {
  const drawn = el("div", {});
  let [from, length] = [null, 86_400_000];
  const choose = el("select", { "aria-label": t("zoom"), onchange: (event) => { from = null; length = Number(event.target.value); look(); } },
    SPANS.map(([name, ms]) => el("option", { value: ms, selected: ms === length }, t(`span-${name}`))));
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
      if (messagesOf && end - start < LEAST) { location.hash = messagesOf(start, end); return; }
      [from, length] = [start, Math.max(end - start, LEAST)];
      look();
    },
  };
  const back = el("button", { onclick: () => { from = null; length = Number(choose.value); look(); }, hidden: true }, t("zoom-out"));
  const move = (share) => { from = Math.max(Date.now() - length, (from ?? Date.now()) + share * length); look(); };
  async function look() {
    const start = from ?? Date.now();
    const query = `from=${new Date(start).toISOString()}&to=${new Date(start + length).toISOString()}&buckets=48`;
    const found = await get(`${path}?${query}`, live.signal);
    if (band.held) return;
    back.hidden = from === null;
    const total = found.buckets.reduce((sum, bucket) => sum + bucket.count, 0);
    show(drawn,
      columns(found, length > 60_000 * 48 ? (at, to) => { from = at; length = Math.max(to - at, LEAST); look(); } : messagesOf && ((at, to) => { location.hash = messagesOf(at, to); }), band),
      el("p", { class: "soft" }, t("histogram-sum", { n: count(total), before: count(found.before), after: count(found.after) })),
      messagesOf && total > 0 && el("a", { href: messagesOf(start, start + length), "data-name": "due-then" }, t("due-then")));
  }
  live.every(5_000, look);
  return el("div", {}, el("div", { class: "bar" }, choose, back,
    el("button", { onclick: () => move(-0.5), "aria-label": t("earlier") }, "←"), el("button", { onclick: () => move(0.5), "aria-label": t("later") }, "→")), drawn, told);
}
