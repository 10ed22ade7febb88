// Numbers, lengths of time and instants, as people write them.

import { locale, t } from "./words.js";

const whole = new Intl.NumberFormat(locale);
const short = new Intl.NumberFormat(locale, { notation: "compact", maximumFractionDigits: 1 });
const decimal = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });
const instant = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "medium" });
const relative = new Intl.RelativeTimeFormat(locale, { numeric: "auto" });

export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
export const count = (n) => whole.format(n);
export const brief = (n) => (n < 100_000 ? whole.format(n) : short.format(n));
export const rate = (n) => `${decimal.format(n)}/s`;

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

export function away(ms) {
  for (const [unit, size] of UNITS) {
    if (Math.abs(ms) >= size || unit === "second") return relative.format(Math.trunc(ms / size), unit);
  }
  return "";
}

// How many attempts a message has; the largest number stands for no end.
export const attempts = (n) => (n === 4_294_967_295 ? "∞" : count(n));
// The value of a setting, as it is.
export const setting = (name, value) => (name === "max_attempts" ? attempts(value) : typeof value === "object" ? JSON.stringify(value) : String(value));

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
