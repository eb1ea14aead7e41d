/** Files of messages and calls, to download. */

import { apiUrl } from "../api.js";
import { bytes } from "../format.js";
import { html } from "../lib.js";
import { Icon } from "./icons.js";

/** @param {{attachments: {id: string, name: string, media_type: string, size: number}[]}} props */
export function AttachmentList({ attachments }) {
  return html`<ul class="attachments">
    ${attachments.map(
      (each) => html`<li key=${each.id}>
        <a href=${apiUrl(`agent/attachments/${each.id}`)} download=${each.name}><${Icon} name="clip" size=${13} />${each.name}</a>
        <span class="quiet">${bytes(each.size)}</span>
      </li>`,
    )}
  </ul>`;
}
