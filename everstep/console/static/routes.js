/**
 * The screens. Each is a module `screens/{screen}.js` with this contract:
 *
 *     export const title = "Agents";                  // or a function of the params
 *     export default function Agents({ params }) {}   // the component; filters are in `query` of router.js
 *
 * A screen is loaded when it is first shown, and mounted again when its params change. It shows the title itself,
 * with `Page` of parts/page.js, reads with `useLoad` or `usePages` of load.js, and writes with `post` of api.js.
 */

/** @typedef {{params: {[name: string]: string}}} ScreenProps */
/**
 * @typedef {object} ScreenModule
 * @property {string | ((params: {[name: string]: string}) => string)} title
 * @property {(props: ScreenProps) => import("preact").VNode<any>} default
 */
/**
 * @typedef {object} Route
 * @property {string} path below `/console/`; parts that begin with `:` are params
 * @property {string} screen the name of its module
 * @property {string} nav the entry of the navigation that is marked
 */
/**
 * @typedef {object} NavEntry
 * @property {string} id
 * @property {string} to the address
 * @property {string} label
 * @property {string} key pressed after `g`
 * @property {string} icon of parts/icons.js
 */

/** @type {NavEntry[]} */
export const NAV = [
  { id: "inbox", to: "", label: "Needs you", key: "n", icon: "inbox" },
  { id: "sessions", to: "sessions", label: "Sessions", key: "s", icon: "chat" },
  { id: "executions", to: "executions", label: "Executions", key: "e", icon: "list" },
  { id: "what-if", to: "what-if", label: "What-if", key: "w", icon: "sliders" },
  { id: "compare", to: "compare", label: "Compare", key: "c", icon: "columns" },
  { id: "usage", to: "usage", label: "Usage", key: "u", icon: "chart" },
  { id: "agents", to: "agents", label: "Agents", key: "a", icon: "agent" },
  { id: "system", to: "system", label: "System", key: "y", icon: "pulse" },
];

/** @type {Route[]} */
export const ROUTES = [
  { path: "", screen: "inbox", nav: "inbox" },
  { path: "requests/:id", screen: "inbox", nav: "inbox" },
  { path: "sessions", screen: "sessions", nav: "sessions" },
  { path: "sessions/:id", screen: "session", nav: "sessions" },
  { path: "executions", screen: "executions", nav: "executions" },
  { path: "executions/:id", screen: "execution", nav: "executions" },
  { path: "what-if", screen: "what_if", nav: "what-if" },
  { path: "compare", screen: "compare", nav: "compare" },
  { path: "compare/:id/:other", screen: "compare", nav: "compare" },
  { path: "usage", screen: "usage", nav: "usage" },
  { path: "agents", screen: "agents", nav: "agents" },
  { path: "agents/:name", screen: "agents", nav: "agents" },
  { path: "system", screen: "system", nav: "system" },
];
