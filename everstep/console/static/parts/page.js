/** The frame of every screen: its heading with actions, and what is shown while there is nothing to show. */

import { html } from "../lib.js";
import { Icon } from "./icons.js";

/** @param {{title: any, note?: any, actions?: any, children?: any, wide?: boolean}} props */
export function Page({ title, note, actions, children, wide = false }) {
  return html`<div class=${wide ? "page wide" : "page"}>
    <header class="page-head">
      <div class="page-title">
        <h1 tabindex="-1">${title}</h1>
        ${note && html`<div class="note">${note}</div>`}
      </div>
      ${actions && html`<div class="actions">${actions}</div>`}
    </header>
    ${children}
  </div>`;
}

/** Nothing is there, and what would make something appear. @param {{icon?: string, title: string, children?: any}} props */
export function Empty({ icon = "check", title, children }) {
  return html`<div class="empty">
    <${Icon} name=${icon} size=${22} />
    <p class="empty-title">${title}</p>
    ${children && html`<div class="note">${children}</div>`}
  </div>`;
}

/** Why reading failed, with a button that tries again. @param {{error: string, retry?: () => void}} props */
export function Failure({ error, retry }) {
  return html`<div class="failure" role="alert">
    <p>${error}</p>
    ${retry && html`<button onClick=${retry}>Try again</button>`}
  </div>`;
}

/** @param {{label?: string}} props */
export function Loading({ label = "Loading" }) {
  return html`<div class="loading" role="status"><span class="spinner"></span>${label}…</div>`;
}
