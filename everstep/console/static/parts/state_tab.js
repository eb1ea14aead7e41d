/** The stored states of an execution, and what changed from one to the next. */

import { get } from "../api.js";
import { exactTime } from "../format.js";
import { html, useState } from "../lib.js";
import { useLoad } from "../load.js";
import { ArgsDiff } from "./args_diff.js";
import { Failure, Loading } from "./page.js";
import { Value } from "./values.js";

/** @param {{execution: string, step?: number, version?: unknown}} props */
export function StateTab({ execution, step, version }) {
  const { data, error, reload } = useLoad((signal) => get(`agent/executions/${execution}/snapshots`, { limit: 100 }, signal), [execution], { fresh: version });
  const [chosen, choose] = useState(/** @type {string | null} */ (null));
  const [isDiff, setDiff] = useState(false);
  if (error) return html`<${Failure} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} />`;
  if (data.items.length === 0)
    return html`<p class="note">No state is stored yet. An execution stores its state at its end and at each pause, and in debug mode after each step.</p>`;
  const nearest = data.items.find((/** @type {any} */ each) => step && each.step_number !== null && each.step_number <= step);
  const shown = data.items.find((/** @type {any} */ each) => each.id === chosen) ?? nearest ?? data.items[0];
  const before = data.items.find((/** @type {any} */ each) => each.id === shown.previous_snapshot_id);
  return html`<div class="stack">
    <label class="field"><span>State</span>
      <select value=${shown.id} onChange=${(/** @type {any} */ event) => choose(event.currentTarget.value)}>
        ${data.items.map(
          (/** @type {any} */ each) => html`<option value=${each.id}>${each.step_number === null ? "" : `after step ${each.step_number}, `}${exactTime(each.created_at)}${each.is_final ? " (end)" : ""}</option>`,
        )}
      </select>
    </label>
    ${before && html`<label class="check"><input type="checkbox" checked=${isDiff} onChange=${() => setDiff(!isDiff)} /> Only changes since the previous state</label>`}
    ${isDiff && before ? html`<${ArgsDiff} before=${before.state} after=${shown.state} />` : html`<${Value} value=${shown.state} />`}
  </div>`;
}
