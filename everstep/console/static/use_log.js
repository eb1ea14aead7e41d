/** The log of a stream for a screen, and when what it says about executions has changed. */

import { useEffect, useMemo, useState } from "./lib.js";
import { StreamLog } from "./stream_log.js";

/** The log of a stream while the component is shown. @param {"session" | "execution"} kind @param {string} id */
export function useStreamLog(kind, id) {
  const log = useMemo(() => new StreamLog(kind, id), [kind, id]);
  useEffect(() => {
    void log.open();
    return () => log.close();
  }, [log]);
  return log;
}

/** A number that changes a moment after an event that changes what executions are. @param {StreamLog} log */
export function useChanges(log) {
  const [version, setVersion] = useState(0);
  useEffect(() => {
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let soon;
    const stop = log.listen(({ type }) => {
      if (type.startsWith("agent.tool") || type === "step.started") return;
      soon ??= setTimeout(() => {
        soon = undefined;
        setVersion((before) => before + 1);
      }, 150);
    });
    return () => {
      stop();
      clearTimeout(soon);
    };
  }, [log]);
  return version;
}
