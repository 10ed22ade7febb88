// Targets: one that cannot be reached, with its open breaker and its attempts; a test that fails; and the way back of acts.
//   node targets.mjs

import assert from "node:assert/strict";
import { createServer } from "node:http";

import { api, check, confirm, dialog, eventually, go, open, press, shown, tab, toast, undo, visit } from "./stage.mjs";

const listen = (server, port) => new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
const receiver = createServer((request, response) => request.resume().on("end", () => response.writeHead(200).end("taken")));
await listen(receiver, 0);
const { port } = receiver.address();
await new Promise((resolve) => receiver.close(resolve));
const target = (name) => api(`/v1/targets/${name}`);
const put = (name) => api(`/v1/targets/${name}`, "PUT", { url: `http://127.0.0.1:${port}/hook`, networks: ["127.0.0.1/32"] });

const seen = await tab();
const { page } = seen;

// Nothing listens: messages that cannot be sent open the breaker.
await put("gone");
await api("/v1/queues/lost/config", "PATCH", { target: "gone" });
for (let n = 0; n < 12; n += 1) await api("/v1/queues/lost/messages", "POST", { body: `${n}`, delay: "0s" });
await eventually("the breaker is open", async () => (await target("gone")).state === "open");
const { reason, since, attempts } = await target("gone");
assert.ok(reason && since && attempts.length >= 3, JSON.stringify(await target("gone")));

await go(page, "/targets", "Targets");
const row = page.locator("tr", { has: page.getByRole("link", { name: "gone", exact: true }) });
await row.locator(".badge.bad", { hasText: "open" }).waitFor();
assert.match(await row.locator("td").last().textContent(), /^since .*\d\d:\d\d/);
assert.ok((await row.locator("td").last().textContent()).endsWith(`, because: ${reason}`));
await check(seen, "a target whose breaker is open, in the list");

await row.getByRole("link", { name: "gone", exact: true }).click();
await page.getByRole("heading", { level: 1, name: "gone" }).waitFor();
await page.locator(".badge.bad", { hasText: "open" }).waitFor();
const seconds = await page.evaluate((at) => new Intl.DateTimeFormat(navigator.language, { dateStyle: "medium", timeStyle: "medium" }).format(Date.parse(at)), since);
const why = await page.locator("p.lead").textContent();
assert.ok(why.startsWith(`open since ${seconds} (`) && why.endsWith(`, because: ${reason}`), why);
const rows = page.getByRole("region", { name: "Latest attempts of this node" }).locator("tbody tr");
const newest = rows.first().locator("td");
const { attempts: [last] } = await target("gone");
assert.ok((await rows.count()) >= 3);
assert.deepEqual([await newest.nth(1).textContent(), await newest.nth(3).textContent(), await newest.nth(5).textContent()], ["lost", `${last.attempt}`, last.class]);
await check(seen, "a target whose breaker is open");
for (const options of [{ viewport: { width: 360, height: 740 } }, { locale: "zh-CN", colorScheme: "dark" }]) {
  const other = await tab(options);
  await other.page.goto(`${open}/#/targets/gone`);
  await other.page.locator(".badge.bad", { hasText: options.locale ? "已熔断" : "open" }).waitFor();
  await check(other, `a target whose breaker is open, ${JSON.stringify(options)}`);
  // The server's page names it, with the reason.
  await visit(other.page, `${open}/#/server`);
  const { because } = (await api("/v1/status")).breakers.find((one) => one.target === "gone");
  await other.page.locator("dd", { hasText: "gone" }).filter({ hasText: because }).waitFor();
  await other.context.close();
}

// A test that fails is a result, and stays to be read.
await press(page, "Send a test");
await confirm(page, "Send a test");
await dialog(page).locator(".badge.bad", { hasText: "The target did not take it" }).waitFor();
await dialog(page).getByText(reason).first().waitFor();
assert.equal(await page.locator(".toast.bad").count(), 0);
await check(seen, "a test that failed");
await confirm(page, "Close");

// Its way back is seen, without a look by hand; and each attempt leads to its message.
await listen(receiver, port);
await page.locator(".badge.good", { hasText: "active" }).waitFor();
await page.getByRole("region", { name: "Latest attempts of this node" }).locator(".badge", { hasText: /^200$/ }).first().waitFor();
await press(page, "Hold updates");
await newest.nth(2).getByRole("link").click();
await page.getByRole("heading", { level: 1, name: /^Message \d+$/ }).waitFor();
await press(page, "Resume updates");

// A pause and a resume are taken back, the latter with its reason.
await go(page, "/targets/gone", "gone");
await press(page, "Pause");
await dialog(page).getByLabel("Reason").fill("it moves");
await confirm(page, "OK");
await toast(page, "The target is paused");
assert.deepEqual([(await target("gone")).state, (await target("gone")).reason], ["paused", "it moves"]);
// What it has tried stays to be read.
await page.locator(".badge.warn", { hasText: "paused" }).waitFor();
assert.ok((await rows.count()) >= 3);
await undo(page);
await eventually("it goes on", async () => (await target("gone")).state === "active");
await api("/v1/targets/gone/pause", "POST", { reason: "it burns" });
await press(page, "Resume");
await toast(page, "The target has messages again");
await eventually("resumed", async () => (await target("gone")).state === "active");
await undo(page);
await eventually("paused again", async () => (await target("gone")).reason === "it burns");
await api("/v1/targets/gone/resume", "POST", {});

// A queue that is delivered, and is not any more; one that another target had gets it back.
await put("other");
await api("/v1/queues/taken/config", "PATCH", { target: "other" });
for (const [queue, before] of [["free", undefined], ["taken", "other"]]) {
  const has = async () => (await api(`/v1/queues/${queue}/config`)).config?.target ?? undefined;
  await go(page, "/targets/gone", "gone");
  await press(page, "Deliver a queue");
  await dialog(page).getByLabel("Queue").fill(queue);
  await confirm(page, "OK");
  await toast(page, "The settings are saved");
  assert.equal(await has(), "gone", queue);
  await undo(page);
  await eventually(`${queue} as before`, async () => (await has()) === before);
}

// A new target.
await go(page, "/targets", "Targets");
await press(page, "New target");
await dialog(page).getByLabel("Name").fill("mistake");
await dialog(page).getByLabel("URL").fill("https://shop.example/hook");
await confirm(page, "OK");
await toast(page, "Target mistake is made");
assert.equal((await target("mistake")).state, "active");
await undo(page);
await eventually("it is gone", async () => (await target("mistake")).code === "not_found");

receiver.close();
receiver.closeAllConnections();
console.log(`ok      targets (${shown.pages} pages without a violation)`);
