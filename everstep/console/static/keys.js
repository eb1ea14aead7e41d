/**
 * Keys. A screen names its keys with `useKeys`, and `?` lists those that work at the moment. While something is
 * typed into a field, only keys with Ctrl or Cmd and Escape have an effect.
 */

import { signal, useLayoutEffect, useRef } from "./lib.js";

/** @typedef {{keys: string, label: string, run: (event: KeyboardEvent) => unknown, group?: string, inFields?: boolean}} Binding */

/** The bindings of all mounted components; later ones win. */
const groups = signal(/** @type {Binding[][]} */ ([]));
let pending = "";
/** @type {ReturnType<typeof setTimeout> | undefined} */
let forgetting;

/** All keys that work now, for the list of keys. */
export function activeBindings() {
  return groups.value.flat();
}

/** Listen to keys while the component is shown. `keys` is a key (`j`), two in a row (`g n`) or `mod+Enter`.
 * @param {Binding[]} bindings */
export function useKeys(bindings) {
  const latest = useRef(bindings);
  latest.current = bindings;
  // Before the component is painted: who sees a button can press its key.
  useLayoutEffect(() => {
    const proxies = latest.current.map((binding, index) => ({
      ...binding,
      run: (/** @type {KeyboardEvent} */ event) => latest.current[index]?.run(event),
    }));
    groups.value = [...groups.peek(), proxies];
    return () => {
      groups.value = groups.peek().filter((each) => each !== proxies);
    };
  }, [bindings.map((each) => each.keys).join("|")]);
}

/** @param {EventTarget | null} target */
function isField(target) {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

/** The name of a key press. @param {KeyboardEvent} event */
function nameOf(event) {
  const mod = event.ctrlKey || event.metaKey ? "mod+" : "";
  const shift = event.shiftKey && event.key.length > 1 ? "shift+" : "";
  return mod + shift + event.key;
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.defaultPrevented || event.isComposing || event.altKey) return;
  if (["Shift", "Control", "Meta"].includes(event.key)) return;
  const name = nameOf(event);
  const inField = isField(event.target);
  const both = pending ? `${pending} ${name}` : name;
  clearTimeout(forgetting);
  pending = "";
  const all = groups.peek().flat().reverse().filter((each) => !inField || each.inFields || name.startsWith("mod+"));
  const found = all.find((each) => each.keys === both) ?? all.find((each) => each.keys === name);
  if (found) {
    event.preventDefault();
    found.run(event);
  } else if (!inField && all.some((each) => each.keys.startsWith(`${both} `))) {
    event.preventDefault();
    pending = both;
    forgetting = setTimeout(() => (pending = ""), 1500);
  }
}

/** Begin to listen. */
export function startKeys() {
  document.addEventListener("keydown", onKey);
}

const SIGNS = /** @type {Record<string, string>} */ ({
  mod: /Mac|iPhone|iPad/.test(navigator.userAgent) ? "⌘" : "Ctrl",
  Enter: "↵",
  Escape: "Esc",
  ArrowUp: "↑",
  ArrowDown: "↓",
  shift: "⇧",
});

/** The keys as they are written on a keyboard, one text per key. @param {string} keys */
export function keyLabels(keys) {
  return keys.split(/[ +]/).map((key) => SIGNS[key] ?? key);
}
