/** What full-text search finds: the texts around the matches, each with a link to its place. */

import { html } from "../lib.js";
import { usePages } from "../load.js";
import { go, href } from "../router.js";
import { Badge } from "./badge.js";
import { useListKeys } from "./list_keys.js";
import { Empty, Failure, Loading } from "./page.js";
import { Ago } from "./time.js";

/**
 * @typedef {object} Hit
 * @property {string | null} session_id
 * @property {string | null} session_title
 * @property {string} execution_id
 * @property {string} agent
 * @property {string | null} user_id
 * @property {number} step_number
 * @property {"message" | "reply" | "arguments" | "result"} kind
 * @property {string | null} tool
 * @property {string | null} call_id
 * @property {{text: string, marks: [number, number][]}} snippet
 * @property {string} created_at
 */

const KINDS = { message: "message", reply: "reply", arguments: "call", result: "result" };

/** @param {{wanted: import("../api.js").Query}} props the filters of executions, and `q` */
export function SearchHits({ wanted }) {
  const list = /** @type {import("../load.js").Pages<Hit>} */ (usePages("agent/search", wanted, { size: 25 }));
  const current = useListKeys(list.items, (hit) => go(placeOf(hit)));
  return html`
    ${list.error && html`<${Failure} error=${list.error} retry=${list.reload} />`}
    ${list.isLoading && html`<${Loading} label="Searching" />`}
    ${!list.isLoading && !list.error && list.items.length === 0 && html`<${Empty} icon="list" title="Nothing matches">
      Words are found as they are written: try ship* for shipping, or fewer words.<//>`}
    ${list.items.length > 0 &&
    html`<ul class="hits" aria-label="Matches">
      ${list.items.map((hit, index) => html`<li key=${`${hit.execution_id} ${hit.step_number} ${hit.call_id} ${hit.created_at}`} class=${index === current ? "current" : ""}>
        <a href=${href(placeOf(hit))}>
          <span class="hit-head">
            <${Badge}>${KINDS[hit.kind]}<//>${hit.tool && html`<code>${hit.tool}</code>`}
            <strong class="clip" dir="auto">${hit.session_title || (hit.session_id ? "Untitled" : `Execution ${hit.execution_id.slice(0, 8)}`)}</strong>
            <span class="quiet">${hit.agent}${hit.user_id && ` · ${hit.user_id}`} · <${Ago} at=${hit.created_at} /></span>
          </span>
          <span class="hit-text" dir="auto">${marked(hit.snippet)}</span>
        </a>
      </li>`)}
    </ul>`}
    ${list.hasMore && html`<div class="more"><button onClick=${list.more}>Show more</button></div>`}`;
}

/** The address of the place: in its session if it has one. @param {Hit} hit */
function placeOf(hit) {
  if (!hit.session_id) return `executions/${hit.execution_id}${hit.step_number ? `?step=${hit.step_number}` : ""}`;
  const place = new URLSearchParams({ execution: hit.execution_id, at: hit.created_at, step: String(hit.step_number) });
  if (hit.call_id) place.set("call", hit.call_id);
  return `sessions/${hit.session_id}?${place}`;
}

/** The text with its matches marked; the marks count characters, not units of UTF-16. @param {Hit["snippet"]} snippet */
function marked({ text, marks }) {
  const characters = [...text];
  const between = (/** @type {number} */ from, /** @type {number | undefined} */ to) => characters.slice(from, to).join("");
  let end = 0;
  const parts = marks.map(([first, last]) => {
    const part = html`${between(end, first)}<mark>${between(first, last)}</mark>`;
    end = last;
    return part;
  });
  return html`${parts}${between(end, undefined)}`;
}
