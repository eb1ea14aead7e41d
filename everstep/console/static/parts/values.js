/** JSON for people: names with values, long texts folded, never a line of braces. */

import { html, useState } from "../lib.js";

const LONG = 400;
const MANY = 12;

/** @param {{value: any, depth?: number}} props */
export function Value({ value, depth = 0 }) {
  if (value === null || value === undefined) return html`<span class="quiet">none</span>`;
  if (typeof value === "string") return html`<${LongText} text=${value} />`;
  if (typeof value !== "object") return html`<span class="mono">${String(value)}</span>`;
  const entries = Object.entries(value);
  if (entries.length === 0) return html`<span class="quiet">${Array.isArray(value) ? "empty list" : "empty"}</span>`;
  if (Array.isArray(value) && value.every((each) => typeof each !== "object" || each === null))
    return html`<${Items} items=${value} />`;
  return html`<${Fields} entries=${entries} depth=${depth} />`;
}

/** @param {{entries: [string, any][], depth: number}} props */
function Fields({ entries, depth }) {
  const [isOpen, setOpen] = useState(depth < 3);
  const [shown, setShown] = useState(MANY);
  if (!isOpen)
    return html`<button class="link" onClick=${() => setOpen(true)}>${entries.length} fields</button>`;
  return html`<dl class="values">
    ${entries.slice(0, shown).map(
      ([name, each]) => html`<div key=${name}>
        <dt>${name}</dt>
        <dd><${Value} value=${each} depth=${depth + 1} /></dd>
      </div>`,
    )}
    ${entries.length > shown &&
    html`<button class="link" onClick=${() => setShown(shown + 100)}>${entries.length - shown} more</button>`}
  </dl>`;
}

/** @param {{items: any[]}} props */
function Items({ items }) {
  const [shown, setShown] = useState(MANY);
  return html`<ul class="value-items">
    ${items.slice(0, shown).map((each) => html`<li><${Value} value=${each} /></li>`)}
    ${items.length > shown &&
    html`<li><button class="link" onClick=${() => setShown(shown + 100)}>${items.length - shown} more</button></li>`}
  </ul>`;
}

/** @param {{text: string}} props */
export function LongText({ text }) {
  const [isOpen, setOpen] = useState(false);
  if (text === "") return html`<span class="quiet">empty text</span>`;
  if (text.length <= LONG || isOpen) return html`<span class="value-text" dir="auto">${text}</span>`;
  return html`<span class="value-text" dir="auto">${text.slice(0, LONG)}… <button class="link" onClick=${() => setOpen(true)}
      >Show all ${Math.ceil(text.length / 1000)} kB</button></span>`;
}
