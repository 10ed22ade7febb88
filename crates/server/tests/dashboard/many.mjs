// More queues than a page of an answer has: none that needs a look is left out, and where not all were looked at the page says so.
//   node many.mjs
//   DASHBOARD_MANY   the address of a server without queues

import assert from "node:assert/strict";

import { check, shown, tab, visit } from "./stage.mjs";

const many = process.env.DASHBOARD_MANY;
const post = async (path, body) => {
  const answer = await fetch(new URL(path, many), { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  assert.ok(answer.ok, `${path}: ${answer.status}`);
  return answer.json();
};
const seen = await tab();
const { page } = seen;
// An answer has 100 queues, and not 1,000: many are enough to need a second one.
await page.route("**/v1/queues?limit=1000*", (route) => route.continue({ url: route.request().url().replace("limit=1000", "limit=100") }));
// A search has not looked at one of them until it is let.
let letOn = () => {};
const hold = async () => {
  await page.unroute("**/v1/queues/q-0050/**");
  const held = new Promise((resolve) => { letOn = resolve; });
  await page.route("**/v1/queues/q-0050/**", async (route) => { await held; await route.continue(); });
};
const go = async (path, heading) => {
  await visit(page, `${many}/#${path}`);
  await page.getByRole("heading", { level: 1, name: heading }).waitFor();
};

// A server without queues shows the first three commands in place of empty charts.
await go("/", "Overview");
await page.getByRole("heading", { name: "The first messages" }).waitFor();
assert.equal(await page.getByRole("button", { name: "Copy" }).count(), 3);
assert.match(await page.locator(".command code").first().textContent(), new RegExp(`^duewheel enqueue .*--server ${many}`));
assert.equal(await page.locator("main svg:visible").count(), 0);
await page.getByText("0 queues; nothing is overdue").waitFor();
await check(seen, "a server without queues");

const names = Array.from({ length: 100 }, (_, n) => `q-${String(n).padStart(4, "0")}`);
for (let n = 0; n < names.length; n += 50) {
  await Promise.all(names.slice(n, n + 50).map((name) => post(`/v1/queues/${name}/messages`, { body: "x", delay: "1h" })));
}

// Nothing is overdue or dead, and this is said of all queues.
await go("/", "Overview");
await page.getByText("100 queues; nothing is overdue").waitFor();
await go("/dead", "Dead letters");
await page.getByText("No message is dead.").waitFor();

// The last of 1,001 queues by name was on the second page, which was never read: both pages said that all was well.
await post("/v1/queues/zz-last/messages", { body: "x", delay: "0s" });
await post("/v1/queues/zz-last/messages", { body: "x", delay: "1h", state: "dead" });
await go("/", "Overview");
await page.getByRole("link", { name: "zz-last" }).waitFor();
assert.equal(await page.getByText("nothing is overdue").count(), 0);
await go("/dead", "Dead letters");
await page.getByRole("cell", { name: "zz-last" }).waitFor();
await check(seen, "the dead letters of one queue of many");
await go("/queues", "Queues");
await page.getByRole("searchbox", { name: "Filter by name" }).fill("nothing");
await page.getByText("No queue on this page has such a name").waitFor();

// Keys that begin so are found in whichever queue they are; that nothing is pending is said when all were looked at.
await post("/v1/queues/q-0003/messages", { body: "x", key: "eu-7/first", delay: "1h" });
await post("/v1/queues/q-0070/messages", { body: "x", key: "eu-7/later", delay: "1h" });
await hold();
await go("/search?q=eu-7", "Search: eu-7");
await page.getByText(/of 101 queues, \d+ found/).waitFor();
letOn();
await page.getByRole("cell", { name: "eu-7/first" }).waitFor();
await page.getByRole("cell", { name: "eu-7/later" }).waitFor();
await page.getByText(/of 101 queues, \d+ found/).waitFor({ state: "detached" });
await check(seen, "a search over many queues");
await hold();
await go("/search?q=nowhere", "Search: nowhere");
const nothing = page.getByText("Nothing is pending under this id");
await page.getByText(/of 101 queues, \d+ found/).waitFor();
assert.equal(await nothing.count(), 0, "not before all were looked at");
letOn();
await nothing.waitFor();
await go("/search?q=eu-7", "Search: eu-7");
await page.getByRole("searchbox", { name: "In the queue" }).fill("q-0070");
await page.getByRole("button", { name: "Search" }).click();
await page.getByRole("cell", { name: "eu-7/later" }).waitFor();
await page.getByRole("cell", { name: "eu-7/first" }).waitFor({ state: "detached" });
await check(seen, "a search in one queue");
// A queue by its name is found on the second page of queues, too.
await go("/search?q=ZZ-last", "Search: ZZ-last");
await page.getByRole("link", { name: "zz-last" }).waitFor();

// Pages without an end: each answer says that there is another one. Nothing was found, and that is no all-clear.
let asked = 0;
const five = await (await fetch(`${many}/v1/queues?limit=5`)).json();
await page.route("**/v1/queues?limit=1000*", (route) => {
  asked += 1;
  return route.fulfill({ json: five });
});
for (const [path, heading] of [["/", "Overview"], ["/dead", "Dead letters"]]) {
  await go("/queues", "Queues");
  asked = 0;
  await go(path, heading);
  await page.getByText("Only the first 50 queues").waitFor();
  await page.getByText("None of those that were looked at").waitFor();
  assert.equal(asked, 10, "the pages that are read");
  assert.equal(await page.getByText(/nothing is overdue|No message is dead/).count(), 0);
  await check(seen, `${heading}, of more queues than are looked at`);
}

console.log(`ok      many queues (${shown.pages} pages without a violation)`);
