// A receiver that checks signatures: v1 with the reference library of the specification, v1a with node's crypto.
//
// usage: node receiver.mjs WHSEC WHSK COUNT    prints its port, and ends when it has taken COUNT requests

import assert from "node:assert/strict";
import { createPrivateKey, createPublicKey, verify } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.MODULES, "node_modules", "x.js"));
const { Webhook } = require("standardwebhooks");

const [shared, secret, count] = process.argv.slice(2);
const webhook = new Webhook(shared);
const seed = Buffer.from(secret.replace("whsk_", ""), "base64");
// PKCS #8 around the 32 bytes of a private key (RFC 8410).
const der = Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), seed]);
const key = createPublicKey(createPrivateKey({ key: der, format: "der", type: "pkcs8" }));

function check(headers, body) {
  const text = body.toString("utf8");
  // The library wants JSON in a body that is valid; only others are told apart by its error.
  const holds = (body) => {
    try {
      webhook.verify(body, headers);
      return true;
    } catch (error) {
      if (error instanceof SyntaxError) return true;
      return false;
    }
  };
  assert(holds(text), "v1");
  assert(!holds(text + "x"), "v1 holds for another body");
  const both = Object.fromEntries(headers["webhook-signature"].split(" ").map((each) => each.split(",")));
  assert.deepEqual(Object.keys(both).sort(), ["v1", "v1a"]);
  const signature = Buffer.from(both.v1a, "base64");
  const signed = Buffer.concat([Buffer.from(`${headers["webhook-id"]}.${headers["webhook-timestamp"]}.`), body]);
  assert(verify(null, signed, key, signature), "v1a");
  assert(!verify(null, Buffer.concat([signed, Buffer.from("x")]), key, signature), "v1a holds for another body");
  assert.equal(headers["duewheel-h-customer"], "7");
}

let taken = 0;
const server = createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    let status = 204;
    try {
      check(request.headers, Buffer.concat(parts));
      taken += 1;
    } catch (error) {
      console.error(String(error));
      status = 410;
    }
    response.writeHead(status).end(() => {
      if (taken === Number(count)) {
        console.log(`node: ${taken} requests, each with a valid v1 and v1a`);
        server.close();
        server.closeAllConnections();
      }
    });
  });
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
