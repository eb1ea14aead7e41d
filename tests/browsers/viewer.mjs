// Watches as it is told: a command in each line of stdin, and what the client says in each line of stdout.
import { createInterface } from "node:readline";
import process from "node:process";

const { argv, stdin, stdout } = process;
const [, , client_path, ws_path] = argv;
const { connect } = await import(client_path);
const { WebSocket } = await import(ws_path);

const say = (kind, value = null, channel = null) => stdout.write(JSON.stringify({ kind, value, channel }) + "\n");
process.on("uncaughtException", (error) => say("uncaught", String(error)));

let client;
const subscriptions = {};

const commands = {
  connect({ options, tokens, builtin }) {
    client = connect({
      ...(builtin ? {} : { WebSocket }),
      onerror: (message) => say("error", message),
      onstate: (state) => say("state", state),
      ...options,
      token: Array.isArray(tokens)
        ? async () => {
            say("asked");
            const token = tokens.length > 1 ? tokens.shift() : tokens[0];
            if (token === null) throw new Error("nobody knows me");
            return token;
          }
        : tokens,
    });
  },
  subscribe({ channel, since, fails }) {
    const told = (kind) => (value) => {
      say(kind, value, channel);
      if (kind === fails) throw new Error(`${kind} fails`);
    };
    const kinds = ["event", "text", "reload", "error", "state"];
    const callbacks = Object.fromEntries(kinds.map((kind) => [`on${kind}`, told(kind)]));
    subscriptions[channel] = client.subscribe(channel, { since, ...callbacks });
  },
  async iterate({ channel }) {
    for await (const { seq } of subscriptions[channel]) say("iterated", seq, channel);
    say("iterated", null, channel);
  },
  unsubscribe: ({ channel }) => subscriptions[channel].unsubscribe(),
  close: () => client.close(),
  position: ({ channel }) => say("position", subscriptions[channel].position, channel),
  timers: () => say("timers", process.getActiveResourcesInfo().filter((each) => each === "Timeout").length),
};

createInterface({ input: stdin })
  .on("line", (line) => {
    const command = JSON.parse(line);
    try {
      commands[command.does](command);
    } catch (error) {
      say("refused", String(error));
    }
  })
  .on("close", () => process.exit(0));

say("ready");
