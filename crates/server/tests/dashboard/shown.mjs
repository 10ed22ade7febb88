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
  await page.getByText("0/∞").waitFor();
  await page.locator("dl.pairs dd", { hasText: "∞" }).waitFor();
}
