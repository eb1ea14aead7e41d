/** Where people write to a session: send, steer, interrupt or queue, with files. */

import { apiUrl, get, newKey, post, Problem, sentence } from "../api.js";
import { useDraft } from "../drafts.js";
import { count } from "../format.js";
import { openRequests } from "../inbox.js";
import { useKeys } from "../keys.js";
import { html, useRef, useState } from "../lib.js";
import { useLoad } from "../load.js";
import { done, failed } from "../notices.js";
import { Icon } from "./icons.js";

/** @typedef {{id: string, name: string}} Stored */
/** @typedef {{text: string, files: Stored[], key: string}} Draft */

/** The API accepts messages up to this length. */
const MOST = 200_000;

const WAYS = {
  enqueue: ["Queue", "The message starts the next execution, after this one has ended."],
  steer: ["Tell the agent now", "The agent reads it before its next step, and continues."],
  interrupt: ["Cancel and start again", "The running execution is cancelled, and this message starts the next one."],
};

const WAYS_OF_ANSWERS = {
  enqueue: ["Answer", "The message answers the open question, and the execution continues."],
  interrupt: WAYS.interrupt,
};

/** @param {{session: {[name: string]: any}, running: {[name: string]: any} | undefined, mayCancel: boolean, sent: () => void}} props */
export function Composer({ session, running, mayCancel, sent }) {
  const [draft, setDraft] = useDraft(`session.${session.id}`, /** @type {Draft} */ ({ text: "", files: [], key: "" }));
  const [chosen, setWay] = useState(/** @type {keyof typeof WAYS} */ ("enqueue"));
  const [agent, setAgent] = useState(/** @type {string} */ (session.agent ?? ""));
  const { data: agents } = useLoad((signal) => get("agent/agents", {}, signal), []);
  const isAsked = openRequests.value?.some((each) => each.kind === "input" && each.session_id === session.id) ?? false;
  /** @type {{[name: string]: string[]}} */
  const ways = isAsked ? WAYS_OF_ANSWERS : WAYS;
  const way = chosen in ways ? chosen : "enqueue";
  const [isBusy, setBusy] = useState(false);
  const [cancelled, setCancelled] = useState(/** @type {string | undefined} */ (undefined));
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const picker = useRef(/** @type {HTMLInputElement | null} */ (null));
  const change = (/** @type {Partial<Draft>} */ changes) => setDraft({ ...draft, key: draft.key || newKey(), ...changes });
  useKeys([{ keys: "i", label: "Write a message", run: () => field.current?.focus() }]);

  const send = async () => {
    if (isBusy || isTooLong || isEmpty) return;
    setBusy(true);
    try {
      const body = {
        content: draft.text,
        on_busy: running ? way : "enqueue",
        // A message to the running execution is read by its agent.
        ...(agent && agent !== session.agent && !(running && way === "steer") && { agent }),
        ...(draft.files.length && { attachments: draft.files.map((each) => each.id) }),
      };
      // The key belongs to the text: sent again after a crash, it arrives once.
      const { route } = await post(`agent/sessions/${session.id}/messages`, body, draft.key || newKey());
      setDraft({ text: "", files: [], key: "" });
      if (route === "answer") done("Your message answered the open question.");
      sent();
    } catch (error) {
      // A key that was used for another text gets a new one.
      if (error instanceof Problem && error.type.endsWith("key-reused")) change({ key: newKey() });
      failed(sentence(error));
    } finally {
      setBusy(false);
      field.current?.focus();
    }
  };
  const cancel = async () => {
    const id = running?.id;
    setCancelled(id);
    try {
      await post(`agent/executions/${id}/cancel`);
    } catch (error) {
      // It has ended in the meantime, which this page does not show yet.
      if (error instanceof Problem && error.status === 409) return;
      setCancelled(undefined);
      failed(sentence(error));
    }
  };
  const upload = async (/** @type {FileList | null} */ files) => {
    let all = draft.files;
    for (const file of files ?? []) {
      try {
        const url = new URL(apiUrl("agent/attachments", { name: file.name }));
        const stored = await post(`agent/attachments${url.search}`, file);
        all = [...all, { id: stored.id, name: stored.name }];
        change({ files: all });
      } catch (error) {
        failed(`${file.name}: ${sentence(error)}`);
      }
    }
  };
  const attachText = async () => {
    const file = new File([draft.text], "message.txt", { type: "text/plain" });
    try {
      const stored = await post(`agent/attachments?name=${file.name}`, file);
      setDraft({ text: "", files: [...draft.files, { id: stored.id, name: stored.name }], key: newKey() });
    } catch (error) {
      failed(sentence(error));
    }
  };
  const isTooLong = draft.text.length > MOST;
  const isEmpty = !draft.text.trim() && draft.files.length === 0;
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      void send();
    }
    if (event.key === "Escape") field.current?.blur();
  };
  return html`<form class="composer" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), void send())}>
    ${draft.files.length > 0 &&
    html`<ul class="attachments">${draft.files.map(
      (each) => html`<li key=${each.id}>${each.name}<button type="button" class="ghost" aria-label=${`Remove ${each.name}`}
        onClick=${() => change({ files: draft.files.filter((other) => other.id !== each.id) })}><${Icon} name="cross" size=${12} /></button></li>`,
    )}</ul>`}
    <textarea ref=${field} rows=${Math.min(10, Math.max(2, draft.text.split("\n").length))} dir="auto" aria-label="Message"
      placeholder=${session.status === "active" ? "Write a message. Enter sends it, Shift+Enter starts a new line." : `The session is ${session.status}.`}
      disabled=${session.status !== "active"} value=${draft.text} onKeyDown=${onKeyDown}
      onInput=${(/** @type {any} */ event) => change({ text: event.currentTarget.value })}></textarea>
    ${isTooLong &&
    html`<p class="error" role="alert">The message has ${count(draft.text.length)} characters, and at most ${count(MOST)} can be sent.
      <button type="button" class="link" onClick=${attachText}>Attach it as a file</button></p>`}
    <div class="composer-foot">
      <input ref=${picker} type="file" multiple hidden onChange=${(/** @type {any} */ event) => void upload(event.currentTarget.files)} />
      <button type="button" class="ghost" title="Attach files" aria-label="Attach files" onClick=${() => picker.current?.click()}><${Icon} name="clip" /></button>
      ${running &&
      html`<label class="way"><span class="quiet">While it ${isAsked ? "waits" : "runs"}</span>
        <select value=${way} title=${ways[way][1]} onChange=${(/** @type {any} */ event) => setWay(event.currentTarget.value)}>
          ${Object.entries(ways).map(([name, [label]]) => html`<option value=${name}>${label}</option>`)}
        </select></label>`}
      ${agents?.items.length > 1 && !(running && way === "steer") &&
      html`<label class="way"><span class="quiet">To</span>
        <select aria-label="Agent" title="Which agent receives the message" onChange=${(/** @type {any} */ event) => setAgent(event.currentTarget.value)}>
          ${agents.items.map((/** @type {any} */ each) => html`<option value=${each.name} selected=${each.name === (agent || agents.default)}>${each.name}</option>`)}
        </select></label>`}
      <span class="fill"></span>
      ${running && mayCancel && html`<button type="button" class="danger" disabled=${running.id === cancelled} onClick=${cancel}>${running.id === cancelled ? "Cancelling…" : "Cancel the run"}</button>`}
      <button class="primary" disabled=${isBusy || isTooLong || isEmpty}>
        ${running ? ways[way][0] : "Send"}<${Icon} name="send" size=${14} />
      </button>
    </div>
  </form>`;
}
