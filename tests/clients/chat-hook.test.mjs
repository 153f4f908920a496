// `useChat` in a page: reload in mid-turn, fresh page with `resume`, strict mode, unmount, stop button.

import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { JSDOM } from "jsdom";
import { TOKEN, scripted, until } from "./harness.mjs";
import { comparable, history } from "./chat-client.mjs";
import { fixture } from "./chat-fixture.mjs";

const page = new JSDOM("<!doctype html><body></body>", { url: "http://localhost/" });
const { document, navigator, HTMLElement } = page.window;
for (const [name, value] of Object.entries({ window: page.window, document, navigator, HTMLElement, IS_REACT_ACT_ENVIRONMENT: true })) {
  // Newer Node versions have a `navigator` of their own that cannot be assigned.
  Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
}
after(() => page.window.close());
const { StrictMode, createElement } = await import("react");
const { act, renderHook } = await import("@testing-library/react");

const running = fixture();
const texts = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text);

const majors = {
  // In version 6 a transport handed to the hook is fixed at first render, so the chat is made outside.
  6: async () => {
    const [{ useChat, Chat }, { DefaultChatTransport }] = await Promise.all([import("react-6"), import("ai-6")]);
    return (options) => {
      const chat = new Chat({ id: options.id, messages: options.messages, transport: new DefaultChatTransport(options.transport) });
      return () => useChat({ chat, resume: options.resume });
    };
  },
  7: async () => {
    const [{ useChat }, { DefaultChatTransport }] = await Promise.all([import("react-7"), import("ai-7")]);
    return (options) => {
      const transport = new DefaultChatTransport(options.transport);
      return () => useChat({ id: options.id, messages: options.messages, transport, resume: options.resume });
    };
  },
};

for (const major of [6, 7]) {
  const hook = await majors[major]();
  describe(`useChat of version ${major}`, { concurrency: false }, () => {
    function open({ id = crypto.randomUUID(), messages = [], resume = false, strict = false } = {}) {
      const transport = { api: `${running.server.url}/api/v1/agent/chat`, headers: { authorization: `Bearer ${TOKEN}` } };
      const rendered = renderHook(hook({ id, messages, resume, transport }), strict ? { wrapper: ({ children }) => createElement(StrictMode, null, children) } : {});
      return { id, rendered, get chat() { return rendered.result.current; } };
    }
    const settle = (tab, what, condition) => until(what, async () => {
      await act(() => new Promise((resolve) => setTimeout(resolve, 20)));
      return condition(tab.chat);
    }, 20_000);
    const send = (tab, text) => act(async () => { void tab.chat.sendMessage({ text }); });
    const slow = () => scripted("Go.", [{ text: "a b c d ", chunks: 4, delayMs: 150 }, { tool: "bash", input: { command: "echo x; sleep 0.5; echo y" } }], [{ text: "Done." }]);
    const same = async (tab) => assert.deepEqual(tab.chat.messages.map(comparable), await history(running.server, tab.id));

    test("a turn shows as it comes and is the server's history at the end", async () => {
      const tab = open();
      await send(tab, slow());
      await settle(tab, "words before the end", (chat) => chat.status === "streaming" && chat.messages.at(-1).role === "assistant");
      await settle(tab, "the end", (chat) => chat.status === "ready");
      assert.deepEqual(texts(tab.chat.messages.at(-1)), ["a b c d ", "Done."]);
      await same(tab);
      tab.rendered.unmount();
    });

    for (const strict of [false, true]) {
      test(`a reload in mid-turn resumes without loss or duplicate${strict ? ", in strict mode too" : ""}`, async () => {
        const before = open();
        await send(before, slow());
        await settle(before, "some words", (chat) => chat.messages.at(-1).role === "assistant" && texts(chat.messages.at(-1)).join("") !== "");
        before.rendered.unmount();
        const reloaded = open({ id: before.id, messages: await history(running.server, before.id), resume: true, strict });
        await settle(reloaded, "the end", (chat) => chat.status === "ready" && chat.messages.length === 2 && texts(chat.messages.at(-1)).includes("Done."));
        await same(reloaded);
        reloaded.rendered.unmount();
      });
    }

    test("a fresh page with `resume` and nothing running stays as it is", async () => {
      const tab = open({ resume: true });
      await settle(tab, "readiness", (chat) => chat.status === "ready");
      assert.deepEqual([tab.chat.messages, tab.chat.error], [[], undefined]);
      tab.rendered.unmount();
    });

    test("a stop button that asks the server first ends the turn for good", async () => {
      const tab = open();
      await send(tab, scripted("Run.", [{ tool: "bash", input: { command: "sleep 60" } }], [{ text: "never" }]));
      await settle(tab, "the command", (chat) => chat.messages.at(-1).parts.some((part) => part.type === "tool-bash"));
      await act(async () => {
        await running.server.json(`/agent/chat/${tab.id}/stop`, { method: "POST", body: "{}" });
        await tab.chat.stop();
      });
      await settle(tab, "the end", (chat) => chat.status === "ready");
      const messages = await history(running.server, tab.id);
      assert.equal(messages.at(-1).metadata.status, "aborted");
      await send(tab, scripted("On.", [{ text: "On we go." }]));
      await settle(tab, "the next turn", (chat) => chat.status === "ready" && texts(chat.messages.at(-1)).includes("On we go."));
      await same(tab);
      tab.rendered.unmount();
    });
  });
}
