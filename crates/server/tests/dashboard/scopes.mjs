// What a token's scopes do not allow is neither offered nor asked for: no request is refused and no page begins with an error.
//   node scopes.mjs

import assert from "node:assert/strict";

import { api, check, dialog, eventually, guarded, shown, tab, toast, tokenOf, visit } from "./stage.mjs";

const full = tokenOf("full");
const put = (queue, message) => api(`/v1/queues/${queue}/messages`, "POST", message, full);
const { id } = await put("shop", { body: "x", key: "seen", delay: "1h", if_exists: "keep" });
await put("shop", { body: "x", delay: "1h", state: "dead" });

const offered = {
  full: ["Overview", "Queues", "Schedules", "Targets", "Dead letters", "Jobs", "Audit", "Server"],
  small: ["Overview", "Queues", "Server"],
  producer: ["Overview", "Queues", "Server"],
  // Without the scope metrics Overview, Queues and Server had banners of errors, and Dead letters had, too.
  warden: ["Overview", "Queues", "Schedules", "Targets", "Dead letters", "Jobs", "Audit", "Server"],
  keeper: ["Queues", "Schedules", "Targets", "Jobs", "Audit", "Server"],
  // The server shows dead letters to consumers; the dashboard had them for administrators alone.
  worker: ["Queues", "Server"],
  watcher: ["Overview", "Queues", "Dead letters", "Server"],
};

async function signedIn(name) {
  const seen = await tab();
  seen.refused = [];
  // What it has asked for and not got, but for the stream, which has no end.
  seen.asked = new Set();
  seen.page.on("request", (request) => { if (!request.url().endsWith("/v1/stats/stream")) seen.asked.add(request); });
  for (const end of ["requestfinished", "requestfailed"]) seen.page.on(end, (request) => seen.asked.delete(request));
  seen.page.on("response", (answer) => { if (answer.status() === 403) seen.refused.push(answer.url()); });
  await seen.page.goto(`${guarded}/`);
  await seen.page.getByLabel("Token").fill(tokenOf(name));
  await seen.page.getByRole("button", { name: "Sign in" }).click();
  await seen.page.getByRole("button", { name: `Sign out ${name}` }).waitFor();
  return seen;
}
// A page, when what it asks for at first has been answered.
async function calm(seen, path, what) {
  await visit(seen.page, `${guarded}/#${path}`);
  await seen.page.locator("main h1").waitFor();
  // An answer may lead to the next request.
  for (let quiet = 0; quiet < 3; quiet = seen.asked.size === 0 ? quiet + 1 : 0) await seen.page.waitForTimeout(30);
  assert.equal(await seen.page.locator("#trouble").textContent(), "", `${what}: ${path}`);
  assert.deepEqual(seen.refused, [], `${what}: ${path}`);
}

for (const [name, names] of Object.entries(offered)) {
  const seen = await signedIn(name);
  const { page } = seen;
  assert.deepEqual(await page.locator("#nav a").allTextContents(), names, name);
  assert.ok((await page.locator("header").boundingBox()).height < 56, `${name}: one row of header`);
  const linked = await page.locator("#nav a").evaluateAll((links) => links.map((link) => link.getAttribute("href").slice(1)));
  const others = ["/", "/queues", "/queues/shop", `/messages/${id}`, "/dead", "/dead/shop", "/schedules/x", "/targets/x", "/jobs", "/search?q=seen", "/search?q=seen&queue=shop"];
  for (const path of new Set([...linked, ...others])) {
    await calm(seen, path, name);
    if (["/", "/queues", "/queues/shop"].includes(path)) await check(seen, `${path}, ${name}`);
  }
  await seen.context.close();
}

// The quota of a queue is on its page, for those who may see figures of it; a queue without one has none.
for (const [name, there] of [["full", 1], ["small", 1], ["keeper", 0]]) {
  const seen = await signedIn(name);
  await calm(seen, "/queues/shop", name);
  assert.equal(await seen.page.getByRole("region", { name: "Quotas" }).count(), there, name);
  if (there) assert.match(await seen.page.getByRole("region", { name: "Quotas" }).locator("tbody").textContent(), /^shop\d+ \/ 1,000/);
  await check(seen, `a queue with a quota, ${name}`);
  // The other token is limited to this queue.
  if (name !== "small") await calm(seen, "/queues/made", name);
  if (name !== "small") assert.equal(await seen.page.getByRole("region", { name: "Quotas" }).count(), 0, `${name}: a queue without a quota`);
  await seen.context.close();
}

