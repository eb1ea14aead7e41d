/** The notices at the edge of the page. */

import { html } from "../lib.js";
import { dismiss, notices } from "../notices.js";
import { Icon } from "./icons.js";

export function NoticeList() {
  return html`<div class="notices" role="status" aria-live="polite">
    ${notices.value.map(
      ({ id, kind, text }) => html`<div key=${id} class=${`notice ${kind}`}>
        <span>${text}</span>
        <button class="ghost" aria-label="Dismiss" onClick=${() => dismiss(id)}><${Icon} name="cross" size=${14} /></button>
      </div>`,
    )}
  </div>`;
}
