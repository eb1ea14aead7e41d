/**
 * Who is signed in. A session has two secrets: a cookie that programs of the page cannot read, but that browsers send
 * to every port of this host, and a page key that only pages of this origin can read. A link of `everstep up` has a
 * one-time code in its fragment, which only the page sees, and which the page exchanges for both.
 */

import { computed, signal } from "./lib.js";
import { API, CONSOLE } from "./places.js";

/** @typedef {{authorization_endpoint: string | null, client_id: string, scope: string}} Provider */
/**
 * @typedef {object} SignIn
 * @property {boolean} signed_in
 * @property {string | null} user_id
 * @property {string | null} tenant_id
 * @property {string[]} scopes
 * @property {string | null} expires_at
 * @property {string | null} page_key
 * @property {boolean} required
 * @property {Provider | null} provider
 * @property {string | null} temporal_workflows_url
 */

/** @type {import("@preact/signals").Signal<SignIn | null>} */
export const signIn = signal(null);
/** Why the sign-in form is shown over the page; null while it is not. @type {import("@preact/signals").Signal<string | null>} */
export const expired = signal(null);

/** Where the page key is kept: a host can have several consoles, each below its own path. */
const PAGE_KEY = `everstep.page-key.${API.pathname}`;
/** The page key where the browser has no storage. @type {string | null} */
let pageKey = null;

/** The headers that name the session. @returns {Record<string, string>} */
export function sessionHeaders() {
  let key = pageKey;
  try {
    key = localStorage.getItem(PAGE_KEY) ?? key;
  } catch {
    // A browser without storage keeps it until the page is closed.
  }
  return key ? { "Everstep-Page-Key": key } : {};
}

/** @param {string | null} key */
function keepPageKey(key) {
  pageKey = key;
  try {
    if (key) localStorage.setItem(PAGE_KEY, key);
    else localStorage.removeItem(PAGE_KEY);
  } catch {
    // As above.
  }
}

/** What the person may do: what is not allowed is not offered. */
export const rights = computed(() => {
  const scopes = new Set(signIn.value?.scopes ?? []);
  const mayWrite = !scopes.has("read-only");
  return {
    mayWrite,
    seesAll: scopes.has("sessions:all"),
    seesInstallation: scopes.has("admin"),
    mayApprove: mayWrite && scopes.has("approve"),
    mayEdit: mayWrite && scopes.has("approve:edit"),
    /** Whether they may steer or cancel an execution of this user. @param {string | null} owner @param {string} scope */
    mayCommand: (owner, scope) =>
      mayWrite && (owner === signIn.value?.user_id || scopes.has("sessions:all") || scopes.has(scope)),
  };
});

/** @type {((signedIn: SignIn) => void)[]} */
let waiting = [];

/** Show the form, and wait until someone has signed in. @param {string} why @returns {Promise<void>} */
export function sessionExpired(why) {
  expired.value ??= why;
  return new Promise((resolve) => waiting.push(() => resolve()));
}

/** @param {string} method @param {string} path @param {unknown} [body] @returns {Promise<SignIn>} */
async function exchange(method, path, body) {
  const headers = sessionHeaders();
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, API), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
    });
  } catch {
    throw new Error("The API does not answer. Check the connection, and try again.");
  }
  const document = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(document.detail ? `${document.detail}.` : `The server responded with status ${response.status}.`);
  return document;
}

/** @param {SignIn} signedIn */
function accept(signedIn) {
  if (signedIn.page_key) keepPageKey(signedIn.page_key);
  const before = signIn.value;
  if (before?.signed_in && signedIn.signed_in && (before.user_id !== signedIn.user_id || before.tenant_id !== signedIn.tenant_id)) {
    // Someone else has signed in: what the one before them wanted to send is not sent in their name.
    location.reload();
    return;
  }
  signIn.value = signedIn;
  if (!signedIn.signed_in) return;
  expired.value = null;
  const resolved = waiting;
  waiting = [];
  resolved.forEach((resolve) => resolve(signedIn));
}

/** Read who is signed in, after exchanging the code of a link or the answer of an identity provider.
 * @returns {Promise<string | null>} why that failed */
export async function startSignIn() {
  let failure = null;
  try {
    const code = new URLSearchParams(location.hash.slice(1)).get("code");
    if (code) {
      // Out of the address bar and the history before anything else.
      history.replaceState(null, "", location.pathname + location.search);
      accept(await exchange("POST", "sign-in", { code }));
      return null;
    }
    const answer = takeProviderAnswer();
    if (answer) {
      accept(await exchange("POST", "sign-in", { provider: answer }));
      return null;
    }
  } catch (error) {
    failure = error instanceof Error ? error.message : String(error);
  }
  accept(await exchange("GET", "sign-in"));
  return failure;
}

/** Sign in with a token or a key. @param {string} token */
export async function signInWithToken(token) {
  accept(await exchange("POST", "sign-in", { token: token.trim() }));
}

/** Sign out here or everywhere, and forget what this browser kept. @param {{everywhere?: boolean}} [how] */
export async function signOut(how = {}) {
  const signedOut = await exchange("POST", "sign-out", how);
  keepPageKey(null);
  for (const name of Object.keys(localStorage)) if (name.startsWith("everstep.draft.")) localStorage.removeItem(name);
  signIn.value = signedOut;
}

const STATE = "everstep.provider";

/** @param {Uint8Array} bytes */
function base64url(bytes) {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Where the identity provider sends people back to. */
function callback() {
  return new URL("signed-in", CONSOLE).href;
}

/** Go to the identity provider: authorization code with PKCE. @param {Provider} provider */
export async function signInWithProvider({ authorization_endpoint, client_id, scope }) {
  if (!authorization_endpoint) throw new Error("The identity provider does not answer. Reload the page in a moment, or sign in with a token.");
  if (!crypto.subtle) throw new Error("Signing in with an identity provider needs https. Open the console over https.");
  const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));
  const [state, verifier] = [random(), random()];
  const challenge = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const back = location.pathname + location.search;
  sessionStorage.setItem(STATE, JSON.stringify({ state, verifier, back }));
  const url = new URL(authorization_endpoint);
  for (const [name, value] of Object.entries({
    response_type: "code",
    client_id,
    scope,
    state,
    redirect_uri: callback(),
    code_challenge: base64url(new Uint8Array(challenge)),
    code_challenge_method: "S256",
  }))
    url.searchParams.set(name, value);
  location.assign(url);
}

/** What the identity provider sent back with the person, if it did. */
function takeProviderAnswer() {
  if (location.href.split(/[?#]/)[0] !== callback()) return null;
  const answer = new URLSearchParams(location.search);
  const kept = JSON.parse(sessionStorage.getItem(STATE) ?? "null");
  sessionStorage.removeItem(STATE);
  history.replaceState(null, "", kept?.back ?? CONSOLE.pathname);
  if (answer.has("error")) throw new Error(`The identity provider refused the sign-in: ${answer.get("error_description") ?? answer.get("error")}.`);
  if (!kept || answer.get("state") !== kept.state) throw new Error("This sign-in was not started in this browser. Sign in again.");
  return { code: answer.get("code") ?? "", verifier: kept.verifier, redirect_uri: callback() };
}
