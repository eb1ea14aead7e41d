/** The open requests that the person may decide about, which the navigation counts and the first screen lists. */

import { get, sentence } from "./api.js";
import { signal } from "./lib.js";

/** @typedef {{[name: string]: any}} Json */
/**
 * @typedef {object} Request
 * @property {string} id
 * @property {string} execution_id
 * @property {string | null} session_id
 * @property {"input" | "approval" | "budget"} kind
 * @property {"open" | "resolved"} state
 * @property {string} tool
 * @property {Json} args
 * @property {string} args_digest
 * @property {Json} request
 * @property {string} created_at
 * @property {string} agent
 * @property {string | null} user_id
 * @property {string[]} approver
 * @property {boolean} four_eyes
 * @property {string | null} expires_at
 * @property {boolean} may_decide
 * @property {string | null} decision
 * @property {string | null} reason
 * @property {Json | null} edited_args
 * @property {{subject: string, at: string} | null} decided_by
 */

/** Null until they have been read. @type {import("@preact/signals").Signal<Request[] | null>} */
export const openRequests = signal(null);
/** @type {import("@preact/signals").Signal<string | null>} */
export const inboxError = signal(null);
/** Whether there are more than are shown. */
export const hasMore = signal(false);

export const MOST = 200;
let isReading = false;

/** Read the open requests again. */
export async function readInbox() {
  if (isReading) return;
  isReading = true;
  try {
    const page = await get("agent/inbox", { limit: MOST });
    const before = JSON.stringify(openRequests.peek());
    // The same list is the same value, so that nothing is rendered again.
    if (JSON.stringify(page.items) !== before) openRequests.value = page.items;
    hasMore.value = page.next_cursor !== null;
    inboxError.value = null;
  } catch (error) {
    inboxError.value = sentence(error);
  } finally {
    isReading = false;
  }
}
