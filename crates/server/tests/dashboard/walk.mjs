// The dashboard in a real browser: each page, each act, without violations of accessibility (axe) or of its policy (CSP),
// by keyboard alone, on a small screen, in two languages, and with a token that may do little.

import assert from "node:assert/strict";
import { createServer } from "node:http";

import { fill } from "./fill.mjs";
import { api, check, dialog, eventually, full, go, guarded, open, shown, tab, toast, tokenOf, visit } from "./stage.mjs";

const [queueCount, messageCount] = full ? [100, 10_000] : [40, 200];
await fill(open, queueCount, (name) => (full || name === "bulk-07" ? messageCount : 2));
const [fullToken, smallToken] = [tokenOf("full"), tokenOf("small")];

// ----- what is there -----
const NASTY = "<script>window.hacked = 1</script><img src=x onerror=window.hacked=1>";
const nasty = await api("/v1/queues/nasty/messages", "POST", { body: NASTY, key: `k${NASTY.replaceAll("/", "")}`, headers: { note: NASTY }, delay: "1h" });
assert.ok(nasty.id, JSON.stringify(nasty));
await api("/v1/queues/json/messages", "POST", { body: '{"order": 42}', delay: "2h", key: "order-42" });
await api("/v1/queues/binary/messages", "POST", { body_base64: "/wD+", delay: "2h" });
for (const reason of ["no such user", "no such user", "timeout"]) {
  await api("/v1/queues/mails/messages", "POST", { body: "hello", delay: "0s" });
  const { messages } = await api("/v1/queues/mails/reserve", "POST", { wait_ms: 5_000 });
  await api(`/v1/messages/${messages[0].id}/nack`, "POST", { lease_token: messages[0].lease_token, dead: true, reason });
}

await api("/v1/queues/mails/config", "PATCH", { rate: { per_second: 500 }, catchup_rate: 200, concurrency: 30 });

const scheduled = await api("/v1/schedules/weekly-report", "PUT", { queue: "reports", cron: "30 2 * * SUN", zone: "Europe/Berlin", body: NASTY, note: NASTY });
assert.equal(scheduled.next?.length, 10, JSON.stringify(scheduled));

// A receiver that takes everything but what says that it is bad.
const received = [];
const receiver = createServer((request, response) => {
  let body = "";
  request.on("data", (part) => { body += part; });
  request.on("end", () => { received.push(body); response.writeHead(body === "bad" ? 500 : 200).end(NASTY); });
});
await new Promise((resolve) => receiver.listen(0, "127.0.0.1", resolve));
const hook = `http://127.0.0.1:${receiver.address().port}/hook`;
const made = await api("/v1/targets/shop", "PUT", { url: `${hook}?token=hunter2`, networks: ["127.0.0.1/32"], secrets: ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] });
assert.equal(made.state, "active", JSON.stringify(made));
await api("/v1/queues/close-review/config", "PATCH", { target: "shop" });
for (const body of ["order 41", "order 42"]) await api("/v1/queues/close-review/messages", "POST", { body, delay: "0s" });
// The answers to them are in the list of the target's attempts, as text.
await eventually("two attempts", async () => (await api("/v1/targets/shop")).attempts?.length === 2);
assert.equal((await api("/v1/targets/shop")).attempts[0].answer, NASTY);
await api("/v1/queues/bulk-02/config", "PATCH", { rate: { per_second: 50 }, concurrency: 10 });
const moved = await api("/v1/queues/json/bulk", "POST", { action: "postpone", filter: { key_prefix: "order-" }, shift: "1h" });
assert.equal(moved.action, "postpone", JSON.stringify(moved));

