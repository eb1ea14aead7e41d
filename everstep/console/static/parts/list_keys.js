/** Keys of lists: j and k move, Enter opens. */

import { useKeys } from "../keys.js";
import { useEffect, useState } from "../lib.js";

/** The index of the marked item; -1 before any key. @template T @param {T[]} items @param {(item: T) => unknown} open
 * @returns {number} */
export function useListKeys(items, open) {
  const [current, setCurrent] = useState(-1);
  const move = (/** @type {number} */ by) =>
    setCurrent((index) => Math.max(0, Math.min(items.length - 1, index + by)));
  useKeys([
    { keys: "j", label: "Next", run: () => move(1) },
    { keys: "k", label: "Previous", run: () => move(-1) },
    { keys: "Enter", label: "Open", run: (event) => {
      // A link or a button that has the focus is what Enter is for.
      if (event.target instanceof HTMLElement && event.target.closest("a, button, summary")) return event.target.click();
      return items[current] === undefined ? undefined : open(items[current]);
    } },
  ]);
  useEffect(() => {
    document.querySelector("tr.current, li.current")?.scrollIntoView({ block: "nearest" });
  }, [current]);
  return Math.min(current, items.length - 1);
}
