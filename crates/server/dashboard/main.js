// The page: who is looking, where he is, and how often it looks again.

import { fail } from "./acts.js";
import { audit } from "./audit.js";
import { Problem, events, hasToken, identity, idle, may, mayAll, mayList, setToken, updates, whoAmI } from "./api.js";
import { card, el, show } from "./dom.js";
import { jobs } from "./jobs.js";
import { dead, message, search } from "./messages.js";
import { overview } from "./overview.js";
import { queue } from "./queue.js";
import { queues } from "./queues.js";
import { schedule, schedules } from "./schedules.js";
import { server } from "./server.js";
import { target, targets } from "./targets.js";
import { language, setLanguage, t } from "./words.js";

const main = document.getElementById("main");
const THEME = "duewheel-theme";
let current = null;

// Looks again while its view is open, the page is visible and nobody has paused it.
class Live {
  constructor() {
    this.controller = new AbortController();
    this.signal = this.controller.signal;
    this.looks = [];
    this.troubles = new Map();
  }

  // Looks every so many ms, and at once when something has changed; never twice at a time. A look that has cost much gives a
  // longer time until the next.
  every(ms, look) {
    let [timer, looking, stale, seen, wait] = [0, false, false, false, ms];
    const again = async () => {
      clearTimeout(timer);
      stale = true;
      if (looking) return;
      looking = true;
      while (stale && !this.signal.aborted && !(seen && idle())) {
        stale = false;
        try { wait = (await look()) ?? ms; seen = true; this.trouble(null, again); } catch (error) { this.trouble(error, again); }
      }
      looking = false;
      if (!this.signal.aborted) timer = setTimeout(again, wait);
    };
    this.looks.push(again);
    again();
    return again;
  }

  // Reads a stream for as long as the view is open; it is closed while the page is hidden or paused.
  async stream(path, each) {
    while (!this.signal.aborted) {
      if (!idle()) {
        const part = new AbortController();
        const end = () => part.abort();
        this.signal.addEventListener("abort", end);
        const watch = setInterval(() => { if (idle()) end(); }, 500);
        try { await events(path, part.signal, (value) => { this.trouble(null, each); each(value); }); } catch (error) { if (!part.signal.aborted) this.trouble(error, each); }
        clearInterval(watch);
        this.signal.removeEventListener("abort", end);
      }
      await new Promise((resolve) => setTimeout(resolve, 1_000));
    }
  }

  // Each look has a trouble of its own: that one has succeeded says nothing of the others.
  trouble(error, of = this) {
    if (this.signal.aborted || error?.name === "AbortError") return;
    if (error instanceof Problem && error.status === 401) { signIn(error.message); return; }
    if (error) this.troubles.set(of, error instanceof Problem ? error.message : t("unreachable"));
    else this.troubles.delete(of);
    const text = [...new Set(this.troubles.values())].join(" · ");
    const line = document.getElementById("trouble");
    if (line.textContent !== text) line.textContent = text;
  }

  refresh() { for (const again of this.looks) again(); }

  end() { this.controller.abort(); }
}

// What a page needs: one of some scopes, or one for all queues. Without it neither a link nor the page is there.
const any = (...scopes) => ({ scope: scopes.join(" / "), given: () => scopes.some(may) });
const whole = (scope) => ({ scope, given: () => mayAll(scope), all: true });
const nothing = { given: () => true };
const OF_QUEUES = ["metrics", "enqueue", "consume", "admin"];

const VIEWS = [
  [/^\/$/, overview, any("metrics")], [/^\/queues$/, queues, any(...OF_QUEUES)], [/^\/queues\/(?<name>[^/]+)$/, queue, any(...OF_QUEUES)],
  [/^\/messages\/(?<id>[^/]+)$/, message, any("cancel")], [/^\/schedules$/, schedules, any("admin")], [/^\/schedules\/(?<name>[^/]+)$/, schedule, any("admin")],
  [/^\/targets$/, targets, whole("admin")], [/^\/targets\/(?<name>[^/]+)$/, target, whole("admin")], [/^\/jobs$/, jobs, any("admin")],
  [/^\/dead$/, dead, { scope: "metrics + consume / admin", given: () => may("metrics") && mayList() }], [/^\/dead\/(?<name>[^/]+)$/, dead, any("consume", "admin")], [/^\/audit$/, audit, any("admin")], [/^\/server$/, server, nothing], [/^\/search$/, search, any("cancel", "metrics", "consume", "admin")],
];
const PAGES = [["/", "overview"], ["/queues", "queues"], ["/schedules", "schedules"], ["/targets", "targets"], ["/dead", "dead-letters"], ["/jobs", "jobs"], ["/audit", "audit"], ["/server", "server"]];
const needsOf = (path) => VIEWS.find(([pattern]) => pattern.test(path))[2];

