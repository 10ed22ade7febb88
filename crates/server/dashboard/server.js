// The server itself: health, nodes and shards, quotas, tokens.

import { get, identity, may, mayAll } from "./api.js";
import { badge, card, el, pairs, show, table } from "./dom.js";
import { count, span, when } from "./format.js";
import { quotaTable } from "./tables.js";
import { t } from "./words.js";

// Who owns a shard. That nobody does is worse than that it is not known.
const ownerOf = ({ owner, unknown }) => owner ?? (unknown ? badge(t("owner-unknown", { why: unknown }), "warn") : badge(t("none"), "bad"));

export function server(root, _, live) {
  const health = el("div", {});
  const nodes = el("div", {});
  const quotas = el("div", {});
  const tokens = el("div", {});
  root.append(el("h1", {}, t("server")), health, nodes, quotas, tokens);
  live.every(3_000, async () => {
    const now = await fetch("/healthz", { signal: live.signal, cache: "no-store" }).then((answer) => answer.json());
    show(health, card(t("health"), pairs(Object.entries(now).map(([name, value]) => [name,
      name === "status" ? badge(String(value), value === "ok" ? "good" : "bad") : typeof value === "object" ? JSON.stringify(value) : String(value)]))));
  });
  if (mayAll("metrics")) {
    live.every(3_000, async () => {
      let view;
      try { view = await get("/v1/cluster", live.signal); } catch (error) { if (error.status === 404) { show(nodes, card(t("nodes"), el("p", { class: "soft" }, t("one-node")))); return; } throw error; }
      show(nodes, card(t("nodes"),
        view.shards_without_owner > 0 && el("p", {}, badge(t("without-owner", { n: view.shards_without_owner }), "bad")),
        table(t("nodes"), [[t("node")], [t("address")], [t("shards"), "n"]], view.nodes.map((node) => [node.name === view.node ? `${node.name} (${t("this-one")})` : node.name, node.advertise, count(node.shards)])),
        el("details", { class: "data", "data-name": "shards" }, el("summary", { "data-name": "shards-summary" }, t("shards")), table(t("shards"), [[t("shard"), "n"], [t("owner")], [t("wanted")], [t("epoch"), "n"], [t("here")]],
          view.shards.map((shard) => [count(shard.shard), ownerOf(shard), shard.wanted ?? "–", shard.epoch === null ? "–" : count(shard.epoch), shard.here]))),
        el("p", { class: "soft" }, t("view-age", { span: span(view.age_ms) }))));
    });
  }
  if (may("metrics")) live.every(5_000, async () => {
    const { quotas: found } = await get("/v1/quotas", live.signal);
    show(quotas, found.length > 0 && card(t("quotas"), quotaTable(found)));
  });
  if (mayAll("admin")) {
    live.every(10_000, async () => {
      const { tokens: found } = await get("/v1/tokens", live.signal);
      show(tokens, card(t("tokens"), identity.open ? el("p", {}, badge(t("open-server"), "warn")) : table(t("tokens"), [[t("name"), "key"], [t("scopes")], [t("queues"), "key"], [t("expires")]],
        found.map((one) => [one.name, one.scopes.join(", "), one.queues === null ? t("all") : one.queues.join(", "), one.expires === null ? t("never") : when(one.expires)]))));
    });
  }
}
