/**
 * Addresses: `/console/{path}?{query}`, where the path names a screen and the query its filters. Everything that one
 * can see has an address, and a link with this address shows it.
 */

import { computed, signal } from "./lib.js";
import { CONSOLE } from "./places.js";
import { ROUTES } from "./routes.js";

/** The path of the console on this server. */
export const BASE = CONSOLE.pathname;

/** @typedef {{[name: string]: string}} Params */
/** @typedef {{route: import("./routes.js").Route, params: Params}} Match */

/** The address below `BASE`, with its query. */
const address = signal(read());

function read() {
  return location.pathname.slice(BASE.length) + location.search;
}

/** The filters of the screen that is shown. */
export const query = computed(() => new URLSearchParams(address.value.split("?")[1] ?? ""));
/** The path of the screen that is shown, without the query. */
export const path = computed(() => address.value.split("?")[0]);
/** The screen that is shown; undefined for an unknown address. */
export const match = computed(() => find(path.value));

/** @param {string} wanted @returns {Match | undefined} */
function find(wanted) {
  const parts = wanted.replace(/\/+$/, "").split("/");
  for (const route of ROUTES) {
    const names = route.path.split("/");
    if (names.length !== parts.length) continue;
    /** @type {Params} */
    const params = {};
    const fits = names.every((name, index) => {
      if (!name.startsWith(":")) return name === parts[index];
      params[name.slice(1)] = decode(parts[index]);
      return parts[index] !== "";
    });
    if (fits) return { route, params };
  }
  return undefined;
}

/** @param {string} part */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // A lone `%`: the address of nothing.
  }
}

/** The URL of an address, for links. @param {string} to below `BASE`, such as `executions/{id}?tab=state` */
export function href(to) {
  return BASE + to;
}

/** Show another address. @param {string} to @param {{replace?: boolean}} [how] */
export function go(to, { replace = false } = {}) {
  if (to === address.value) return;
  history[replace ? "replaceState" : "pushState"](null, "", href(to));
  const samePlace = to.split("?")[0] === path.value;
  address.value = to;
  if (!samePlace) scrollTo(0, 0);
}

/** Change filters of the screen that is shown; null removes one. @param {{[name: string]: string | null}} changes
 * @param {{replace?: boolean}} [how] */
export function setQuery(changes, how = { replace: true }) {
  const next = new URLSearchParams(query.value);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") next.delete(name);
    else next.set(name, value);
  }
  const text = next.toString();
  go(text ? `${path.value}?${text}` : path.value, how);
}

/** Follow links inside the console without loading the page again. @param {MouseEvent} event */
function followLink(event) {
  if (event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const target = event.target;
  const link = target instanceof Element ? target.closest("a") : null;
  if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
  if (!link.pathname.startsWith(BASE) || link.pathname.startsWith(`${BASE}static/`)) return;
  event.preventDefault();
  go(link.pathname.slice(BASE.length) + link.search);
}

/** Begin to follow links and the browser's history. */
export function startRouter() {
  address.value = read();
  document.addEventListener("click", followLink);
  addEventListener("popstate", () => (address.value = read()));
}
