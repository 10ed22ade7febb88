// Many messages at once: what a filter names is counted, then changed by a job; and all jobs.

import { Wrong, ask, fail, follow, perform, restore } from "./acts.js";
import { call, get, queuePath } from "./api.js";
import { badge, card, el, show, soft, table } from "./dom.js";
import { count, exact, when } from "./format.js";
import { queueLink, shownOf } from "./tables.js";
import { t } from "./words.js";

const KINDS = { waiting: "", collecting: "", running: "good", done: "", cancelled: "warn" };

// A filter in words, one condition each.
export function filterWords({ state, key_prefix: prefix, due_from: from, due_to: to, dead_reason: reason, dead_note: note, note: part, ...headers }) {
  return [
    state && t("where-state", { state: t(state) }), prefix && t("where-key", { prefix }),
    ...Object.entries(headers).map(([name, value]) => t("where-header", { name: name.replace(/^header\./, ""), value })),
    (from || to) && t("where-due", { from: from ? exact(from) : "…", to: to ? exact(to) : "…" }),
    (reason || note !== undefined || part) && t("where-dead", { reason: [reason, note === "" ? t("no-note") : note, part].filter(Boolean).join(": ") }),
  ].filter(Boolean);
}

// Changes all messages that a filter names, by a job. The dialog says which and how many; if there are more when it is confirmed,
// nothing is done and it says the new number. Where a filter narrows nothing, the queue's name is typed.
export function change(queue, filter, action, fields = []) {
  const { state: _, ...narrow } = filter;
  const path = `${queuePath(queue)}/bulk`;
  const what = { action, ...(Object.keys(filter).length > 0 ? { filter } : { all: true }) };
  const kept = action === "cancel" ? { keep: "1h" } : {};
  let expect = 0;
  function asked(ui, { matched, leased }) {
    expect = matched;
    const where = filterWords(filter).join(" · ");
    ui.say(where ? t("bulk-where", { queue, where }) : t("bulk-all", { queue }), t("bulk-text", { n: count(matched) }), leased > 0 && t("bulk-leased", { n: count(leased) }), kept.keep && t("undo-hour"));
    ui.word(t("bulk-word", { act: t(`act-${action}`), n: count(matched) }));
  }
  ask(t(`act-${action}`), {
    text: t("counting"), danger: action === "cancel", dismiss: action === "cancel" && t("keep-them"), word: t(`act-${action}`), typed: Object.keys(narrow).length === 0 ? queue : undefined,
    fields: [...fields, { name: "rate", label: t("rate-optional"), type: "number" }],
    first: async (ui) => asked(ui, await call("POST", path, { ...what, ...(action === "postpone" ? { shift: "1s" } : {}), dry_run: true })),
    act: async ({ rate, ...values }, ui) => {
      try {
        const job = await call("POST", path, { ...what, ...values, expect, ...kept, ...(rate ? { rate: Number(rate) } : {}) });
        follow(job, kept.keep && (({ id }) => restore(queue, id))).catch(fail);
        return true;
      } catch (error) {
        if (error.code !== "changed") throw error;
        asked(ui, { matched: error.matched, leased: 0 });
        throw new Wrong(t("changed-n", { n: count(error.matched) }));
      }
    },
  });
}

const SHIFT = { name: "shift", label: t("shift"), hint: "1d", required: true };
const ACTS = { postpone: "bulk-postpone", fire: "bulk-fire", cancel: "bulk-cancel", redrive: "redrive-these" };
// What may be done together with messages in a state: leased ones are their consumers', and done ones have ended.
export const actsOf = (state) => ({ dead: ["redrive", "cancel"], leased: [], done: [], ready: ["postpone", "cancel"] })[state] ?? ["postpone", "fire", "cancel"];
// The buttons for the messages that a filter names.
export const acts = (queue, filter, off) => actsOf(filter.state).map((action) =>
  el("button", { "data-name": `bulk-${action}`, disabled: off, class: action === "cancel" ? "danger" : undefined, onclick: () => change(queue, filter, action, action === "postpone" ? [SHIFT] : []) }, t(ACTS[action])));

function cancel(job) {
  ask(t("cancel-job"), {
    text: t("cancel-job-text", { done: count(job.done), n: count(job.matched) }), danger: true, word: t("cancel-job"),
    act: () => perform(() => call("DELETE", `/v1/jobs/${encodeURIComponent(job.id)}`), t("job-ended")),
  });
}

const progress = (job) => (job.ended_at !== undefined ? count(job.done) : [el("progress", { max: Math.max(job.matched, 1), value: job.done, "aria-label": t("done") }), ` ${count(job.done)}`]);

export function jobs(root, _, live) {
  const list = el("div");
  root.append(el("h1", {}, t("jobs")), card(null, list));
  live.every(2_000, async () => {
    const { jobs: found } = await get("/v1/jobs", live.signal);
    const titles = [[t("queue"), "key"], [t("change")], [t("state")], [t("matched"), "n"], [t("done"), "n"], [t("left-alone"), "n"], [t("since")], [t("act")]];
    show(list, found.length === 0 ? soft(t("no-jobs")) : table(t("jobs"), titles, found.slice(0, 200).map((job) => [
      queueLink(job.queue), t(`act-${job.action}`), badge(t(`job-${job.state}`), KINDS[job.state]), count(job.matched), progress(job),
      count(job.leased + job.changed + job.refused), when(job.created_at),
      job.ended_at === undefined && el("button", { "data-name": `cancel-${job.id}`, onclick: () => cancel(job) }, t("cancel-job")),
    ]), { cards: true }), shownOf(Math.min(found.length, 200), found.length));
  });
}
