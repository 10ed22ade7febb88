// Many messages at once: what a filter names is counted, then changed by a job; and all jobs.

import { ask, run } from "./acts.js";
import { call, get, queuePath } from "./api.js";
import { badge, card, el, show, table } from "./dom.js";
import { count, when } from "./format.js";
import { queueLink, shownOf } from "./tables.js";
import { t } from "./words.js";

const KINDS = { waiting: "", collecting: "", running: "good", done: "", cancelled: "warn" };

// What a request says: the filter, or all messages.
const meant = (filter) => (Object.keys(filter).length > 0 ? { filter } : { all: true });

// Counts first, then asks; the job goes on by itself.
export async function change(queue, filter, action, fields = []) {
  const what = { action, ...meant(filter) };
  const path = `${queuePath(queue)}/bulk`;
  let found = null;
  const shift = action === "postpone" ? { shift: "1s" } : {};
  if (!(await run(async () => { found = await call("POST", path, { ...what, ...shift, dry_run: true }); }, t("counted")))) return;
  ask(t(action), {
    text: t("bulk-text", { n: count(found.matched), leased: count(found.leased), queue }), danger: action === "cancel",
    word: t("bulk-word", { act: t(action), n: count(found.matched) }), fields: [...fields, { name: "rate", label: t("rate-optional") }],
    act: ({ rate, ...values }) => run(() => call("POST", path, { ...what, ...values, ...(rate.trim() ? { rate: Number(rate) } : {}) }), (job) => t("job-begun", { id: job.id.slice(0, 8) })),
  });
}

// The buttons for the messages that a filter names.
export const acts = (queue, filter) => el("div", { class: "bar" },
  el("button", { "data-name": "bulk-postpone", onclick: () => change(queue, filter, "postpone", [{ name: "shift", label: t("shift"), hint: "1d", required: true }]) }, t("bulk-postpone")),
  el("button", { "data-name": "bulk-fire", onclick: () => change(queue, filter, "fire") }, t("bulk-fire")),
  el("button", { "data-name": "bulk-cancel", class: "danger", onclick: () => change(queue, filter, "cancel") }, t("bulk-cancel")));

function cancel(job) {
  ask(t("cancel-job"), {
    text: t("cancel-job-text", { done: count(job.done), n: count(job.matched) }), danger: true, word: t("cancel-job"),
    act: () => run(() => call("DELETE", `/v1/jobs/${encodeURIComponent(job.id)}`), t("job-ended")),
  });
}

export function jobs(root, _, live) {
  const list = el("div", {});
  root.append(el("h1", {}, t("jobs")), card(null, list));
  live.every(2_000, async () => {
    const { jobs: found } = await get("/v1/jobs", live.signal);
    const titles = [[t("queue"), "key"], [t("change")], [t("state")], [t("matched"), "n"], [t("done"), "n"], [t("left-alone"), "n"], [t("since")], [t("act")]];
    show(list, found.length === 0 ? el("p", { class: "soft" }, t("no-jobs")) : table(t("jobs"), titles, found.slice(0, 200).map((job) => [
      queueLink(job.queue), t(job.action), badge(t(`job-${job.state}`), KINDS[job.state]), count(job.matched), count(job.done),
      count(job.leased + job.changed + job.refused), when(job.created_at),
      job.ended_at === undefined && el("button", { "data-name": `cancel-${job.id}`, onclick: () => cancel(job) }, t("cancel-job")),
    ])), shownOf(Math.min(found.length, 200), found.length));
  });
}
