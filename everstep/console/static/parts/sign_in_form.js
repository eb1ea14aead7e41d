/** The form with which people sign in: over the page when a session has expired, so that nothing typed is lost. */

import { html, useState } from "../lib.js";
import { expired, signIn, signInWithProvider, signInWithToken } from "../sign_in.js";
import { Dialog } from "./dialog.js";

/** @param {{failure?: string | null}} props */
export function SignInForm({ failure = null }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(failure);
  const [isBusy, setBusy] = useState(false);
  const provider = signIn.value?.provider;
  const attempt = async (/** @type {() => Promise<void>} */ work) => {
    setBusy(true);
    setError(null);
    try {
      await work();
    } catch (problem) {
      setError(problem instanceof Error ? problem.message : String(problem));
    } finally {
      setBusy(false);
    }
  };
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    if (token.trim()) void attempt(() => signInWithToken(token));
  };
  return html`<div class="sign-in">
    ${provider &&
    html`<button class="primary" disabled=${isBusy} onClick=${() => attempt(() => signInWithProvider(provider))}>
        Sign in with your organization
      </button>
      <p class="or">or</p>`}
    <form onSubmit=${submit}>
      <label for="token">Token or key</label>
      <input id="token" type="password" autocomplete="off" spellcheck=${false} value=${token}
        aria-describedby="token-help"
        onInput=${(/** @type {any} */ event) => setToken(event.currentTarget.value)} />
      <p class="note" id="token-help">
        <code>everstep up</code> prints a link that signs you in, and a token. <code>everstep console</code> prints a new
        link.
      </p>
      ${error && html`<p class="error" role="alert">${error}</p>`}
      <button class=${provider ? "" : "primary"} disabled=${isBusy || !token.trim()}>Sign in</button>
    </form>
  </div>`;
}

/** The whole page, while no one is signed in. @param {{failure: string | null}} props */
export function SignInPage({ failure }) {
  return html`<main class="sign-in-page">
    <h1>Everstep</h1>
    <p class="note">Sign in to see your agents at work.</p>
    <${SignInForm} failure=${failure} />
  </main>`;
}

/** The form over the page. */
export function SignInAgain() {
  if (expired.value === null) return null;
  return html`<${Dialog} title="Sign in again">
    <p class="note">Your session has ended. What you typed is still here, and is sent once you have signed in.</p>
    <${SignInForm} />
  <//>`;
}
