/**
 * Requests to the HTTP API. Errors are `Problem`s whose text says what to do. A request that finds its sign-in
 * expired waits until the person has signed in again, and is then sent: nothing that was typed is lost.
 */

import { signal } from "./lib.js";
import { API } from "./places.js";
import { sessionExpired, sessionHeaders } from "./sign_in.js";

/** Why the last request was not answered: the server is away, or it, its proxy or its database is overloaded or starting.
 * Empty if it was. */
export const away = signal("");

/** @typedef {{[name: string]: string | number | boolean | null | undefined}} Query */
/** @typedef {{at: string, message: string}} Fault */
/** @typedef {{query?: Query, body?: unknown, key?: string, signal?: AbortSignal, isFile?: boolean}} Sent */
/** @template T @typedef {{items: T[], next_cursor: string | null}} Page */

/** No answer; too slow; a proxy without a server; a server without its database. */
const TEMPORARY = new Set([0, 408, 502, 503, 504]);

/** Why a request failed, and what to do. */
export class Problem extends Error {
  /** @param {number} status 0 if there was no answer @param {string} title @param {string} detail
   * @param {Fault[]} [errors] @param {string} [type] */
  constructor(status, title, detail, errors = [], type = "") {
    super(detail ? `${title}: ${detail}.` : `${title}.`);
    this.status = status;
    this.title = title;
    this.detail = detail;
    this.errors = errors;
    this.type = type;
  }

  /** Whether the same request may succeed later. */
  get isTemporary() {
    return TEMPORARY.has(this.status);
  }
}

/** A name for one request, with which it can be sent again without being carried out twice. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The URL of an address of the API. @param {string} path such as `agent/inbox` @param {Query} [query] */
export function apiUrl(path, query = {}) {
  const url = new URL(path, API);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, String(value));
  }
  return url.href;
}

/** Read. @param {string} path @param {Query} [query] @param {AbortSignal} [signal] @returns {Promise<any>} */
export function get(path, query, signal) {
  return send("GET", path, { query, signal });
}

/** Read a file. @param {string} path @returns {Promise<Blob>} */
export function getFile(path) {
  return send("GET", path, { isFile: true });
}

/** Write, at most once however often it is sent. @param {string} path @param {unknown} [body]
 * @param {string} [key] the name of the request, if it may be sent again @returns {Promise<any>} */
export function post(path, body, key = newKey()) {
  return send("POST", path, { body, key });
}

/** @param {string} path @param {unknown} body @returns {Promise<any>} */
export function patch(path, body) {
  return send("PATCH", path, { body });
}

/** @param {string} path @returns {Promise<any>} */
export function remove(path) {
  return send("DELETE", path, {});
}

const PAUSES = [300, 1000, 3000];

/** @param {string} method @param {string} path @param {Sent} sent @returns {Promise<any>} */
async function send(method, path, sent) {
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await sendOnce(method, path, sent);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (error.status === 401) {
        await sessionExpired(error.detail);
        continue;
      }
      const isRepeatable = method === "GET" || sent.key !== undefined;
      if (!error.isTemporary || !isRepeatable || attempt >= PAUSES.length) throw error;
      await new Promise((resolve) => setTimeout(resolve, PAUSES[attempt]));
      sent.signal?.throwIfAborted();
    }
  }
}

/** @param {string} method @param {string} path @param {Sent} sent @returns {Promise<any>} */
async function sendOnce(method, path, { query, body, key, signal, isFile }) {
  const headers = sessionHeaders();
  headers.Accept = "application/json";
  if (key !== undefined) headers["Idempotency-Key"] = key;
  /** @type {BodyInit | undefined} */
  let content;
  if (body instanceof Blob) content = body;
  else if (body !== undefined) {
    content = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(apiUrl(path, query), { method, headers, body: content, signal, cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    away.value = "The API does not answer";
    throw new Problem(0, "The API does not answer", "check the connection; what you typed is kept");
  }
  if (!response.ok) {
    const problem = await problemOf(response);
    away.value = problem.isTemporary ? "The API is not available at the moment" : "";
    throw problem;
  }
  away.value = "";
  if (isFile) return await response.blob();
  return response.status === 204 ? null : await response.json();
}

/** @param {Response} response */
async function problemOf(response) {
  const isProblem = response.headers.get("content-type")?.includes("json");
  const document = isProblem ? await response.json().catch(() => ({})) : {};
  const { title = `The server responded with status ${response.status}`, detail = "", errors = [], type = "" } = document;
  return new Problem(response.status, title, detail, errors, type);
}

/** The sentence of an error, for people. @param {unknown} error */
export function sentence(error) {
  if (error instanceof Problem) return error.detail ? `${error.title}. ${capital(error.detail)}.` : `${error.title}.`;
  return `The console failed: ${error instanceof Error ? error.message : error}. Reload the page.`;
}

/** @param {string} text */
function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1).replace(/\.$/, "");
}
