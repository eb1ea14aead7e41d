/** A field whose text is used once it is left or Enter is pressed. */

import { html, useState } from "../lib.js";

/**
 * It keeps what is being typed while the page is drawn again, as after each event of a running execution.
 * @param {{value: string, commit: (text: string) => void, [attribute: string]: any}} props
 */
export function DraftInput({ value, commit, onBlur, ...more }) {
  const [draft, setDraft] = useState(/** @type {string | null} */ (null));
  return html`<input ...${more} value=${draft ?? value} onInput=${(/** @type {any} */ event) => setDraft(event.currentTarget.value)}
    onChange=${(/** @type {any} */ event) => commit(event.currentTarget.value)}
    onBlur=${() => (setDraft(null), onBlur?.())} />`;
}
