// A span of the histogram is chosen by dragging over it, and by keyboard; what is there is drawn closer, or listed.
//   node zoom.mjs

import assert from "node:assert/strict";

import { api, check, eventually, go, open, shown, tab, visit } from "./stage.mjs";

const seen = await tab();
const { page } = seen;

const HOUR = 3_600_000;
for (const [body, hours] of [["soon", 2], ["later", 13], ["last", 20]]) {
  await api("/v1/queues/spans/messages", "POST", { body, delay_ms: hours * HOUR });
}
await go(page, "/queues/spans", "spans");
const bars = page.locator("svg.spans rect.column");
const band = page.locator("svg.spans rect.band");
const status = page.locator("section", { has: page.getByRole("heading", { name: "Due when" }) }).getByRole("status");
const zoomed = page.getByRole("button", { name: "Back" });
const count = async (n) => eventually(`${n} columns`, async () => (await bars.count()) === n);
await count(3);
await check(seen, "the histogram of a queue");

// New figures may replace a column while its place is asked for.
async function place(bar) {
  let box = null;
  await eventually("a column", async () => (box = await bar.boundingBox()) !== null);
  return box;
}

// From somewhat before a column to somewhat behind it; looks at what is drawn meanwhile.
async function drag(bar, before, behind, during = async () => {}) {
  const box = await place(bar);
  const y = box.y + box.height / 2;
  await page.mouse.move(box.x - before, y);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width / 2, y, { steps: 4 });
  await page.mouse.move(box.x + box.width + behind, y, { steps: 4 });
  await during();
  await page.mouse.up();
}

await drag(bars.nth(1), 30, 30, async () => {
  assert.ok(Number(await band.getAttribute("width")) > 30, "the span is shaded");
  assert.match(await status.textContent(), /^From .*\d\d:\d\d.* to /);
  // New figures do not take it away.
  await page.waitForResponse((answer) => answer.url().includes("/histogram"));
  assert.ok(Number(await band.getAttribute("width")) > 30, "the span stays");
});
await count(1);
await zoomed.waitFor();
assert.equal(await page.locator("svg.spans title").textContent().then((text) => /: 1$/.test(text)), true);
assert.match(await status.textContent(), /^Drag over/);
await check(seen, "a span of the histogram");
await zoomed.click();
await count(3);

// What is drawn is in the address: it is there again after a reload, in another tab, and behind the browser's Back.
await drag(bars.nth(1), 30, 30);
await count(1);
const address = page.url();
const [from, to] = decodeURIComponent(/[?&]zoom=([^&]*)/.exec(address)[1]).split("/").map(Date.parse);
assert.ok(to > from && to - from < 24 * HOUR, address);
await page.reload();
await zoomed.waitFor();
await count(1);
{
  const other = await tab();
  await other.page.goto(address);
  await other.page.getByRole("button", { name: "Back" }).waitFor();
  await eventually("the same columns", async () => (await other.page.locator("svg.spans rect.column").count()) === 1);
  await other.context.close();
}
// Another choice of messages keeps it.
const span = (url) => /[?&]zoom=([^&]*)/.exec(url)?.[1];
await page.getByRole("link", { name: /^Scheduled/ }).click();
await zoomed.waitFor();
await count(1);
assert.match(page.url(), /[?&]state=scheduled/);
assert.equal(span(page.url()), span(address));
await page.goBack();
await count(1);
await page.goBack();
await count(3);
assert.equal(page.url().includes("zoom="), false);
await page.getByLabel("Span").selectOption({ label: "1 hour" });
await count(0);
assert.match(page.url(), /[?&]span=1h/);
await page.reload();
await page.locator("svg.spans").waitFor();
assert.equal(await page.getByLabel("Span").locator("option:checked").textContent(), "1 hour");
await count(0);
await page.getByLabel("Span").selectOption({ label: "1 day" });
await count(3);
// The overview, too.
await visit(page, `${open}/#/?span=30d&zoom=${new Date(Date.now() + HOUR).toISOString()}/${new Date(Date.now() + 25 * HOUR).toISOString()}`);
await zoomed.waitFor();
assert.equal(await page.getByLabel("Span").locator("option:checked").textContent(), "30 days");
await check(seen, "a span of all messages");
// An address that says nonsense is one that says nothing.
await visit(page, `${open}/#/queues/spans?span=forever&zoom=x/y`);
await count(3);
assert.equal(await zoomed.isVisible(), false);

// A click is no drag, though the hand trembles.
{
  const box = await place(bars.nth(2));
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width / 2 + 2, box.y + box.height / 2);
  await page.mouse.up();
  await count(1);
  await zoomed.click();
  await count(3);
}

// The same by keyboard: a span to both sides, given up, and chosen.
await bars.nth(1).focus();
for (const key of ["Shift+ArrowRight", "Shift+ArrowRight"]) await page.keyboard.press(key);
const three = Number(await band.getAttribute("width"));
await page.keyboard.press("Shift+ArrowLeft");
assert.ok(Number(await band.getAttribute("width")) < three, "a step back");
await page.keyboard.press("Escape");
assert.equal(Number(await band.getAttribute("width")), 0);
await page.keyboard.press("Shift+ArrowLeft");
await page.keyboard.press("Shift+ArrowLeft");
assert.equal(Math.round(Number(await band.getAttribute("width"))), Math.round(three));
assert.match(await status.textContent(), /^From /);
await page.keyboard.press("Enter");
await zoomed.waitFor();
await count(1);
await check(seen, "a span by keyboard");

// The shortest span lists its messages.
await api("/v1/queues/spans/messages", "POST", { body: "now", delay: "150s" });
await zoomed.click();
await page.getByLabel("Span").selectOption({ label: "10 minutes" });
await count(1);
await drag(bars.first(), 4, 4);
await page.waitForURL(/#\/queues\/spans\?from=.*&to=/);
await page.locator("td.key", { hasText: "now" }).waitFor();
assert.equal(await page.locator("td.key", { hasText: "soon" }).count(), 0);

console.log(`ok      spans of the histogram, ${shown.pages} pages without a violation`);
