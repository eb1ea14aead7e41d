/** A field whose text is used once it is left or Enter is pressed, and dropped with Escape. */

import { html, useState } from "../lib.js";

/**
 * It keeps what is being typed while the page is drawn again, as after each event of a running execution.
 * @param {{value: string, commit: (text: string) => void, [attribute: string]: any}} props
 */
export function DraftInput({ value, commit, onBlur, onKeyDown, ...more }) {
  const [draft, setDraft] = useState(/** @type {string | null} */ (null));
  const handleKey = (/** @type {any} */ event) => {
    if (event.key === "Escape") {
      // A browser reports a changed field as it is removed, too.
      event.currentTarget.value = value;
      setDraft(null);
    }
    onKeyDown?.(event);
  };
  return html`<input ...${more} value=${draft ?? value} onInput=${(/** @type {any} */ event) => setDraft(event.currentTarget.value)}
    onChange=${(/** @type {any} */ event) => commit(event.currentTarget.value)}
    onKeyDown=${handleKey} onBlur=${() => (setDraft(null), onBlur?.())} />`;
}
