/**
 * A list of any length of which only what is visible is in the page. It consists of blocks, whose heights are
 * estimated until they have been shown. The list stays at its end while it is there, and otherwise where it is.
 */

import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";

const BEYOND = 600;
const NEAR_END = 48;

/** @typedef {{toBlock: (block: number) => void, toEnd: () => void}} BlockListHandle */
/**
 * @typedef {object} Props
 * @property {number} count of the blocks
 * @property {(block: number) => any} renderBlock
 * @property {number} estimate the height of a block in pixels
 * @property {string} label
 * @property {any} [tail] what follows the last block
 * @property {{current: BlockListHandle | null}} [handle]
 * @property {(block: number) => void} [onFirst] called with the first block that is visible
 */

/** The heights of blocks, and where each begins. */
class Heights {
  /** @type {Map<number, number>} */
  known = new Map();
  #sum = 0;

  /** @param {number} estimate */
  constructor(estimate) {
    this.estimate = estimate;
  }

  /** @param {number} block @param {number} height */
  set(block, height) {
    this.#sum += height - (this.known.get(block) ?? 0);
    this.known.set(block, height);
  }

  /** @param {number} block */
  of(block) {
    return this.known.get(block) ?? this.typical;
  }

  get typical() {
    return this.known.size > 3 ? this.#sum / this.known.size : this.estimate;
  }

  /** The top of a block. @param {number} block */
  top(block) {
    let top = block * this.typical;
    for (const [each, height] of this.known) if (each < block) top += height - this.typical;
    return top;
  }

  /** The block at a height. @param {number} y @param {number} count */
  at(y, count) {
    let [low, high] = [0, Math.max(0, count - 1)];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.top(middle) <= y) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}

/** @param {Props} props */
export function BlockList({ count, renderBlock, estimate, label, tail, handle, onFirst }) {
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const heights = useRef(new Heights(estimate)).current;
  const isAtEnd = useRef(true);
  /** Where the view is, independent of estimates: a block, and pixels into it. */
  const anchor = useRef({ block: 0, offset: 0 });
  const [range, setRange] = useState(() => ({ from: Math.max(0, count - 3), to: Math.max(0, count - 1) }));

  const look = () => {
    const element = frame.current;
    if (!element) return;
    const { scrollTop, clientHeight } = element;
    const block = heights.at(scrollTop, count);
    anchor.current = { block, offset: scrollTop - heights.top(block) };
    const from = heights.at(Math.max(0, scrollTop - BEYOND), count);
    const to = heights.at(scrollTop + clientHeight + BEYOND, count);
    setRange((before) => (before.from === from && before.to === to ? before : { from, to }));
    onFirst?.(block);
  };
  const onScroll = () => {
    const element = frame.current;
    if (!element) return;
    isAtEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END;
    look();
  };
  const settle = () => {
    const element = frame.current;
    if (!element) return;
    if (isAtEnd.current) element.scrollTop = element.scrollHeight;
    else element.scrollTop = heights.top(anchor.current.block) + anchor.current.offset;
  };
  if (handle)
    handle.current = {
      toBlock: (block) => {
        isAtEnd.current = false;
        anchor.current = { block, offset: 0 };
        settle();
        look();
      },
      toEnd: () => {
        isAtEnd.current = true;
        settle();
        look();
      },
    };

  // After each rendering: measure what is there, and keep the view where it was.
  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return undefined;
    const measure = () => {
      let hasChanged = false;
      for (const child of element.querySelectorAll("[data-block]")) {
        const block = Number(/** @type {HTMLElement} */ (child).dataset.block);
        const height = child.getBoundingClientRect().height;
        if (height > 0 && Math.abs(height - (heights.known.get(block) ?? -1)) > 0.5) {
          heights.set(block, height);
          hasChanged = true;
        }
      }
      if (hasChanged) settle();
      return hasChanged;
    };
    if (measure()) look();
    else settle();
    const observer = new ResizeObserver(() => measure() && look());
    for (const child of element.querySelectorAll("[data-block], .list-tail")) observer.observe(child);
    return () => observer.disconnect();
  });
  useEffect(look, [count]);

  const [from, to] = [Math.min(range.from, Math.max(0, count - 1)), Math.min(range.to, count - 1)];
  /** @type {any[]} */
  const shown = [];
  for (let block = from; block <= to; block += 1)
    shown.push(html`<div class="block" key=${block} data-block=${block}>${renderBlock(block)}</div>`);
  const below = Math.max(0, heights.top(count) - heights.top(to + 1));
  return html`<div class="block-list" ref=${frame} onScroll=${onScroll} role="log" aria-label=${label} aria-live="off" tabindex="0">
    <div style=${{ height: `${heights.top(from)}px` }}></div>
    ${shown}
    <div style=${{ height: `${below}px` }}></div>
    <div class="list-tail">${tail}</div>
  </div>`;
}
