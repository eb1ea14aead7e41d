/** The field for words of messages. What is typed is searched after a pause, or at once with Enter. */

import { useKeys } from "../keys.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { query, setQuery } from "../router.js";

const PAUSE = 350;
const HELP = 'All of these words. "a phrase", -without, one OR other, prefix*';

export function SearchField() {
  const sought = query.value.get("q") ?? "";
  const [text, setText] = useState(sought);
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const waiting = useRef(/** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined));
  const search = (/** @type {string} */ words) => {
    clearTimeout(waiting.current);
    setQuery({ q: words.trim() || null });
  };
  const onInput = (/** @type {any} */ event) => {
    const words = event.currentTarget.value;
    setText(words);
    clearTimeout(waiting.current);
    waiting.current = setTimeout(() => search(words), PAUSE);
  };
  // The address may change by itself: a saved filter, or the browser's history.
  useEffect(() => {
    if (sought !== text.trim()) setText(sought);
  }, [sought]);
  useEffect(() => () => clearTimeout(waiting.current), []);
  useKeys([{ keys: "/", label: "Search", run: () => field.current?.focus() }]);
  return html`<form class="search-field" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), search(text))}>
    <input type="search" ref=${field} maxlength="500" placeholder="Search messages, calls and results" aria-label="Search messages, calls and results"
      title=${HELP} value=${text} onInput=${onInput} />
  </form>`;
}