// ----- each page, light, dark and small; in full in both languages -----
const pages = [
  ["overview", "/"], ["queues", "/queues"], ["queue", "/queues/mails"], ["message", `/messages/${nasty.id}`], ["dead", "/dead"], ["dead-of", "/dead/mails"],
  ["schedules", "/schedules"], ["schedule", "/schedules/weekly-report"],
  ["targets", "/targets"], ["target", "/targets/shop"], ["jobs", "/jobs"], ["audit", "/audit"],
  ["server", "/server"], ["search", "/search?q=order-42"],
];
const languages = [["en", "en-GB"], ["zh", "zh-CN"]].slice(0, full ? 2 : 1);
for (const [language, locale] of languages) {
  const seen = await tab({ locale });
  const { page } = seen;
  for (const [name, path] of pages) {
    await visit(page, `${open}/#${path}`);
    await page.locator("main h1").waitFor();
    // What a page asks for at first is there when something of it is.
    await page.locator("main table, main dl, main svg").first().waitFor();
    if (name === "overview") await page.locator("svg .pointer").waitFor();
    if (name === "search") await page.getByRole("link", { name: "order-42" }).or(page.locator("td.key", { hasText: "order-42" })).first().waitFor();
    assert.equal(await page.evaluate(() => document.documentElement.lang), language === "zh" ? "zh-Hans" : "en");
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await check(seen, `${name}, ${language}, ${colorScheme}`);
    }
    await page.emulateMedia({ colorScheme: "light" });
    // A small screen.
    await page.setViewportSize({ width: 360, height: 740 });
    await check(seen, `${name}, ${language}, 360 pixels`);
    if (name === "queues" && language === "en") await cards(page);
    await page.setViewportSize({ width: 1280, height: 900 });
  }
  assert.equal(await page.evaluate(() => window.hacked), undefined, "data is text");
  await seen.context.close();
}

// On a small screen each queue is a card: nothing in it is squeezed.
async function cards(page) {
  const row = page.locator("tr", { has: page.getByRole("link", { name: "mails", exact: true }) });
  // New figures may replace it while it is looked at.
  await eventually("the name in one line", async () => (await row.getByRole("link").evaluate((link) => link.getClientRects().length)) === 1);
  const limits = row.locator("td").last();
  assert.equal(await limits.textContent(), "500/s, overdue 200/s, 30 leased");
  const lines = (cell) => { const text = document.createRange(); text.selectNodeContents(cell); return text.getClientRects().length; };
  await eventually("the limits in two lines", async () => [1, 2].includes(await limits.evaluate(lines)));
}

