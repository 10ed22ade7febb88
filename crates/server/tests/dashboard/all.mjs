// All checks of the dashboard, or those of some files, in one browser.
//   node all.mjs [PART...]

import { browser } from "./stage.mjs";

// Each list has a server of its own or its own queues on one; both at a time.
const lists = [["walk", "trust", "undo", "targets", "keys", "shown", "zoom"], ["many", "nodes", "scopes"]];
const chosen = process.argv.slice(2);
const unknown = chosen.find((one) => !lists.flat().includes(one));
if (unknown) throw new Error(`there is no part ${unknown}: ${lists.flat().join(" ")}`);
await Promise.all(lists.map(async (parts) => {
  for (const part of parts.filter((one) => chosen.length === 0 || chosen.includes(one))) {
    await import(`./${part}.mjs`).catch((error) => { throw new Error(`${part}.mjs`, { cause: error }); });
  }
}));
await browser.close();
