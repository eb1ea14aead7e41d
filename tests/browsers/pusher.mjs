// Watches with unmodified pusher-js as it is told: a command in each line of stdin, what it hears in each line of stdout.
import { createInterface } from "node:readline";
import process from "node:process";

const { argv, stdin, stdout } = process;
const [, , client_path, pusher_path] = argv;
const { Reader } = await import(client_path);
const { default: Pusher } = await import(pusher_path);

const say = (kind, value = null, channel = null) => stdout.write(JSON.stringify({ kind, value, channel }) + "\n");
process.on("uncaughtException", (error) => say("uncaught", String(error)));

let pusher;
const readers = {};

const commands = {
  connect({ key, port, endpoint, options }) {
    pusher = new Pusher(key, {
      cluster: "",
      wsHost: "127.0.0.1",
      wsPort: port,
      forceTLS: false,
      enabledTransports: ["ws"],
      channelAuthorization: {
        endpoint,
        transport: "ajax",
        // There is one channel: all are asked for with the same parameters.
        paramsProvider: () => {
          const [reader] = Object.values(readers);
          return reader?.epoch ? { since: JSON.stringify(reader.position) } : {};
        },
      },
      ...options,
    });
    pusher.connection.bind("state_change", ({ current }) => say("state", current));
    pusher.connection.bind("error", ({ error, data = error?.data }) => say("error", data?.code ?? null));
    pusher.connection.bind("message", ({ event }) => event === "pusher:pong" && say("pong"));
  },
  subscribe({ channel }) {
    const reader = (readers[channel] = new Reader());
    const subscription = pusher.subscribe(channel);
    subscription.bind("pusher:subscription_succeeded", (answer) => {
      reader.joined(answer.epoch, answer.seq, answer.recovered);
      say("joined", answer, channel);
    });
    subscription.bind("pusher:subscription_error", (error) => say("refused", error, channel));
    subscription.bind_global((type, envelope) => {
      if (!type.startsWith("pusher:")) say(reader.take(envelope), envelope, channel);
    });
  },
  says: ({ event, channel }) => pusher.send_event(event, {}, channel),
  state: () => say("state", pusher.connection.state),
  timers: () => say("timers", process.getActiveResourcesInfo().filter((each) => each === "Timeout").length),
};

createInterface({ input: stdin })
  .on("line", (line) => {
    const command = JSON.parse(line);
    commands[command.does](command);
  })
  .on("close", () => process.exit(0));

say("ready");
