/** A dialog over the page: the browser's own, which keeps the focus inside and closes with Escape. */

import { html, useEffect, useId, useRef } from "../lib.js";
import { Icon } from "./icons.js";

/** @param {{title: string, close?: () => void, children?: any, wide?: boolean}} props without `close` it stays open */
export function Dialog({ title, close, children, wide = false }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const id = useId();
  useEffect(() => {
    const dialog = element.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  const cancel = (/** @type {Event} */ event) => {
    event.preventDefault();
    close?.();
  };
  const clickOutside = (/** @type {MouseEvent} */ event) => event.target === element.current && close?.();
  return html`<dialog
    ref=${element}
    class=${wide ? "dialog wide" : "dialog"}
    aria-labelledby=${id}
    onCancel=${cancel}
    onClick=${clickOutside}
  >
    <div class="dialog-body">
      <header>
        <h2 id=${id}>${title}</h2>
        ${close && html`<button class="ghost" aria-label="Close" onClick=${close}><${Icon} name="cross" /></button>`}
      </header>
      ${children}
    </div>
  </dialog>`;
}
