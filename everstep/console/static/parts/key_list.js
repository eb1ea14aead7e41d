/** The keys that work on this screen, shown with `?`. */

import { activeBindings } from "../keys.js";
import { html } from "../lib.js";
import { Keys } from "./badge.js";
import { Dialog } from "./dialog.js";

/** @param {{close: () => void}} props */
export function KeyList({ close }) {
  /** @type {Map<string, import("../keys.js").Binding[]>} */
  const groups = new Map();
  for (const binding of activeBindings()) {
    const name = binding.group ?? "This screen";
    groups.set(name, [...(groups.get(name) ?? []), binding]);
  }
  const sections = [...groups].sort(([one], [other]) => Number(one === "Everywhere") - Number(other === "Everywhere"));
  return html`<${Dialog} title="Keys" close=${close} wide>
    <div class="key-list">
      ${sections.map(
        ([name, bindings]) => html`<section>
          <h3>${name}</h3>
          <dl>
            ${bindings.map(
              ({ keys, label }) => html`<div>
                <dt><${Keys} keys=${keys} /></dt>
                <dd>${label}</dd>
              </div>`,
            )}
          </dl>
        </section>`,
      )}
    </div>
  <//>`;
}
