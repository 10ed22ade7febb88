// The words of the page, in the reader's language.

import texts from "./texts.js";

const LANGUAGE = "duewheel-language";
const LANGUAGES = ["en", "zh"];
const wanted = localStorage.getItem(LANGUAGE) ?? (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");

export const language = LANGUAGES.includes(wanted) ? wanted : "en";
const own = LANGUAGES.indexOf(language);
export const locale = language === "zh" ? "zh-CN" : navigator.language.startsWith("en") ? navigator.language : "en-GB";

export function setLanguage(name) {
  localStorage.setItem(LANGUAGE, name);
  location.reload();
}

// The text under a name; {x} in it becomes the value of x, and {x|message|messages} that with the word for one or for more.
export function t(name, values) {
  const text = texts[name]?.[own] ?? name;
  const put = (whole, key, one, more) => (key in values ? [String(values[key]), String(values[key]) === "1" ? one : more].filter(Boolean).join(" ") : whole);
  return values ? text.replace(/\{(\w+)(?:\|([^|}]*)\|([^}]*))?\}/g, put) : text;
}
