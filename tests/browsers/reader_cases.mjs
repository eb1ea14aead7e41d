// Reads cases (see reader_cases.py) from stdin, and writes them with what becomes of them by the client's reader.
import { stdin, stdout, argv } from "node:process";
import { text } from "node:stream/consumers";

const { Reader } = await import(argv[2]);

function taken(reader, [does, ...given]) {
  if (does === "joined") return void reader.joined(...given);
  if (does === "settle") return void reader.settle(...given);
  const [type, execution_id, seq, payload] = given;
  try {
    return reader.take({ type, execution_id, seq, payload });
  } catch {
    return "unreadable";
  }
}

function read(given) {
  const reader = new Reader(given.since);
  const steps = given.steps.map((step) => [...step, taken(reader, step) ?? null]);
  const texts = {};
  for (const [of, { content, is_complete }] of reader.drafts) texts[of] = [content, is_complete];
  return { ...given, steps, position: reader.position, texts };
}

stdout.write(JSON.stringify(JSON.parse(await text(stdin)).map(read)));
