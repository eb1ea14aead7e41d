// Renders a component with the hook `useSession` of our package, against a gateway, in a document without a browser.
import { createInterface } from "node:readline";
import process from "node:process";
import { Window } from "happy-dom";

const window = new Window();
Object.assign(globalThis, { window, document: window.document, IS_REACT_ACT_ENVIRONMENT: false });
const { createElement } = await import("react");
const { createRoot } = await import("react-dom/client");
const { connect } = await import("everstep-client");
const { loader, useSession } = await import("everstep-client/react");

const say = (kind, value = null, channel = null) => process.stdout.write(JSON.stringify({ kind, value, channel }) + "\n");
process.on("uncaughtException", (error) => say("uncaught", String(error)));

let client, root;
const commands = {
  connect({ url }) {
    client = connect({ url, token: "a-token", retryMin: 0.02 });
  },
  mount({ id, items }) {
    const asked = [];
    const fetch = async (url, { headers }) => {
      asked.push([url, headers.Authorization]);
      return Response.json({ items: items[url.includes("/inbox") ? "inbox" : "messages"] });
    };
    const load = loader({ url: "http://agents.test", token: async () => "a-token", fetch });
    function Session() {
      const seen = useSession(client, id, { load });
      say("render", { ...seen, asked });
      return createElement("p", null, seen.messages.map((message) => message.content).join("|"));
    }
    root = createRoot(document.body.appendChild(document.createElement("div")));
    root.render(createElement(Session));
  },
  html: () => say("html", document.body.innerHTML),
  unmount() {
    root.unmount();
    client.close();
    say("unmounted");
  },
};

createInterface({ input: process.stdin })
  .on("line", (line) => {
    const command = JSON.parse(line);
    commands[command.does](command);
  })
  .on("close", () => process.exit(0));

say("ready");
