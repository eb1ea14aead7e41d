/** Files of messages and calls, to download. */

import { getFile, sentence } from "../api.js";
import { bytes } from "../format.js";
import { html } from "../lib.js";
import { failed } from "../notices.js";
import { Icon } from "./icons.js";

const KEPT_MS = 60_000;

/** Save a file. A plain link could not name the session: the page key is sent in a header.
 * @param {{id: string, name: string}} file */
async function save({ id, name }) {
  try {
    const content = await getFile(`agent/attachments/${id}`);
    const link = document.createElement("a");
    // A type that no browser shows: the address of the content belongs to this origin.
    link.href = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
  } catch (error) {
    failed(sentence(error));
  }
}

/** @param {{attachments: {id: string, name: string, media_type: string, size: number}[]}} props */
export function AttachmentList({ attachments }) {
  return html`<ul class="attachments">
    ${attachments.map(
      (each) => html`<li key=${each.id}>
        <button class="link" title=${`Download ${each.name}`} onClick=${() => save(each)}>
          <${Icon} name="clip" size=${13} />${each.name}
        </button>
        <span class="quiet">${bytes(each.size)}</span>
      </li>`,
    )}
  </ul>`;
}
