// Acts mean exactly what the page shows: which messages and how many, with a way back, and with errors where they are.
//   node trust.mjs

import assert from "node:assert/strict";

import { api, check, confirm, dialog, eventually, go, open, press, shown, tab, visit } from "./stage.mjs";

const seen = await tab();
const { page } = seen;
const counts = async (queue) => (await api(`/v1/queues/${queue}`)).counts;
const put = (queue, key, more = {}) => api(`/v1/queues/${queue}/messages`, "POST", { body: `of ${key}`, key, delay: "3h", ...more });
const acts = (page) => page.locator(".toast");
const fill = (queue, names) => Promise.all(names.map((name) => put(queue, name)));

// "Cancel these" with a prefix that was typed and not applied cancelled all messages of the queue.
await fill("typed", ["eu-1", "eu-2", "us-1"]);
await go(page, "/queues/typed", "typed");
await page.locator("td.key", { hasText: "us-1" }).first().waitFor();
let answer = () => {};
const held = new Promise((resolve) => { answer = resolve; });
await page.route(/key_prefix=eu-/, async (route) => { await held; await route.continue(); });
await page.getByLabel("Key begins with").fill("eu-");
// While the list of another filter is on the page nothing may be done with it.
await eventually("no act", () => page.getByRole("button", { name: "Cancel these" }).isDisabled());
answer();
await page.locator("td.key", { hasText: "us-1" }).first().waitFor({ state: "detached" });
await eventually("an act", () => page.getByRole("button", { name: "Cancel these" }).isEnabled());
await page.waitForURL(/prefix=eu-/);
await press(page, "Cancel these");
await dialog(page).getByText("Messages of typed: key begins with “eu-”.").waitFor();
await dialog(page).getByText("2 messages match.").waitFor();
assert.equal(await dialog(page).getByLabel("Type the queue's name").count(), 0);
await check(seen, "a dialog that says what is meant");

// More of them by now: nothing is done, and the dialog says the new number.
await put("typed", "eu-3");
await confirm(page, "Cancel 2");
await dialog(page).locator(".wrong", { hasText: "3 messages match now" }).waitFor();
assert.equal((await counts("typed")).scheduled, 4, "nothing was done");
await check(seen, "a dialog whose messages have changed");
await confirm(page, "Cancel 3");
await dialog(page).waitFor({ state: "detached" });
await acts(page).filter({ hasText: "3 messages cancelled in typed." }).waitFor();
assert.equal((await counts("typed")).scheduled, 1, "the other one stays");
// The list and the totals are those after the act.
await page.locator("td.key", { hasText: "eu-1" }).first().waitFor({ state: "detached" });
await eventually("the tab counts", async () => (await page.locator("[data-name='tab-scheduled'] .count").textContent()) === "1");

// The way back: the same keys, at the same time.
await press(page, "Undo");
await acts(page).filter({ hasText: "3 messages restored in typed." }).waitFor();
const back = await api("/v1/queues/typed/keys/eu-2");
assert.deepEqual([back.state, back.body], ["scheduled", "of eu-2"]);
assert.ok(back.due_in_ms > 2.9 * 3_600_000, `${back.due_in_ms} ms`);
await page.locator("td.key", { hasText: "eu-1" }).first().waitFor();

// Without a filter the name of the queue is typed, for each act on many.
await go(page, "/queues/typed?state=scheduled", "typed");
for (const [button, word] of [["Cancel these", "Cancel 4"], ["Fire these", "Fire now 4"]]) {
  await press(page, button);
  await dialog(page).getByRole("button", { name: word }).waitFor();
  await dialog(page).getByLabel("Type the queue's name").fill("other");
  await confirm(page, word);
  await dialog(page).locator(".wrong", { hasText: "not the queue's name" }).waitFor();
  assert.equal((await counts("typed")).scheduled, 4, "nothing was done");
  await confirm(page, word === "Cancel 4" ? "Keep them" : "Cancel");
}

// A purge: by name, no more than it says, and with a way back.
await press(page, "Purge");
await dialog(page).getByRole("button", { name: "Purge 4" }).waitFor();
await dialog(page).getByLabel("Type the queue's name").fill("typed");
await put("typed", "late");
await confirm(page, "Purge 4");
await dialog(page).locator(".wrong", { hasText: "5 messages match now" }).waitFor();
assert.equal((await counts("typed")).scheduled, 5);
await confirm(page, "Purge 5");
await acts(page).filter({ hasText: "5 messages purged in typed." }).waitFor();
assert.equal((await counts("typed")).scheduled, 0);
await acts(page).filter({ hasText: "5 messages purged in typed." }).getByRole("button", { name: "Undo" }).click();
await acts(page).filter({ hasText: "5 messages restored in typed." }).waitFor();
assert.equal((await api("/v1/queues/typed/keys/late")).state, "scheduled");

