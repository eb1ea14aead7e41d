/** Time at a glance: a lane for each agent, working and waiting told apart, idle gaps folded. A click leads there. */

import { duration } from "../format.js";
import { html } from "../lib.js";
import { busyParts, scale } from "../timescale.js";

/** @typedef {{id: string, agent: string, parent_execution_id: string | null, status: string, started_at: string | null,
 *            completed_at: string | null, created_at: string}} Execution */
/** @typedef {{execution_id: string, created_at: string, state: string, decided_by: {at: string} | null}} Wait */
/** @typedef {import("../timescale.js").Span} Span */

const WIDTH = 1000;
const LANE = 9;
const GAP = 14;
const MOST_LANES = 6;

/** @param {Execution} execution @param {number} now @returns {Span} */
function spanOf(execution, now) {
  const from = Date.parse(execution.started_at ?? execution.created_at);
  return { from, to: Math.max(from + 1, execution.completed_at ? Date.parse(execution.completed_at) : now) };
}

/** @param {{executions: Execution[], waits: Wait[], goTo: (at: number) => void, now: number}} props */
export function Minimap({ executions, waits, goTo, now }) {
  const begun = executions.filter((each) => each.started_at);
  if (begun.length === 0) return null;
  const names = [...new Set(begun.map((each) => (each.parent_execution_id ? each.agent : "")))].sort();
  const lanes = names.slice(0, MOST_LANES);
  const waiting = waits.map((each) => ({
    id: each.execution_id,
    from: Date.parse(each.created_at),
    to: each.decided_by ? Date.parse(each.decided_by.at) : each.state === "open" ? now : Date.parse(each.created_at) + 1,
  }));
  const parts = busyParts(begun.map((each) => spanOf(each, now)));
  const time = scale(parts, WIDTH, GAP);
  const height = lanes.length * (LANE + 3) + 3;
  const laneOf = (/** @type {Execution} */ each) => Math.max(0, lanes.indexOf(each.parent_execution_id ? each.agent : ""));
  const bar = (/** @type {Span} */ { from, to }, /** @type {number} */ lane, /** @type {string} */ name, /** @type {string} */ title) =>
    html`<rect class=${name} x=${time.x(from)} y=${3 + lane * (LANE + 3)} width=${Math.max(2, time.x(to) - time.x(from))} height=${LANE} rx="2"><title>${title}</title></rect>`;
  const onClick = (/** @type {MouseEvent} */ event) => {
    const box = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
    goTo(time.time(((event.clientX - box.left) / box.width) * WIDTH));
  };
  return html`<div class="minimap">
    <svg viewBox=${`0 0 ${WIDTH} ${height}`} preserveAspectRatio="none" style=${{ height: `${height}px` }} role="img"
      aria-label=${`${begun.length} executions over ${duration(parts.reduce((sum, { from, to }) => sum + to - from, 0))} of work`} onClick=${onClick}>
      ${begun.map((each) => {
        const span = spanOf(each, now);
        return bar(span, laneOf(each), `work ${each.status}`, `${each.agent}: ${each.status}, ${duration(span.to - span.from)}`);
      })}
      ${waiting.map((wait) => {
        const owner = begun.find((each) => each.id === wait.id);
        return owner && bar(wait, laneOf(owner), "wait", `waits for a person, ${duration(wait.to - wait.from)}`);
      })}
      ${time.placed.slice(1).map((part, index) => {
        const gap = part.from - time.placed[index].to;
        return html`<rect class="gap" x=${part.x - GAP + 5} y="0" width="4" height=${height}><title>nothing for ${duration(gap)}</title></rect>`;
      })}
    </svg>
    <p class="legend" aria-hidden="true"><span class="key work"></span>working<span class="key wait"></span>waiting for people${parts.length > 1 && html`<span class="key gap"></span>idle, folded`}</p>
  </div>`;
}
