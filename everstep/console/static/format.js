/** Times, durations, amounts and numbers, as people read them. */

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const DAY = new Intl.DateTimeFormat("en", { month: "short", day: "numeric" });
const DAY_AND_YEAR = new Intl.DateTimeFormat("en", { year: "numeric", month: "short", day: "numeric" });
const CLOCK = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hour12: false });
const EXACT = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "medium", hour12: false });

/** How long ago, in words. @param {string} at @param {number} [now] */
export function ago(at, now = Date.now()) {
  const seconds = Math.max(0, (now - Date.parse(at)) / 1000);
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h ago`;
  if (seconds < 14 * 86400) return `${Math.round(seconds / 86400)} days ago`;
  const date = new Date(at);
  return (date.getFullYear() === new Date(now).getFullYear() ? DAY : DAY_AND_YEAR).format(date);
}

/** The time of day. @param {string} at */
export function clock(at) {
  return CLOCK.format(new Date(at));
}

/** The day. @param {string} at */
export function day(at) {
  return DAY_AND_YEAR.format(new Date(at));
}

/** Date and time with seconds. @param {string} at */
export function exactTime(at) {
  return EXACT.format(new Date(at));
}

/** A duration. @param {number} milliseconds */
export function duration(milliseconds) {
  if (!Number.isFinite(milliseconds)) return "";
  if (milliseconds < 1000) return `${Math.max(0, Math.round(milliseconds))} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} days ${hours % 24} h`;
}

/** Milliseconds between two times. @param {string} from @param {string | null} to null for now */
export function between(from, to) {
  return (to ? Date.parse(to) : Date.now()) - Date.parse(from);
}

/** An amount in US dollars, with as many digits as it needs. @param {number | null | undefined} amount */
export function usd(amount) {
  if (amount === null || amount === undefined) return "–";
  if (amount === 0) return "$0";
  const digits = amount >= 1 ? 2 : amount >= 0.01 ? 3 : 5;
  return `$${amount.toFixed(digits)}`;
}

/** A whole number. @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? "–" : NUMBER.format(value);
}

/** A large number in few characters. @param {number | null | undefined} value */
export function compact(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10_000) return NUMBER.format(value);
  return value < 1_000_000 ? `${(value / 1000).toFixed(value < 100_000 ? 1 : 0)}k` : `${(value / 1_000_000).toFixed(1)}M`;
}

/** A number with its noun. @param {number} many @param {string} one @param {string} [more] */
export function plural(many, one, more = `${one}s`) {
  return `${count(many)} ${many === 1 ? one : more}`;
}

/** A size in bytes. @param {number} size */
export function bytes(size) {
  if (size < 1024) return `${size} B`;
  if (size < 1024 * 1024) return `${(size / 1024).toFixed(1)} kB`;
  return `${(size / 1024 / 1024).toFixed(1)} MB`;
}

/** The beginning of an id, which is enough to tell two apart. @param {string} id */
export function shortId(id) {
  return id.slice(0, 8);
}

/** The total of tokens in a usage. @param {{[name: string]: number} | null | undefined} usage */
export function totalTokens(usage) {
  return usage?.total ?? usage?.total_tokens ?? null;
}