function drawHead(path) {
  document.getElementById("skip").textContent = t("skip");
  document.getElementById("nav").setAttribute("aria-label", t("pages"));
  show(document.getElementById("nav"), PAGES.filter(([at]) => identity.known && needsOf(at).given()).map(([at, name]) =>
    el("a", { href: `#${at}`, "aria-current": (at === "/" ? path === "/" : path.startsWith(at)) ? "page" : undefined }, t(name))));
  const form = document.getElementById("search");
  form.hidden = !(identity.known && needsOf("/search").given());
  if (!form.firstChild) {
    form.append(el("input", { type: "search", name: "q", "aria-label": t("search"), placeholder: t("search") }));
    form.addEventListener("submit", (event) => { event.preventDefault(); location.hash = `#/search?q=${encodeURIComponent(new FormData(form).get("q"))}`; });
  }
  const theme = document.documentElement.dataset.theme;
  show(document.getElementById("tools"),
    el("button", { "data-name": "pause-live", class: "icon", "aria-pressed": String(updates.held), "aria-label": t(updates.held ? "go-on" : "hold"), title: t(updates.held ? "go-on" : "hold"), onclick: () => { updates.held = !updates.held; drawHead(path); if (!updates.held) current?.refresh(); } }, updates.held ? "▶" : "❚❚"),
    el("select", { "aria-label": t("language"), "data-name": "language", onchange: (event) => setLanguage(event.target.value) },
      [["en", "EN"], ["zh", "中文"]].map(([value, name]) => el("option", { value, lang: value, selected: value === language }, name))),
    el("select", { "aria-label": t("theme"), "data-name": "theme", onchange: (event) => setTheme(event.target.value) },
      ["auto", "light", "dark"].map((value) => el("option", { value, selected: value === (theme ?? "auto") }, t(`theme-${value}`)))),
    !identity.open && hasToken() && el("button", { "data-name": "sign-out", class: "out", title: t("sign-out", { name: identity.name }), onclick: () => { setToken(null); signIn(""); } }, t("sign-out", { name: identity.name })));
}

function setTheme(value) {
  if (value === "auto") { delete document.documentElement.dataset.theme; localStorage.removeItem(THEME); } else { document.documentElement.dataset.theme = value; localStorage.setItem(THEME, value); }
}

// In place of a page that the token does not allow: what it would need.
const refusal = ({ scope, all }) => (root) => root.append(el("h1", {}, t("not-allowed")),
  card(null, el("p", { class: "soft" }, t(all ? "page-needs-all" : "page-needs", { scope }))));

// The view of a path and the names in it; none for a path that no page has, or whose percent signs stand for nothing.
function viewOf(path) {
  for (const [pattern, view, needs] of VIEWS) {
    const match = pattern.exec(path);
    if (!match) continue;
    const names = Object.entries(match.groups ?? {}).filter(([, value]) => value !== undefined);
    try { return [needs.given() ? view : refusal(needs), Object.fromEntries(names.map(([name, value]) => [name, decodeURIComponent(value)]))]; } catch { return []; }
  }
  return [];
}

function open() {
  current?.end();
  const [path, query = ""] = (location.hash.slice(1) || "/").split("?");
  drawHead(path);
  const root = el("div");
  main.replaceChildren(el("p", { id: "trouble", class: "badge bad", role: "alert" }), root);
  const [view, inPath] = viewOf(path);
  const live = (current = new Live());
  if (view) Promise.resolve(view(root, { ...Object.fromEntries(new URLSearchParams(query)), ...inPath }, live)).catch((error) => live.trouble(error));
  else root.append(el("h1", {}, t("no-page")));
  document.title = `${root.querySelector("h1")?.textContent ?? ""} · duewheel`;
}

function signIn(why) {
  current?.end();
  current = null;
  identity.known = false;
  identity.scopes = [];
  drawHead("");
  const input = el("input", { type: "password", id: "token", name: "token", autocomplete: "off", required: true });
  const form = el("form", { class: "fields" }, el("label", { for: "token" }, t("token"), input), el("div", { class: "bar" }, el("button", { class: "main", type: "submit" }, t("sign-in"))));
  form.addEventListener("submit", (event) => { event.preventDefault(); setToken(input.value.trim()); start(); });
  main.replaceChildren(el("h1", {}, t("sign-in")), card(null, el("p", {}, t("sign-in-text")), why && hasToken() && el("p", { class: "badge bad", role: "alert" }, why), form));
  input.focus();
}

async function start() {
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  const theme = localStorage.getItem(THEME);
  if (theme) document.documentElement.dataset.theme = theme;
  try {
    await whoAmI();
  } catch (error) {
    if (error.status === 401) { signIn(error.message); return; }
    main.replaceChildren(el("h1", {}, t("unreachable")), el("p", {}, error.message));
    setTimeout(start, 2_000);
    return;
  }
  open();
}

// The address of the link is its element, and no view.
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => { if (identity.known) { open(); main.focus({ preventScroll: true }); scrollTo(0, 0); } });
document.addEventListener("changed", () => current?.refresh());
document.addEventListener("visibilitychange", () => { if (!document.hidden) current?.refresh(); });
addEventListener("unhandledrejection", (event) => fail(event.reason));
start();
