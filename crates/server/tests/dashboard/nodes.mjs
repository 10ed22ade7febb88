// Nodes and shards: those of a server with several shards, and shards without an owner, as a cluster shows them.
//   node nodes.mjs
//   DASHBOARD_SHARDS   the address of a server with three shards

import assert from "node:assert/strict";

import { check, confirm, shown, tab, visit } from "./stage.mjs";

const shards = process.env.DASHBOARD_SHARDS;
const here = await (await fetch(`${shards}/v1/cluster`)).json();
assert.equal(here.shards.length, 3, JSON.stringify(here));

// What the tables show, row by row.
const cells = (table) => table.locator("tbody tr").evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
async function opened(seen) {
  const { page } = seen;
  await visit(page, `${shards}/#/server`);
  const nodes = page.getByRole("region", { name: "Nodes" });
  await nodes.locator("tbody tr").first().waitFor();
  await page.locator("summary", { hasText: "Shards" }).click();
  const table = page.getByRole("region", { name: "Shards" });
  await table.locator("tbody tr").nth(2).waitFor();
  return [await cells(nodes), await cells(table)];
}

// One process with three shards.
{
  const seen = await tab();
  const [nodes, rows] = await opened(seen);
  assert.deepEqual(nodes, [[`${here.node} (this one)`, here.nodes[0].advertise, "3"]]);
  assert.deepEqual(rows.map((row) => row[0]), ["0", "1", "2"]);
  for (const row of rows) assert.deepEqual([row[1], row[4]], [here.node, "serving"], JSON.stringify(row));
  assert.equal(await seen.page.getByText("without an owner").count(), 0);
  // They stay open while the page looks again.
  await seen.page.waitForResponse((answer) => answer.url().endsWith("/v1/cluster"));
  await seen.page.waitForResponse((answer) => answer.url().endsWith("/v1/cluster"));
  assert.equal(await seen.page.getByRole("region", { name: "Shards" }).isVisible(), true);
  await check(seen, "nodes and shards");
  await seen.context.close();
}

// A cluster of two nodes with one shard that nobody owns, and one of which it is not known. That nobody owns it is an alarm,
// and that it is not known is none.
for (const options of [{}, { locale: "zh-CN", colorScheme: "dark" }, { viewport: { width: 360, height: 740 } }]) {
  const seen = await tab(options);
  await seen.page.route("**/v1/cluster", (route) => route.fulfill({ json: {
    node: "a", age_ms: 12, nodes: [{ name: "a", advertise: "10.0.0.1:7790", shards: 1 }, { name: "b", advertise: "10.0.0.2:7790", shards: 0 }], shards_without_owner: 1,
    shards: [
      { shard: 0, owner: "a", wanted: "a", epoch: 4, here: "serving" },
      { shard: 1, owner: null, wanted: "b", epoch: 7, here: "away" },
      { shard: 2, owner: null, unknown: "the store gave no answer", wanted: null, epoch: null, here: "away" },
    ],
  } }));
  if (options.locale) {
    await visit(seen.page, `${shards}/#/server`);
    await seen.page.getByText("1 个分片没有所有者").waitFor();
    await seen.page.locator("summary", { hasText: "分片" }).click();
    await check(seen, "a shard without an owner, zh");
  } else {
    const [nodes, rows] = await opened(seen);
    await seen.page.getByText("1 shard without an owner").waitFor();
    assert.deepEqual(nodes, [["a (this one)", "10.0.0.1:7790", "1"], ["b", "10.0.0.2:7790", "0"]]);
    assert.deepEqual(rows, [
      ["0", "a", "a", "4", "serving"], ["1", "none", "b", "7", "away"], ["2", "not known: the store gave no answer", "–", "–", "away"],
    ]);
    await check(seen, "a shard without an owner");
  }
  await seen.context.close();
}

// A database and a broker that are away: on the page of the server, and among what needs somebody.
for (const options of [{}, { viewport: { width: 360, height: 740 } }]) {
  const seen = await tab(options);
  const { page } = seen;
  await visit(page, `${shards}/#/server`);
  const [database, bridge] = ["Databases with an outbox", "Bridges"].map((name) => page.getByRole("region", { name }));
  await database.locator("tbody tr", { hasText: /^shop.*away.*error connecting/ }).waitFor();
  await bridge.locator("tbody tr", { hasText: /^broker.*away/ }).waitFor();
  await check(seen, "a database and a broker that are away");
  await visit(page, `${shards}/#/`);
  const [shop, broker] = ["the outbox is not drained: ", "the broker is away: "].map((text) => page.locator("ul.causes li", { hasText: text }));
  await Promise.all([shop.waitFor(), broker.waitFor()]);
  await broker.getByRole("button", { name: "Pause", exact: true }).click();
  await page.getByLabel("Reason").fill("the broker moves");
  await confirm(page, "OK");
  const paused = page.locator("ul.causes li", { hasText: "the bridge is paused: the broker moves" });
  await paused.getByRole("button", { name: "Resume", exact: true }).click();
  await broker.waitFor();
  await check(seen, "bridges among what needs somebody");
  await seen.context.close();
}

console.log(`ok      nodes and shards (${shown.pages} pages without a violation)`);
