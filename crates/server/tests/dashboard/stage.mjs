// What the checks of the dashboard share: the browser, the servers that scripts/dashboard has started, and the words that
// each check is written in. It needs playwright-core and @axe-core/playwright in the folder DASHBOARD_TOOLS (NODE_PATH does
// not count for modules), and Chromium.
//   DASHBOARD_OPEN, DASHBOARD_GUARDED   addresses of a server without tokens and of one with them
//   DASHBOARD_TOKENS                    a folder with a file for each token of the latter
//   DASHBOARD_FILES                     while the dashboard is worked on: files to take instead of those in the binary

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.DASHBOARD_TOOLS}/`);
const { chromium } = require("playwright-core");
const { AxeBuilder } = require("@axe-core/playwright");

export const open = process.env.DASHBOARD_OPEN;
export const guarded = process.env.DASHBOARD_GUARDED;
export const full = Boolean(process.env.DUEWHEEL_TEST_FULL);
export const tokenOf = (name) => readFileSync(`${process.env.DASHBOARD_TOKENS}/${name}`, "utf8").trim();
export const browser = await chromium.launch({ executablePath: "/usr/bin/chromium-headless-shell", args: ["--no-sandbox", "--disable-gpu"] });
// How many pages were shown without a violation, and how often axe has looked.
export const shown = { pages: 0, looks: 0 };

export async function tab(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, locale: "en-GB", timezoneId: "Europe/Berlin", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  const faults = [];
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("console", (line) => { if (line.type() === "error" && !/status of (400|401|403|404|409)/.test(line.text())) faults.push(`console: ${line.text()}`); });
  // While the dashboard is worked on: the files of the working tree instead of those in the binary.
  if (process.env.DASHBOARD_FILES) {
    await page.route("**/ui/*", async (route) => {
      const response = await route.fetch();
      const file = new URL(route.request().url()).pathname.slice(4);
      // The binary may not have it yet.
      await route.fulfill({ response, status: 200, path: `${process.env.DASHBOARD_FILES}/${file}`, contentType: file.endsWith(".js") ? "text/javascript" : undefined });
    });
  }
  await page.addInitScript(() => {
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
  });
  return { context, page, faults };
}

export async function api(path, method = "GET", body, token) {
  const headers = { "content-type": "application/json", ...(token ? { authorization: `Bearer ${token}` } : {}) };
  const answer = await fetch(new URL(path, token ? guarded : open), { method, headers, body: body && JSON.stringify(body) });
  return answer.json();
}

// What axe has looked at, of each theme: elements by their tag, class and roles, and those of what they are in.
const looked = new Map();
async function hasNews(page, theme) {
  const shapes = await page.evaluate(() => {
    const shape = (one) => [one.localName, one.getAttribute("class"), ...[...one.attributes].map(({ name }) => name).filter((name) => /^(aria-|role$|disabled$|lang$)/.test(name))].join(" ");
    return [...new Set([...document.querySelectorAll("*")].map((one) => `${shape(one)} in ${one.parentElement ? shape(one.parentElement) : "nothing"}`))];
  });
  const known = looked.get(theme) ?? looked.set(theme, new Set()).get(theme);
  const news = shapes.filter((one) => !known.has(one));
  for (const one of news) known.add(one);
  return news.length > 0;
}

// A page is shown whole: nothing of the policy is violated, axe finds nothing, and it is no wider than the screen. Axe costs
// more than all else: it looks at what it has not seen, in the dark at colours alone; in full at each page.
export async function check({ page, faults }, what) {
  assert.deepEqual(await page.evaluate(() => window.violations), [], `${what}: policy`);
  assert.deepEqual(faults, [], what);
  const dark = await page.evaluate(() => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark");
  if ((await hasNews(page, dark)) || full) {
    const axe = new AxeBuilder({ page });
    const { violations } = await (dark && !full ? axe.withRules(["color-contrast"]) : axe).analyze();
    assert.deepEqual(violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.target).join(" ")}`), [], `${what}: axe`);
    shown.looks += 1;
  }
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(wide <= 0, `${what}: ${wide} pixels wider than the screen`);
  shown.pages += 1;
}

// Goes to an address; its page may look as the one before, so what that has shown must be gone.
export async function visit(page, address) {
  const { href, origin } = new URL(address);
  if (new URL(page.url()).origin === origin && page.url() !== href) await page.evaluate(() => document.querySelector("#main > div")?.setAttribute("data-former", ""));
  await page.goto(href);
  await page.locator("[data-former]").waitFor({ state: "detached" });
}
export const go = async (page, path, heading) => {
  await visit(page, `${open}/#${path}`);
  await page.getByRole("heading", { level: 1, name: heading }).waitFor();
};
export const toast = (page, text) => page.locator(".toast", { hasText: text }).last().waitFor();
export const eventually = async (what, look) => {
  for (let n = 0; !(await look()); n += 1) {
    assert.ok(n < 600, what);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
};
export const dialog = (page) => page.getByRole("dialog");
export const press = (page, name) => page.getByRole("button", { name, exact: true }).click();
export const confirm = (page, name) => dialog(page).getByRole("button", { name, exact: true }).click();
// Takes back the latest act that can be, and takes the line away that says so.
export const undo = async (page) => {
  await page.locator(".toast", { has: page.getByRole("button", { name: "Undo" }) }).last().getByRole("button", { name: "Undo" }).click();
  await toast(page, "Undone");
  await page.locator(".toast", { hasText: "Undone" }).last().getByRole("button", { name: "Close" }).click();
};
