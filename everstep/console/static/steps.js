/** Steps of executions, read when they are looked at: their texts, calls with arguments and results, votes. */

import { get } from "./api.js";
import { signal } from "./lib.js";

/** @typedef {{[name: string]: any}} Step */

const MOST = 400;
/** @type {Map<string, import("@preact/signals").Signal<Step | null | undefined>>} */
const known = new Map();

/** A step: undefined while it is read, null if there is none. @param {string} execution @param {number} number
 * @param {boolean} [isFresh] whether it is read again @returns {import("@preact/signals").Signal<Step | null | undefined>} */
export function stepOf(execution, number, isFresh = false) {
  const name = `${execution}/${number}`;
  let found = known.get(name);
  if (found && !isFresh) return found;
  found ??= signal(/** @type {Step | null | undefined} */ (undefined));
  known.set(name, found);
  if (known.size > MOST) known.delete(/** @type {string} */ (known.keys().next().value));
  const mine = found;
  get(`agent/executions/${execution}/steps`, { after: number - 1, limit: 1 }).then(
    (page) => (mine.value = page.items[0]?.number === number ? page.items[0] : null),
    () => {
      known.delete(name);
      mine.value = null;
    },
  );
  return mine;
}

/** The call with this id, read with its step. @param {string} execution @param {string} id
 * @returns {Promise<{[name: string]: any} | null>} */
export async function findCall(execution, id) {
  let after = 0;
  for (;;) {
    const page = await get(`agent/executions/${execution}/steps`, { after, limit: 50 });
    for (const step of page.items) for (const call of step.calls) if (call.id === id) return { ...call, step };
    if (!page.next_cursor) return null;
    after = Number(page.next_cursor);
  }
}
