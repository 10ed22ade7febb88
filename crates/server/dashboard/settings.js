// The settings of a queue in words, and the form that changes them.

import { Wrong, ask, fail, perform } from "./acts.js";
import { call, get, may, queuePath } from "./api.js";
import { card, el, show } from "./dom.js";
import { setting, written } from "./format.js";
import { t } from "./words.js";

const length = (name) => ({
  name: name.replace(/_ms$/, ""), of: [name], shown: (config) => (config[name] === null ? "" : written(config[name])),
  sent: (text) => ({ [name.replace(/_ms$/, "")]: text || null }),
});
const whole = (name) => ({
  name, of: [name], shown: (config) => (config[name] === null ? "" : name === "max_attempts" && config[name] === 4_294_967_295 ? "∞" : String(config[name])),
  sent(text) {
    if (name === "max_attempts" && text === "∞") return { [name]: 4_294_967_295 };
    if (text !== "" && !Number.isFinite(Number(text))) throw new Wrong(t("no-number"), name);
    return { [name]: text === "" ? null : Number(text) };
  },
});
const choice = (name, values) => ({ ...whole(name), options: values, shown: (config) => config[name] ?? "", sent: (text) => ({ [name]: text || null }) });
const text = (name) => ({ ...choice(name), options: undefined });
// A part of a setting that has two: both are sent together.
const part = (of, field, name, show, read) => ({ name, of: [of], part: field, shown: (config) => (config[of]?.[field] === null || config[of]?.[field] === undefined ? "" : show(config[of][field])), read });

// Every setting in the order of the form: how it is shown, and what is sent for what was typed.
const SETTINGS = [
  length("lease_ms"), whole("max_attempts"), part("backoff", "min_ms", "backoff_min", written, (text) => ["min", text]), part("backoff", "max_ms", "backoff_max", written, (text) => ["max", text]),
  part("rate", "per_second", "rate", String, (text) => ["per_second", Number(text)]), part("rate", "burst", "burst", String, (text) => ["burst", Number(text)]), whole("catchup_rate"), whole("concurrency"), whole("priority"),
  choice("order", ["due", "arrival"]), length("expires_in_ms"), choice("on_expiry", ["deliver_late", "dead", "drop"]), length("dedupe_window_ms"), length("dead_ttl_ms"), length("keep_done_ms"), text("target"), choice("trace", ["link", "child"]),
];
const NAMES = [...new Set(SETTINGS.flatMap(({ of }) => of))];

// What is sent for the fields that were changed. Settings of two parts keep the part that was not, as it is by now.
function changesOf(changed, values, last, effective) {
  const sent = {};
  for (const one of changed) {
    if (!one.part) { Object.assign(sent, one.sent(values[one.name].trim())); continue; }
    const [of] = one.of;
    if (sent[of] !== undefined) continue;
    const parts = SETTINGS.filter((other) => other.part && other.of[0] === of);
    const given = parts.map((other) => [other, changed.includes(other) ? values[other.name].trim() : other.shown(last)]);
    if (of === "rate" && given[0][1] === "" && given[1][1] !== "" && changed.includes(given[1][0])) throw new Wrong(t("rate-first"), "rate");
    if (of === "rate" ? given[0][1] === "" : given.every(([, typed]) => typed === "")) { sent[of] = null; continue; }
    sent[of] = Object.fromEntries(given.filter(([, typed]) => typed !== "" || of === "backoff").map(([other, typed]) => {
      const [field, value] = other.read(typed || written(effective.backoff[other.part]));
      if (typeof value === "number" && !Number.isFinite(value)) throw new Wrong(t("no-number"), other.name);
      return [field, value];
    }));
  }
  return sent;
}

async function configure(queue) {
  const path = `${queuePath(queue)}/config`;
  const { config, effective } = await get(path);
  const hint = (one) => (one.options ? setting(one.name, effective[one.name]) : one.shown(effective) || (one.name === "burst" ? "–" : setting(one.of[0], null)));
  ask(t("settings"), {
    text: t("settings-text"), word: t("save"),
    fields: SETTINGS.map((one) => ({ name: one.name, label: t(`set-${one.name}`), value: one.shown(config), hint: hint(one), options: one.options && [["", t("inherited-value", { value: hint(one) })], ...one.options.map((value) => [value, t(`value-${value}`)])] })),
    act: async (values) => {
      // Only what was changed is sent: what somebody else has changed stays.
      const changed = SETTINGS.filter((one) => values[one.name].trim() !== one.shown(config));
      if (changed.length === 0) return;
      await perform(async () => {
        const last = await get(path);
        await call("PATCH", path, changesOf(changed, values, last.config, last.effective));
        return Object.fromEntries([...new Set(changed.flatMap(({ of }) => of))].map((name) => [name, last.config[name] ?? null]));
      }, t("settings-saved"), (last) => call("PATCH", path, last));
    },
  });
}

// The panel: each setting that applies, and whether it is the queue's own.
export function settings(queue, live, below) {
  const list = el("div");
  live.every(5_000, async () => {
    // Without the scope admin the queue's own settings are known, and not what applies where it has none.
    const { config, effective = config } = await get(`${queuePath(queue)}${may("admin") ? "/config" : ""}`, live.signal);
    const own = (name) => config[name] !== null && config[name] !== undefined;
    show(list, el("dl", { class: "settings" }, NAMES.map((name) => el("div", { class: own(name) ? "own" : undefined },
      el("dt", {}, t(`set-${name.replace(/_ms$/, "")}`)), el("dd", {}, setting(name, effective[name]), " ", el("small", {}, t(own(name) ? "set-here" : "inherited")))))));
  });
  return card(t("settings"), may("admin") && el("button", { class: "beside", "data-name": "configure", "aria-label": t("change-settings"), onclick: () => configure(queue).catch(fail) }, t("edit")), list, below);
}
