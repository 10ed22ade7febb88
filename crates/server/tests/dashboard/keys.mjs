// By keyboard alone: an act from its button over the dialog to its undo, a form, a list, language and theme. Nothing is clicked,
// and nothing gets the focus but by Tab.
//   node keys.mjs

import assert from "node:assert/strict";

import { api, check, dialog, eventually, go, open, shown, tab, toast } from "./stage.mjs";

const seen = await tab();
const { page } = seen;
const press = (...keys) => keys.reduce((before, key) => before.then(() => page.keyboard.press(key)), Promise.resolve());
const focus = () => page.evaluate(() => {
  const { tagName, id, dataset, textContent } = document.activeElement;
  const line = document.activeElement.closest(".toast")?.textContent ?? "";
  return { tag: tagName.toLowerCase(), id, name: dataset.name ?? "", text: textContent, line };
});
// Presses Tab until the element with the focus is the one that is meant.
async function reach(what, is, key = "Tab") {
  for (let n = 0; n < 80; n += 1) {
    await press(key);
    const now = await focus();
    if (is(now)) return now;
  }
  return assert.fail(`not reached: ${what}`);
}
const button = (text) => reach(text, (now) => now.tag === "button" && now.text === text);
// Undo of what a line at the bottom says; others may still be there.
const undo = async (said) => { await reach(`Undo of ${said}`, (now) => now.text === "Undo" && now.line.includes(said)); await press("Enter"); };
const named = (name) => reach(name, (now) => now.name === name);
const type = (text) => page.keyboard.type(text);
// The focus is seen: it has an outline.
const outlined = () => page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle !== "none");

// A message is postponed, and this is taken back.
{
  const { id, due_at } = await api("/v1/queues/keys/messages", "POST", { body: "x", delay: "2h" });
  const due = async () => (await api(`/v1/messages/${id}`)).due_at;
  await go(page, `/messages/${id}`, `Message ${id}`);
  await page.getByRole("button", { name: "Postpone" }).waitFor();
  await press("Tab");
  assert.equal((await focus()).id, "skip");
  // The link to the content leads past the head, and to no other page.
  await press("Enter");
  assert.equal((await focus()).id, "main");
  assert.equal(page.url(), `${open}/#/messages/${id}`);
  await press("Tab");
  assert.equal((await focus()).text, "Postpone", "what comes first in the content");
  assert.ok(await outlined(), "the focus is seen");
  await press("Enter");
  await dialog(page).waitFor();
  assert.equal((await focus()).id, "field-delay", "the first field has the focus");
  // In the dialog Tab stays in it.
  for (let n = 0; n < 6; n += 1) {
    await press("Tab");
    assert.ok(await page.evaluate(() => document.activeElement === document.body || document.activeElement.closest("dialog") !== null), "behind the dialog");
  }
  await reach("the field", (now) => now.id === "field-delay");
  await type("48h");
  await button("OK");
  await press("Enter");
  await toast(page, "Postponed");
  await dialog(page).waitFor({ state: "detached" });
  assert.notEqual(await due(), due_at);
  // The focus is where it was, though the page is drawn anew.
  await page.waitForTimeout(500);
  assert.equal((await focus()).name, "postpone");
  await undo("Postponed");
  await toast(page, "Undone");
  assert.equal(await due(), due_at);

  // Escape leaves a dialog, and nothing has happened.
  await button("Cancel message");
  await press("Enter");
  await dialog(page).waitFor();
  await press("Escape");
  await dialog(page).waitFor({ state: "detached" });
  assert.equal((await focus()).name, "cancel");
  assert.equal((await api(`/v1/messages/${id}`)).state, "scheduled");
  await check(seen, "a message by keyboard");
}

// A schedule is made in its form, field by field, and removed.
{
  await go(page, "/", "Overview");
  await reach("Schedules", (now) => now.tag === "a" && now.text === "Schedules");
  await press("Enter");
  await page.getByRole("heading", { level: 1, name: "Schedules" }).waitFor();
  await named("new-schedule");
  await press("Enter");
  await dialog(page).waitFor();
  assert.equal((await focus()).id, "field-name");
  await type("by-keys");
  await press("Tab");
  await type("keys");
  await reach("every", (now) => now.id === "field-every");
  await type("24h");
  await reach("body", (now) => now.id === "field-body");
  await type("tick");
  await press("Tab", "Enter");
  await toast(page, "Schedule by-keys is made");
  await dialog(page).waitFor({ state: "detached" });
  const made = () => api("/v1/schedules/by-keys");
  assert.deepEqual([(await made()).queue, (await made()).every, (await made()).body], ["keys", "24h", "tick"]);
  assert.equal((await focus()).name, "new-schedule");
  await named("schedule-by-keys");
  await press("Enter");
  await page.getByRole("heading", { level: 1, name: "by-keys" }).waitFor();
  await page.getByRole("button", { name: "Remove" }).waitFor();
  await button("Remove");
  await press("Enter");
  await dialog(page).waitFor();
  await press("Enter");
  await toast(page, "is removed");
  await eventually("removed", async () => (await made()).code === "not_found");
  await undo("is removed");
  await eventually("it is set again", async () => (await made()).body === "tick");
}

// The table behind a graphic, language and theme.
{
  await go(page, "/queues/keys", "keys");
  await page.locator("svg.spans").waitFor();
  await reach("a column", (now) => now.name.startsWith("bar-"));
  await press("Enter");
  await page.getByRole("button", { name: "Back" }).waitFor();
  await reach("the table", (now) => now.name === "columns-summary");
  await press("Enter");
  await page.getByRole("region", { name: "Messages by due time" }).locator("tbody tr").first().waitFor();
  // A list that is wider or longer than its frame is moved by arrow keys, so the frame has the focus.
  await reach("the frame", (now) => now.tag === "div" && now.text.startsWith("Messages by due time"));

  await page.goto(`${open}/#/queues`);
  await page.reload();
  await page.getByRole("link", { name: "keys", exact: true }).waitFor();
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme ?? "auto");
  await named("theme");
  assert.equal(await theme(), "auto");
  await press("ArrowDown", "ArrowDown");
  assert.equal(await theme(), "dark");
  await check(seen, "the dark theme by keyboard");
  await page.reload();
  await page.getByRole("link", { name: "keys", exact: true }).waitFor();
  assert.equal(await theme(), "dark", "kept");
  await named("language");
  await Promise.all([page.waitForEvent("load"), press("ArrowDown")]);
  await page.getByRole("heading", { level: 1, name: "队列" }).waitFor();
  assert.equal(await page.evaluate(() => document.documentElement.lang), "zh-Hans");
  await check(seen, "Chinese by keyboard");
  await named("language");
  await Promise.all([page.waitForEvent("load"), press("ArrowUp")]);
  await page.getByRole("heading", { level: 1, name: "Queues" }).waitFor();

  // Updates are held, and go on.
  await named("pause-live");
  await press("Enter");
  await page.getByRole("button", { name: "Resume updates" }).waitFor();
  assert.equal((await focus()).name, "pause-live");
  await press(" ");
  await page.getByRole("button", { name: "Hold updates" }).waitFor();
}

console.log(`ok      by keyboard alone (${shown.pages} pages without a violation)`);
