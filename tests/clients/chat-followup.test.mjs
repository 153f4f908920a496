// Follow-ups with the SDK's own chat class: queued while a turn runs, shown turn by turn, kept over a crash.

import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, test } from "node:test";
import { RESUMING, history, openChat } from "./chat-client.mjs";
import { assertSameHistory, checkedChunks, fixture } from "./chat-fixture.mjs";
import { scripted, until, within } from "./harness.mjs";

const running = fixture();
const texts = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("");
const userMessage = (text) => ({ id: crypto.randomUUID(), role: "user", parts: [{ type: "text", text }] });
/** A turn that goes on until it is told, and how to tell it. */
function held() {
  const file = `go-${crypto.randomUUID()}`;
  const command = `until [ -e ${file} ]; do sleep 0.05; done`;
  const prompt = scripted("Wait.", [{ text: "I wait." }, { tool: "bash", input: { command } }], [{ text: "Waited." }]);
  return { prompt, release: () => writeFile(join(running.server.workspace, file), "") };
}
const followUp = (id, body) =>
  running.server.json(`/agent/chat/${id}/followup`, { method: "POST", body: JSON.stringify(body) });

for (const version of RESUMING) {
  test(`${version}: the client goes from turn to turn by what the last chunk says`, async () => {
    let turn;
    // By its id: a short turn may be over already, and the next one running.
    const prepareReconnectToStreamRequest = ({ id, api }) => ({ api: `${api}/${id}/stream?turn=${turn}` });
    const chat = openChat(version, running.server, { transport: { prepareReconnectToStreamRequest } });
    const { prompt, release } = held();
    const sending = chat.send(prompt);
    await until("text", () => chat.lastMessage?.role === "assistant" && texts(chat.lastMessage) !== "");
    const waiting = [userMessage(scripted("Second.", [{ text: "second" }])), userMessage(scripted("Third.", [{ text: "third" }]))];
    // The later one arrives first; the numbers count.
    for (const index of [1, 0]) {
      const { status, body } = await followUp(chat.id, { message: waiting[index], clientNonce: `n${index}`, clientSeq: index });
      assert.deepEqual([status, body], [202, { clientNonce: `n${index}`, status: "queued" }]);
    }
    await release();
    await sending;
    for (const message of waiting) {
      const { next } = chat.lastMessage.metadata;
      assert.equal(next.userMessageId, message.id);
      turn = next.turnId;
      chat.messages = [...chat.messages, message];
      await within(10_000, "the resumed turn", chat.resumeStream());
      assert.equal(chat.lastMessage.metadata.turnId, turn);
      await checkedChunks(chat.wire.exchanges.at(-1));
    }
    assert.equal(chat.lastMessage.metadata.next, undefined);
    assert.deepEqual(chat.messages.map(texts).filter((text) => /^(second|third)$/.test(text)), ["second", "third"]);
    await assertSameHistory(running.server, chat);
  });
}

describe("over a crash", { concurrency: false }, () => {
  test("what was accepted runs after the start, once, in order", async () => {
    const chat = openChat("ai-7", running.server);
    const sending = chat.send(held().prompt);
    await until("text", () => chat.lastMessage?.role === "assistant" && texts(chat.lastMessage) !== "");
    for (const number of [1, 2]) {
      const message = scripted(`Follow-up ${number}.`, [{ text: `answer ${number}` }]);
      assert.equal((await followUp(chat.id, { message, clientNonce: `n${number}`, clientSeq: number })).status, 202);
    }
    await running.server.restart("SIGKILL");
    await within(10_000, "the client's end", sending);
    const messages = await until("both have run", async () => {
      const all = await history(running.server, chat.id);
      return all.length === 6 && all;
    });
    assert.deepEqual(messages.filter((message) => message.role === "assistant").map(texts).slice(1), ["answer 1", "answer 2"]);
    assert.equal(messages[1].metadata.reason, "crash");
    const again = await followUp(chat.id, { message: "x", clientNonce: "n1", clientSeq: 1 });
    assert.deepEqual([again.body.status, again.body.turnId], ["begun", messages[3].metadata.turnId]);
  });
});

test("a reader that follows the session sees all turns in one stream", async () => {
  const chat = openChat("ai-7", running.server);
  await chat.send(scripted("One.", [{ text: "first" }]));
  const response = await running.server.request(`/agent/chat/${chat.id}/stream?follow=session`);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (const answer of ["second", "third"]) {
    await chat.send(scripted(answer, [{ text: answer }]));
    while (!text.includes(`"delta":"${answer}"`) || !text.slice(text.indexOf(`"delta":"${answer}"`)).includes('"type":"finish"')) {
      const { value } = await within(10_000, "the next frame", reader.read());
      text += value;
    }
  }
  await reader.cancel();
  assert.ok(!text.includes('"delta":"first"'), "only what begins later");
  const ids = [...text.matchAll(/^id: (\S+)$/gm)].map(([, id]) => id);
  assert.equal(new Set(ids).size, ids.length);
});
