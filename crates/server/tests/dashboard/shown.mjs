// What is shown is right: attempts without end, addresses that name nothing, tables behind all graphics, and a hidden page
// asks for nothing.
//   node shown.mjs

import assert from "node:assert/strict";

import { api, check, eventually, go, open, shown, tab } from "./stage.mjs";

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
  await page.locator("dl.settings dd", { hasText: "∞" }).waitFor();
}

// Of a schedule that occurs more often than is asked for, later days are not said to have none.
{
  await api("/v1/schedules/often", "PUT", { queue: "often", every: "1m", body: "x" });
  await api("/v1/schedules/seldom", "PUT", { queue: "often", cron: "0 9 1 * *", zone: "UTC", body: "x" });
  await go(page, "/schedules/often", "often");
  const days = () => page.locator(".month li").evaluateAll((all) => all.map((day) => day.title));
  await page.locator(".month li").first().waitFor();
  assert.ok((await days()).every((title) => !title.endsWith(": 0 times")), JSON.stringify(await days()));
  assert.ok((await days()).filter((title) => title.endsWith(": …")).length >= 29, JSON.stringify(await days()));
  await check(seen, "a schedule that occurs often");
  await go(page, "/schedules/seldom", "seldom");
  await page.locator(".month li.on").waitFor();
  assert.deepEqual((await days()).map((title) => title.split(": ")[1]).sort().slice(0, 2), ["0 times", "0 times"]);
}

// Words for a cron expression say when it occurs: */45 was every 45 minutes, and is :00 and :45; the second Monday was Monday.
{
  const words = (all) => page.evaluate(async (some) => { const { cronWords } = await import("/ui/cron.js"); return some.map(cronWords); }, all);
  assert.deepEqual(await words(["*/15 * * * *", "0 */6 * * *", "0 9 * * mon-FRI", "30 8 1 JAN *"]), ["every 15 minutes", "every 6 hours at minute 00", "at 09:00 on Monday to Friday", "at 08:30 on day 1 of the month in January"]);
  const without = ["*/45 * * * *", "0 */7 * * *", "0 9 * * MON#2", "0 9 * * FRIL", "0 9 * * MON/2"];
  assert.deepEqual(await words(without), without);
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

  // Bodies went through JSON.parse: 9007199254740993 was shown as …992, 1.10 as 1.1, and a member that came twice once.
  const exact = '{"id":9007199254740993,"price":1.10,"id":-1e400,"none":{},"text":"{\\"a\\": [1, 2]}"}';
  await of("bodies", { body: exact });
  assert.deepEqual((await body.textContent()).split("\n"), ["{", '  "id": 9007199254740993,', '  "price": 1.10,', '  "id": -1e400,', '  "none": {},', '  "text": "{\\"a\\": [1, 2]}"', "}"]);

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

// Each graphic has a table behind it: the ring, both charts of the last hour, and the columns.
{
  await api("/v1/queues/drawn/messages", "POST", { body: "x", delay: "30s" });
  await go(page, "/", "Overview");
  await page.locator("svg .pointer").waitFor();
  await page.locator("svg rect.column").first().waitFor();
  const drawings = page.locator("main svg");
  await page.locator("svg.timeline").nth(1).waitFor();
  assert.equal(await drawings.count(), 4);
  for (let n = 0; n < 4; n += 1) {
    const box = drawings.nth(n).locator("xpath=..");
    assert.equal(await box.locator("details table").count(), 1, `the table behind graphic ${n}`);
    await box.locator("summary").click();
  }
  const rows = page.getByRole("region", { name: "Messages a second" }).locator("tbody tr");
  await eventually("a row each ten seconds", async () => (await rows.count()) >= 1);
  assert.match(await rows.first().textContent(), /\d\d:\d\d:\d\d.*\/(s|min|h)/);
  await check(seen, "all tables behind graphics");
}

// A look that fails says so for as long as it fails: the success of another one took its words away, each second.
{
  const { page: own, context } = await tab();
  await own.route("**/v1/queues?*", (route) => route.fulfill({ status: 503, contentType: "application/problem+json", body: '{"detail": "the queues are away"}' }));
  await go(own, "/", "Overview");
  const trouble = own.locator("#trouble");
  await eventually("the trouble is told", async () => (await trouble.textContent()) === "the queues are away");
  const clock = own.locator("svg.ring text.now");
  const times = new Set();
  await eventually("the stream goes on", async () => {
    assert.equal(await trouble.textContent(), "the queues are away");
    times.add(await clock.textContent());
    return times.size >= 4;
  });
  await own.unroute("**/v1/queues?*");
  await eventually("it is over", async () => (await trouble.textContent()) === "");
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
  // How many queues there are is shown to the last one. Of 100,000 messages one more is not seen: they are rounded.
  const figure = page.locator("main dl.figures div", { hasText: "Queues" }).locator("dd");
  const before = await figure.textContent();
  await api(`/v1/queues/drawn-${Date.now()}/messages`, "POST", { body: "x", delay: "3h" });
  await page.waitForTimeout(7_000);
  assert.equal(asked, 0, "requests of a hidden page");
  assert.equal(await figure.textContent(), before, "nothing arrives");
  await become("visible");
  await eventually("the stream is read again", () => streams === 1);
  await eventually("new figures", async () => (await figure.textContent()) === String(Number(before) + 1));
}

console.log(`ok      what is shown (${shown.pages} pages without a violation)`);
