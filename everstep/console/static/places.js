/** Where the console and the API are on this server. This module is at `static/{digest}/places.js` below the console. */

/** The URL of the console, which may be below another path. */
export const CONSOLE = new URL("../../", import.meta.url);

/** The URL of the API. */
export const API = new URL("../", CONSOLE);
