// What a view shows is in its address: a link to it shows the same.

import { queryOf } from "./api.js";

// The address of a queue's page with these parameters.
export const queueAt = (name, parameters) => `#/queues/${encodeURIComponent(name)}${queryOf(parameters)}`;
// The address of a page of all queues.
export const queuesAt = (parameters) => `#/queues${queryOf(parameters)}`;

// An address with more parameters, or other ones.
function withThem(hash, parameters) {
  const [path, query] = (hash.slice(1) || "/").split("?");
  return `#${path}${queryOf({ ...Object.fromEntries(new URLSearchParams(query)), ...parameters })}`;
}

// Writes parameters into the address of the view that is open, which goes on as it is, and into those links of it that keep
// them (`data-keeps`). A step is one that the browser's Back takes back.
export function note(parameters, { step = false } = {}) {
  const next = withThem(location.hash, parameters);
  if (next !== (location.hash || "#/")) history[step ? "pushState" : "replaceState"](null, "", next);
  for (const link of document.querySelectorAll("a[data-keeps]")) link.setAttribute("href", withThem(link.getAttribute("href"), parameters));
}

// What the address says of the graphics, for links that keep it.
export function spanNow() {
  const query = new URLSearchParams(location.hash.split("?")[1]);
  return { span: query.get("span"), zoom: query.get("zoom"), past: query.get("past") };
}
