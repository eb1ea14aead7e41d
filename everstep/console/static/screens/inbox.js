/** What needs a person: open questions, approvals and exhausted budgets, oldest first. */

import { html } from "../lib.js";
import { inboxError, openRequests, readInbox } from "../inbox.js";
import { Empty, Failure, Loading, Page } from "../parts/page.js";
import { Ago } from "../parts/time.js";
import { href } from "../router.js";

export const title = "Needs you";

export default function Inbox() {
  const requests = openRequests.value;
  return html`<${Page} title="Needs you">
    ${inboxError.value && html`<${Failure} error=${inboxError.value} retry=${readInbox} />`}
    ${!requests && !inboxError.value && html`<${Loading} />`}
    ${requests?.length === 0 && html`<${Empty} title="Nothing needs you">Questions, approvals and exhausted budgets appear here.<//>`}
    ${requests && requests.length > 0 && html`<ul>${requests.map((each) => html`<li key=${each.id}>
      <a href=${href(`executions/${each.execution_id}`)}>${each.agent}: ${each.tool}</a> <${Ago} at=${each.created_at} />
    </li>`)}</ul>`}
  <//>`;
}
