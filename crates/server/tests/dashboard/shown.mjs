// What is shown is right: attempts without end, addresses that name nothing, tables behind all graphics, and a hidden page
// asks for nothing.
//   node shown.mjs

import assert from "node:assert/strict";

import { api, browser, check, eventually, go, open, shown, tab } from "./stage.mjs";

const seen = await tab();
const { page } = seen;

// Attempts without end are told as 4294967295.
{
  const { id } = await api("/v1/queues/endless/messages", "POST", { body: "x", delay: "1h", max_attempts: 4_294_967_295 });
  await api("/v1/queues/endless/config", "PATCH", { max_attempts: 4_294_967_295 });
  for (const [path, heading] of [["/queues/endless", "endless"], [`/messages/${id}`, `Message ${id}`], [`/search?q=${id}`, `Search: ${id}`]]) {
    await go(page, path, heading);
    await page.getByText("∞").first().waitFor();
    assert.equal(await page.getByText("4294967295").count(), 0, path);
  }
  await go(page, "/queues/endless", "endless");
  await page.getByText("0/∞").first().waitFor();
  await page.locator("dl.pairs dd", { hasText: "∞" }).waitFor();
}

// A body as text, as JSON and as bytes; one that is no text as bytes alone.
{
  const body = page.getByLabel("Body");
  const choose = page.getByLabel("Show as");
  const of = async (queue, message) => {
    const { id } = await api(`/v1/queues/${queue}/messages`, "POST", { ...message, delay: "1h" });
    await go(page, `/messages/${id}`, `Message ${id}`);
    await choose.waitFor();
    return choose.locator("option").allTextContents();
  };
  assert.deepEqual(await of("bodies", { body: '{"order":42,"to":"Zoë"}' }), ["text", "json", "hex"]);
  assert.equal(await body.textContent(), '{\n  "order": 42,\n  "to": "Zoë"\n}', "JSON is indented");
  await choose.selectOption("text");
  assert.equal(await body.textContent(), '{"order":42,"to":"Zoë"}');
  await choose.selectOption("hex");
  assert.deepEqual((await body.textContent()).split("\n"), [
    "000000  7b 22 6f 72 64 65 72 22 3a 34 32 2c 22 74 6f 22  {\"order\":42,\"to\"",
    "000010  3a 22 5a 6f c3 ab 22 7d                          :\"Zo..\"}",
  ]);
  await choose.selectOption("json");
  assert.match(await body.textContent(), /^{\n {2}"order": 42,/);
  await check(seen, "a body as JSON");

  assert.deepEqual(await of("bodies", { body: "no JSON" }), ["text", "hex"]);
  assert.equal(await body.textContent(), "no JSON");

  assert.deepEqual(await of("bodies", { body_base64: "/wD+aGk=" }), ["hex"]);
  assert.equal(await body.textContent(), "000000  ff 00 fe 68 69                                   ...hi");
  await check(seen, "a body that is no text");
}

// A percent sign that stands for nothing threw, and the page before stayed.
for (const path of ["/queues/%", "/messages/%zz", "/dead/%", "/schedules/%e4", "/nothing"]) {
  await go(page, "/queues", "Queues");
  await page.evaluate((to) => { location.hash = `#${to}`; }, path);
  await page.getByRole("heading", { level: 1, name: "There is no such page" }).waitFor();
  assert.match(await page.title(), /no such page/);
}
await check(seen, "no such page");

// Each graphic has a table behind it: the ring, the columns and the lines.
{
  await api("/v1/queues/drawn/messages", "POST", { body: "x", delay: "30s" });
  await go(page, "/", "Overview");
  await page.locator("svg .pointer").waitFor();
  await page.locator("svg rect.column").first().waitFor();
  const drawings = page.locator("main svg");
  assert.equal(await drawings.count(), 3);
  for (let n = 0; n < 3; n += 1) {
    const box = drawings.nth(n).locator("xpath=..");
    assert.equal(await box.locator("details table").count(), 1, `the table behind graphic ${n}`);
    await box.locator("summary").click();
  }
  const rows = page.getByRole("region", { name: "Rates by time" }).locator("tbody tr");
  await eventually("a row each second", async () => (await rows.count()) >= 3);
  assert.match(await rows.first().textContent(), /\d\d:\d\d:\d\d.*\/s/);
  await check(seen, "all tables behind graphics");
}

// A look that fails says so for as long as it fails: the success of another one took its words away, each second.
{
  const { page: own, context } = await tab();
  await own.route("**/v1/queues?*", (route) => route.fulfill({ status: 503, contentType: "application/problem+json", body: '{"detail": "the queues are away"}' }));
  await go(own, "/", "Overview");
  const trouble = own.locator("#trouble");
  await eventually("the trouble is told", async () => (await trouble.textContent()) === "the queues are away");
  await own.locator("svg .pointer").waitFor();
  for (let look = 0; look < 30; look += 1) {
    assert.equal(await trouble.textContent(), "the queues are away", "while the stream goes on");
    await own.waitForTimeout(100);
  }
  await own.unroute("**/v1/queues?*");
  await eventually("it is over", async () => (await trouble.textContent()) === "");
  await context.close();
}

// Rates and lateness are those of the server's history: steps of which nothing is known are left out.
{
  const { page: own, context } = await tab();
  const none = [null, null, null, null];
  const series = { enqueued: [null, 20, 40, 1], granted: [null, 0, 10, 0], settled: [null, 0, 10, 0], dead: [null, 0, 0, 0], lateness_p50_ms: none, lateness_p99_ms: [null, null, 5, null], ready: none, pending: none };
  const history = { step: "10s", step_ms: 10_000, from: "2026-01-01T00:00:00.000Z", series, complete: true };
  await own.route("**/v1/history", (route) => route.fulfill({ status: 200, contentType: "application/json", body: JSON.stringify(history) }));
  await go(own, "/", "Overview");
  const p99 = own.locator("main dl.figures div", { hasText: "Lateness p99" });
  await eventually("the newest lateness", async () => (await p99.textContent()).includes("≤ 5"));
  await own.evaluate(() => document.querySelectorAll("main details").forEach((table) => { table.open = true; }));
  assert.equal(await own.getByRole("region", { name: "Rates by time" }).locator("tbody tr").count(), 2);
  await context.close();
}

// A hidden page asks for nothing, and its stream ends; when it is seen again, both go on.
{
  await go(page, "/", "Overview");
  await page.locator("svg .pointer").waitFor();
  let [asked, streams] = [0, 0];
  const isStream = (request) => request.url().endsWith("/v1/stats/stream");
  page.on("request", (request) => { asked += 1; if (isStream(request)) streams += 1; });
  let ended = 0;
  for (const how of ["requestfailed", "requestfinished"]) page.on(how, (request) => { if (isStream(request)) ended += 1; });
  const become = (state) => page.evaluate((to) => {
    Object.defineProperty(document, "visibilityState", { configurable: true, get: () => to });
    Object.defineProperty(document, "hidden", { configurable: true, get: () => to === "hidden" });
    document.dispatchEvent(new Event("visibilitychange"));
  }, state);
  await become("hidden");
  await eventually("the stream has ended", () => ended === 1);
  await page.waitForTimeout(1_500);
  asked = 0;
  const figures = await page.locator("main dl.figures").first().textContent();
  await api("/v1/queues/drawn/messages", "POST", { body: "x", delay: "3h" });
  await page.waitForTimeout(7_000);
  assert.equal(asked, 0, "requests of a hidden page");
  assert.equal(await page.locator("main dl.figures").first().textContent(), figures, "nothing arrives");
  await become("visible");
  await eventually("the stream is read again", () => streams === 1);
  await eventually("new figures", async () => (await page.locator("main dl.figures").first().textContent()) !== figures);
}

await browser.close();
console.log(`ok      what is shown (${shown.pages} pages without a violation)`);
