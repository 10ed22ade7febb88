// What was done by whom: acts that change more than one message, or a setting.

import { get, queryOf } from "./api.js";
import { card, el, show, soft, table } from "./dom.js";
import { count } from "./format.js";
import { moreOf, whenCell } from "./tables.js";
import { t } from "./words.js";

export function audit(root, { after }, live) {
  const list = el("div");
  root.append(el("h1", {}, t("audit")), card(null, soft(t("audit-text")), list));
  live.every(5_000, async () => {
    const page = await get(`/v1/audit${queryOf({ after })}`, live.signal);
    const titles = [[t("time"), "when"], [t("act")], [t("object"), "key"], [t("messages"), "n"], [t("by")], [t("address")], [t("request-id")], [t("detail"), "key"]];
    show(list, page.acts.length === 0 ? soft(t("no-acts")) : table(t("audit"), titles, page.acts.map((one) => [whenCell(one.at), one.act, one.object ?? "–", one.count === undefined ? (one.job ? t("job-running") : "–") : count(one.count) + (one.refused ? ` · ${t("refused", { n: count(one.refused) })}` : ""), one.token ?? t("nobody"), one.address ?? "–", one.request_id ?? "–", one.detail ?? ""]), { cards: true }), moreOf("/audit", page.next));
  });
}
