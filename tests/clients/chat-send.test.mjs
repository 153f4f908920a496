// Sending: what the client assembles from the stream is what the server tells, for text, thinking, tools and bad tools.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, test } from "node:test";
import { VERSIONS, openChat, sdk } from "./chat-client.mjs";
import { assertSameHistory, checkedChunks, fixture } from "./chat-fixture.mjs";
import { scripted, within } from "./harness.mjs";

const running = fixture();
const tools = (message) => message.parts.filter((part) => part.type.startsWith("tool-"));
const texts = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text);

for (const version of VERSIONS) {
  describe(version, { concurrency: false }, () => {
    const open = (options) => openChat(version, running.server, options);

    test("a text answer", async () => {
      const chat = open();
      await chat.send(scripted("Say it.", [{ text: "One two three four five six.", chunks: 6 }]));
      assert.equal(chat.status, "ready");
      assert.deepEqual(texts(chat.lastMessage), ["One two three four five six."]);
      const found = await checkedChunks(chat.posts()[0]);
      assert.equal(found.at(-1).finishReason, "stop");
      assert.deepEqual(chat.lastMessage.metadata.model, { provider: "anthropic", id: "claude-scripted" });
      const { inputTokens, cacheReadTokens, cacheWriteTokens } = chat.lastMessage.metadata.usage;
      assert.ok(inputTokens + cacheReadTokens + cacheWriteTokens > 0);
      await assertSameHistory(running.server, chat);
    });

    test("an answer without a script", async () => {
      const chat = open();
      await chat.send("Hello there");
      assert.match(texts(chat.lastMessage)[0], /^You said: "Hello there"/);
      await assertSameHistory(running.server, chat);
    });

    test("tools run in the workspace and their output comes back, once, without the client's doing", async () => {
      let clientCalls = 0;
      const chat = open({
        onToolCall: () => { clientCalls += 1; },
        sendAutomaticallyWhen: sdk(version).lastAssistantMessageIsCompleteWithToolCalls,
      });
      const name = `made-by-${version}.txt`;
      await chat.send(scripted(
        "Write and read.",
        [{ text: "I write." }, { tool: "write", input: { path: name, content: "first line\n" } }, { tool: "bash", input: { command: "echo from the shell; exit 3" } }],
        [{ tool: "bash", input: { command: `cat ${name}` } }],
        [{ text: "It holds: {{lastToolResult}}" }],
      ));
      const [write, failing, reading] = tools(chat.lastMessage);
      assert.deepEqual([write.type, failing.type, reading.type], ["tool-write", "tool-bash", "tool-bash"]);
      assert.deepEqual([write.state, failing.state, reading.state], Array(3).fill("output-available"));
      assert.equal(failing.output.isError, true);
      assert.match(failing.output.content[0].text, /from the shell/);
      assert.equal(failing.output.details.exitCode, 3);
      assert.match(reading.output.content[0].text, /^first line\n/);
      assert.match(texts(chat.lastMessage).at(-1), /^It holds: first line/);
      assert.equal(await readFile(join(running.server.workspace, name), "utf8"), "first line\n");
      await new Promise((resolve) => setImmediate(resolve));
      assert.deepEqual([clientCalls, chat.posts().length], [0, 1]);
      await checkedChunks(chat.posts()[0]);
      await assertSameHistory(running.server, chat);
    });

    test("thinking, redacted thinking and two calls in one step", async () => {
      const chat = open({ transport: { body: { thinkingLevel: "low" } } });
      await chat.send(scripted(
        "Think.",
        [{ thinking: "I look at both.", chunks: 3 }, { redactedThinking: true }, { text: "Looking." }, { tool: "bash", input: { command: "echo a" } }, { tool: "bash", input: { command: "echo b" } }],
        [{ thinking: "Now I know." }, { text: "Done." }],
      ));
      assert.deepEqual(texts(chat.lastMessage), ["Looking.", "Done."]);
      const reasoning = chat.lastMessage.parts.filter((part) => part.type === "reasoning");
      assert.deepEqual(reasoning.map((part) => part.text).filter((text) => text !== ""), ["I look at both.", "Now I know."]);
      assert.ok(!JSON.stringify(chat.lastMessage).includes("signature"));
      await checkedChunks(chat.posts()[0]);
      await assertSameHistory(running.server, chat);
      await chat.send(scripted("Again.", [{ thinking: "More." }, { text: "Yes." }]));
      await assertSameHistory(running.server, chat);
    });

    test("command output shows while the command runs and ends with the final result", async () => {
      const chat = open();
      await chat.send(scripted("Run.", [{ tool: "bash", input: { command: "for i in 1 2 3; do echo line $i; sleep 0.4; done" } }], [{ text: "Done." }]));
      const outputs = (await checkedChunks(chat.posts()[0])).filter((chunk) => chunk.type === "tool-output-available");
      assert.ok(outputs.some((chunk) => chunk.preliminary && /line 1/.test(chunk.output.content[0].text)));
      assert.equal(outputs.at(-1).preliminary, undefined);
      assert.match(outputs.at(-1).output.content[0].text, /line 1\nline 2\nline 3/);
      await assertSameHistory(running.server, chat);
    });

    test("arguments that do not parse and a tool that does not exist become results that the model reads", async () => {
      const chat = open();
      await chat.send(scripted(
        "Try.",
        [{ rawToolInput: "{\"command\": \"ls", tool: "bash" }, { tool: "no_such_tool", input: { a: 1 } }],
        [{ text: "I see: {{lastToolResult}}" }],
      ));
      const [broken, unknown] = tools(chat.lastMessage);
      assert.deepEqual([broken.state, broken.input], ["output-error", "{\"command\": \"ls"]);
      assert.deepEqual([unknown.type, unknown.state], ["tool-no_such_tool", "output-error"]);
      assert.match(texts(chat.lastMessage).at(-1), /^I see: ./);
      await checkedChunks(chat.posts()[0]);
      await assertSameHistory(running.server, chat);
      await chat.send(scripted("And on.", [{ text: "Fine." }]));
      assert.deepEqual(texts(chat.lastMessage), ["Fine."]);
    });

    test("argument keys that the client's parser refuses are dropped with a notice", async () => {
      const chat = open();
      await chat.send(scripted(
        "Try.",
        [{ rawToolInput: '{"command":"echo ok","__proto__":{"a":1},"constructor":{"prototype":{"b":2}}}', tool: "bash" }],
        [{ text: "Done." }],
      ));
      assert.equal(chat.status, "ready", String(chat.error));
      assert.ok(chat.wire.data.some((part) => part.type === "data-notice"));
      const found = await checkedChunks(chat.posts()[0]);
      assert.ok(!JSON.stringify(found.filter((chunk) => chunk.type !== "tool-input-delta")).includes("__proto__"));
      await assertSameHistory(running.server, chat);
    });

    for (const [stop, reason] of [["max_tokens", "length"], ["refusal", "content-filter"], ["stop_sequence", "stop"]]) {
      test(`the provider's ${stop} ends as ${reason}`, async () => {
        const chat = open();
        await chat.send(scripted("Go.", [{ text: "So far" }, { stop }]));
        assert.equal((await checkedChunks(chat.posts()[0])).at(-1).finishReason, reason);
        await assertSameHistory(running.server, chat);
      });
    }

    test("the next message may be sent in the moment in which the turn ends", async () => {
      let chat;
      const answers = [];
      let second;
      chat = open({
        onFinish: ({ message }) => {
          answers.push(texts(message)[0]);
          if (answers.length === 1) second = new Promise((resolve) => queueMicrotask(() => resolve(chat.send(scripted("2", [{ text: "second" }])))));
        },
      });
      await chat.send(scripted("1", [{ text: "first" }]));
      await within(10_000, "the second turn", second);
      for (let turn = 3; turn <= 8; turn += 1) await chat.send(scripted(String(turn), [{ text: `answer ${turn}` }]));
      assert.deepEqual(chat.posts().map((exchange) => exchange.status), Array(8).fill(200));
      assert.equal(chat.messages.length, 16);
      await assertSameHistory(running.server, chat);
    });

    test("an image goes to the model and into the history", async () => {
      const chat = open();
      const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
      const files = [{ type: "file", mediaType: "image/png", filename: "pixel.png", url: `data:image/png;base64,${pixel}` }];
      await within(30_000, "the turn", chat.sendMessage({ text: scripted("See.", [{ text: "A pixel." }]), files }));
      assert.equal(chat.status, "ready", String(chat.error));
      const { requests } = await running.double.requests();
      const { messages } = await running.double.body(requests.at(-1).number);
      const image = messages.at(-1).content.find((block) => block.type === "image");
      assert.deepEqual(image.source, { type: "base64", media_type: "image/png", data: pixel });
      await assertSameHistory(running.server, chat);
    });
  });
}
