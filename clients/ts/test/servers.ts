// The real server and the scripted one, each in a process of its own that ends with this one.
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after } from "node:test";

export const clients = process.env["DUEWHEEL_CLIENTS"] ?? "";

const ends: (() => unknown)[] = [];
after(async () => {
  for (const end of ends) await end();
});

/** Starts a program, and waits for the first line that matches. */
async function start(program: string, args: string[], line: RegExp): Promise<{ child: ChildProcess; found: string }> {
  const child = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] });
  ends.push(() => {
    child.kill("SIGKILL");
    return child.exitCode === null && child.signalCode === null ? once(child, "exit") : undefined;
  });
  let output = "";
  const found = await new Promise<string>((resolve, reject) => {
    child.on("error", reject);
    child.on("exit", (code) => reject(new Error(`${program} ended with ${code}: ${output}`)));
    child.stdout!.on("data", (data) => {
      output += data;
      const match = line.exec(output);
      if (match) resolve(match[1]!);
    });
  });
  return { child, found };
}

/** The server, on a folder of its own. */
export async function real(...options: string[]): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), "duewheel-"));
  const bin = process.env["DUEWHEEL_BIN"];
  if (!bin) throw new Error("DUEWHEEL_BIN: it is not set; name the server's binary");
  // A server with a virtual clock keeps nothing.
  const data = options.includes("--virtual-clock") ? [] : ["--data", folder];
  const args = ["serve", ...data, "--http", "127.0.0.1:0", "--beanstalk", "off", "--log", "error", ...options];
  const { found } = await start(bin, args, /^listening on (http:\S+)$/m);
  ends.push(() => rmSync(folder, { recursive: true, force: true }));
  return found;
}

export async function scripted(): Promise<string> {
  return (await start("python3", [join(clients, "scripted_server.py")], /^(http:\S+)$/m)).found;
}

/** Waits until something holds, for a minute. */
export async function until<T>(what: string, check: () => T | undefined | false | Promise<T | undefined | false>): Promise<T> {
  for (const ends = Date.now() + 60_000; Date.now() < ends; ) {
    const found = await check();
    if (found !== undefined && found !== false) return found;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  throw new Error(`not within a minute: ${what}`);
}
