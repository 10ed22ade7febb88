// A cron expression in words, as far as people would say it; any other one stays as it is.

import { locale, t } from "./words.js";

const DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
// The first of January 2023 was a Sunday.
const dayName = (n) => new Intl.DateTimeFormat(locale, { weekday: "long", timeZone: "UTC" }).format(Date.UTC(2023, 0, 1 + (n % 7)));
const monthName = (n) => new Intl.DateTimeFormat(locale, { month: "long", timeZone: "UTC" }).format(Date.UTC(2023, n - 1, 1));
const list = (words) => new Intl.ListFormat(locale, { type: "conjunction" }).format(words);

// The members of a field: numbers, or [from, to]; null for more than that.
function members(field, names, first) {
  const number = (text) => { const n = names?.indexOf(text.toUpperCase()) ?? -1; return n >= 0 ? n + first : /^\d+$/.test(text) ? Number(text) : NaN; };
  const all = field.split(",").map((one) => { const ends = one.split("-").map(number); return ends.length <= 2 ? ends : [NaN]; });
  return all.flat().some(Number.isNaN) ? null : all;
}
const say = (all, name) => list(all.map((ends) => (ends.length === 2 ? t("cron-range", { from: name(ends[0]), to: name(ends[1]) }) : name(ends[0]))));

function timeOf(minute, hour) {
  // A step that does not divide the hour or the day begins anew in each: */45 is :00 and :45.
  const every = (field, whole) => { const n = Number(/^\*\/(\d+)$/.exec(field)?.[1]); return whole % n === 0 ? n : 0; };
  const two = (n) => String(n).padStart(2, "0");
  if (minute === "*" && hour === "*") return t("cron-minute");
  if (every(minute, 60) && hour === "*") return t("cron-minutes", { n: every(minute, 60) });
  if (/^\d+$/.test(minute) && hour === "*") return t("cron-hour", { minute: two(minute) });
  if (/^\d+$/.test(minute) && every(hour, 24)) return t("cron-hours", { n: every(hour, 24), minute: two(minute) });
  const hours = members(hour);
  if (!/^\d+$/.test(minute) || !hours || hours.some((ends) => ends.length > 1)) return null;
  return t("cron-at", { times: list(hours.map(([n]) => `${two(n)}:${two(minute)}`)) });
}

export function cronWords(expression) {
  const fields = expression.trim().split(/\s+/);
  if (fields.length !== 5) return expression;
  const [minute, hour, day, month, weekday] = fields;
  const time = timeOf(minute, hour);
  const days = day === "*" ? [] : members(day);
  const months = month === "*" ? [] : members(month, MONTHS, 1);
  const weekdays = weekday === "*" || weekday === "?" ? [] : members(weekday, DAYS, 0);
  if (!time || !days || !months || !weekdays || (days.length > 0 && weekdays.length > 0)) return expression;
  const on = days.length > 0 ? t("cron-days", { days: say(days, String) }) : weekdays.length > 0 ? t("cron-weekdays", { days: say(weekdays, dayName) }) : /\d\d:\d\d/.test(time) && !/[*/]/.test(hour) ? t("cron-daily") : "";
  const during = months.length > 0 ? t("cron-months", { months: say(months, monthName) }) : "";
  return t("cron-words", { time, on: on && ` ${on}`, during: during && ` ${during}` }).trim();
}
