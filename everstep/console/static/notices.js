/** Short notices at the edge of the page, read out by screen readers: what was done, and what failed. */

import { signal } from "./lib.js";

/** @typedef {{id: number, kind: "ok" | "bad", text: string}} Notice */

export const notices = signal(/** @type {Notice[]} */ ([]));
let last = 0;

/** @param {"ok" | "bad"} kind @param {string} text */
function show(kind, text) {
  const id = (last += 1);
  notices.value = [...notices.peek().slice(-2), { id, kind, text }];
  // Errors stay until they are closed: they say what to do.
  if (kind === "ok") setTimeout(() => dismiss(id), 5000);
}

/** Say that something was done. @param {string} text */
export const done = (text) => show("ok", text);
/** Say that something failed, and what to do. @param {string} text */
export const failed = (text) => show("bad", text);

/** @param {number} id */
export function dismiss(id) {
  notices.value = notices.peek().filter((each) => each.id !== id);
}
