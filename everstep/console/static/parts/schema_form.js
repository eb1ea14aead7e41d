/** A form for the arguments of a tool, or for an answer, by its JSON schema. */

import { html, useId } from "../lib.js";

/** @typedef {{[name: string]: any}} Json */
/** @typedef {{name: string, schema: Json, isRequired: boolean}} Field */

/** A schema that fits these arguments, where the tool's own is not known. @param {Json} args @returns {Json} */
export function schemaOf(args) {
  const properties = Object.fromEntries(Object.entries(args).map(([name, value]) => [name, { type: typeOf(value) }]));
  return { type: "object", properties, required: Object.keys(args) };
}

/** @param {any} value */
function typeOf(value) {
  if (Array.isArray(value)) return "array";
  if (value === null) return "null";
  return Number.isInteger(value) ? "integer" : typeof value;
}

/** The fields of an object's schema, and of values beyond it. @param {Json} schema @param {Json} values @returns {Field[]} */
export function fieldsOf(schema, values = {}) {
  const properties = schema.properties ?? {};
  const required = new Set(schema.required ?? []);
  const known = Object.entries(properties).map(([name, own]) => ({
    name,
    schema: resolve(/** @type {Json} */ (own), schema),
    isRequired: required.has(name),
  }));
  const others = Object.keys(values).filter((name) => !(name in properties));
  return [...known, ...others.map((name) => ({ name, schema: { type: typeOf(values[name]) }, isRequired: false }))];
}

/** Follow a reference, and leave out the null of an optional value. @param {Json} own @param {Json} root @returns {Json} */
function resolve(own, root) {
  if (typeof own.$ref === "string" && own.$ref.startsWith("#/")) {
    const found = own.$ref.slice(2).split("/").reduce((/** @type {any} */ at, name) => at?.[name], root);
    return { ...found, ...own, $ref: undefined };
  }
  const kinds = own.anyOf ?? own.oneOf;
  const real = kinds?.filter((/** @type {Json} */ each) => each.type !== "null");
  return real?.length === 1 ? { ...resolve(real[0], root), ...own, anyOf: undefined, oneOf: undefined } : own;
}

/** What is typed for a value, as text. @param {any} value @param {Json} schema @returns {string} */
export function textOf(value, schema) {
  if (value === undefined) return "";
  if (typeof value === "string" && schema.type === "string") return value;
  return typeof value === "object" || typeof value === "string" ? JSON.stringify(value, null, 2) : String(value);
}

/** The texts of all fields. @param {Field[]} fields @param {Json} values */
export function textsOf(fields, values) {
  return Object.fromEntries(fields.map(({ name, schema }) => [name, textOf(values[name] ?? schema.default, schema)]));
}

/** The values of the texts, or what is wrong with them. @param {Field[]} fields @param {{[name: string]: string}} texts
 * @returns {{values: Json, errors: {[name: string]: string}}} */
export function parse(fields, texts) {
  /** @type {Json} */
  const values = {};
  /** @type {{[name: string]: string}} */
  const errors = {};
  for (const { name, schema, isRequired } of fields) {
    const text = texts[name] ?? "";
    if (text === "" && schema.type !== "string") {
      if (isRequired) errors[name] = "Needed.";
      continue;
    }
    if (text === "" && !isRequired) continue;
    const [value, error] = parseOne(text, schema);
    if (error) errors[name] = error;
    else values[name] = value;
  }
  return { values, errors };
}

/** @param {string} text @param {Json} schema @returns {[any, string | null]} */
function parseOne(text, schema) {
  switch (schema.type) {
    case "string":
      return [text, null];
    case "boolean":
      return [text === "true", null];
    case "integer":
    case "number": {
      const value = Number(text);
      if (text.trim() === "" || !Number.isFinite(value)) return [null, "Type a number."];
      if (schema.type === "integer" && !Number.isInteger(value)) return [null, "Type a whole number."];
      if (value < schema.minimum) return [null, `At least ${schema.minimum}.`];
      if (value > schema.maximum) return [null, `At most ${schema.maximum}.`];
      return [value, null];
    }
    default:
      try {
        return [JSON.parse(text), null];
      } catch {
        return [null, "Type JSON: a list in [ ], fields in { }, text in quotation marks."];
      }
  }
}

/** @param {{fields: Field[], texts: {[name: string]: string}, errors: {[name: string]: string},
 *           change: (texts: {[name: string]: string}) => void}} props */
export function SchemaForm({ fields, texts, errors, change }) {
  const id = useId();
  return html`<div class="form">
    ${fields.map(({ name, schema, isRequired }, index) => {
      const own = `${id}-${index}`;
      const set = (/** @type {string} */ text) => change({ ...texts, [name]: text });
      const described = [schema.description && `${own}-help`, errors[name] && `${own}-error`].filter(Boolean).join(" ");
      return html`<div class="field" key=${name}>
        <label for=${own}>${schema.title ?? name}${!isRequired && html` <span class="quiet">optional</span>`}</label>
        <${Input} id=${own} schema=${schema} text=${texts[name] ?? ""} set=${set} described=${described} isWrong=${name in errors} />
        ${schema.description && html`<p class="note" id=${`${own}-help`}>${schema.description}</p>`}
        ${errors[name] && html`<p class="error" id=${`${own}-error`}>${errors[name]}</p>`}
      </div>`;
    })}
  </div>`;
}

/** @param {{id: string, schema: Json, text: string, set: (text: string) => void, described: string, isWrong: boolean}} props */
function Input({ id, schema, text, set, described, isWrong }) {
  const common = {
    id,
    "aria-describedby": described || undefined,
    "aria-invalid": isWrong || undefined,
    onInput: (/** @type {any} */ event) => set(event.currentTarget.value),
  };
  if (Array.isArray(schema.enum))
    return html`<select ...${common}>
      <option value=""></option>
      ${schema.enum.map((each) => html`<option value=${String(each)} selected=${String(each) === text}>${String(each)}</option>`)}
    </select>`;
  if (schema.type === "boolean")
    return html`<input type="checkbox" ...${common} checked=${text === "true"}
      onInput=${(/** @type {any} */ event) => set(String(event.currentTarget.checked))} />`;
  if (schema.type === "integer" || schema.type === "number")
    return html`<input type="text" inputmode="decimal" ...${common} value=${text} />`;
  if (schema.type === "string" && text.length < 60 && !text.includes("\n"))
    return html`<input type="text" dir="auto" ...${common} value=${text} />`;
  return html`<textarea dir="auto" class=${schema.type === "string" ? "" : "mono"} ...${common} value=${text}
    rows=${Math.min(12, Math.max(3, text.split("\n").length))}></textarea>`;
}
