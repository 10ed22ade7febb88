// What a view shows is in its address: a link to it shows the same.

const textOf = (parameters) => {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value)).toString();
  return query ? `?${query}` : "";
};

// The address of a queue's page with these parameters; those without a value are left out.
export const queueAt = (name, parameters) => `#/queues/${encodeURIComponent(name)}${textOf(parameters)}`;
// The address of a page of all queues.
export const queuesAt = (parameters) => `#/queues${textOf(parameters)}`;

// Writes parameters into the address of the view that is open, which goes on as it is. A step is one that the browser's Back
// takes back.
export function note(parameters, { step = false } = {}) {
  const [path, query] = (location.hash.slice(1) || "/").split("?");
  const next = `#${path}${textOf({ ...Object.fromEntries(new URLSearchParams(query)), ...parameters })}`;
  if (next !== (location.hash || "#/")) history[step ? "pushState" : "replaceState"](null, "", next);
}
