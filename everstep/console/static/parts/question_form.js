/** Answers to questions (a choice, a form or a text), and a new total for an exhausted budget. */

import { useKeys } from "../keys.js";
import { html, useId } from "../lib.js";
import { fieldsOf, parse, SchemaForm, textsOf } from "./schema_form.js";

/** @typedef {import("../inbox.js").Request} Request */
/** @typedef {{text?: string, texts?: {[name: string]: string}} | null} Draft */
/** @typedef {{request: Request, isBusy: boolean, draft: Draft, setDraft: (draft: Draft) => void, hasKeys: boolean}} Shared */

/** @param {Shared & {answer: (given: {text?: string, data?: any}) => void}} props */
export function AnswerForm(props) {
  const { choices, schema } = props.request.request;
  if (choices?.length) return html`<${Choices} ...${props} choices=${choices} />`;
  if (schema?.properties) return html`<${FormAnswer} ...${props} schema=${schema} />`;
  return html`<${TextAnswer} ...${props} />`;
}

/** @param {Shared & {answer: (given: {text?: string}) => void, choices: string[]}} props */
function Choices({ choices, isBusy, hasKeys, answer }) {
  useKeys(
    hasKeys
      ? choices.slice(0, 9).map((choice, index) => ({ keys: String(index + 1), label: choice, run: () => !isBusy && answer({ text: choice }) }))
      : [],
  );
  return html`<div class="buttons" role="group" aria-label="Answers">
    ${choices.map(
      (choice, index) => html`<button key=${choice} disabled=${isBusy} onClick=${() => answer({ text: choice })}>
        <span dir="auto">${choice}</span>${hasKeys && index < 9 && html`<kbd>${index + 1}</kbd>`}
      </button>`,
    )}
  </div>`;
}

/** @param {Shared & {answer: (given: {data?: any}) => void, schema: any}} props */
function FormAnswer({ draft, setDraft, isBusy, answer, schema }) {
  const fields = fieldsOf(schema);
  const texts = draft?.texts ?? textsOf(fields, {});
  const { values, errors } = parse(fields, texts);
  const isReady = Object.keys(errors).length === 0;
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (isReady && !isBusy) answer({ data: values });
  };
  // What is missing is said once something was typed.
  return html`<form class="decide" onSubmit=${submit}>
    <${SchemaForm} fields=${fields} texts=${texts} errors=${draft ? errors : {}} change=${(/** @type {any} */ next) => setDraft({ texts: next })} />
    <div class="buttons"><button class="primary" disabled=${!isReady || isBusy}>Answer</button></div>
  </form>`;
}

/** @param {Shared & {answer: (given: {text?: string}) => void}} props */
function TextAnswer({ draft, setDraft, isBusy, answer }) {
  const id = useId();
  const text = draft?.text ?? "";
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (text.trim() && !isBusy) answer({ text });
  };
  return html`<form class="decide" onSubmit=${submit}>
    <label class="field" for=${id}><span>Your answer</span></label>
    <textarea id=${id} rows="3" dir="auto" value=${text} onInput=${(/** @type {any} */ event) => setDraft({ text: event.currentTarget.value })}
      onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && submit(event)}></textarea>
    <div class="buttons"><button class="primary" disabled=${!text.trim() || isBusy}>Answer</button></div>
  </form>`;
}

/** @param {Shared & {raise: (total: number) => void}} props */
export function BudgetForm({ request, draft, setDraft, isBusy, raise }) {
  const id = useId();
  const { unit, limit, spent, needed } = request.request;
  const text = draft?.text ?? "";
  const total = Number(text);
  const isReady = text.trim() !== "" && total > limit;
  const name = unit === "usd" ? "US dollars" : unit;
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (isReady && !isBusy) raise(total);
  };
  return html`<form class="decide" onSubmit=${submit}>
    <p class="note">The next model call may need up to ${needed} ${name}. Raise the total to let the execution continue.</p>
    <label class="field" for=${id}><span>New total in ${name}, above ${limit} (${spent} spent)</span></label>
    <div class="buttons">
      <input id=${id} inputmode="decimal" value=${text} onInput=${(/** @type {any} */ event) => setDraft({ text: event.currentTarget.value })} />
      <button class="primary" disabled=${!isReady || isBusy}>Raise</button>
    </div>
  </form>`;
}
