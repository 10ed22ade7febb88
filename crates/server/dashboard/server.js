// The server itself: health, nodes and shards, quotas, tokens.

import { get, identity, may, mayAll } from "./api.js";
import { badge, card, el, pairs, show, soft, table } from "./dom.js";
import { bytes, count, exact, span, when } from "./format.js";
import { bridgeCard, bridges, databaseCard } from "./stack.js";
import { becauseOf, quotaTable } from "./tables.js";
import { t } from "./words.js";

// Who owns a shard. That nobody does is worse than that it is not known.
const ownerOf = ({ owner, unknown }) => owner ?? (unknown ? badge(t("owner-unknown", { why: unknown }), "warn") : badge(t("none"), "bad"));

// What the server says of itself.
const sinceAt = (text) => t("since-at", { at: exact(text) });
function about(now) {
  const used = (part, limit, name) => [el("meter", { min: 0, max: limit, high: limit * 0.9, value: Math.min(part, limit), "aria-label": name }), " ", t("used-of", { used: bytes(part), limit: bytes(limit) })];
  const { disk, memory, store, shards, breakers, warnings } = now;
  return card(t("about"),
    warnings.length > 0 && el("ul", { class: "causes" }, warnings.map((text) => el("li", { class: "warn" }, el("span", { class: "why" }, text)))),
    pairs([
      [t("version"), now.version], now.started_at && [t("uptime"), `${span(now.uptime_ms)} (${sinceAt(now.started_at)})`], [t("store"), `${store.kind}, ${store.level}`], store.folder && [t("folder"), store.folder],
      disk && [t("disk"), [...used(disk.used_bytes, disk.used_bytes + disk.free_bytes, t("disk")), disk.reserve_bytes ? ` · ${t("reserve", { n: bytes(disk.reserve_bytes) })}` : ""]],
      [t("memory"), memory.limit_bytes ? used(memory.used_bytes, memory.limit_bytes, t("memory")) : bytes(memory.used_bytes)],
      [t("shards"), shards.length > 12 || shards.every(({ owner }) => !owner) ? t("shards-open", { n: count(shards.filter(({ open }) => open).length), all: count(shards.length) }) : shards.map(({ shard, owner, open }) => `${shard}: ${owner ?? t("none")}${open ? "" : ` (${t("not-here")})`}`).join(" · ")],
      [t("breakers"), breakers.length === 0 ? t("none") : breakers.map(({ target, since, because }) => el("div", {}, badge(target, "bad"), ` ${sinceAt(since)}${because ? t("because", { why: becauseOf(because) }) : ""}`))],
      [t("last-backup"), now.last_backup ? when(now.last_backup) : t("none")],
    ]));
}

export function server(root, _, live) {
  const [status, health, nodes, stack, quotas, tokens] = [el("div"), el("div"), el("div"), el("div"), el("div"), el("div")];
  root.append(el("h1", {}, t("server")), status, el("div", { class: "grid" }, health, nodes), stack, quotas, tokens);
  if (mayAll("admin")) live.every(5_000, async () => {
    const [now, all] = await Promise.all([get("/v1/status", live.signal), bridges(live.signal)]);
    show(status, about(now));
    show(stack, databaseCard(now.databases), bridgeCard(all));
  });
  live.every(3_000, async () => {
    const now = await fetch("/healthz", { signal: live.signal, cache: "no-store" }).then((answer) => answer.json());
    show(health, card(t("health"), pairs(Object.entries(now).map(([name, value]) => [t(`health-${name}`),
      name === "status" ? badge(String(value), value === "ok" ? "good" : "bad") : name.endsWith("_ms") ? span(value) : typeof value === "object" ? JSON.stringify(value) : typeof value === "boolean" ? t(value ? "yes" : "no") : String(value)]))));
    // A server without nodes has no view of them, and says so here.
    if (now.shards_without_owner === undefined) { show(nodes, card(t("nodes"), soft(t("one-node")))); return; }
    if (!mayAll("metrics")) return;
    const view = await get("/v1/cluster", live.signal);
    show(nodes, card(t("nodes"),
      view.shards_without_owner > 0 && el("p", {}, badge(t("without-owner", { n: view.shards_without_owner }), "bad")),
      table(t("nodes"), [[t("node")], [t("address")], [t("shards"), "n"]], view.nodes.map((node) => [node.name === view.node ? `${node.name} (${t("this-one")})` : node.name, node.advertise, count(node.shards)])),
      el("details", { class: "data", "data-name": "shards" }, el("summary", { "data-name": "shards-summary" }, t("shards")), table(t("shards"), [[t("shard"), "n"], [t("owner")], [t("wanted")], [t("epoch"), "n"], [t("here")]],
        view.shards.map((shard) => [count(shard.shard), ownerOf(shard), shard.wanted ?? "–", shard.epoch === null ? "–" : count(shard.epoch), shard.here]))),
      soft(t("view-age", { span: span(view.age_ms) }))));
  });
  if (may("metrics")) live.every(5_000, async () => {
    const { quotas: found } = await get("/v1/quotas", live.signal);
    show(quotas, found.length > 0 && card(t("quotas"), quotaTable(found)));
  });
  if (mayAll("admin")) {
    live.every(10_000, async () => {
      const { tokens: found } = await get("/v1/tokens", live.signal);
      show(tokens, card(t("tokens"), identity.open ? el("p", {}, badge(t("open-server"), "warn")) : table(t("tokens"), [[t("name"), "key"], [t("scopes")], [t("queues"), "key"], [t("expires")]],
        found.map((one) => [one.name, one.scopes.join(", "), one.queues === null ? t("all") : one.queues.join(", "), one.expires === null ? t("never") : when(one.expires)]), { cards: true })));
    });
  }
}
