// Each family of models is asked for thinking as it wants to be asked; the double refuses anything else.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { openChat } from "./chat-client.mjs";
import { assertSameHistory, checkedChunks, fixture } from "./chat-fixture.mjs";
import { scripted } from "./harness.mjs";

const running = fixture();
const reasoning = (message) => message.parts.filter((part) => part.type === "reasoning").map((part) => part.text);

for (const [model, shownWhenOff] of [
  ["claude-sonnet-5-5", true], ["claude-opus-5-5", true], ["claude-haiku-5-5", false], ["claude-fable-5-1", true],
  ["claude-opus-4-8", false], ["claude-sonnet-4-6", false], ["claude-haiku-4-5", false], ["claude-not-yet-known", false],
]) {
  describe(model, { concurrency: false }, () => {
    for (const level of ["off", "low", "medium", "high"]) {
      test(`thinking ${level}`, async () => {
        const chat = openChat("ai-7", running.server, { transport: { body: { thinkingLevel: level, model: { provider: "anthropic", id: model } } } });
        const turn = () => chat.send(scripted("Think.", [{ thinking: "I look." }, { text: "Looking." }, { tool: "bash", input: { command: "echo x" } }], [{ thinking: "I see." }, { text: "Done." }]));
        await turn();
        assert.equal(chat.status, "ready", String(chat.error));
        assert.deepEqual(reasoning(chat.lastMessage), level !== "off" || shownWhenOff ? ["I look.", "I see."] : []);
        await checkedChunks(chat.posts()[0]);
        await turn();
        assert.equal(chat.status, "ready", String(chat.error));
        await assertSameHistory(running.server, chat);
        const { requests } = await running.double.requests();
        const body = await running.double.body(requests.at(-1).number);
        assert.ok(body.tools.every((tool) => tool.eager_input_streaming === true));
      });
    }
  });
}

test("a session goes on when its model changes", async () => {
  const id = crypto.randomUUID();
  let messages = [];
  for (const model of ["claude-haiku-4-5", "claude-sonnet-5-5", "claude-opus-4-8"]) {
    const chat = openChat("ai-7", running.server, { id, messages, transport: { body: { thinkingLevel: "high", model: { provider: "anthropic", id: model } } } });
    await chat.send(scripted("Think.", [{ thinking: `I am ${model}.` }, { tool: "bash", input: { command: "echo x" } }], [{ text: "Done." }]));
    assert.equal(chat.status, "ready", String(chat.error));
    assert.deepEqual(reasoning(chat.lastMessage), [`I am ${model}.`]);
    messages = chat.messages;
    await assertSameHistory(running.server, chat);
  }
});
