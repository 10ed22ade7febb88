// All queues.

import * as acts from "./acts.js";
import { note, queueAt as at, queuesAt } from "./address.js";
import { get, may, queryOf } from "./api.js";
import { card, el, show, soft } from "./dom.js";
import { sparks } from "./history.js";
import { context, nothingKnown, queueTable, sorted } from "./tables.js";
import { t } from "./words.js";

export function queues(root, { after, filter = "", sort = "queue" }, live) {
  const list = el("div");
  const more = el("div", { class: "bar" });
  const input = el("input", { type: "search", value: filter, "aria-label": t("filter-queues"), placeholder: t("filter-queues"), oninput: (event) => { filter = event.target.value; note({ filter }); draw(); } });
  root.append(el("div", { class: "head" }, el("h1", {}, t("queues")), input, may("enqueue") && el("button", { class: "main", onclick: () => acts.enqueue() }, t("enqueue"))), card(null, list, more));
  if (!may("metrics")) {
    // There is no list for this token, but what it may do with a queue is on the queue's page.
    const byName = el("form", { class: "bar" }, el("input", { type: "search", name: "name", required: true, "aria-label": t("queue"), placeholder: t("queue") }), el("button", { type: "submit" }, t("open-queue")));
    byName.addEventListener("submit", (event) => { event.preventDefault(); location.hash = at(new FormData(byName).get("name").trim(), {}); });
    input.hidden = true;
    show(list, soft(t("page-needs", { scope: "metrics" })), byName);
    return;
  }
  let [found, known] = [{ queues: [], next: null }, nothingKnown];
  let order = { by: sort.replace(/^-/, ""), down: sort.startsWith("-") };
  const lines = sparks(live, () => draw());
  // Numbers are looked at from the largest on, names from the first on.
  const choose = (by) => {
    order = { by, down: order.by === by ? !order.down : by !== "queue" };
    note({ sort: order.by === "queue" && !order.down ? "" : `${order.down ? "-" : ""}${by}` });
    draw();
  };
  function draw() {
    const shown = sorted(found.queues.filter((queue) => queue.queue.toLowerCase().includes(filter.toLowerCase())), order, known);
    show(list, shown.length === 0 ? soft(t(found.queues.length > 0 ? "none-named-so" : "no-queues"))
      : queueTable(shown, t("queues"), known, { sort: { ...order, choose }, lineOf: lines.offered() && lines.of }));
    lines.want(shown.filter(({ rates, totals }) => rates.granted > 0 || totals.granted > 0).slice(0, 40).map((queue) => queue.queue));
    show(more, found.next && el("a", { href: queuesAt({ after: found.next, filter }) }, t("more")));
  }
  live.every(2_000, async () => {
    found = await get(`/v1/queues${queryOf({ limit: 200, after })}`, live.signal);
    draw();
  });
  live.every(5_000, async () => {
    known = await context(live.signal);
    draw();
  });
}