// ----- many queues, many messages -----
{
  const seen = await tab();
  const { page } = seen;
  await go(page, "/queues", "Queues");
  await page.getByRole("link", { name: "bulk-00", exact: true }).waitFor();
  // A queue that has granted something in the last hour adds a column for its line.
  const titles = (await page.locator("thead th").allTextContents()).map((title) => title.replace(/ [↑↓]$/, "")).filter((title) => title !== "Last hour");
  assert.deepEqual(titles, ["Queue", "State", "Scheduled", "Ready", "Leased", "Dead", "Overdue", "Enqueued", "Granted", "Acked", "Limits"]);
  const ofMails = page.locator("tr", { has: page.getByRole("link", { name: "mails", exact: true }) }).locator("td");
  assert.match(await ofMails.nth(titles.indexOf("Granted")).textContent(), /^[\d.]+\/(s|min|h)$/);
  const rows = await page.locator("tbody tr").count();
  assert.ok(rows >= Math.min(queueCount, 200), `${rows} queues`);
  await page.getByRole("searchbox", { name: "Filter by name" }).fill("bulk-07");
  // The filter is in the address.
  await page.waitForURL(/#\/queues\?filter=bulk-07$/);
  await page.reload();
  await page.getByRole("link", { name: "bulk-07", exact: true }).waitFor();
  assert.equal(await page.locator("tbody tr").count(), 1);
  assert.equal(await page.getByRole("searchbox", { name: "Filter by name" }).inputValue(), "bulk-07");
  await page.getByRole("link", { name: "bulk-07", exact: true }).click();
  await page.getByRole("heading", { level: 1, name: "bulk-07" }).waitFor();
  const onTab = page.locator("[data-name='tab-scheduled'] .count");
  await onTab.waitFor();
  const scheduledThere = Number((await onTab.textContent()).replaceAll(",", ""));
  assert.equal(scheduledThere, messageCount, "scheduled messages of one queue");
  // A click on a column looks closer, and back.
  await page.locator("rect.column").first().click();
  await page.getByRole("button", { name: "Back" }).click();
  await page.getByRole("link", { name: "More", exact: true }).click();
  await page.waitForURL(/after=/);
  await page.locator("td a[href^='#/messages/']").first().waitFor();
  await check(seen, "a queue with many messages");
  await seen.context.close();
}

// ----- each act, and its way back -----
{
  const seen = await tab();
  const { page } = seen;
  await go(page, "/queues", "Queues");
  await page.getByRole("button", { name: "New message" }).click();
  await dialog(page).getByLabel("Queue").fill("acts");
  await dialog(page).getByLabel("Body").fill("made here");
  await dialog(page).getByLabel("Delay (10s, 2h, 15d)").fill("1h");
  await dialog(page).getByLabel("Key (optional)").fill("one");
  await check(seen, "a dialog");
  await dialog(page).getByRole("button", { name: "OK" }).click();
  await toast(page, "is scheduled");
  const one = await api("/v1/queues/acts/keys/one");
  assert.equal(one.body, "made here");

  await go(page, `/messages/${one.id}`, `Message ${one.id}`);
  await page.getByRole("button", { name: "Postpone" }).click();
  await dialog(page).getByLabel("Delay (10s, 2h, 15d)").fill("48h");
  await dialog(page).getByRole("button", { name: "OK" }).click();
  await toast(page, "Postponed");
  assert.ok((await api(`/v1/messages/${one.id}`)).due_in_ms > 40 * 3_600_000);
  await page.getByRole("button", { name: "Undo" }).last().click();
  await toast(page, "Undone");
  assert.equal((await api(`/v1/messages/${one.id}`)).due_at, one.due_at, "due as before");

  // A wrong delay: the server's words, and nothing has changed.
  await page.getByRole("button", { name: "Postpone" }).click();
  await dialog(page).getByLabel("Delay (10s, 2h, 15d)").fill("soon");
  await dialog(page).getByRole("button", { name: "OK" }).click();
  await dialog(page).locator(".wrong", { hasText: "delay" }).waitFor();
  await dialog(page).getByRole("button", { name: "Cancel", exact: true }).click();

  await page.getByRole("button", { name: "Fire now" }).click();
  await dialog(page).getByRole("button", { name: "Fire now" }).click();
  await toast(page, "It is due now");
  assert.equal((await api(`/v1/messages/${one.id}`)).state, "ready");
  await page.getByRole("button", { name: "Undo" }).last().click();
  await toast(page, "Undone");
  assert.equal((await api(`/v1/messages/${one.id}`)).state, "scheduled");

  await page.getByRole("button", { name: "Cancel message", exact: true }).click();
  await dialog(page).getByRole("button", { name: "Cancel message", exact: true }).click();
  await toast(page, "Cancelled");
  await page.getByText("Nothing is pending under this id").waitFor();
  await page.getByRole("button", { name: "Undo" }).last().click();
  await toast(page, "Undone");
  // The line of the undo before says the same.
  let back;
  await eventually("it is back", async () => (back = await api("/v1/queues/acts/keys/one")).body !== undefined);
  assert.deepEqual([back.body, back.due_at, back.key], [one.body, one.due_at, "one"]);

  await go(page, "/queues/acts", "acts");
  await page.getByRole("button", { name: "Pause" }).click();
  await dialog(page).getByRole("button", { name: "OK" }).click();
  await toast(page, "paused");
  assert.equal((await api("/v1/queues/acts")).paused, true);
  await page.getByRole("button", { name: "Resume", exact: true }).click();
  await toast(page, "grants again");
  assert.equal((await api("/v1/queues/acts")).paused, false);

  await page.getByRole("button", { name: "Change the settings" }).click();
  await dialog(page).getByLabel("Maximum attempts").fill("3");
  await dialog(page).getByRole("button", { name: "Save" }).click();
  await toast(page, "saved");
  assert.equal((await api("/v1/queues/acts")).config.max_attempts, 3);

  await page.getByRole("button", { name: "Purge" }).click();
  await dialog(page).getByLabel("Type the queue's name").fill("something else");
  await dialog(page).getByRole("button", { name: "Purge 1" }).click();
  await dialog(page).locator(".wrong", { hasText: "not the queue's name" }).waitFor();
  assert.equal((await api("/v1/queues/acts")).counts.scheduled, 1, "nothing was purged");
  await dialog(page).getByLabel("Type the queue's name").fill("acts");
  await dialog(page).getByRole("button", { name: "Purge 1" }).click();
  await toast(page, "1 message purged in acts.");
  assert.equal((await api("/v1/queues/acts")).counts.scheduled, 0);

  await go(page, "/dead/mails", "Dead letters of mails");
  await page.getByRole("link", { name: /no such user/ }).click();
  const ofReason = page.locator("section", { has: page.getByRole("heading", { name: "buried: no such user" }) });
  await ofReason.waitFor();
  assert.equal(await ofReason.locator("tbody tr").count(), 2, "those of this reason alone");
  await check(seen, "dead letters of one reason");
  await page.locator("tr", { hasText: "no such user" }).getByRole("button", { name: "Redrive" }).click();
  await dialog(page).getByText("Messages of mails: died of buried: no such user").waitFor();
  await dialog(page).getByText("2 messages match").waitFor();
  await dialog(page).getByRole("button", { name: "Redrive 2" }).click();
  await toast(page, "2 messages redriven in mails");
  await eventually("those of one reason are ready", async () => (await api("/v1/queues/mails")).counts.ready === 2);
  assert.deepEqual((await api("/v1/queues/mails")).counts, { scheduled: 0, ready: 2, leased: 0, dead: 1, estimated: false });

  // A schedule: made, not made over another, triggered, paused, edited, removed, and each taken back.
  await go(page, "/schedules", "Schedules");
  const makeSchedule = async (name, every) => {
    await page.getByRole("button", { name: "New schedule" }).click();
    await dialog(page).getByLabel("Name").fill(name);
    await dialog(page).getByLabel("Queue").fill("ticks");
    await dialog(page).getByLabel("Or every").fill(every);
    await dialog(page).getByLabel("Body").fill("tick");
    await dialog(page).getByRole("button", { name: "OK" }).click();
  };
  await makeSchedule("weekly-report", "24h");
  await dialog(page).locator(".wrong", { hasText: "There is a schedule weekly-report already" }).waitFor();
  await dialog(page).getByRole("button", { name: "Cancel", exact: true }).click();
  assert.equal((await api("/v1/schedules/weekly-report")).queue, "reports", "another's schedule stays");
  await makeSchedule("ticks", "24h");
  await toast(page, "Schedule ticks is made");
  await page.getByRole("link", { name: "ticks", exact: true }).first().click();
  await page.getByRole("heading", { level: 1, name: "ticks" }).waitFor();
  const ticks = () => api("/v1/schedules/ticks");
  assert.deepEqual([(await ticks()).every, (await ticks()).body], ["24h", "tick"]);

  await page.getByRole("button", { name: "Trigger now" }).click();
  await dialog(page).getByRole("button", { name: "Trigger now" }).click();
  await toast(page, "is scheduled");
  await eventually("the message of a trigger", async () => (await api("/v1/queues/ticks")).counts.ready === 1);
  await page.getByRole("button", { name: "Undo" }).last().click();
  await eventually("the trigger is taken back", async () => (await api("/v1/queues/ticks")).counts.ready === 0);

  await page.getByRole("button", { name: "Pause", exact: true }).click();
  await toast(page, "The schedule is paused");
  await eventually("paused", async () => (await ticks()).paused);
  await page.getByRole("button", { name: "Resume", exact: true }).click();
  await toast(page, "The schedule goes on");
  await eventually("resumed", async () => !(await ticks()).paused);

  await page.getByRole("button", { name: "Edit" }).click();
  await dialog(page).getByLabel("Or every").fill("");
  await dialog(page).getByLabel("Cron").fill("0 9 * *");
  await dialog(page).getByRole("button", { name: "OK" }).click();
  await dialog(page).locator(".wrong", { hasText: "cron" }).waitFor();
  await dialog(page).getByLabel("Cron").fill("0 9 * * MON");
  await dialog(page).getByRole("button", { name: "OK" }).click();
  await dialog(page).waitFor({ state: "detached" });
  assert.deepEqual([(await ticks()).cron, (await ticks()).every], ["0 9 * * MON", undefined]);
  await page.getByRole("button", { name: "Undo" }).last().click();
  await eventually("every day again", async () => (await ticks()).every === "24h" && !("cron" in (await ticks())));

  await page.getByRole("button", { name: "Remove" }).click();
  await dialog(page).getByRole("button", { name: "Remove" }).click();
  await toast(page, "is removed");
  await page.getByText("There is no such schedule").waitFor();
  await page.getByRole("button", { name: "Undo" }).last().click();
  await eventually("set again", async () => (await ticks()).body === "tick");
  assert.equal((await ticks()).every, "24h");
  await check(seen, "a schedule that was set again");

  // Many messages: found by their key, counted, fired by a job; then others cancelled. Dead ones come back.
  for (const key of ["eu-1", "eu-2", "us-1"]) await api("/v1/queues/bulky/messages", "POST", { body: "x", key, delay: "3h" });
  await visit(page, `${open}/#/queues/bulky`);
  await page.getByRole("link", { name: "Messages due in this span" }).click();
  await page.waitForURL(/from=.*to=/);
  await page.getByRole("button", { name: "Any time" }).click();
  await page.waitForURL((url) => !url.hash.includes("from="));
  const prefix = page.getByRole("searchbox", { name: "Key begins with" });
  await prefix.fill("eu-");
  await page.locator("td.key", { hasText: "eu-2" }).first().waitFor();
  await page.locator("td.key", { hasText: "us-1" }).waitFor({ state: "detached" });
  await check(seen, "a filtered list");
  await page.getByRole("button", { name: "Fire these" }).click();
  await dialog(page).getByText("Messages of bulky: key begins with “eu-”").waitFor();
  await dialog(page).getByText("2 messages match").waitFor();
  await dialog(page).getByRole("button", { name: "Fire now 2" }).click();
  await toast(page, "2 messages fired in bulky");
  await eventually("fired", async () => (await api("/v1/queues/bulky")).counts.ready === 2);
  await page.getByRole("button", { name: "Postpone these" }).click();
  await dialog(page).getByLabel("Later by").fill("2h");
  await dialog(page).getByRole("button", { name: "Postpone 2" }).click();
  await eventually("postponed", async () => (await api("/v1/queues/bulky")).counts.scheduled === 3);
  await page.getByRole("button", { name: "Cancel these" }).click();
  await dialog(page).getByLabel("Rate, messages a second").fill("100");
  await dialog(page).getByRole("button", { name: "Cancel 2" }).click();
  await eventually("cancelled", async () => (await api("/v1/queues/bulky")).counts.scheduled === 1);
  await api("/v1/queues/bulky/messages", "POST", { body: "x", delay: "0s" });
  const { messages: [lost] } = await api("/v1/queues/bulky/reserve", "POST", { wait_ms: 5_000 });
  await api(`/v1/messages/${lost.id}/nack`, "POST", { lease_token: lost.lease_token, dead: true, reason: "lost" });
  await visit(page, `${open}/#/dead/bulky`);
  await page.getByRole("button", { name: "Redrive all" }).click();
  await dialog(page).getByLabel("Type the queue's name").fill("bulky");
  await dialog(page).getByRole("button", { name: "Redrive 1" }).click();
  await eventually("redriven", async () => (await api("/v1/queues/bulky")).counts.dead === 0);
  // What became of a message that was cancelled yesterday, and the same again.
  await api("/v1/queues/kept/config", "PATCH", { keep_done: "24h" });
  const { id: ended } = await api("/v1/queues/kept/messages", "POST", { body: "mail 42", key: "order-42", delay: "3h" });
  await api(`/v1/messages/${ended}`, "DELETE");
  await visit(page, `${open}/#/queues/kept?state=done`);
  await page.locator("td", { hasText: "Done: cancelled" }).waitFor();
  await check(seen, "done messages");
  await page.getByRole("link", { name: ended, exact: true }).click();
  await page.getByRole("button", { name: "Replay" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Cancel" }).count(), 0, "it has ended");
  await check(seen, "a done message");
  await page.getByRole("button", { name: "Replay" }).click();
  await dialog(page).getByLabel("Key").fill("order-42-again");
  await dialog(page).getByRole("button", { name: "Replay" }).click();
  await eventually("replayed", async () => (await api("/v1/queues/kept")).counts.ready === 1);
  const { body: again, headers: told } = await api("/v1/queues/kept/keys/order-42-again");
  assert.deepEqual([again, told["duewheel-replay-of"]], ["mail 42", ended]);
  // A slow one is ended by hand.
  for (let n = 0; n < 40; n += 1) await api("/v1/queues/slow/messages", "POST", { body: "x", delay: "3h" });
  await api("/v1/queues/slow/bulk", "POST", { action: "cancel", all: true, rate: 1 });
  await go(page, "/jobs", "Jobs");
  await page.getByText("running").first().waitFor();
  await page.getByRole("button", { name: "End job" }).first().click();
  await dialog(page).getByRole("button", { name: "End job" }).click();
  await toast(page, "The job has ended");
  await page.getByText("ended early").first().waitFor();
  await check(seen, "jobs");

  // A target: made, not made over another, tested, given a queue, paused, resumed and removed.
  await go(page, "/targets", "Targets");
  const fillTarget = async (name) => {
    await page.getByRole("button", { name: "New target" }).click();
    await dialog(page).getByLabel("Name").fill(name);
    await dialog(page).getByLabel("URL").fill(hook);
    await dialog(page).getByLabel("Networks").fill("public, 127.0.0.1/32");
    await dialog(page).getByRole("button", { name: "OK" }).click();
  };
  await fillTarget("shop");
  await dialog(page).locator(".wrong", { hasText: "There is a target shop already" }).waitFor();
  await dialog(page).getByRole("button", { name: "Cancel", exact: true }).click();
  await fillTarget("depot");
  await toast(page, "Target depot is made");
  await page.getByRole("link", { name: "depot", exact: true }).first().click();
  await page.getByRole("heading", { level: 1, name: "depot" }).waitFor();
  await page.getByRole("button", { name: "Send a test" }).click();
  await dialog(page).getByRole("button", { name: "Send a test" }).click();
  await dialog(page).getByText("The target took it.").waitFor();
  await dialog(page).getByText(/ 200 · \d+ ms/).waitFor();
  await dialog(page).getByRole("button", { name: "Close" }).click();
  assert.deepEqual(received.splice(0).sort(), ["order 41", "order 42", '{"type":"duewheel.test"}']);
  await page.getByRole("button", { name: "Deliver a queue" }).click();
  await dialog(page).getByLabel("Queue").fill("parcels");
  await dialog(page).getByRole("button", { name: "OK" }).click();
  await toast(page, "The settings are saved");
  const bad = await api("/v1/queues/parcels/messages", "POST", { body: "bad", delay: "0s" });
  await api("/v1/queues/parcels/messages", "POST", { body: "good", delay: "0s" });
  await eventually("delivered", () => received.includes("good") && received.includes("bad"));
  await page.getByText("Deliveries of this node").waitFor();
  await check(seen, "a target that delivers");
  await eventually("the attempt is kept", async () => (await api(`/v1/messages/${bad.id}`)).deliveries);
  await visit(page, `${open}/#/messages/${bad.id}`);
  await page.getByRole("heading", { name: "Deliveries" }).waitFor();
  assert.equal(await page.getByRole("cell", { name: "500", exact: true }).first().isVisible(), true);
  await check(seen, "a message whose delivery has failed");

  await visit(page, `${open}/#/targets/depot`);
  await page.getByRole("button", { name: "Pause", exact: true }).click();
  await dialog(page).getByLabel("Reason").fill("it moves");
  await dialog(page).getByRole("button", { name: "OK" }).click();
  await toast(page, "The target is paused");
  const depot = () => api("/v1/targets/depot");
  await eventually("paused", async () => (await depot()).state === "paused" && (await depot()).reason === "it moves");
  await page.getByRole("button", { name: "Resume", exact: true }).click();
  await toast(page, "The target has messages again");
  await eventually("resumed", async () => (await depot()).state !== "paused");
  await page.getByRole("button", { name: "Remove" }).click();
  await dialog(page).getByRole("button", { name: "Remove" }).click();
  await dialog(page).locator(".wrong", { hasText: "parcels" }).waitFor();
  await api("/v1/queues/parcels/config", "PATCH", { target: null });
  await dialog(page).getByRole("button", { name: "Remove" }).click();
  await toast(page, "The target is removed");
  await page.getByText("There is no such target").waitFor();

  // Held, nothing is asked for; a hidden page asks for nothing either.
  await go(page, "/", "Overview");
  await page.locator("svg .pointer").waitFor();
  await page.getByRole("button", { name: "Hold updates" }).click();
  await page.waitForTimeout(1_500);
  let asked = 0;
  page.on("request", () => { asked += 1; });
  await page.waitForTimeout(6_500);
  assert.equal(asked, 0, "requests while updates are held");
  // Resumed, each figure is asked for as often as before, however often it was held and resumed.
  for (let n = 0; n < 10; n += 1) {
    await page.getByRole("button", { name: "Resume updates" }).click();
    await page.getByRole("button", { name: "Hold updates" }).click();
  }
  await page.getByRole("button", { name: "Resume updates" }).click();
  await page.waitForTimeout(1_000);
  asked = 0;
  await page.waitForTimeout(6_500);
  assert.ok(asked >= 4 && asked <= 20, `${asked} requests in some seconds`);
  await seen.context.close();
}

// ----- by keyboard alone -----
{
  const seen = await tab();
  const { page } = seen;
  await go(page, "/", "Overview");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.id), "skip");
  const reach = async (matches, most = 60) => {
    for (let n = 0; n < most; n += 1) {
      await page.keyboard.press("Tab");
      if (await page.evaluate(matches)) return;
    }
    assert.fail(`not reached: ${matches}`);
  };
  await reach(() => document.activeElement.getAttribute("href") === "#/queues");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: "Queues" }).waitFor();
  await page.getByRole("link", { name: "json", exact: true }).waitFor();
  await page.getByRole("searchbox", { name: "Filter by name" }).focus();
  await page.keyboard.type("json");
  await reach(() => document.activeElement.textContent === "json");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: "json" }).waitFor();
  await page.getByRole("button", { name: "Pause" }).focus();
  await page.keyboard.press("Enter");
  await dialog(page).waitFor();
  await page.keyboard.press("Escape");
  await dialog(page).waitFor({ state: "detached" });
  assert.equal((await api("/v1/queues/json")).paused, false, "left, nothing was done");
  await seen.context.close();
}

