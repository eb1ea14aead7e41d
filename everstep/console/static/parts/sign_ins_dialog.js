/** The sessions of a person in all browsers, to end those that should not be. */

import { get, remove, sentence } from "../api.js";
import { html } from "../lib.js";
import { close as closeLive } from "../live.js";
import { useLoad } from "../load.js";
import { failed } from "../notices.js";
import { signIn, signOut } from "../sign_in.js";
import { Dialog } from "./dialog.js";
import { Failure, Loading } from "./page.js";
import { Ago } from "./time.js";

/** @typedef {{id: string, user_agent: string | null, is_current: boolean, created_at: string}} Session */

/** What people call a browser that names itself like this. @param {string | null} agent */
function browserName(agent) {
  const browser = ["Edg", "OPR", "Firefox", "Chrome", "Safari"].find((name) => agent?.includes(`${name}/`));
  const system = ["Android", "iPhone", "iPad", "Windows", "Mac OS X", "Linux"].find((name) => agent?.includes(name));
  if (!browser) return agent?.split("/")[0] || "Unknown browser";
  const name = { Edg: "Edge", OPR: "Opera" }[browser] ?? browser;
  return system ? `${name} on ${system.replace("Mac OS X", "macOS")}` : name;
}

/** @param {{close: () => void}} props */
export function SignInsDialog({ close }) {
  const { user_id, scopes = [] } = signIn.value ?? {};
  const { data, error, isLoading, reload } = useLoad((signal) => get("agent/sign-ins", { user_id }, signal), [user_id]);
  const end = async (/** @type {Session} */ session) => {
    try {
      await remove(`agent/sign-ins/${session.id}`);
      reload();
    } catch (problem) {
      failed(sentence(problem));
    }
  };
  const everywhere = () =>
    signOut({ everywhere: true }).then(closeLive, (problem) => failed(problem instanceof Error ? problem.message : String(problem)));
  return html`<${Dialog} title=${`Signed in as ${user_id}`} close=${close}>
    <p class="note">${scopes.length > 0 ? html`With the scopes <code>${scopes.join(" ")}</code>.` : "Without scopes: you see what is yours."}</p>
    ${error && html`<${Failure} error=${error} retry=${reload} />`}
    ${isLoading && !data && html`<${Loading} />`}
    ${data &&
    html`<ul class="sign-ins" aria-label="Browsers">
      ${data.items.map(
        (/** @type {Session} */ each) => html`<li key=${each.id}>
          <span title=${each.user_agent}>${browserName(each.user_agent)}<span class="quiet"> · since <${Ago} at=${each.created_at} /></span></span>
          ${each.is_current
            ? html`<span class="quiet">this browser</span>`
            : html`<button class="ghost" disabled=${scopes.includes("read-only")} onClick=${() => end(each)}>End</button>`}
        </li>`,
      )}
    </ul>`}
    <footer><button onClick=${everywhere}>Sign out everywhere</button></footer>
  <//>`;
}
