// Undo brings back what was there: the message as it was, its due time, a pause with the time it had left, settings.
//   node undo.mjs

import assert from "node:assert/strict";

import { api, browser, check, dialog, eventually, go, shown, tab, toast } from "./stage.mjs";

const HOUR = 3_600_000;
const seen = await tab();
const { page } = seen;

const press = (name) => page.getByRole("button", { name, exact: true }).click();
const confirm = (name) => dialog(page).getByRole("button", { name, exact: true }).click();
const undo = async () => {
  await page.locator(".toast", { has: page.getByRole("button", { name: "Undo" }) }).last().getByRole("button", { name: "Undo" }).click();
  await toast(page, "Undone");
  await page.locator(".toast", { hasText: "Undone" }).last().getByRole("button", { name: "Close" }).click();
};
const put = (queue, message) => api(`/v1/queues/${queue}/messages`, "POST", message);
const byKey = (queue, key) => api(`/v1/queues/${queue}/keys/${key}`);
const show = (id) => go(page, `/messages/${id}`, `Message ${id}`);
// Cancels a message on its page, takes it back, and gives what is there then.
async function cancelled(queue, key) {
  const was = await byKey(queue, key);
  await show(was.id);
  await press("Cancel");
  await confirm("Cancel");
  await toast(page, "Cancelled");
  await undo();
  const now = await byKey(queue, key);
  assert.notEqual(now.id, was.id, "a new message");
  return [was, now];
}

// Undo of a cancel dropped when a message expires and its own backoff, and made its queue's defaults its own: a message that
// was to expire at 18:00 never did.
{
  await api("/v1/queues/whole/config", "PATCH", { lease_ms: 7_000, max_attempts: 9 });
  const due_at = new Date(Date.now() + 2 * HOUR).toISOString();
  await put("whole", { body: "x", key: "at", due_at, expires_at: new Date(Date.now() + 5 * HOUR).toISOString(), backoff: { min_ms: 2_000, max_ms: 60_000 }, headers: { a: "b" }, priority: 7 });
  await put("whole", { body_base64: "/wD+", key: "in", due_at, expires_in: "3h", lease_ms: 11_000 });
  await put("whole", { body: "x", key: "plain", due_at });
  await put("whole", { body: "x", key: "spread", due_at, spread: "1h", expires_in: "3h" });
  for (const key of ["at", "in", "plain", "spread"]) {
    const [was, now] = await cancelled("whole", key);
    const of = ({ own, due_at: due, expires_at, priority, headers, body, body_base64, lease_ms, max_attempts }) => {
      // A spread has done what it is for: the due time is the one that it had chosen.
      const { spread_ms: _, ...rest } = own ?? {};
      return { own: rest, due, expires_at, priority, headers, body, body_base64, lease_ms, max_attempts };
    };
    assert.deepEqual(of(now), of(was), key);
  }
  // A default that changes later is that of the message, too.
  await api("/v1/queues/whole/config", "PATCH", { max_attempts: 5 });
  assert.equal((await byKey("whole", "plain")).max_attempts, 5);
  // What was overdue is due at once, and expires when it did; also when that has passed.
  await put("whole", { body: "x", key: "late", delay: "0s", expires_in: "1h" });
  await put("whole", { body: "x", key: "over", delay: "0s", expires_in_ms: 1 });
  await eventually("both are ready", async () => (await api("/v1/queues/whole")).counts.ready === 2);
  const [was, now] = await cancelled("whole", "late");
  assert.equal(now.expires_at, was.expires_at);
  const [, over] = await cancelled("whole", "over");
  await eventually("it has expired again", async () => Date.parse(over.expires_at) < Date.now());
  await check(seen, "a message that was cancelled and is back");
}

