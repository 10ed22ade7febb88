// The words of the page, in the reader's language.

import en from "./en.js";
import zh from "./zh.js";

const LANGUAGE = "duewheel-language";
const all = { en, zh };
const wanted = localStorage.getItem(LANGUAGE) ?? (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");

export const language = all[wanted] ? wanted : "en";
export const locale = language === "zh" ? "zh-CN" : navigator.language.startsWith("en") ? navigator.language : "en-GB";

export function setLanguage(name) {
  localStorage.setItem(LANGUAGE, name);
  location.reload();
}

// The text under a name; {x} in it becomes the value of x.
export function t(name, values) {
  const text = all[language][name] ?? name;
  return values ? text.replace(/\{(\w+)\}/g, (whole, key) => (key in values ? String(values[key]) : whole)) : text;
}