// No undo where there is none: a redrive, a job that postpones.
await go(page, "/queues/typed?prefix=us-", "typed");
await press(page, "Postpone these");
await dialog(page).getByLabel("Later by").fill("1h");
await confirm(page, "Postpone 1");
const postponed = acts(page).filter({ hasText: "1 message postponed in typed." });
await postponed.waitFor();
assert.equal(await postponed.getByRole("button", { name: "Undo" }).count(), 0);

// A filter by header, and by due time; each means what the list shows.
await put("marked", "spring", { headers: { campaign: "spring" } });
await put("marked", "summer", { headers: { campaign: "summer" }, delay: "30h" });
await go(page, "/queues/marked", "marked");
await page.getByLabel("Header").fill("campaign=spring");
await page.locator("td.key", { hasText: "summer" }).first().waitFor({ state: "detached" });
await press(page, "Fire these");
await dialog(page).getByText("header campaign is “spring”").waitFor();
await dialog(page).getByText("1 message matches.").waitFor();
await confirm(page, "Cancel");
await page.getByLabel("Header").fill("");
await page.getByLabel("Due from").fill(new Date(Date.now() + 20 * 3_600_000).toISOString().slice(0, 16));
await page.locator("td.key", { hasText: "spring" }).first().waitFor({ state: "detached" });
await page.locator("td.key", { hasText: "summer" }).first().waitFor();
await check(seen, "messages from a due time on");

// Some that were chosen, and one by its row.
await go(page, "/queues/typed", "typed");
for (const key of ["eu-1", "eu-2"]) await page.locator("tr", { hasText: `of ${key}` }).getByRole("checkbox").check();
await page.getByText("2 chosen").waitFor();
await check(seen, "messages that were chosen");
await page.locator(".acts").getByRole("button", { name: "Cancel", exact: true }).click();
await confirm(page, "Cancel 2");
await acts(page).filter({ hasText: "2 messages cancelled in typed." }).waitFor();
await eventually("both are gone", async () => (await counts("typed")).scheduled === 3);
await acts(page).filter({ hasText: "2 messages cancelled in typed." }).getByRole("button", { name: "Undo" }).click();
await eventually("both are back", async () => (await counts("typed")).scheduled === 5);
const row = page.locator("tr", { hasText: "of late" });
await row.getByRole("button", { name: /^Fire message/ }).click();
await confirm(page, "Fire now");
await eventually("it is ready", async () => (await counts("typed")).ready === 1);

// Errors are at the field, and a dialog ends with its page.
await go(page, "/queues/typed", "typed");
await press(page, "New message");
await dialog(page).getByLabel("Delay").fill("soon");
await confirm(page, "OK");
await dialog(page).locator("#field-delay-wrong").waitFor();
assert.equal(await page.evaluate(() => [document.activeElement.id, document.activeElement.getAttribute("aria-invalid")].join()), "field-delay,true");
assert.equal(await page.locator(".toast.bad").count(), 0);
await check(seen, "an error at its field");
await page.evaluate(() => { location.hash = "#/queues"; });
await page.getByRole("heading", { level: 1, name: "Queues" }).waitFor();
await dialog(page).waitFor({ state: "detached" });

// What cannot be taken back is not said to be: others have ended them since.
await fill("ended", ["e-1", "e-2"]);
await go(page, "/queues/ended", "ended");
await page.locator("tr", { hasText: "of e-2" }).waitFor();
await page.getByLabel("Choose all on this page").check();
await page.locator(".acts").getByRole("button", { name: "Postpone", exact: true }).click();
await dialog(page).getByLabel("Delay").fill("5h");
await confirm(page, "Postpone 2");
const both = acts(page).filter({ hasText: "2 messages postponed in ended." });
await both.waitFor();
for (const key of ["e-1", "e-2"]) await api(`/v1/queues/ended/keys/${key}`, "DELETE");
await both.getByRole("button", { name: "Undo" }).click();
await acts(page).filter({ hasText: "2 were refused." }).waitFor();
assert.equal(await acts(page).filter({ hasText: "Undone" }).count(), 0);

