/** What a person has typed and not sent, kept in this browser: a reload or a crash loses nothing. */

import { useState } from "./lib.js";

const PREFIX = "everstep.draft.";
/** Browsers store about five million characters in all. */
const MAX = 2_000_000;

/** @template T @param {string} name @param {T} initial @returns {T} */
function stored(name, initial) {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? initial : JSON.parse(text);
  } catch {
    return initial; // Storage is forbidden, or holds something else.
  }
}

/** A state that survives a reload, until it is set to its initial value. @template T @param {string} name
 * @param {T} initial @returns {[T, (value: T) => void]} */
export function useDraft(name, initial) {
  const [held, hold] = useState(() => ({ name, value: stored(name, initial) }));
  const current = held.name === name ? held : { name, value: stored(name, initial) };
  const set = (/** @type {T} */ value) => {
    hold({ name, value });
    const text = JSON.stringify(value);
    try {
      if (text === JSON.stringify(initial)) localStorage.removeItem(PREFIX + name);
      else if (text.length <= MAX) localStorage.setItem(PREFIX + name, text);
    } catch {
      // Storage is full or forbidden: the text stays on the page.
    }
  };
  return [current.value, set];
}
