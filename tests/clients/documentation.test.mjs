// The examples of the documentation, taken from its pages and run as they stand.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { promisify } from "node:util";
import { NEWEST, chunks, history, openChat } from "./chat-client.mjs";
import { assertSameHistory, fixture } from "./chat-fixture.mjs";
import { TOKEN, scripted, until } from "./harness.mjs";

const running = fixture();
const page = (name) => readFileSync(new URL(`../../${name}`, import.meta.url), "utf8");

/** The fenced blocks of a language on a page. */
function blocks(name, language) {
  return [...page(name).matchAll(/^```(\w+)\n([\s\S]*?)^```$/gm)].filter(([, kind]) => kind === language).map(([, , code]) => code.trim());
}

/** The block that holds these words; exactly one must. */
function block(name, language, words) {
  const found = blocks(name, language).filter((code) => code.includes(words));
  assert.equal(found.length, 1, `${name} has one ${language} block with ${words}`);
  return found[0];
}

/** The value of an expression or of statements that end with `result`, with names from outside. */
function evaluate(code, names, result) {
  const body = result ? `${code}\nreturn ${result};` : `return (${code.replace(/[;,]$/, "")});`;
  return new Function(...Object.keys(names), body)(...Object.values(names));
}

const authorization = { authorization: `Bearer ${TOKEN}` };
/** A page's `fetch`: addresses without a host are the server's. */
const pageFetch = (seen) => (address, init = {}) => {
  seen.push({ address: String(address), body: init.body });
  return fetch(new URL(address, running.server.url), { ...init, headers: { ...init.headers, ...authorization } });
};

for (const version of NEWEST) {
  test(`${version}: a transport that sends only the last message`, async () => {
    // The options are the example's; the transport that takes them is the real one, with its exchanges recorded.
    class DefaultChatTransport {
      constructor(options) {
        this.options = options;
      }
    }
    const { options } = evaluate(block("docs/chat.md", "js", "prepareSendMessagesRequest"), { DefaultChatTransport });
    assert.equal(options.api, "/api/v1/agent/chat");
    const chat = openChat(version, running.server, { transport: { ...options, api: running.server.url + options.api } });
    await chat.send(scripted("One.", [{ text: "First." }]));
    await chat.send(scripted("Two.", [{ text: "Second." }]));
    assert.equal(chat.status, "ready", String(chat.error));
    assert.deepEqual(chat.posts().map(({ body }) => body.messages.length), [1, 1]);
    await assertSameHistory(running.server, chat);
  });

  test(`${version}: a stop button, and resuming by turn`, async () => {
    const seen = [];
    const code = block("docs/chat.md", "js", "const turn = chat.messages");
    const names = { chat: undefined };
    const options = evaluate(`{ ${code} }`, { chat: new Proxy({}, { get: (_, key) => names.chat[key] }) });
    const reconnect = (request) => ({ ...options.prepareReconnectToStreamRequest(request), headers: authorization });
    const chat = openChat(version, running.server, { transport: { prepareReconnectToStreamRequest: reconnect } });
    names.chat = chat;
    const stopping = block("docs/chat.md", "js", "const stop");
    const stop = evaluate(stopping, { fetch: pageFetch(seen), headers: authorization, id: chat.id, chat }, "stop");
    const sending = chat.send(scripted("Wait.", [{ text: "a b c d e f", chunks: 6, delayMs: 10_000 }]));
    await until("the first words", () => chat.lastMessage?.role === "assistant" && chat.lastMessage.parts.some((part) => part.type === "text" && part.text !== ""), 30_000);
    await stop();
    await sending;
    assert.deepEqual(seen.map(({ address }) => address), [`/api/v1/agent/chat/${chat.id}/stop`]);
    const told = (await history(running.server, chat.id)).at(-1);
    assert.deepEqual([told.metadata.status, told.metadata.reason], ["aborted", "user"]);
    await chat.resumeStream();
    assert.equal(new URL(chat.wire.exchanges.at(-1).url).searchParams.get("turn"), told.metadata.turnId);
    assert.equal(chat.wire.exchanges.at(-1).status, 200);
    assert.equal(chunks(chat.wire.exchanges.at(-1).bytes).at(-1).type, "abort");
  });
}

test("the first chat of the README, by curl", async () => {
  const code = block("README.md", "sh", "curl -N");
  const command = code.slice(code.indexOf("curl -N")).replaceAll("http://127.0.0.1:8787", running.server.url);
  const { stdout } = await promisify(execFile)("bash", ["-euc", command], { env: { PATH: process.env.PATH, TOKEN }, timeout: 60_000 });
  const found = chunks(stdout);
  assert.deepEqual([found[0].type, found.at(-1).type], ["start", "finish"]);
  assert.equal((await history(running.server, "first")).length, 2);
});
