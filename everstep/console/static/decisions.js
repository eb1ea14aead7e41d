/** Decisions of people: approvals, answers and raised budgets. Of two people, the first one decides. */

import { get, newKey, post, Problem } from "./api.js";
import { readInbox } from "./inbox.js";

/** @typedef {import("./inbox.js").Request} Request */
/** @typedef {{[name: string]: any}} Json */
/**
 * @typedef {object} Decided
 * @property {Request | null} request as it is now; null if it cannot be read any more
 * @property {boolean} isMine whether this decision counted
 */

/** The name of each decision, so that sending it again after a crash of the page decides once.
 * @type {Map<string, string>} */
const keys = new Map();

/** @param {string} path @param {Json} body */
function keyOf(path, body) {
  const name = `${path} ${JSON.stringify(body)}`;
  const key = keys.get(name) ?? newKey();
  keys.set(name, key);
  return key;
}

/** @param {Request} request @param {string} path @param {Json} body @returns {Promise<Decided>} */
async function decide(request, path, body) {
  try {
    const decided = await post(path, body, keyOf(path, body));
    return { request: decided.kind ? decided : await readRequest(request.id), isMine: true };
  } catch (error) {
    // Someone else was first, or the execution ended: what holds now is in the request.
    if (!(error instanceof Problem) || error.status !== 409) throw error;
    const now = await readRequest(request.id);
    if (now?.state === "open") throw error;
    return { request: now, isMine: false };
  } finally {
    void readInbox();
  }
}

/** @param {string} id @returns {Promise<Request | null>} */
export async function readRequest(id) {
  try {
    return await get(`agent/requests/${id}`);
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  }
}

/** @param {Request} request @param {{remember?: true | {[name: string]: string}}} [how] */
export function approve(request, { remember } = {}) {
  const body = { decision: "approve", args_digest: request.args_digest, ...(remember && { remember }) };
  return decide(request, approvalPath(request), body);
}

/** @param {Request} request @param {string} reason */
export function deny(request, reason) {
  const body = { decision: "deny", args_digest: request.args_digest, ...(reason.trim() && { reason: reason.trim() }) };
  return decide(request, approvalPath(request), body);
}

/** @param {Request} request @param {Json} args */
export function approveEdited(request, args) {
  return decide(request, approvalPath(request), { decision: "edit", args_digest: request.args_digest, args });
}

/** @param {Request} request @param {{text?: string, data?: unknown}} answer */
export function answer(request, answer) {
  return decide(request, `agent/executions/${request.execution_id}/input`, { ...answer, request_id: request.id });
}

/** @param {Request} request @param {number} total */
export function raise(request, total) {
  const { unit, scope } = request.request;
  return decide(request, `agent/executions/${request.execution_id}/budget`, { [unit]: total, scope });
}

/** @param {Request} request */
function approvalPath(request) {
  return `agent/executions/${request.execution_id}/approvals/${request.id}`;
}

const DONE = /** @type {Record<string, string>} */ ({
  approve: "approved it",
  deny: "denied it",
  edit: "approved it with other arguments",
  answer: "answered it",
  raise: "raised the budget",
});

/** What was decided, and by whom, as a sentence. @param {Request} request @param {string | null | undefined} me */
export function outcome(request, me) {
  if (request.state === "open") return "It is still open.";
  if (request.decision === "expired") return "It expired before anyone decided.";
  const who = request.decided_by ? (request.decided_by.subject === me ? "You" : request.decided_by.subject) : "Someone";
  const done = DONE[request.decision ?? ""] ?? "closed it";
  return request.reason ? `${who} ${done}: ${request.reason}` : `${who} ${done}.`;
}

/** Which later calls an approval is valid for, as a sentence. @param {Request} request
 * @param {true | {[name: string]: string} | undefined} remember */
export function rememberSentence(request, remember) {
  if (!remember) return "Only this call is approved. The next one asks again.";
  if (remember === true) return `Every later call of ${request.tool} in this execution is approved without asking.`;
  const conditions = Object.entries(remember).map(([name, glob]) => `${name} matches “${glob}”`);
  return `Later calls of ${request.tool} in this execution are approved without asking if ${conditions.join(" and ")}.`;
}