// ----- tokens -----
{
  const seen = await tab();
  const { page } = seen;
  await page.goto(`${guarded}/`);
  await page.getByLabel("Token").fill("dw_wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("alert").filter({ hasText: "not known" }).waitFor();
  await check(seen, "sign in");
  const asked = [];
  page.on("request", (request) => asked.push(request.url()));
  await page.getByLabel("Token").fill(smallToken);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("button", { name: "Sign out small" }).waitFor();
  await visit(page, `${guarded}/#/queues/shop`);
  await page.getByRole("heading", { level: 1, name: "shop" }).waitFor();
  await page.getByText("needs the scope consume / admin").waitFor();
  assert.equal(await page.getByRole("link", { name: "Schedules" }).count(), 0, "schedules are not offered");
  assert.equal(await page.getByRole("link", { name: "Targets" }).count(), 0, "targets are not offered");
  assert.equal(await page.getByRole("link", { name: "Jobs" }).count(), 0, "jobs are not offered");
  for (const word of ["Pause", "Purge", "Settings", "New message", "Redrive"]) {
    assert.equal(await page.getByRole("button", { name: word, exact: true }).count(), 0, `${word} is not offered`);
  }
  const refused = await api("/v1/queues/shop/purge", "POST", {}, smallToken);
  assert.equal(refused.code, "forbidden", "and the API refuses");
  await check(seen, "a token that may only look");
  // The token is in the storage of this tab, and nowhere else.
  const kept = await page.evaluate(() => ({ session: { ...sessionStorage }, local: { ...localStorage }, cookie: document.cookie, url: location.href }));
  assert.deepEqual(kept.session, { "duewheel-token": smallToken });
  assert.deepEqual([JSON.stringify(kept.local).includes(smallToken), kept.cookie, kept.url.includes(smallToken)], [false, "", false]);
  assert.deepEqual(await seen.context.cookies(), []);
  assert.ok(asked.length > 3, `${asked.length} requests`);
  assert.deepEqual(asked.filter((url) => url.includes(smallToken) || url.includes("token=")), [], "addresses with a token");
  const other = await seen.context.newPage();
  await other.goto(`${guarded}/`);
  await other.getByLabel("Token").waitFor();
  await other.close();
  assert.deepEqual((await api("/v1/token", "GET", undefined, smallToken)).token.scopes, ["metrics"]);
  const all = await api("/v1/tokens", "GET", undefined, fullToken);
  assert.deepEqual(all.tokens.map((token) => token.name), ["full", "small", "producer", "keeper", "warden", "worker", "watcher"]);
  assert.ok(!JSON.stringify(all).includes("sha256"), "no hash leaves the server");
  await page.getByRole("button", { name: "Sign out small" }).click();
  await page.getByLabel("Token").waitFor();
  assert.deepEqual(await page.evaluate(() => ({ ...sessionStorage })), {}, "signed out");
  await page.getByLabel("Token").fill(fullToken);
  await page.getByRole("button", { name: "Sign in" }).click();
  await visit(page, `${guarded}/#/server`);
  await page.getByRole("cell", { name: "small" }).waitFor();
  await check(seen, "tokens");
  await seen.context.close();
}

// ----- the same words in both languages -----
{
  const source = async (name) => (await fetch(`${open}/ui/${name}.js`)).text();
  const words = async (name) => (await import(`data:text/javascript,${encodeURIComponent(await source(name))}`)).default;
  const texts = await words("texts");
  const holes = (text) => [...text.matchAll(/\{(\w+)(?:\|[^}]*)?\}/g)].map((hole) => hole[1]).sort().join();
  for (const [name, [en, zh]] of Object.entries(texts)) assert.ok(en && zh && holes(zh) === holes(en), name);
  const used = new Set();
  for (const file of ["main", "acts", "charts", "messages", "overview", "attention", "queues", "queue", "settings", "schedules", "cron", "server", "stack", "audit", "jobs", "targets", "history", "format", "tables", "zoom", "address"]) {
    const text = await source(file);
    for (const [, name] of text.matchAll(/\bt\("([a-z0-9-]+)"/g)) used.add(name);
  }
  assert.deepEqual([...used].filter((name) => !(name in texts)), [], "words that are used and not there");
}

receiver.close();
receiver.closeAllConnections();
console.log(`ok      the dashboard in Chromium: ${shown.pages} pages without a violation, each act, two languages`);
