// A message, what is dead, and the search.

import * as acts from "./acts.js";
import { allQueues, find, get, may, mayList, queryOf, queuePath } from "./api.js";
import { badge, card, el, pairs, show, soft, table } from "./dom.js";
import { attempts, count, exact, span, when, zone } from "./format.js";
import { change } from "./jobs.js";
import { again, becauseOf, messageTable, ofAll, queueLink, shownOf, stateBadge } from "./tables.js";
import { t } from "./words.js";

// The bytes of a body as people read dumps: sixteen a line.
function hex(message) {
  const data = message.body === undefined ? Uint8Array.from(atob(message.body_base64), (c) => c.charCodeAt(0)) : new TextEncoder().encode(message.body);
  const out = [];
  for (let n = 0; n < Math.min(data.length, 16_384); n += 16) {
    const row = [...data.slice(n, n + 16)];
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    out.push(`${n.toString(16).padStart(6, "0")}  ${row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(48)} ${text}`);
  }
  return out.join("\n");
}

// A text in JSON with its members in lines of their own. What it says stays as it is written: a double does not hold each number,
// and an object has each name once.
function indented(text) {
  JSON.parse(text);
  let depth = 0;
  const line = (by) => { depth += by; return `\n${"  ".repeat(depth)}`; };
  const put = { "{": (token) => token + line(1), "[": (token) => token + line(1), "}": (token) => line(-1) + token, "]": (token) => line(-1) + token, ",": (token) => token + line(0), ":": () => ": " };
  const tokens = text.match(/"[^"\\]*(?:\\.[^"\\]*)*"|\{\s*\}|\[\s*\]|[[\]{},:]|[^\s[\]{},:"]+/g);
  return tokens.map((token) => put[token]?.(token) ?? token).join("");
}

function bodyView(message) {
  let json = null;
  try { json = indented(message.body); } catch { json = null; }
  const forms = [message.body !== undefined && ["text", message.body], json !== null && ["json", json], ["hex", hex(message)]].filter(Boolean);
  const shown = el("pre", { tabindex: "0", "aria-label": t("set-body") }, (json !== null ? forms[1] : forms[0])[1]);
  const choose = el("select", { "aria-label": t("show-as"), onchange: (event) => { shown.textContent = forms[event.target.selectedIndex][1]; } },
    forms.map(([name]) => el("option", { selected: name === (json !== null ? "json" : forms[0][0]) }, name)));
  return [el("div", { class: "bar" }, choose), shown];
}

export function message(root, { id }, live) {
  const place = el("div");
  root.append(el("h1", {}, t("message-id", { id })), place);
  let seen = "";
  live.every(2_000, async () => {
    const found = await find(`/v1/messages/${encodeURIComponent(id)}`, live.signal);
    if (!found) {
      seen = "";
      show(place, card(null, el("p", {}, t("gone"))));
      return;
    }
    const { due_in_ms: _, ...rest } = found;
    if (JSON.stringify(rest) === seen) return;
    seen = JSON.stringify(rest);
    const waits = found.state === "scheduled" || found.state === "ready";
    show(place,
      may("cancel") && el("div", { class: "bar" },
        waits && el("button", { "data-name": "postpone", onclick: () => acts.postpone(found) }, t("act-postpone")),
        found.state === "scheduled" && el("button", { "data-name": "fire", onclick: () => acts.fire(found) }, t("act-fire")),
        found.state === "dead" && may("admin") && el("button", { "data-name": "redrive", onclick: () => acts.redrive(found.queue, found.id) }, t("act-redrive")),
        (found.state === "dead" || found.state === "done") && acts.mayPut(found) && el("button", { "data-name": "replay", onclick: () => acts.replay(found) }, t("replay")),
        found.state !== "leased" && found.state !== "done" && el("button", { "data-name": "cancel", class: "danger", onclick: () => acts.cancel(found) }, t("cancel"))),
      card(null, pairs([
        [t("queue"), queueLink(found.queue)], [t("state"), stateBadge(found)], found.ended_at && [t("ended-at"), when(found.ended_at)], [t("key"), found.key ?? "–"],
        [t("due"), `${when(found.due_at)} · ${zone}`], [t("attempt"), `${found.attempt} / ${attempts(found.max_attempts)}${found.forgiven ? ` (${t("forgiven", { n: found.forgiven })})` : ""}`],
        [t("enqueued-at"), when(found.enqueued_at)], [t("generation"), count(found.generation)], [t("set-priority"), count(found.priority)], [t("set-lease"), span(found.lease_ms)],
        found.lease_until && [t("lease-until"), when(found.lease_until)], found.target_url && [t("target-url"), found.target_url], found.expires_at && [t("expires-at"), when(found.expires_at)], found.dead_reason && [t("dead-reason"), reasonOf(found.dead_reason, found.history.at(-1)?.note)], found.dead_at && [t("dead-at"), when(found.dead_at)],
      ])),
      Object.keys(found.headers).length > 0 && card(t("set-headers"), pairs(Object.entries(found.headers))),
      card(t("set-body"), bodyView(found)),
      found.history.length > 0 && card(t("attempts"), table(t("attempts"), [[t("attempt"), "n"], [t("granted-at")], [t("ended-at")], [t("how")], [t("reason"), "key"]],
        found.history.map((one) => [count(one.attempt), when(one.granted_at), when(one.ended_at), one.how, one.note]), { cards: true })),
      found.deliveries?.length > 0 && card(t("deliveries"), table(t("deliveries"), [[t("granted-at")], [t("took"), "n"], [t("how")], [t("answer"), "key"]],
        found.deliveries.map((one) => [when(one.at), `${count(one.ms)} ms`, becauseOf(one.class), one.answer]), { cards: true })));
  });
}

const reasonOf = (reason, note) => [reason, note].filter(Boolean).join(": ");

// Dead letters of one queue by reason, as the server counts them.
export function dead(root, { name, reason, note = "", after }, live) {
  if (!name) return deadQueues(root, live);
  const list = el("div");
  root.append(el("h1", {}, t("dead-of", { queue: name })),
    may("admin") && el("div", { class: "bar" }, el("button", { "data-name": "redrive-all", onclick: () => change(name, { state: "dead" }, "redrive") }, t("redrive-all"))), list);
  const base = `#/dead/${encodeURIComponent(name)}`;
  const chosen = reason ? { dead_reason: reason, dead_note: note } : {};
  live.every(5_000, async () => {
    // The server takes a + for what it is.
    const query = Object.entries({ state: "dead", limit: 200, ...chosen, ...(after ? { after } : {}) }).map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
    const [found, page] = await Promise.all([get(`${queuePath(name)}/dead`, live.signal), get(`${queuePath(name)}/messages?${query}`, live.signal)]);
    show(list,
      card(t("by-reason"), found.next && soft(t("first-n", { n: count(found.counted) })),
        table(t("by-reason"), [[t("reason"), "key"], [t("messages"), "n"], [t("act")]], found.reasons.slice(0, 200).map((one) => {
          const why = reasonOf(one.dead_reason, one.dead_note);
          return [
            el("a", { href: `${base}?${new URLSearchParams({ reason: one.dead_reason, note: one.dead_note })}` }, why), count(one.messages),
            may("admin") && el("button", { "data-name": `redrive-${why}`, onclick: () => change(name, { dead_reason: one.dead_reason, dead_note: one.dead_note }, "redrive") }, t("act-redrive")),
          ];
        })), shownOf(Math.min(found.reasons.length, 200), found.reasons.length)),
      card(reason ? reasonOf(reason, note) : t("messages"), page.messages.length === 0 ? soft(t("no-messages")) : messageTable(page.messages, t("dead-letters")),
        page.next && el("a", { href: `${base}?${new URLSearchParams({ ...(reason ? { reason, note } : {}), after: page.next })}` }, t("more"))));
    // Counting looks at each of them.
    return found.counted > 2_000 ? 60_000 : undefined;
  });
}

function deadQueues(root, live) {
  const list = el("div");
  root.append(el("h1", {}, t("dead-letters")), card(null, list));
  live.every(3_000, async () => {
    const found = await allQueues(live.signal);
    const some = found.queues.filter((queue) => queue.counts.dead > 0).sort((a, b) => b.counts.dead - a.counts.dead);
    const most = some.slice(0, 200);
    show(list, ofAll(found, some, t("none-dead")), most.length > 0 && table(t("dead-letters"), [[t("queue"), "key"], [t("dead"), "n"]],
      most.map((queue) => [el("a", { href: `#/dead/${encodeURIComponent(queue.queue)}`, "data-name": `dead-${queue.queue}` }, queue.queue), count(queue.counts.dead)])), shownOf(most.length, some.length));
    return again(found);
  });
}

// How many messages a search shows.
const FOUND = 200;

// What is found under a text: a message by id, messages by key and by the beginning of their key, queues by name. Or with a span:
// what is due in it. That nothing is there is said when all queues have been looked at to their end.
export async function search(root, { q = "", queue = "", from, to }, live) {
  const list = el("div");
  const form = el("form", { class: "bar" },
    el("input", { type: "search", name: "q", value: q, "aria-label": t("search-text"), placeholder: t("search-text") }),
    (may("cancel") || mayList()) && el("input", { type: "search", name: "queue", value: queue, "aria-label": t("search-queue"), placeholder: t("search-queue") }),
    el("button", { type: "submit", class: "main" }, t("look")));
  form.addEventListener("submit", (event) => { event.preventDefault(); location.hash = `#/search${queryOf(Object.fromEntries(new FormData(form)))}`; });
  const dueThen = from && to;
  root.append(el("h1", {}, dueThen ? t("search-due", { from: exact(from), to: exact(to) }) : t("search-for", { q })), form, list);
  if (!q && !dueThen) return;
  const found = new Map();
  let [looked, part, stopped, over] = [0, false, false, false];
  const unless = (error) => { if (error.name === "AbortError") throw error; };
  const look = async (path) => { try { const one = await get(path, live.signal); found.set(one.id, one); } catch (error) { unless(error); if (error.status !== 404 && error.status !== 400) part = true; } };
  // Asks about some queues, six at a time.
  const each = async (names, ask) => { for (let n = 0; n < names.length && !stopped; n += 6) { await Promise.all(names.slice(n, n + 6).map(ask)); draw(); } };
  let all = { queues: [], more: false };
  let names = [];
  const named = () => (q ? all.queues.filter((one) => one.queue.toLowerCase().includes(q.toLowerCase())) : []);
  function draw() {
    const asks = mayList() || (may("cancel") && q);
    const messages = [...found.values()].slice(0, FOUND);
    show(list,
      card(t("messages"),
        !over && el("div", { class: "bar" }, el("progress", { max: Math.max(names.length, 1), value: looked, "aria-label": t("look") }), el("span", {}, t("searching", { n: count(looked), all: count(names.length), found: count(found.size) })), el("button", { "data-name": "stop", onclick: () => { stopped = true; } }, t("stop"))),
        messages.length > 0 ? messageTable(messages, t("messages")) : over && soft(t(part || stopped || all.more || !asks || (names.length === 0 && !may("metrics")) ? "none-so-far" : dueThen ? "nothing-due" : mayList() ? "nothing-found" : "nothing-exact")),
        found.size > FOUND && soft(t("first-found", { n: count(FOUND) })), over && (part || stopped) && soft(t("searched-part", { n: count(looked), all: count(names.length) })), over && names.length === 0 && !may("metrics") && soft(t("search-needs-queue"))),
      named().length > 0 && card(t("queues"), el("ul", {}, named().slice(0, 50).map((one) => el("li", {}, queueLink(one.queue)))), shownOf(Math.min(named().length, 50), named().length)),
      all.more && el("p", {}, badge(t("first-queues", { n: count(all.queues.length) }), "warn")));
  }
  if (/^\d+$/.test(q) && may("cancel")) await look(`/v1/messages/${q}`);
  if (may("metrics")) try { all = await allQueues(live.signal); } catch (error) { unless(error); part = true; }
  names = queue ? [queue] : all.queues.map((one) => one.queue);
  draw();
  const filter = dueThen ? { due_from: from, due_to: to } : { key_prefix: q };
  // A key finds what is done or dead as well; the beginning of one, and a span, are looked for page by page.
  async function inQueue(name) {
    if (q && may("cancel")) await look(`${queuePath(name)}/keys/${encodeURIComponent(q)}`);
    let next = null;
    for (let first = true; mayList() && (first || next !== null) && !stopped; first = false) {
      try {
        const page = await get(`${queuePath(name)}/messages${queryOf({ limit: 100, ...filter, after: next })}`, live.signal);
        for (const one of page.messages) found.set(one.id, one);
        next = page.next;
      } catch (error) { unless(error); part = true; break; }
      if (found.size > FOUND) stopped = true;
    }
    looked += 1;
  }
  await each(names, inQueue);
  over = true;
  draw();
}
