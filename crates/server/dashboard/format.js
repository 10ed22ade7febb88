// Numbers, lengths of time and instants, as people write them.

import { language, locale, t } from "./words.js";

const whole = new Intl.NumberFormat(locale);
const SHORT = language === "zh" ? [["亿", 1e8], ["万", 1e4]] : [["bn", 1e9], ["M", 1e6], ["k", 1e3]];
export const decimal = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });
const instant = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "medium" });

export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
export const count = (n) => whole.format(n);
// A large number with one decimal of thousands or millions, a small one whole.
export function brief(n) {
  if (n < 100_000) return whole.format(n);
  const [unit, size] = SHORT.find(([, size]) => n >= size);
  return `${(n / size).toFixed(n / size < 100 ? 1 : 0)} ${unit}`;
}
// The same for an axis, where the numbers are round.
export function round(n) {
  const [unit, size] = SHORT.find(([, size]) => n >= size) ?? ["", 1];
  return n === 0 ? "0" : `${new Intl.NumberFormat(locale, { maximumFractionDigits: 2 }).format(n / size)}${unit && ` ${unit}`}`;
}
// A rate a second, a minute or an hour: the first that is not shown as 0.
export function rate(n) {
  const [unit, each] = [["s", 1], ["min", 60], ["h", 3_600]].find(([, each]) => n * each >= 0.095) ?? ["s", 1];
  return `${decimal.format(n * each)}/${unit}`;
}

// A limit of a rate, in the largest unit in which it is a whole number.
export function pace(n) {
  const hourly = Math.round(n * 3_600);
  const [unit, each] = [["s", 3_600], ["min", 60], ["h", 1]].find(([, each]) => hourly % each === 0);
  return `${whole.format(hourly / each)}/${unit}`;
}

const UNITS = [["year", 31_557_600_000], ["day", 86_400_000], ["hour", 3_600_000], ["minute", 60_000], ["second", 1_000]];

// A length of time in its two largest units.
export function span(ms) {
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  const parts = [];
  let left = ms;
  for (const [unit, size] of UNITS) {
    const n = Math.floor(left / size);
    if (n > 0 || parts.length > 0) {
      if (n > 0) parts.push(t(`unit-${unit}`, { n: count(n) }));
      left -= n * size;
      if (parts.length === 2 || (parts.length === 1 && n === 0)) break;
    }
  }
  return parts.join(" ");
}

// An instant in the reader's zone, and how far away it is.
export function when(text, now = Date.now()) {
  if (!text) return "–";
  const at = Date.parse(text);
  return `${instant.format(at)} (${away(at - now)})`;
}

const clockTime = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit" });
const dayTime = new Intl.DateTimeFormat(locale, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
// The time of day, with the date if it is another day.
export const clock = (at) => (new Date(at).toDateString() === new Date().toDateString() ? clockTime : dayTime).format(at);
export const exact = (text) => instant.format(Date.parse(text));
// What is far away as people say it, and the instant under it.
export const both = (text) => [away(Date.parse(text) - Date.now()), instant.format(Date.parse(text))];

// An instant in a zone of its own, with the last part of the zone's name, and here if that is another one: Mon 09:00 Berlin
// · 08:00 here, or Sun 23:00 here.
export function inZone(at, name) {
  const day = { weekday: "short", ...(Math.abs(at - Date.now()) > 6 * 86_400_000 ? { month: "short", day: "numeric" } : {}) };
  const say = (options, timeZone) => new Intl.DateTimeFormat(locale, { ...options, timeZone }).format(at);
  const time = { hour: "2-digit", minute: "2-digit" };
  try {
    const there = `${say({ ...day, ...time }, name)} ${name.split("/").at(-1).replaceAll("_", " ")}`;
    return name === zone ? there : t("both-zones", { there, here: say(say(day, name) === say(day, zone) ? time : { ...day, ...time }, zone) });
  } catch { return instant.format(at); }
}

export function away(ms) {
  for (const [unit, size] of UNITS) {
    // A day and a half is 36 hours.
    if (Math.abs(ms) < (unit === "day" ? 2 * size : size) && unit !== "second") continue;
    const n = Math.trunc(ms / size);
    return new Intl.RelativeTimeFormat(locale, { numeric: n === 0 ? "auto" : "always" }).format(n, unit);
  }
  return "";
}

// How many attempts a message has; the largest number stands for no end.
export const attempts = (n) => (n === 4_294_967_295 ? "∞" : count(n));
// What it means that a setting has no value.
const NONE = { rate: "no-limit", catchup_rate: "no-limit", concurrency: "no-limit", expires_in_ms: "never", dead_ttl_ms: "for-ever", keep_done_ms: "not-kept", target: "none" };
// Settings whose values are words.
const CHOICES = ["order", "on_expiry", "trace", "dst_gap", "dst_fold", "missed", "overlap"];
// The value of a setting in words: lengths of time in their units, limits as rates.
export function setting(name, value) {
  if (value === null || value === undefined) return NONE[name] ? t(NONE[name]) : "–";
  if (name === "max_attempts") return attempts(value);
  if (name === "networks" || name === "url") return String(value);
  if (name.endsWith("_ms")) return span(value);
  if (name === "catchup_rate") return pace(value);
  if (name === "rate") return value.burst ? t("with-burst", { rate: pace(value.per_second), n: count(value.burst) }) : pace(value.per_second);
  if (value.min_ms !== undefined) return t("from-to", { from: span(value.min_ms), to: span(value.max_ms) });
  if (Array.isArray(value)) return value.map(String).join(", ");
  if (value.delays) return value.delays.join(", ");
  if (typeof value === "object") return Object.entries(value).map(([key, one]) => `${key}: ${typeof one === "object" ? JSON.stringify(one) : one}`).join(", ");
  if (typeof value === "number") return count(value);
  if (typeof value === "boolean") return t(value ? "yes" : "no");
  return CHOICES.includes(name) ? t(`value-${value}`) : String(value);
}

// A length of time as it is written in a request, in the largest unit in which it is whole.
export function written(ms) {
  const [unit, size] = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1_000], ["ms", 1]].find(([, size]) => ms % size === 0);
  return `${ms / size}${unit}`;
}

export function bytes(n) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (n >= size) return `${decimal.format(n / size)} ${unit}`;
  }
  return `${count(n)} B`;
}

// The label of an axis for an instant, as fine as the width of a column needs.
export function tick(at, width) {
  const options = width >= 28 * 86_400_000 ? { year: "numeric", month: "short" }
    : width >= 20 * 3_600_000 ? { month: "short", day: "numeric" }
    : width >= 60_000 ? { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" }
    : { hour: "2-digit", minute: "2-digit", second: "2-digit" };
  return new Intl.DateTimeFormat(locale, options).format(at);
}
