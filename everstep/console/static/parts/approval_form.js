/** The ways to decide about a call: approve it, for later calls too, with other arguments, or deny it. */

import { get } from "../api.js";
import { rememberSentence } from "../decisions.js";
import { useKeys } from "../keys.js";
import { html, useEffect, useId, useRef, useState } from "../lib.js";
import { rights } from "../sign_in.js";
import { ArgsDiff, changedNames } from "./args_diff.js";
import { fieldsOf, parse, schemaOf, SchemaForm, textsOf } from "./schema_form.js";

/** @typedef {import("../inbox.js").Request} Request */
/** @typedef {{mode: "deny" | "edit", reason?: string, texts?: {[name: string]: string}} | null} Draft */
/** @typedef {true | {[name: string]: string} | undefined} Remember */
/**
 * @typedef {object} Props
 * @property {Request} request
 * @property {boolean} isBusy
 * @property {Draft} draft
 * @property {(draft: Draft) => void} setDraft
 * @property {boolean} hasKeys
 * @property {(how: {remember: Remember}) => void} approve
 * @property {(reason: string) => void} deny
 * @property {(args: {[name: string]: any}) => void} edit
 */

/** A glob that only this text matches. @param {string} text */
function exactGlob(text) {
  return text.replace(/[*?[]/g, "[$&]");
}

/** @param {Props} props */
export function ApprovalForm({ request, isBusy, draft, setDraft, hasKeys, approve, deny, edit }) {
  const [choice, setChoice] = useState("once");
  const id = useId();
  const texts = Object.entries(request.args).filter(([, value]) => typeof value === "string");
  const same = Object.fromEntries(texts.map(([name, value]) => [name, exactGlob(/** @type {string} */ (value))]));
  /** @type {Remember} */
  const remember = choice === "all" ? true : choice === "same" ? same : undefined;
  const isIdle = draft === null && !isBusy;
  const begin = (/** @type {"deny" | "edit"} */ mode) => setDraft({ mode });
  useKeys(
    hasKeys
      ? [
          { keys: "a", label: "Approve", run: () => isIdle && approve({ remember }) },
          { keys: "d", label: "Deny", run: () => isIdle && begin("deny") },
          { keys: "e", label: "Edit the arguments", run: () => isIdle && rights.value.mayEdit && begin("edit") },
          { keys: "Escape", label: "Cancel", run: () => draft && setDraft(null), inFields: true },
        ]
      : [],
  );
  if (draft?.mode === "deny")
    return html`<${DenyForm} reason=${draft.reason ?? ""} isBusy=${isBusy} change=${(/** @type {string} */ reason) => setDraft({ mode: "deny", reason })}
      deny=${deny} cancel=${() => setDraft(null)} />`;
  if (draft?.mode === "edit")
    return html`<${EditForm} request=${request} draft=${draft} setDraft=${setDraft} isBusy=${isBusy} edit=${edit} />`;
  return html`<div class="decide">
    <div class="buttons">
      <button class="primary" disabled=${isBusy} onClick=${() => approve({ remember })}>Approve${hasKeys && html`<kbd>a</kbd>`}</button>
      ${rights.value.mayEdit &&
      html`<button disabled=${isBusy} onClick=${() => begin("edit")}>Edit…${hasKeys && html`<kbd>e</kbd>`}</button>`}
      <button class="danger" disabled=${isBusy} onClick=${() => begin("deny")}>Deny…${hasKeys && html`<kbd>d</kbd>`}</button>
      <span class="remember"><label for=${id}>Later calls</label>
      <select id=${id} value=${choice} onChange=${(/** @type {any} */ event) => setChoice(event.currentTarget.value)}>
        <option value="once">ask again</option>
        ${texts.length > 0 && html`<option value="same">approve if the text arguments are the same</option>`}
        <option value="all">approve all calls of ${request.tool}</option>
      </select></span>
    </div>
    <p class="note" aria-live="polite">${rememberSentence(request, remember)}</p>
  </div>`;
}

/** @param {{reason: string, isBusy: boolean, change: (reason: string) => void, deny: (reason: string) => void, cancel: () => void}} props */
function DenyForm({ reason, isBusy, change, deny, cancel }) {
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useEffect(() => field.current?.focus(), []);
  return html`<form class="decide" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), deny(reason))}>
    <label class="field">
      <span>Reason, which the agent reads</span>
      <textarea ref=${field} rows="2" dir="auto" value=${reason} onInput=${(/** @type {any} */ event) => change(event.currentTarget.value)}
        onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && deny(reason)}></textarea>
    </label>
    <div class="buttons">
      <button class="primary" disabled=${isBusy}>Deny</button>
      <button type="button" onClick=${cancel}>Cancel</button>
    </div>
  </form>`;
}

/** @type {Map<string, Promise<any>>} */
const agents = new Map();

/** The schema of the call's tool, if the agent's definition has it. @param {Request} request */
function useToolSchema(request) {
  const [schema, setSchema] = useState(/** @type {any} */ (undefined));
  useEffect(() => {
    let isCurrent = true;
    const reading = agents.get(request.agent) ?? get(`agent/agents/${encodeURIComponent(request.agent)}`);
    agents.set(request.agent, reading);
    reading.then(
      (agent) => {
        const tool = agent.tool_details.find((/** @type {any} */ each) => each.name === request.tool);
        if (isCurrent) setSchema(tool?.schema ?? null);
      },
      () => {
        // Not an agent of this API: the arguments themselves say which fields there are.
        agents.delete(request.agent);
        if (isCurrent) setSchema(null);
      },
    );
    return () => void (isCurrent = false);
  }, [request.agent, request.tool]);
  return schema;
}

/** @param {{request: Request, draft: Exclude<Draft, null>, setDraft: (draft: Draft) => void, isBusy: boolean, edit: (args: any) => void}} props */
function EditForm({ request, draft, setDraft, isBusy, edit }) {
  const known = useToolSchema(request);
  const form = useRef(/** @type {HTMLFormElement | null} */ (null));
  useEffect(() => {
    if (known !== undefined) /** @type {HTMLElement | null} */ (form.current?.querySelector("input, textarea, select"))?.focus();
  }, [known === undefined]);
  if (known === undefined) return html`<p class="note" role="status">Loading the tool's schema…</p>`;
  const fields = fieldsOf(known ?? schemaOf(request.args), request.args);
  const texts = draft.texts ?? textsOf(fields, request.args);
  const { values, errors } = parse(fields, texts);
  const isReady = Object.keys(errors).length === 0 && changedNames(request.args, values).length > 0;
  const submit = () => isReady && !isBusy && edit(values);
  return html`<form ref=${form} class="decide" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), submit())}>
    <${SchemaForm} fields=${fields} texts=${texts} errors=${errors} change=${(/** @type {any} */ next) => setDraft({ mode: "edit", texts: next })} />
    <${ArgsDiff} before=${request.args} after=${values} />
    <div class="buttons">
      <button class="primary" disabled=${!isReady || isBusy}>Approve with these arguments</button>
      <button type="button" onClick=${() => setDraft(null)}>Cancel</button>
    </div>
  </form>`;
}