// Undo of a postpone was refused for a message that was ready, because its due time had passed, and so was undo of fire when
// it came late.
{
  const { id } = await put("back", { body: "x", key: "ready", delay: "0s" });
  await eventually("ready", async () => (await byKey("back", "ready")).state === "ready");
  await show(id);
  await press("Postpone");
  await dialog(page).getByLabel("Delay (10s, 2h, 15d)").fill("48h");
  await confirm("OK");
  await toast(page, "Postponed");
  assert.equal((await byKey("back", "ready")).state, "scheduled");
  await undo();
  await eventually("ready again", async () => (await byKey("back", "ready")).state === "ready");

  const soon = await put("back", { body: "x", key: "soon", delay: "1500ms" });
  await show(soon.id);
  await press("Fire now");
  await confirm("Fire now");
  await toast(page, "It is due now");
  await eventually("the old due time has passed", () => Date.parse(soon.due_at) < Date.now());
  await undo();
  assert.equal((await byKey("back", "soon")).state, "ready");

  // A change of the due time is spread anew; its undo is not.
  const wide = await put("back", { body: "x", key: "wide", delay: "5h", spread: "2h" });
  await show(wide.id);
  await press("Fire now");
  await confirm("Fire now");
  await toast(page, "It is due now");
  await undo();
  assert.equal((await byKey("back", "wide")).due_at, wide.due_at, "where the spread had put it");
}

// Undo of resume paused without end, also when the pause had some time left.
{
  await put("held", { body: "x", delay: "1h" });
  const held = () => api("/v1/queues/held");
  await api("/v1/queues/held/pause", "POST", { for: "1h" });
  await go(page, "/queues/held", "held");
  await press("Resume");
  await toast(page, "grants again");
  assert.equal((await held()).paused, false);
  await undo();
  const left = (await held()).pause_left_ms;
  assert.ok(left > 0.9 * HOUR && left <= HOUR, `${left} ms are left`);
  await press("Resume");
  await toast(page, "grants again");
  await page.locator(".toast", { hasText: "grants again" }).last().getByRole("button", { name: "Close" }).click();

  await press("Pause");
  await dialog(page).getByLabel("For how long").fill("30m");
  await confirm("OK");
  await toast(page, "is paused");
  assert.ok((await held()).pause_left_ms > 0);
  await undo();
  assert.equal((await held()).paused, false, "a pause is taken back");
  await api("/v1/queues/held/pause", "POST", {});
  await press("Resume");
  await toast(page, "grants again");
  await undo();
  assert.deepEqual([(await held()).paused, (await held()).pause_left_ms], [true, null], "until it is resumed");

  // Settings: only what was changed is sent, so what somebody else has set in the meantime stays.
  await api("/v1/queues/held/config", "PATCH", { priority: 3, lease_ms: 4_000 });
  await page.reload();
  await press("Settings");
  await api("/v1/queues/held/config", "PATCH", { rate: { per_second: 5, burst: 9 } });
  await dialog(page).getByLabel("max_attempts").fill("3");
  await dialog(page).getByLabel("lease_ms").fill("");
  await confirm("OK");
  await toast(page, "saved");
  const { config } = await held();
  assert.deepEqual([config.max_attempts, config.lease_ms, config.priority, config.rate], [3, null, 3, { per_second: 5, burst: 9 }]);
  await undo();
  const { config: again } = await held();
  assert.deepEqual([again.max_attempts, again.lease_ms, again.priority, again.rate], [null, 4_000, 3, { per_second: 5, burst: 9 }]);

  // Another rate keeps its burst, which the dialog does not show.
  await page.reload();
  await press("Settings");
  await dialog(page).getByLabel("rate", { exact: true }).fill("7");
  await confirm("OK");
  await toast(page, "saved");
  assert.deepEqual((await held()).config.rate, { per_second: 7, burst: 9 });
  await undo();
  assert.deepEqual((await held()).config.rate, { per_second: 5, burst: 9 });
}

await browser.close();
console.log(`ok      undo brings back what was there (${shown.pages} pages without a violation)`);
