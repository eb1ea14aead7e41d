// A page as docs/streaming.md has it, with what it expects around it; says what it does in each line of stdout.
import { createInterface } from "node:readline";
import process from "node:process";

const [, , page_path, api, session] = process.argv;

const say = (kind, value = null) => process.stdout.write(JSON.stringify({ kind, value, channel: null }) + "\n");
process.on("uncaughtException", (error) => say("uncaught", String(error)));
createInterface({ input: process.stdin }).on("close", () => process.exit(0));

const { fetch, setTimeout } = globalThis;
Object.assign(globalThis, {
  token: "a-token",
  id: session,
  loadSession: (id) => say("load", id),
  show: ({ seq }) => say("show", seq),
  // There is no page here that an address could be relative to.
  fetch: (path, options) => fetch(new URL(path, api), options),
  // Its pause before it asks again is long for a test.
  setTimeout(then, milliseconds, ...given) {
    if (milliseconds === 5000) say("waits");
    return setTimeout(then, milliseconds === 5000 ? 20 : milliseconds, ...given);
  },
});

say("ready");
await import(page_path);
