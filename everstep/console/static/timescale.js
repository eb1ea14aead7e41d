/** A scale of time without its idle parts: what lies between two parts is drawn as a narrow gap. */

/** @typedef {{from: number, to: number}} Span */

/** The parts of time in which something happened; what lies between two is folded. @param {Span[]} spans @returns {Span[]} */
export function busyParts(spans) {
  const sorted = [...spans].sort((one, other) => one.from - other.from);
  if (sorted.length === 0) return [];
  const total = Math.max(...sorted.map((each) => each.to)) - sorted[0].from;
  const least = Math.max(2000, total / 25);
  /** @type {Span[]} */
  const parts = [];
  for (const { from, to } of sorted) {
    const last = parts.at(-1);
    if (last && from - last.to < least) last.to = Math.max(last.to, to);
    else parts.push({ from, to });
  }
  return parts;
}

/** Where each time is drawn. @param {Span[]} parts @param {number} [width] of everything @param {number} [gap] of an idle part */
export function scale(parts, width = 1000, gap = 14) {
  const busy = parts.reduce((sum, { from, to }) => sum + (to - from), 0) || 1;
  const room = width - gap * Math.max(0, parts.length - 1);
  let x = 0;
  const placed = parts.map(({ from, to }) => {
    const part = { from, to, x, width: ((to - from) / busy) * room };
    x += part.width + gap;
    return part;
  });
  return {
    placed,
    /** @param {number} at */
    x(at) {
      const part = placed.findLast((each) => each.from <= at) ?? placed[0];
      return part ? part.x + Math.min(1, (at - part.from) / (part.to - part.from || 1)) * part.width : 0;
    },
    /** @param {number} wanted */
    time(wanted) {
      const part = placed.findLast((each) => each.x <= wanted) ?? placed[0];
      return part ? part.from + Math.min(1, (wanted - part.x) / (part.width || 1)) * (part.to - part.from) : 0;
    },
  };
}