// The list of queues has it, too.
for (const name of ["full", "small"]) {
  const seen = await signedIn(name);
  await calm(seen, "/queues", name);
  const row = (queue) => seen.page.locator("tr", { has: seen.page.getByRole("link", { name: queue, exact: true }) }).locator("td").nth(-2);
  assert.equal(await seen.page.locator("thead th").nth(-2).textContent(), "Quota", name);
  assert.match(await row("shop").textContent(), /^\d+ \/ 1,000$/, name);
  await check(seen, `queues with a quota, ${name}`);
  await seen.context.close();
}

// One message is changed with the scope cancel; without it messages are chosen for a redrive alone.
for (const [name, n] of [["full", 1], ["warden", 0]]) {
  const seen = await signedIn(name);
  await calm(seen, "/queues/shop?state=scheduled", name);
  await seen.page.locator("main table.cards tbody tr").first().waitFor();
  assert.equal(await seen.page.getByLabel("Choose all on this page").count(), n, name);
  await seen.context.close();
}

// A consumer sees the messages of a queue and why some are dead, and is offered no act that it may not do.
for (const name of ["worker", "watcher"]) {
  const seen = await signedIn(name);
  const { page } = seen;
  await calm(seen, "/queues/shop", name);
  await page.locator("main table.cards tbody tr").first().waitFor();
  await page.getByRole("link", { name: "Dead letters", exact: true }).last().click();
  await page.getByRole("heading", { level: 1, name: "Dead letters of shop" }).waitFor();
  await page.getByRole("region", { name: "Dead letters" }).locator("tbody tr").first().waitFor();
  await check(seen, `dead letters, ${name}`);
  await calm(seen, "/search?q=se&queue=shop", name);
  await page.locator("td.key", { hasText: "seen" }).waitFor();
  for (const path of ["/queues/shop?state=dead", "/dead/shop"]) {
    await calm(seen, path, name);
    await page.locator("main table.cards tbody tr").first().waitFor();
    assert.deepEqual(await page.locator("main button").filter({ hasText: /Redrive|Purge|Pause|Fire|Postpone|Cancel/ }).allTextContents(), [], `${name}: ${path}`);
  }
  await seen.context.close();
}

// The server's own state is for those who administer all of it.
for (const [name, n] of [["warden", 1], ["producer", 0]]) {
  const seen = await signedIn(name);
  await calm(seen, "/server", name);
  assert.equal(await seen.page.getByRole("heading", { name: "This server" }).count(), n, name);
  await seen.context.close();
}

// Undo of a new message is a cancel, which this token may not.
{
  const seen = await signedIn("producer");
  const { page } = seen;
  const make = async () => {
    await page.getByRole("button", { name: "New message" }).click();
    await dialog(page).getByLabel("Queue").fill("made");
    await dialog(page).getByRole("button", { name: "OK" }).click();
    await toast(page, "is scheduled");
  };
  await visit(page, `${guarded}/#/queues`);
  await make();
  assert.equal(await page.getByRole("button", { name: "Undo" }).count(), 0, "no way back is offered");
  await seen.context.close();
  const other = await signedIn("keeper");
  await visit(other.page, `${guarded}/#/queues`);
  await other.page.getByRole("searchbox", { name: "Queue", exact: true }).fill("made");
  await other.page.getByRole("button", { name: "Open" }).click();
  await other.page.getByRole("heading", { level: 1, name: "made" }).waitFor();
  await other.page.getByRole("button", { name: "Pause" }).click();
  await dialog(other.page).getByRole("button", { name: "OK" }).click();
  await toast(other.page, "is paused");
  await eventually("paused", async () => (await api("/v1/queues/made", "GET", undefined, full)).paused);
  await other.page.getByRole("button", { name: "Resume", exact: true }).click();
  await toast(other.page, "grants again");
  await other.context.close();
}

console.log(`ok      scopes of tokens (${shown.pages} pages without a violation)`);
