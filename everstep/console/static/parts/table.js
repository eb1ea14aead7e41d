/** Tables: they scroll sideways in a frame of their own, which can be reached with the keyboard. */

import { html } from "../lib.js";

/** @param {{label: string, children?: any}} props */
export function Table({ label, children }) {
  return html`<div class="table-frame" role="region" aria-label=${label} tabindex="0"><table>${children}</table></div>`;
}
