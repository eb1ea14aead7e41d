/**
 * Markdown of models and people, as elements. The parser gives tokens, and each kind of token has an element here:
 * text never becomes HTML, so nothing in a message can run, load or look like a part of the page.
 */

import { Lexer } from "marked";
import { html, useMemo } from "../lib.js";

/** @typedef {any} Token */

/** Characters after which a message is shown as plain text at first: parsing more would hold up the page. */
const MOST = 60_000;
/** Marks of emphasis, after which a message is shown as plain text: the parser's time grows with their square. */
const MOST_MARKS = 5_000;
/** Levels of quotes and lists, after which a message is shown as plain text: each is a level of calls. */
const DEEPEST = 40;

const DEEP_LINE = new RegExp(`^(?:[ \\t]*(?:>|[-*+](?=[ \\t])|\\d{1,9}[.)](?=[ \\t]))){${DEEPEST + 1}}`, "m");

/** @param {{text: string}} props */
export function Markdown({ text }) {
  const tokens = useMemo(() => parse(text), [text]);
  if (!tokens) return html`<div class="markdown"><p class="value-text" dir="auto">${text}</p></div>`;
  return html`<div class="markdown">${blocks(tokens)}</div>`;
}

/** The tokens of a text, or null if it would hold up the page. @param {string} text @returns {Token[] | null} */
export function parse(text) {
  if (text.length > MOST || (text.match(/[_*]/g)?.length ?? 0) > MOST_MARKS || DEEP_LINE.test(text)) return null;
  const tokens = new Lexer({ gfm: true }).lex(text);
  if (isDeep(tokens)) return null;
  setLevels(tokens, []);
  return tokens;
}

/** Give headings levels below that of the page, none of which is skipped. @param {Token[]} tokens
 * @param {number[]} above the depths of the headings that contain the next one */
function setLevels(tokens, above) {
  for (const token of tokens) {
    if (token.type === "heading") {
      while (above.length > 0 && /** @type {number} */ (above.at(-1)) >= token.depth) above.pop();
      above.push(token.depth);
      token.level = Math.min(6, 1 + above.length);
    } else setLevels([...(token.tokens ?? []), ...(token.items ?? [])], above);
  }
}

/** @param {Token[]} tokens */
function isDeep(tokens) {
  let level = tokens;
  for (let depth = 0; level.length > 0; depth += 1) {
    if (depth > 2 * DEEPEST) return true;
    level = level.flatMap((each) => [each.tokens, each.items, each.header, ...(each.rows ?? [])].flatMap((some) => some ?? []));
  }
  return false;
}

/** @param {Token[]} tokens */
function blocks(tokens) {
  return tokens.map(block);
}

/** @param {Token} token @returns {any} */
function block(token) {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return html`<p class=${`heading h${token.depth}`} role="heading" aria-level=${token.level} dir="auto">${inlines(token.tokens)}</p>`;
    case "paragraph":
      return html`<p dir="auto">${inlines(token.tokens)}</p>`;
    case "code":
      return html`<pre tabindex="0" aria-label=${token.lang ? `Code in ${token.lang.split(/\s/)[0]}` : "Code"}><code>${token.text}</code></pre>`;
    case "blockquote":
      return html`<blockquote>${blocks(token.tokens)}</blockquote>`;
    case "hr":
      return html`<hr />`;
    case "list":
      return list(token);
    case "table":
      return table(token);
    case "text":
      return token.tokens ? inlines(token.tokens) : token.text;
    default:
      // HTML, and what a later version of the parser may know: as it was written.
      return html`<p class="value-text" dir="auto">${token.raw}</p>`;
  }
}

/** @param {Token} token */
function list(token) {
  const items = token.items.map(
    (/** @type {Token} */ item) => html`<li dir="auto">
      ${item.task && html`<input type="checkbox" disabled checked=${Boolean(item.checked)} aria-label=${item.checked ? "done" : "open"} /> `}
      ${blocks(item.tokens.filter((/** @type {Token} */ each) => each.type !== "checkbox"))}
    </li>`,
  );
  return token.ordered ? html`<ol start=${token.start || 1}>${items}</ol>` : html`<ul>${items}</ul>`;
}

/** @param {Token} token */
function table(token) {
  const of = (/** @type {Token} */ each) => (each.align ? `align-${each.align}` : "");
  const cell = (/** @type {Token} */ each) => html`<td dir="auto" class=${of(each)}>${inlines(each.tokens)}</td>`;
  return html`<div class="table-frame" role="region" aria-label="Table" tabindex="0"><table>
    <thead><tr>${token.header.map((/** @type {Token} */ each) => html`<th dir="auto" class=${of(each)}>${inlines(each.tokens)}</th>`)}</tr></thead>
    <tbody>${token.rows.map((/** @type {Token[]} */ row) => html`<tr>${row.map(cell)}</tr>`)}</tbody>
  </table></div>`;
}

/** @param {Token[] | undefined} tokens */
function inlines(tokens) {
  return (tokens ?? []).map(inline);
}

/** @param {Token} token @returns {any} */
function inline(token) {
  switch (token.type) {
    case "strong":
      return html`<strong>${inlines(token.tokens)}</strong>`;
    case "em":
      return html`<em>${inlines(token.tokens)}</em>`;
    case "del":
      return html`<del>${inlines(token.tokens)}</del>`;
    case "codespan":
      return html`<code>${token.text}</code>`;
    case "br":
      return html`<br />`;
    case "link":
      return link(token.href, inlines(token.tokens));
    case "image":
      // Not loaded: the address of an image tells its server who reads it.
      return link(token.href, [token.text || token.href, " (image)"]);
    case "escape":
    case "text":
      return token.tokens ? inlines(token.tokens) : unescape(token.text);
    default:
      return token.raw;
  }
}

/** @param {string} address @param {any[]} content */
function link(address, content) {
  const url = safeUrl(address);
  return url ? html`<a href=${url} target="_blank" rel="noopener noreferrer nofollow">${content}</a>` : html`<span>${content}</span>`;
}

/** The address, if it is one that a link may have: of a page or for mail. @param {string} address */
export function safeUrl(address) {
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null; // Not absolute: it would lead to a page of this console.
  }
}

const ENTITIES = /** @type {Record<string, string>} */ ({ "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" });

/** The parser escapes text for HTML, which it does not become here. @param {string} text */
function unescape(text) {
  return text.replace(/&(?:amp|lt|gt|quot|#39);/g, (found) => ENTITIES[found]);
}
