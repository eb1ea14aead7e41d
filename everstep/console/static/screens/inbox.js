/** What needs a person: open questions, approvals and exhausted budgets, oldest first. */

import { approve, deny, readRequest } from "../decisions.js";
import { sentence } from "../api.js";
import { hasMore, inboxError, MOST, openRequests, readInbox } from "../inbox.js";
import { useKeys } from "../keys.js";
import { html, useEffect, useState } from "../lib.js";
import { done, failed } from "../notices.js";
import { Badge } from "../parts/badge.js";
import { Empty, Failure, Loading, Page } from "../parts/page.js";
import { headline, RequestCard } from "../parts/request_card.js";
import { Ago } from "../parts/time.js";
import { go, href } from "../router.js";

/** @typedef {import("../inbox.js").Request} Request */

export const title = "Needs you";

const KINDS = { approval: "approval", input: "question", budget: "budget" };

/** @param {{params: {id?: string}}} props */
export default function Inbox({ params }) {
  const open = openRequests.value;
  const [isWide] = useState(() => matchMedia("(min-width: 1000px)").matches);
  const [chosen, setChosen] = useState(/** @type {ReadonlySet<string>} */ (new Set()));
  const [kept, keep] = useState(/** @type {Request | null | undefined} */ (undefined));
  const mine = open?.filter((each) => each.may_decide) ?? [];
  const others = open?.filter((each) => !each.may_decide) ?? [];
  const shown = [...mine, ...others];
  const [pinned, pin] = useState(/** @type {string | undefined} */ (undefined));
  const first = isWide ? shown[0]?.id : undefined;
  // The first request, once shown, is not replaced by another one: a key would decide about what has just appeared.
  const id = params.id ?? pinned ?? first;
  useEffect(() => {
    if (first && !pinned) pin(first);
  }, [first, pinned]);
  const index = shown.findIndex((each) => each.id === id);
  // Once shown, a request stays, also after it was decided: here or by someone else.
  useEffect(() => {
    if (!id || index >= 0) return;
    readRequest(id).then(keep, (error) => failed(sentence(error)));
  }, [id, index]);
  const current = index >= 0 ? shown[index] : kept?.id === id ? kept : undefined;
  const move = (/** @type {number} */ by) => {
    const next = shown[Math.max(0, Math.min(shown.length - 1, index + by))];
    if (next) go(`requests/${next.id}`, { replace: params.id !== undefined });
  };
  const toggle = (/** @type {string} */ one) => {
    const next = new Set(chosen);
    if (!next.delete(one)) next.add(one);
    setChosen(next);
  };
  useKeys([
    { keys: "j", label: "Next request", run: () => move(1) },
    { keys: "k", label: "Previous request", run: () => move(-1) },
    { keys: "x", label: "Select for a batch", run: () => current?.kind === "approval" && toggle(current.id) },
    { keys: "o", label: "Open its session or execution", run: () => current && go(placeOf(current)) },
  ]);
  const batch = mine.filter((each) => chosen.has(each.id));
  return html`<${Page} title="Needs you" note=${mine.length ? `${mine.length}${hasMore.value ? "+" : ""} to decide, oldest first` : null} wide>
    ${inboxError.value && html`<${Failure} error=${inboxError.value} retry=${readInbox} />`}
    ${!open && !inboxError.value && html`<${Loading} />`}
    ${open && shown.length === 0 && !id &&
    html`<${Empty} title="Nothing needs you">New questions, approvals and exhausted budgets appear here automatically.<//>`}
    ${(shown.length > 0 || id) &&
    html`<div class=${params.id ? "inbox has-detail" : "inbox"}>
      <div class="inbox-list">
        ${batch.length > 0 && html`<${Batch} requests=${batch} clear=${() => setChosen(new Set())} />`}
        <${List} label="For you to decide" requests=${mine} id=${id} chosen=${chosen} toggle=${toggle} />
        ${others.length > 0 && html`<h2 class="small-title">Waiting for others</h2>`}
        <${List} label="Waiting for others" requests=${others} id=${id} chosen=${chosen} />
        ${hasMore.value && html`<p class="note">The oldest ${MOST} are shown.</p>`}
      </div>
      <div class="inbox-detail">
        ${current && html`<${Detail} key=${current.id} request=${current} decided=${keep} isChosen=${params.id !== undefined} />`}
        ${!current && params.id && kept === null && html`<${Failure} error="This request does not exist, or you may not see it." />`}
      </div>
    </div>`}
  <//>`;
}

