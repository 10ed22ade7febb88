// The pictures of docs/img: a server with a shop's messages, a failing target, a paused queue and dead messages, with load
// for so many minutes, so that the charts of the last hour have something to show.
//   node pictures.mjs FOLDER MINUTES

import assert from "node:assert/strict";
import { createServer } from "node:http";

import { api, browser, open, tab, visit } from "./stage.mjs";

const [folder, minutes] = process.argv.slice(2);
const [SECOND, MINUTE, HOUR, DAY] = [1_000, 60_000, 3_600_000, 86_400_000];
const list = (n, of) => Array.from({ length: n }, (_, k) => of(k));
const pass = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
async function fill(queue, lines) {
  for (let n = 0; n < lines.length; n += 2_000) {
    const body = lines.slice(n, n + 2_000).map((line) => `${JSON.stringify(line)}\n`).join("");
    const answer = await fetch(new URL(`/v1/queues/${encodeURIComponent(queue)}/messages`, open), { method: "POST", headers: { "content-type": "application/x-ndjson" }, body });
    await answer.text();
    assert.ok(answer.ok, `${queue}: ${answer.status}`);
  }
}

const receiver = createServer((request, response) => request.resume().on("end", () => {
  const taken = request.url === "/shop" || (request.url === "/crm" && Math.random() > 0.1);
  setTimeout(() => response.writeHead(taken ? 200 : 503).end(taken ? '{"ok":true}' : "upstream connect error or disconnect/reset before headers"), 5 + Math.random() * 60);
}));
await new Promise((resolve) => receiver.listen(0, "127.0.0.1", resolve));
for (const [target, queue] of [["billing", "invoices"], ["shop", "close-review"], ["crm", "crm-sync"]]) {
  await api(`/v1/targets/${target}`, "PUT", { url: `http://127.0.0.1:${receiver.address().port}/${target}`, networks: ["127.0.0.1/32"] });
  await api(`/v1/queues/${queue}/config`, "PATCH", { target, keep_done: "1d" });
}
await api("/v1/queues/sms/config", "PATCH", { rate: { per_second: 50, burst: 100 }, catchup_rate: 20, concurrency: 10, expires_in: "6h", on_expiry: "drop" });
for (const [name, queue, timing] of [["weekly-report", "reports", { cron: "0 9 * * MON", zone: "Europe/Berlin" }], ["nightly-cleanup", "cleanup", { cron: "30 3 * * *", zone: "Asia/Shanghai" }], ["payroll", "payroll", { cron: "0 8 1,15 * *", zone: "America/New_York" }], ["heartbeat", "heartbeats", { every: "10s" }]]) {
  await api(`/v1/schedules/${name}`, "PUT", { queue, body: name, ...timing });
}
await fill("close-review", list(20_000, (k) => ({ body: `{"order": ${k}}`, key: `order-${k}`, headers: { shop: k % 2 ? "berlin" : "hangzhou" }, delay_ms: 90 * MINUTE + Math.round((k / 20_000) ** 3 * 60 * DAY) })));
await fill("reminders", list(4_000, (k) => ({ body: `remind ${k}`, delay_ms: DAY + Math.round((k / 4_000) ** 2 * 300 * DAY) })));
await fill("subscriptions", list(500, (k) => ({ body: `renew ${k}`, delay_ms: (100 + 4 * k) * DAY })));
await fill("shop/mail", list(900, (k) => ({ body: `mail ${k}`, delay_ms: 3 * HOUR + k * SECOND })));
await fill("newsletter", list(300, (k) => ({ body: `news ${k}`, delay_ms: 0 })));
await api("/v1/queues/newsletter/pause", "POST", { for: "2h" });
await fill("thumbnails", list(42, (k) => ({ body: `image ${k}`, delay_ms: 0 })));
await fill("invoices", list(60, (k) => ({ body: `{"invoice": ${k}}`, key: `invoice-${k}`, delay_ms: k * SECOND })));
for (const reason of [...list(6, () => "no such number"), "timeout of the operator", "timeout of the operator"]) {
  await api("/v1/queues/sms/messages", "POST", { body: "your code is 4711", key: `user-${Math.random()}`.slice(0, 12), delay: "0s" });
  const { messages: [one] } = await api("/v1/queues/sms/reserve", "POST", { wait_ms: 5_000 });
  await api(`/v1/messages/${one.id}/nack`, "POST", { lease_token: one.lease_token, dead: true, reason });
}

// Load that comes and goes.
let ends = false;
async function produce(queue, rate, delay) {
  for (let k = 0; !ends; await pass(SECOND)) {
    const n = Math.round(rate * (1 + Math.sin(Date.now() / MINUTE)) * Math.random());
    if (n > 0) await fill(queue, list(n, () => ({ body: "hello", key: `${queue}-${(k += 1)}`, delay_ms: Math.round(Math.random() * delay) })));
  }
}
async function consume(queue) {
  while (!ends) {
    const { messages = [] } = await api(`/v1/queues/${queue}/reserve`, "POST", { max: 10, wait_ms: 2_000 });
    await Promise.all(messages.map((one) => api(`/v1/messages/${one.id}/${Math.random() < 0.02 ? "nack" : "ack"}`, "POST", { lease_token: one.lease_token })));
  }
}
const load = [
  produce("sms", 30, 20 * SECOND), produce("mails", 12, 90 * SECOND), produce("close-review", 4, 40 * SECOND), produce("crm-sync", 3, 30 * SECOND), produce("orders.payment-timeout.eu-central", 6, 30 * MINUTE),
  ...["sms", "mails", "orders.payment-timeout.eu-central", "heartbeats"].map(consume),
];
await pass(Number(minutes) * MINUTE);

const wide = { width: 1280, height: 900 };
for (const [name, path, viewport, locale, colorScheme] of [
  ["overview", "/", wide, "en-GB", "light"], ["overview-dark", "/", wide, "en-GB", "dark"], ["overview-zh", "/", wide, "zh-CN", "light"], ["queues", "/queues", wide, "en-GB", "light"],
  ["queue", "/queues/sms", wide, "en-GB", "light"], ["target", "/targets/billing", wide, "en-GB", "light"], ["schedule-zh", "/schedules/weekly-report", wide, "zh-CN", "light"], ["phone", "/queues", { width: 360, height: 740 }, "en-GB", "light"],
]) {
  const seen = await tab({ viewport, locale, colorScheme, timezoneId: locale === "zh-CN" ? "Asia/Shanghai" : "Europe/London" });
  await visit(seen.page, `${open}/#${path}`);
  await seen.page.locator("main table, main svg").first().waitFor();
  // Charts and lines of the table come later than the rest.
  await pass(3 * SECOND);
  await seen.page.screenshot({ path: `${folder}/dashboard-${name}.png` });
  await seen.context.close();
}
ends = true;
await Promise.all(load);
await browser.close();
receiver.close();
receiver.closeAllConnections();
