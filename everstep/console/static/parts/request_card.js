/** One request to people: what is asked, and the ways to decide. It is shown in the inbox and in the thread. */

import { sentence } from "../api.js";
import { answer, approve, approveEdited, deny, outcome, raise } from "../decisions.js";
import { useDraft } from "../drafts.js";
import { html, useState } from "../lib.js";
import { done, failed } from "../notices.js";
import { signIn } from "../sign_in.js";
import { ApprovalForm } from "./approval_form.js";
import { Badge } from "./badge.js";
import { AnswerForm, BudgetForm } from "./question_form.js";
import { Ago } from "./time.js";
import { Value } from "./values.js";
import { ArgsDiff } from "./args_diff.js";

/** @typedef {import("../inbox.js").Request} Request */
/** @typedef {import("../decisions.js").Decided} Decided */

/** Carry out a decision once, and say what came of it. @param {Request} request @param {(now: Request | null) => void} decided */
export function useDecision(request, decided) {
  const [isBusy, setBusy] = useState(false);
  const run = async (/** @type {() => Promise<Decided>} */ decision) => {
    if (isBusy) return false;
    setBusy(true);
    try {
      const { request: now, isMine } = await decision();
      if (!isMine) failed(now ? `Someone else decided first. ${outcome(now, signIn.value?.user_id)}` : "The request no longer exists.");
      else if (now) done(outcome(now, signIn.value?.user_id));
      decided(now);
      return true;
    } catch (error) {
      failed(sentence(error));
      return false;
    } finally {
      setBusy(false);
    }
  };
  return { isBusy, run };
}

/** What the request asks, in one line. @param {Request} request */
export function headline(request) {
  if (request.kind === "input") return String(request.request.prompt ?? "A question");
  if (request.kind === "budget") {
    const { scope, unit, spent, limit } = request.request;
    return `The budget of the ${scope} is used up: ${amount(spent, unit)} of ${amount(limit, unit)}`;
  }
  return `Call ${request.tool}?`;
}

/** @param {number} value @param {string} unit */
function amount(value, unit) {
  return unit === "usd" ? `$${value}` : `${value} ${unit}`;
}

/** @param {{request: Request, decided: (now: Request | null) => void, hasKeys?: boolean}} props */
export function RequestCard({ request, decided, hasKeys = false }) {
  const { isBusy, run } = useDecision(request, decided);
  const name = `request.${request.id}`;
  const [draft, setDraft] = useDraft(name, /** @type {any} */ (null));
  const finish = async (/** @type {() => Promise<Decided>} */ decision) => {
    if (await run(decision)) setDraft(null);
  };
  const props = { request, isBusy, draft, setDraft, hasKeys };
  const isOpen = request.state === "open";
  return html`<section class="request" aria-label=${headline(request)} data-request=${request.id}>
    <h2 class="request-title" dir="auto">${headline(request)}</h2>
    ${request.kind === "approval" && html`<${Arguments} request=${request} />`}
    ${isOpen && request.may_decide && request.kind === "approval" &&
    html`<${ApprovalForm} ...${props} approve=${(/** @type {any} */ how) => finish(() => approve(request, how))}
      deny=${(/** @type {string} */ reason) => finish(() => deny(request, reason))}
      edit=${(/** @type {any} */ args) => finish(() => approveEdited(request, args))} />`}
    ${isOpen && request.may_decide && request.kind === "input" &&
    html`<${AnswerForm} ...${props} answer=${(/** @type {any} */ given) => finish(() => answer(request, given))} />`}
    ${isOpen && request.may_decide && request.kind === "budget" &&
    html`<${BudgetForm} ...${props} raise=${(/** @type {number} */ total) => finish(() => raise(request, total))} />`}
    ${isOpen && !request.may_decide && html`<p class="note">${waitsFor(request)}</p>`}
    ${!isOpen && html`<p class="outcome"><${Badge} tone=${request.decision === "deny" || request.decision === "expired" ? "bad" : "ok"}>
      ${request.decision ?? "closed"}<//> ${outcome(request, signIn.value?.user_id)}
      ${request.decided_by && html` <${Ago} at=${request.decided_by.at} />`}</p>`}
  </section>`;
}

/** @param {Request} request */
function waitsFor(request) {
  if (request.four_eyes && request.user_id === signIn.value?.user_id)
    return "Another person has to decide, because the call was made for you.";
  if (request.kind === "input") return `It waits for an answer from ${request.user_id ?? "its user"}.`;
  const names = request.approver.map((each) => each.replace("owner", "its user").replace("scope:", "people with the scope ").replace("role:", "the role "));
  return `It waits for ${names.join(" or ") || "people with the scope approve"}.`;
}

/** @param {{request: Request}} props */
function Arguments({ request }) {
  if (request.edited_args) return html`<${ArgsDiff} before=${request.args} after=${request.edited_args} />`;
  return html`<${Value} value=${request.args} />`;
}
