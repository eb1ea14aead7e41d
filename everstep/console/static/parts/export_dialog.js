/** An execution as a test: the files to save, the secrets that were replaced, and the command that runs it. */

import { get } from "../api.js";
import { plural } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { useLoad } from "../load.js";
import { Dialog } from "./dialog.js";
import { Icon } from "./icons.js";
import { Loading } from "./page.js";

/** @typedef {{name: string, content: string}} ExportedFile */

/** @param {{execution: string, close: () => void}} props */
export function ExportDialog({ execution, close }) {
  const { data, error } = useLoad((signal) => get(`agent/executions/${execution}/export`, { as: "test" }, signal), [execution]);
  return html`<${Dialog} title="Save as a test" close=${close} wide>
    <p class="note">The test repeats this execution without a model, tools or servers, and fails when a change makes the agent act differently.</p>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${!data && !error && html`<${Loading} label="Reading the execution" />`}
    ${data && html`<${Files} files=${data.files} redacted=${data.redacted} notes=${data.notes} />`}
  <//>`;
}

/** @param {{files: ExportedFile[], redacted: {place: string, count: number}[], notes: string[]}} props */
function Files({ files, redacted, notes }) {
  const test = files.find((each) => each.name.endsWith(".py"));
  return html`<div class="stack">
    <ul class="attachments">${files.map((each) => html`<li key=${each.name}><${Download} file=${each} /></li>`)}</ul>
    ${test && html`<p>Save both files in one folder, such as <code>tests/runs</code>, and run:</p><pre class="code" tabindex="0">pytest tests/runs/${test.name}</pre>`}
    ${redacted.map((each) => html`<p class="note">${plural(each.count, "secret")} in ${each.place} replaced by <code>[redacted]</code>.</p>`)}
    ${notes.map((each) => html`<p class="note">${each}.</p>`)}
    ${test && html`<details><summary>${test.name}</summary><pre class="code" tabindex="0">${test.content}</pre></details>`}
  </div>`;
}

/** @param {{file: ExportedFile}} props */
function Download({ file }) {
  const [url, setUrl] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([file.content], { type: "text/plain" }));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [file]);
  return html`<a href=${url} download=${file.name}><${Icon} name="clip" size=${13} />${file.name}</a>`;
}
