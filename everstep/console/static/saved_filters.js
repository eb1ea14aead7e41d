/** Filters with a name, kept in this browser, and which columns of a table are shown. */

import { signal } from "./lib.js";

/** @typedef {{name: string, query: string}} SavedFilter */

/** @template T @param {string} name @param {T} initial */
function stored(name, initial) {
  /** @type {T} */
  let value = initial;
  try {
    value = JSON.parse(localStorage.getItem(name) ?? "null") ?? initial;
  } catch {
    // Storage is forbidden, or holds something else.
  }
  const held = signal(value);
  return {
    held,
    /** @param {T} next */
    set(next) {
      held.value = next;
      localStorage.setItem(name, JSON.stringify(next));
    },
  };
}

const FILTERS = stored("everstep.filters", /** @type {SavedFilter[]} */ ([]));
const HIDDEN = stored("everstep.columns", /** @type {string[]} */ ([]));

export const savedFilters = FILTERS.held;
export const hiddenColumns = HIDDEN.held;

/** @param {string} name @param {string} query */
export function saveFilter(name, query) {
  FILTERS.set([...FILTERS.held.value.filter((each) => each.name !== name), { name, query }]);
}

/** @param {string} name */
export function forgetFilter(name) {
  FILTERS.set(FILTERS.held.value.filter((each) => each.name !== name));
}

/** @param {string} column */
export function toggleColumn(column) {
  const hidden = HIDDEN.held.value;
  HIDDEN.set(hidden.includes(column) ? hidden.filter((each) => each !== column) : [...hidden, column]);
}
