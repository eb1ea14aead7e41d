/** Steps of an execution over time: model, calls and waits for people as bars; idle time is folded. */

import { duration } from "../format.js";
import { html } from "../lib.js";
import { busyParts, scale } from "../timescale.js";

/** @typedef {{[name: string]: any}} Step */
/** @typedef {{name: string, kind: string, from: number, to: number, step: number, isInner: boolean}} Bar */

const WIDTH = 100;

/** @param {Step[]} steps @param {{[name: string]: any}[]} requests @param {number} now @returns {Bar[]} */
function barsOf(steps, requests, now) {
  /** @type {Bar[]} */
  const bars = [];
  for (const step of steps) {
    const from = Date.parse(step.started_at);
    const begins = step.calls.map((/** @type {any} */ each) => Date.parse(each.started_at)).filter(Number.isFinite);
    const end = step.completed_at ? Date.parse(step.completed_at) : now;
    const to = Math.min(end, ...begins);
    bars.push({ name: `Step ${step.number}${step.attempt > 1 ? `, attempt ${step.attempt}` : ""}`, kind: "model", from, to, step: step.number, isInner: false });
    for (const call of step.calls) {
      const request = requests.find((each) => each.kind === "approval" && each.tool === call.tool && Date.parse(each.created_at) >= from && Date.parse(each.created_at) <= end + 1);
      if (request) {
        const until = request.decided_by ? Date.parse(request.decided_by.at) : request.state === "open" ? now : Date.parse(request.created_at);
        bars.push({ name: `approval of ${call.tool}`, kind: "wait", from: Date.parse(request.created_at), to: until, step: step.number, isInner: true });
      }
      if (!call.started_at && call.state !== "running") continue;
      const isQuestion = call.tool === "user_input";
      bars.push({
        name: call.tool,
        kind: isQuestion ? "wait" : call.success === false ? "call bad" : "call",
        from: call.started_at ? Date.parse(call.started_at) : from,
        to: call.completed_at ? Date.parse(call.completed_at) : now,
        step: step.number,
        isInner: true,
      });
    }
  }
  return bars;
}

/** @param {{steps: Step[], requests: {[name: string]: any}[], current: number | undefined, choose: (step: number) => void, now: number}} props */
export function Waterfall({ steps, requests, current, choose, now }) {
  const bars = barsOf(steps, requests, now);
  if (bars.length === 0) return html`<p class="note">No step has started.</p>`;
  const time = scale(busyParts(bars), WIDTH, 1.5);
  return html`<ol class="waterfall card" aria-label="Steps over time">
    ${bars.map(
      (bar, index) => html`<li key=${index} class=${[bar.isInner && "inner", !bar.isInner && bar.step === current && "current"].filter(Boolean).join(" ")}>
        <button class="link" title=${bar.name} onClick=${() => choose(bar.step)}>${bar.name}</button>
        <div class="track"><span class=${bar.kind} style=${{ left: `${time.x(bar.from)}%`, width: `${Math.max(0, time.x(bar.to) - time.x(bar.from))}%` }}></span></div>
        <span class="number quiet">${duration(bar.to - bar.from)}</span>
      </li>`,
    )}
  </ol>`;
}