/** @param {Request} request */
function placeOf(request) {
  return request.session_id ? `sessions/${request.session_id}` : `executions/${request.execution_id}`;
}

/** @param {{label: string, requests: Request[], id: string | undefined, chosen: ReadonlySet<string>, toggle?: (id: string) => void}} props */
function List({ label, requests, id, chosen, toggle }) {
  if (requests.length === 0) return null;
  return html`<ul class="request-list card" aria-label=${label}>
    ${requests.map(
      (each) => html`<li key=${each.id} class=${each.id === id ? "current" : ""}>
        ${toggle && each.kind === "approval"
          ? html`<input type="checkbox" aria-label=${`Select ${headline(each)}`} checked=${chosen.has(each.id)} onChange=${() => toggle(each.id)} />`
          : html`<span></span>`}
        <a href=${href(`requests/${each.id}`)} aria-current=${each.id === id ? "true" : undefined}>
          <span class="line"><strong dir="auto">${headline(each)}</strong><span class="quiet"><${Ago} at=${each.created_at} /></span></span>
          <span class="line quiet"><span class="clip" dir="auto">${preview(each)}</span><span>${each.agent}</span></span>
        </a>
      </li>`,
    )}
  </ul>`;
}

/** @param {Request} request */
function preview(request) {
  if (request.kind === "input") return request.request.choices?.join(", ") || "a question";
  if (request.kind === "budget") return "a new total lets it go on";
  return Object.entries(request.args).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
}

/** @param {{request: Request, decided: (now: Request | null) => void, isChosen: boolean}} props */
function Detail({ request, decided, isChosen }) {
  const to = placeOf(request);
  return html`<div class="card detail">
    ${isChosen && html`<a class="back" href=${href("")}>All requests</a>`}
    <div class="detail-meta">
      <${Badge} tone=${request.state === "open" ? "warn" : "quiet"}>${KINDS[request.kind]}<//>
      <span>${request.agent}</span><span class="quiet">for ${request.user_id ?? "no user"}</span>
      <span class="quiet"><${Ago} at=${request.created_at} /></span>
      ${request.expires_at && request.state === "open" && html`<span class="quiet">denied automatically <${Ago} at=${request.expires_at} /></span>`}
      <a href=${href(to)}>${request.session_id ? "Open the session" : "Open the execution"}</a>
    </div>
    <${RequestCard} request=${request} decided=${decided} hasKeys />
  </div>`;
}

/** @param {{requests: Request[], clear: () => void}} props */
function Batch({ requests, clear }) {
  const [isBusy, setBusy] = useState(false);
  const decide = async (/** @type {(request: Request) => Promise<import("../decisions.js").Decided>} */ decision, /** @type {string} */ word) => {
    setBusy(true);
    const results = await Promise.allSettled(requests.map(decision));
    const mine = results.filter((each) => each.status === "fulfilled" && each.value.isMine).length;
    if (mine) done(`${mine} ${word}.`);
    const second = results.filter((each) => each.status === "fulfilled" && !each.value.isMine).length;
    if (second) failed(`${second} had been decided by someone else.`);
    const refused = results.find((each) => each.status === "rejected");
    if (refused) failed(sentence(refused.reason));
    setBusy(false);
    clear();
  };
  return html`<div class="batch card" role="group" aria-label="Batch">
    <span>${requests.length} chosen</span>
    <button class="primary" disabled=${isBusy} onClick=${() => decide((each) => approve(each), "approved")}>Approve all</button>
    <button class="danger" disabled=${isBusy} onClick=${() => decide((each) => deny(each, ""), "denied")}>Deny all</button>
    <button class="ghost" onClick=${clear}>Clear</button>
  </div>`;
}
