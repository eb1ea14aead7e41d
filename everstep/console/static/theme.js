/** Light, dark, or as the system says. */

import { signal } from "./lib.js";

/** @typedef {"system" | "light" | "dark"} Theme */

const NAME = "everstep.theme";
/** @type {Theme[]} */
const ORDER = ["system", "light", "dark"];

/** @returns {Theme} */
function stored() {
  const chosen = localStorage.getItem(NAME);
  return chosen === "light" || chosen === "dark" ? chosen : "system";
}

/** The theme that the person chose. */
export const theme = signal(stored());

/** Choose the next theme. */
export function nextTheme() {
  const next = ORDER[(ORDER.indexOf(theme.value) + 1) % ORDER.length];
  theme.value = next;
  if (next === "system") {
    localStorage.removeItem(NAME);
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem(NAME, next);
    document.documentElement.dataset.theme = next;
  }
}
