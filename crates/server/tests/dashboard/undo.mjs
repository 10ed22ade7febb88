// Undo brings back what was there: the message as it was, its due time, a pause with the time it had left, settings.
//   node undo.mjs

import assert from "node:assert/strict";

import * as stage from "./stage.mjs";
import { api, check, dialog, eventually, go, shown, tab, toast } from "./stage.mjs";

const HOUR = 3_600_000;
const seen = await tab();
const { page } = seen;

const [press, confirm, undo] = [(name) => stage.press(page, name), (name) => stage.confirm(page, name), () => stage.undo(page)];
const put = (queue, message) => api(`/v1/queues/${queue}/messages`, "POST", message);
const byKey = (queue, key) => api(`/v1/queues/${queue}/keys/${key}`);
const show = (id) => go(page, `/messages/${id}`, `Message ${id}`);
// Cancels a message on its page, takes it back, and gives what is there then.
async function cancelled(queue, key) {
  const was = await byKey(queue, key);
  await show(was.id);
  await press("Cancel message");
  await confirm("Cancel message");
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
  await press("Change the settings");
  await api("/v1/queues/held/config", "PATCH", { rate: { per_second: 5, burst: 9 } });
  await dialog(page).getByLabel("Maximum attempts").fill("3");
  await dialog(page).getByLabel("Lease", { exact: true }).fill("");
  await confirm("Save");
  await toast(page, "saved");
  const { config } = await held();
  assert.deepEqual([config.max_attempts, config.lease_ms, config.priority, config.rate], [3, null, 3, { per_second: 5, burst: 9 }]);
  await undo();
  const { config: again } = await held();
  assert.deepEqual([again.max_attempts, again.lease_ms, again.priority, again.rate], [null, 4_000, 3, { per_second: 5, burst: 9 }]);

  // Another rate keeps its burst, which the dialog does not show.
  await page.reload();
  await press("Change the settings");
  await dialog(page).getByLabel("Rate (grants a second)").fill("7");
  await confirm("Save");
  await toast(page, "saved");
  assert.deepEqual((await held()).config.rate, { per_second: 7, burst: 9 });
  await undo();
  assert.deepEqual((await held()).config.rate, { per_second: 5, burst: 9 });
}

// A new message on the page of its queue, and its end.
{
  await put("own", { body: "x", delay: "3h" });
  await go(page, "/queues/own", "own");
  await press("New message");
  assert.equal(await dialog(page).getByLabel("Queue").inputValue(), "own", "this queue");
  await dialog(page).getByLabel("Body").fill("made on its page");
  await dialog(page).getByLabel("Delay (10s, 2h, 15d)").fill("2h");
  await dialog(page).getByLabel("Key (optional)").fill("mine");
  await confirm("OK");
  await toast(page, "is scheduled");
  assert.equal((await byKey("own", "mine")).body, "made on its page");
  await undo();
  assert.equal((await byKey("own", "mine")).code, "message_not_found");
  assert.equal((await api("/v1/queues/own")).counts.scheduled, 1, "the other one stays");
}

// A dead message on its page: a replay that is taken back, and one that stays beside it; then it is ready again itself.
{
  await put("graves", { body: "order 7", key: "seven", delay: "0s" });
  const { messages: [grave] } = await api("/v1/queues/graves/reserve", "POST", { wait_ms: 5_000 });
  await api(`/v1/messages/${grave.id}/nack`, "POST", { lease_token: grave.lease_token, dead: true, reason: "no such shop" });
  const counts = async () => { const { scheduled, ready, dead } = (await api("/v1/queues/graves")).counts; return { pending: scheduled + ready, dead }; };
  await show(grave.id);
  await press("Replay");
  await dialog(page).getByLabel("Key").fill("seven-again");
  await confirm("Replay");
  await toast(page, "is scheduled");
  const again = await byKey("graves", "seven-again");
  assert.deepEqual([again.body, again.headers["duewheel-replay-of"]], ["order 7", grave.id]);
  await undo();
  assert.equal((await byKey("graves", "seven-again")).code, "message_not_found");
  assert.deepEqual(await counts(), { pending: 0, dead: 1 }, "the dead one stays");
  await press("Replay");
  await confirm("Replay");
  await toast(page, "is scheduled");
  assert.deepEqual(await counts(), { pending: 1, dead: 1 });
  await check(seen, "a dead message");

  await press("Redrive");
  await dialog(page).getByText("1 dead message becomes ready again.").waitFor();
  await confirm("Redrive 1");
  await toast(page, "1 message is ready again");
  assert.deepEqual(await counts(), { pending: 2, dead: 0 });
  assert.equal((await api(`/v1/messages/${grave.id}`)).state, "ready");
  await page.getByRole("button", { name: "Postpone" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Redrive" }).count(), 0, "it is dead no more");
}

// A new schedule, its pause and its resume.
{
  const nightly = () => api("/v1/schedules/nightly");
  await go(page, "/schedules", "Schedules");
  await press("New schedule");
  await dialog(page).getByLabel("Name").fill("nightly");
  await dialog(page).getByLabel("Queue").fill("reports");
  await dialog(page).getByLabel("Cron").fill("0 3 * * *");
  await confirm("OK");
  await toast(page, "Schedule nightly is made");
  assert.deepEqual([(await nightly()).cron, (await nightly()).zone], ["0 3 * * *", "Europe/Berlin"], "in the viewer's zone");
  await undo();
  assert.equal((await nightly()).code, "not_found");

  await api("/v1/schedules/nightly", "PUT", { queue: "reports", cron: "0 3 * * *" });
  await go(page, "/schedules/nightly", "nightly");
  await press("Pause");
  await toast(page, "The schedule is paused");
  assert.equal((await nightly()).paused, true);
  await undo();
  assert.equal((await nightly()).paused, false);
  await api("/v1/schedules/nightly", "PATCH", { paused: true });
  await press("Resume");
  await toast(page, "The schedule goes on");
  assert.equal((await nightly()).paused, false);
  await undo();
  assert.equal((await nightly()).paused, true);
  await check(seen, "a schedule that was resumed and is not");
}

console.log(`ok      undo brings back what was there (${shown.pages} pages without a violation)`);
