/** Small words in colours: statuses, scopes, keys. The word says what the colour says. */

import { html } from "../lib.js";
import { keyLabels } from "../keys.js";

/** @typedef {"ok" | "bad" | "warn" | "busy" | "quiet"} Tone */

/** @type {Record<string, [Tone, string]>} */
const STATUSES = {
  pending: ["quiet", "queued"],
  processing: ["busy", "running"],
  running: ["busy", "running"],
  paused: ["warn", "waiting"],
  completed: ["ok", "completed"],
  stopped: ["warn", "stopped"],
  failed: ["bad", "failed"],
  cancelled: ["quiet", "cancelled"],
};

/** @param {{tone?: Tone, children?: any, title?: string}} props */
export function Badge({ tone = "quiet", children, title }) {
  return html`<span class=${`badge ${tone}`} title=${title}>${children}</span>`;
}

/** @param {{status: string, reason?: string | null}} props of a completed execution that was stopped, `reason` says so */
export function Status({ status, reason }) {
  const isStopped = status === "completed" && Boolean(reason) && reason !== "completed";
  const [tone, label] = STATUSES[isStopped ? "stopped" : status] ?? ["quiet", status];
  return html`<${Badge} tone=${tone}><span class="dot"></span>${label}<//>`;
}

/** Keys as they are on the keyboard. @param {{keys: string}} props */
export function Keys({ keys }) {
  return html`<span class="keys">${keyLabels(keys).map((label) => html`<kbd>${label}</kbd>`)}</span>`;
}
