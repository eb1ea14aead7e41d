/** The program: who is signed in, the navigation, and the screen that the address names. */

import { away } from "./api.js";
import { openRequests, readInbox } from "./inbox.js";
import { startKeys, useKeys } from "./keys.js";
import { html, render, useEffect, useState } from "./lib.js";
import { close as closeLive } from "./live.js";
import { usePoll } from "./load.js";
import { Icon } from "./parts/icons.js";
import { KeyList } from "./parts/key_list.js";
import { NoticeList } from "./parts/notice_list.js";
import { Failure, Loading } from "./parts/page.js";
import { SignInAgain, SignInPage } from "./parts/sign_in_form.js";
import { SignInsDialog } from "./parts/sign_ins_dialog.js";
import { go, href, match, startRouter } from "./router.js";
import { NAV } from "./routes.js";
import { signIn, signOut, startSignIn } from "./sign_in.js";
import { nextTheme, theme } from "./theme.js";

const INBOX_EVERY = 2500;

/** @type {Map<string, import("./routes.js").ScreenModule>} */
const loaded = new Map();

/** @param {string} name @returns {{module?: import("./routes.js").ScreenModule, error?: string}} */
function useScreen(name) {
  const [, setVersion] = useState(0);
  const [error, setError] = useState(/** @type {string | undefined} */ (undefined));
  useEffect(() => {
    if (!name || loaded.has(name)) return;
    setError(undefined);
    import(`./screens/${name}.js`).then(
      (module) => {
        loaded.set(name, module);
        setVersion((version) => version + 1);
      },
      (reason) => setError(`This screen cannot be loaded: ${reason.message ?? reason}.`),
    );
  }, [name]);
  return { module: loaded.get(name), error };
}

function Screen() {
  const found = match.value;
  const { module, error } = useScreen(found?.route.screen ?? "");
  const title = module && (typeof module.title === "function" ? module.title(found?.params ?? {}) : module.title);
  useEffect(() => {
    document.title = title ? `${title} · Everstep` : "Everstep";
  }, [title]);
  if (!found)
    return html`<${Failure} error="This page does not exist. Choose one in the navigation." />`;
  if (error) return html`<${Failure} error=${error} retry=${() => location.reload()} />`;
  if (!module) return html`<${Loading} />`;
  return html`<${module.default} key=${JSON.stringify([found.route.screen, found.params])} params=${found.params} />`;
}

/** @param {{showKeys: () => void, showSignIns: () => void}} props */
function Navigation({ showKeys, showSignIns }) {
  const current = match.value?.route.nav;
  const many = openRequests.value?.filter((each) => each.may_decide).length ?? 0;
  const themes = { system: "screen", light: "sun", dark: "moon" };
  return html`<nav class="nav" aria-label="Main">
    <a class="brand" href=${href("")}><img src=${href("static/icon.svg")} alt="" width="22" height="22" />Everstep</a>
    <ul>
      ${NAV.map(
        ({ id, to, label, icon }) => html`<li>
          <a href=${href(to)} aria-current=${current === id ? "page" : undefined}>
            <${Icon} name=${icon} /><span class="label">${label}</span>
            ${id === "inbox" && many > 0 && html`<span class="count" aria-label=${`${many} open`}>${many}</span>`}
          </a>
        </li>`,
      )}
    </ul>
    <div class="nav-foot">
      <button class="ghost" onClick=${nextTheme} title=${`Theme: ${theme.value}`} aria-label=${`Theme: ${theme.value}`}>
        <${Icon} name=${themes[theme.value]} />
      </button>
      <button class="ghost" onClick=${showKeys} title="Keys (?)" aria-label="Keys"><${Icon} name="question" /></button>
      ${signIn.value?.required &&
      html`<button class="ghost" onClick=${() => signOut().then(closeLive)} title="Sign out" aria-label="Sign out">
        <${Icon} name="leave" />
      </button>`}
      ${signIn.value?.required
        ? html`<button class="ghost who" onClick=${showSignIns} title="Your browsers">${signIn.value.user_id}</button>`
        : html`<span class="who" title=${signIn.value?.scopes.join(" ")}>${signIn.value?.user_id}</span>`}
    </div>
  </nav>`;
}

function Console() {
  const [hasKeys, setKeys] = useState(false);
  const [hasSignIns, setSignIns] = useState(false);
  useEffect(() => void readInbox(), []);
  usePoll(readInbox, INBOX_EVERY);
  useKeys([
    ...NAV.map(({ to, label, key }) => ({ keys: `g ${key}`, label, run: () => go(to), group: "Everywhere" })),
    { keys: "?", label: "Show keyboard shortcuts", run: () => setKeys(true), group: "Everywhere" },
    { keys: "t", label: "Change the theme", run: nextTheme, group: "Everywhere" },
  ]);
  return html`<div class="app">
    <a class="skip" href="#main" onClick=${focusMain}>Skip to content</a>
    <${Navigation} showKeys=${() => setKeys(true)} showSignIns=${() => setSignIns(true)} />
    <main id="main" tabindex="-1">
      ${away.value &&
      html`<p class="away" role="alert">${away.value}. This page shows the last data that it received, and keeps trying.</p>`}
      <${Screen} />
    </main>
    <${NoticeList} />
    <${SignInAgain} />
    ${hasKeys && html`<${KeyList} close=${() => setKeys(false)} />`}
    ${hasSignIns && html`<${SignInsDialog} close=${() => setSignIns(false)} />`}
  </div>`;
}

/** @param {Event} event */
function focusMain(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

/** @param {{failure: string | null}} props */
function Root({ failure }) {
  return signIn.value?.signed_in ? html`<${Console} />` : html`<${SignInPage} failure=${failure} />`;
}

async function start() {
  const root = /** @type {HTMLElement} */ (document.getElementById("app"));
  let failure = null;
  try {
    failure = await startSignIn();
  } catch (error) {
    render(html`<${Failure} error=${String(error)} retry=${() => location.reload()} />`, root);
    return;
  }
  // Its relative address would be resolved again at each address that the router shows.
  const icon = /** @type {HTMLLinkElement} */ (document.querySelector("link[rel=icon]"));
  icon.href = href("static/icon.svg");
  startRouter();
  startKeys();
  render(html`<${Root} failure=${failure} />`, root);
}

void start();
