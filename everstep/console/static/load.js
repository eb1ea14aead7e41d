/** Reading for screens: what is loaded, whether it is still loading, and why it failed. */

import { away, get, Problem, sentence } from "./api.js";
import { useCallback, useEffect, useRef, useState } from "./lib.js";

/** @template T @typedef {{data: T | undefined, error: string | null, isLoading: boolean, reload: () => void}} Loaded */

/** Load once, again when `inputs` change, and every `every` milliseconds while the page is visible. When `fresh`
 * changes it is loaded again, and what was loaded stays until then.
 * @template T @param {(signal: AbortSignal) => Promise<T>} read @param {unknown[]} inputs
 * @param {{every?: number, fresh?: unknown}} [options] @returns {Loaded<T>} */
export function useLoad(read, inputs, { every, fresh } = {}) {
  const [state, setState] = useState(
    /** @type {{data: T | undefined, error: string | null, isLoading: boolean}} */ ({
      data: undefined,
      error: null,
      isLoading: true,
    }),
  );
  const latest = useRef(read);
  latest.current = read;
  const controller = useRef(/** @type {AbortController | null} */ (null));
  const load = useCallback(async () => {
    controller.current?.abort();
    const mine = (controller.current = new AbortController());
    try {
      const data = await latest.current(mine.signal);
      if (!mine.signal.aborted) setState({ data, error: null, isLoading: false });
    } catch (error) {
      if (!mine.signal.aborted) setState(({ data }) => ({ data, error: errorBeside(data !== undefined, error), isLoading: false }));
    }
  }, []);
  useEffect(() => {
    setState({ data: undefined, error: null, isLoading: true });
    void load();
    return () => controller.current?.abort();
  }, inputs);
  const isFirst = useRef(true);
  useEffect(() => {
    if (!isFirst.current) void load();
    isFirst.current = false;
  }, [fresh]);
  usePoll(load, every);
  useReturn(load);
  return { ...state, reload: load };
}

/** The sentence of an error; null if what was loaded can be shown, as the page says that the API is away.
 * @param {boolean} hasData @param {unknown} error */
function errorBeside(hasData, error) {
  return hasData && error instanceof Problem && error.isTemporary ? null : sentence(error);
}

/** Call a function when the API answers again. @param {() => unknown} call */
function useReturn(call) {
  const isAway = away.value !== "";
  const wasAway = useRef(false);
  useEffect(() => {
    if (wasAway.current && !isAway) call();
    wasAway.current = isAway;
  }, [isAway]);
}

/** Call a function every so often while the page is visible, and when it becomes visible again.
 * @param {() => unknown} call @param {number | undefined} every milliseconds; never without */
export function usePoll(call, every) {
  const latest = useRef(call);
  latest.current = call;
  useEffect(() => {
    if (!every) return undefined;
    const tick = () => document.visibilityState === "visible" && latest.current();
    const timer = setInterval(tick, every);
    document.addEventListener("visibilitychange", tick);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", tick);
    };
  }, [every]);
}

/** @template T @typedef {{items: T[], error: string | null, isLoading: boolean, hasMore: boolean, more: () => void, reload: () => void}} Pages */

/** Load a list page by page. The first pages are loaded again every `every` milliseconds, as many as are shown.
 * @template T @param {string} path @param {import("./api.js").Query} query @param {{every?: number, size?: number}} [options]
 * @returns {Pages<T>} */
export function usePages(path, query, { every, size = 50 } = {}) {
  const name = `${path}?${JSON.stringify(query)}`;
  const [state, setState] = useState(/** @type {{items: T[], cursor: string | null, error: string | null, isLoading: boolean}} */ ({ items: [], cursor: null, error: null, isLoading: true }));
  const current = useRef(name);
  const shown = useRef(0);
  shown.current = state.items.length;
  const isBusy = useRef(false);

  const read = async (/** @type {boolean} */ isMore) => {
    if (isBusy.current && current.current === name) return;
    current.current = name;
    isBusy.current = true;
    try {
      let cursor = isMore ? state.cursor : null;
      const items = isMore ? [...state.items] : /** @type {T[]} */ ([]);
      const wanted = isMore ? items.length + 1 : Math.max(1, shown.current);
      do {
        const page = await get(path, { ...query, cursor, limit: size });
        items.push(...page.items);
        cursor = page.next_cursor;
      } while (cursor && items.length < wanted);
      if (current.current === name) setState({ items, cursor, error: null, isLoading: false });
    } catch (error) {
      if (current.current === name) setState((before) => ({ ...before, error: errorBeside(before.items.length > 0, error), isLoading: false }));
    } finally {
      isBusy.current = false;
    }
  };
  useEffect(() => {
    shown.current = 0;
    current.current = "";
    setState({ items: [], cursor: null, error: null, isLoading: true });
    void read(false);
  }, [name]);
  usePoll(() => read(false), every);
  return { ...state, hasMore: state.cursor !== null, more: () => void read(true), reload: () => void read(false) };
}
