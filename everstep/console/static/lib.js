/**
 * The libraries of the program, in one place: components are Preact's, templates are htm's, and what changes is in
 * signals. A component that reads a signal's `value` is rendered again when it changes.
 */

import { h } from "preact";
import htm from "htm";

export { Component, Fragment, createContext, h, render } from "preact";
export { useCallback, useContext, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect } from "@preact/signals";

/** @typedef {import("preact").VNode<any> | string | number | null | undefined | false} Shown */
/** @typedef {Shown | Shown[]} Children */

/** Builds elements from a template, as JSX would: html`<${Badge} kind="ok">${text}<//>`. */
export const html = /** @type {(strings: TemplateStringsArray, ...values: any[]) => import("preact").VNode<any>} */ (
  htm.bind(h)
);

/** The names whose condition holds, for `class`. @param {...(string | false | null | undefined)} names */
export function classes(...names) {
  return names.filter(Boolean).join(" ");
}
