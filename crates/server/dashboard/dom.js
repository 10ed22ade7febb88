// Elements, made without markup: what comes from messages is only ever text.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(9).filter((child) => child !== undefined && child !== null && child !== false));
  return node;
}

export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Replaces what an element holds, unless the same is shown already: a reader's selection and place stay.
export function show(node, ...children) {
  const next = children.flat(9).filter((child) => child !== undefined && child !== null && child !== false);
  const old = [...node.childNodes];
  const same = old.length === next.length && old.every((child, n) => child.isEqualNode?.(next[n]) && !child.contains(document.activeElement));
  if (same) return;
  const opened = [...node.querySelectorAll("details[open]")].map((one) => one.dataset.name);
  const focus = node.contains(document.activeElement) ? document.activeElement.dataset?.name : undefined;
  node.replaceChildren(...next);
  for (const one of node.querySelectorAll("details")) if (opened.includes(one.dataset.name)) one.open = true;
  if (focus) node.querySelector(`[data-name="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
}

export function card(title, ...children) {
  return el("section", { class: "card" }, title && el("h2", {}, title), children);
}

export function figures(pairs) {
  return el("dl", { class: "figures" }, pairs.filter(Boolean).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

export function pairs(list) {
  return el("dl", { class: "pairs" }, list.filter(Boolean).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

// A table; a column is [title, class, word to sort by]. `cards`: on a phone each row is a card. `sort` is {by, down, choose}.
export function table(caption, columns, rows, { cards, sort } = {}) {
  const role = (name) => (cards ? { role: name } : {});
  const head = ([title, kind, by]) => {
    const now = by && sort?.by === by;
    return el("th", { class: kind, scope: "col", ...role("columnheader"), "aria-sort": now ? (sort.down ? "descending" : "ascending") : undefined },
      by && sort ? el("button", { class: "sort", "data-name": `sort-${by}`, onclick: () => sort.choose(by) }, title, now && el("span", { "aria-hidden": "true" }, sort.down ? " ↓" : " ↑")) : title);
  };
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, el("table", { class: cards && "cards", ...role("table") },
    el("caption", {}, caption),
    el("thead", role("rowgroup"), el("tr", role("row"), columns.map(head))),
    el("tbody", role("rowgroup"), rows.map((row) => el("tr", role("row"), row.map((content, n) => el("td", { class: columns[n][1], "data-label": cards && typeof columns[n][0] === "string" && columns[n][0], ...role("cell") }, content)))))));
}

export function badge(text, kind) {
  return el("span", { class: `badge ${kind ?? ""}` }, text);
}

export const soft = (...text) => el("p", { class: "soft" }, text);

// A command that can be copied.
export function command(text, word, done) {
  const button = el("button", { "data-name": `copy-${text}`, onclick: async () => {
    try { await navigator.clipboard.writeText(text); } catch { getSelection().selectAllChildren(code); return; }
    button.textContent = done;
  } }, word);
  const code = el("code", {}, text);
  return el("div", { class: "command" }, code, button);
}
