/** What an edit changes in arguments: each changed argument with both values. */

import { html } from "../lib.js";
import { Value } from "./values.js";

/** @typedef {{[name: string]: any}} Json */

/** The names whose values differ. @param {Json} before @param {Json} after */
export function changedNames(before, after) {
  const names = new Set([...Object.keys(before), ...Object.keys(after)]);
  return [...names].filter((name) => JSON.stringify(before[name]) !== JSON.stringify(after[name]));
}

/** @param {{before: Json, after: Json}} props */
export function ArgsDiff({ before, after }) {
  const changed = changedNames(before, after);
  if (changed.length === 0) return html`<p class="note">No changes yet.</p>`;
  return html`<dl class="values diff" aria-label="Changes">
    ${changed.map(
      (name) => html`<div key=${name}>
        <dt>${name}</dt>
        <dd>
          ${name in before && html`<del><${Value} value=${before[name]} /></del>`}
          ${name in after ? html`<ins><${Value} value=${after[name]} /></ins>` : html`<ins class="quiet">left out</ins>`}
        </dd>
      </div>`,
    )}
  </dl>`;
}