// A redrive that the server refuses was said to be done: the answer has a result for each message, and no error.
for (const key of ["r-1", "r-2", "r-3"]) await put("refused", key, { state: "dead" });
for (const key of ["r-1", "r-2"]) await put("refused", key);
await go(page, "/queues/refused?state=dead", "refused");
const chooseDead = async (keys) => { for (const key of keys) await page.locator("tr", { hasText: `of ${key}` }).getByRole("checkbox").check(); };
await chooseDead(["r-1", "r-2"]);
await page.locator(".acts").getByRole("button", { name: "Redrive", exact: true }).click();
await confirm(page, "Redrive 2");
await dialog(page).locator(".wrong", { hasText: /key/ }).waitFor();
await confirm(page, "Cancel");
await page.locator("tr", { hasText: "of r-1" }).getByRole("button", { name: /^Redrive message/ }).click();
await confirm(page, "Redrive 1");
await dialog(page).locator(".wrong", { hasText: /key/ }).waitFor();
await confirm(page, "Cancel");
assert.equal(await acts(page).filter({ hasText: /redriven in refused|ready again/ }).count(), 0);
await chooseDead(["r-3"]);
await page.locator(".acts").getByRole("button", { name: "Redrive", exact: true }).click();
await confirm(page, "Redrive 3");
await acts(page).filter({ hasText: "1 message redriven in refused. 2 were refused." }).waitFor();
assert.equal((await counts("refused")).dead, 2);

// A job shows how far it is, though the server does not answer for a while and other lines come.
{
  const { page, context } = await tab();
  let failures = 2;
  await page.route(/\/v1\/jobs\//, (route) => ((failures -= 1) >= 0 ? route.fulfill({ status: 503, body: "{}" }) : route.continue()));
  await fill("slowly", Array.from({ length: 30 }, (_, n) => `s-${n}`));
  await go(page, "/queues/slowly?prefix=s-", "slowly");
  await press(page, "Cancel these");
  await dialog(page).getByLabel("Rate, messages a second").fill("5");
  await dialog(page).getByRole("button", { name: "Cancel 30" }).click();
  await acts(page).filter({ has: page.getByRole("progressbar") }).filter({ hasText: /Cancelling in slowly: ([1-9]|1\d|2\d) of 30/ }).waitFor();
  assert.ok(failures < 0, "the server did not answer");
  await page.evaluate(async () => { const { say } = await import("/ui/acts.js"); for (let n = 0; n < 6; n += 1) say(`line ${n}`); });
  assert.deepEqual(await acts(page).filter({ hasText: "line" }).locator("span").allTextContents(), ["line 3", "line 4", "line 5"]);
  await acts(page).filter({ hasText: "30 messages cancelled in slowly." }).getByRole("button", { name: "Undo" }).waitFor();
  await context.close();
}

// A hundred with the same beginning are found, as many as there are.
await Promise.all(Array.from({ length: 100 }, (_, n) => put("hundred", `order-${n}`)));
await go(page, "/search?q=order-&queue=hundred", "Search: order-");
await eventually("all hundred", async () => (await page.locator("main table tbody tr").count()) === 100);

// What was done is in the audit trail.
await go(page, "/audit", "Audit");
await page.locator("tr", { hasText: "purge" }).filter({ hasText: "typed" }).first().waitFor();
await check(seen, "the audit trail");

// What needs somebody is said first, with its cause and its acts.
await api("/v1/queues/alone/messages", "POST", { body: "x", delay: "0s" });
await api("/v1/queues/halted/messages", "POST", { body: "x", delay: "0s" });
await api("/v1/queues/halted/pause", "POST", {});
await go(page, "/", "Overview");
const attention = page.locator("section", { has: page.getByRole("heading", { name: "Needs attention" }) });
await attention.locator("li").first().waitFor();
// The worst eight, and the others behind a word.
if (await attention.locator("summary").count()) await attention.locator("summary").click();
await attention.locator("li", { hasText: "alone" }).getByText("nobody reserves; 1 overdue").waitFor();
await attention.locator("li", { hasText: "halted" }).getByRole("button", { name: "Resume" }).click();
await eventually("resumed", async () => !(await api("/v1/queues/halted")).paused);
await check(seen, "what needs somebody");

// One row of header on a screen of 1,280 pixels; a server alone is not asked for its nodes.
assert.ok((await page.locator("header").boundingBox()).height < 56, "one row");
let nodes = 0;
page.on("request", (request) => { if (request.url().endsWith("/v1/cluster")) nodes += 1; });
await go(page, "/server", "Server");
await page.getByText("it is no node of a cluster").waitFor();
await page.waitForTimeout(3_500);
assert.equal(nodes, 0, "requests for nodes");

// The ring says a part in words, by keyboard, and opens its messages.
await put("ringing", "r", { delay: "90s" });
await visit(page, `${open}/#/`);
const ring = page.locator("svg.ring");
await ring.focus();
for (let n = 0; n < 3; n += 1) await page.keyboard.press("ArrowRight");
await page.locator(".ring-said", { hasText: /messages? due in/ }).waitFor();
await page.keyboard.press("Enter");
await page.getByRole("heading", { level: 1, name: /^Due from/ }).waitFor();

console.log(`ok      acts mean what is shown (${shown.pages} pages without a violation)`);
