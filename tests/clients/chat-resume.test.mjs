// Resuming: after a cut at each frame, after a reload in mid-turn, from each cursor, over a restart.

import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, test } from "node:test";
import { NEWEST, RESUMING, chunks, comparable, frames, history, openChat } from "./chat-client.mjs";
import { assertSameHistory, fixture } from "./chat-fixture.mjs";
import { TOKEN, scripted, until, within } from "./harness.mjs";

const running = fixture();
const texts = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text);
/** A turn with all kinds of parts that runs on while a client is cut off and returns. */
const story = () => scripted(
  "Tell.",
  [{ thinking: "Two things.", chunks: 2, delayMs: 20 }, { text: "I run it.", chunks: 3, delayMs: 20 }, { tool: "bash", input: { command: "echo a; sleep 0.3; echo b" }, chunkBytes: 16, delayMs: 5 }, { tool: "write", input: { path: "told.txt", content: "hi\n" }, chunkBytes: 16 }],
  [{ text: "All is written and done.", chunks: 4, delayMs: 20 }],
);
const thinking = { transport: { body: { thinkingLevel: "low" } } };

for (const version of RESUMING) {
  describe(version, { concurrency: false }, () => {
    const open = (options) => openChat(version, running.server, { ...thinking, ...options });

    test("a new client with nothing but the session's id gets the running turn from its start, then live", async () => {
      const first = open();
      const flag = `resumed-${first.id}`;
      const sending = first.send(scripted(
        "Wait for me.",
        [{ thinking: "Two things." }, { text: "I wait." }, { tool: "bash", input: { command: `echo waiting; until [ -e ${flag} ]; do sleep 0.05; done; echo seen` } }],
        [{ text: "All is done.", chunks: 4, delayMs: 20 }],
      ));
      await until("the command", () => first.lastMessage?.parts.some((part) => part.type === "tool-bash" && part.state !== "input-streaming"));
      const second = open({ id: first.id, messages: first.messages.slice(0, 1) });
      const resuming = second.resumeStream();
      await until("what came before", () => second.lastMessage?.parts.some((part) => part.type === "tool-bash"));
      await writeFile(join(running.server.workspace, flag), "");
      await within(20_000, "the resumed turn", resuming);
      await sending;
      assert.deepEqual(second.messages.map(comparable), first.messages.map(comparable));
      await assertSameHistory(running.server, second);
    });

    test("resuming when nothing runs, or where nothing is known, changes nothing", async () => {
      const chat = open();
      await chat.resumeStream();
      assert.deepEqual([chat.status, chat.messages], ["ready", []]);
      assert.equal(chat.wire.exchanges[0].status, 204);
      await chat.send(scripted("Go.", [{ text: "x" }]));
      await chat.resumeStream();
      assert.deepEqual([chat.status, chat.messages.length, chat.wire.exchanges.at(-1).status], ["ready", 2, 204]);
    });

    const shape = (message) => message.parts.filter((part) => !part.type.startsWith("data-")).map(({ type, text, input, state, output }) => ({ type, text, input, state, output: output?.content }));
    const finished = (chat) => chat.lastMessage?.role === "assistant" && chat.lastMessage.metadata?.durationMs !== undefined;
    const ended = (chat) => until("the turn's end", async () => (await history(running.server, chat.id)).at(-1)?.role === "assistant", 20_000);
    /** As documented for applications: the turn of the last message is named when resuming. */
    const byTurn = () => {
      const transport = {
        ...thinking.transport,
        prepareReconnectToStreamRequest: ({ id, api }) => {
          const turn = chat.lastMessage?.metadata?.turnId;
          return { api: `${api}/${id}/stream${turn ? `?turn=${turn}` : ""}`, headers: { authorization: `Bearer ${TOKEN}` } };
        },
      };
      const chat = open({ transport });
      return chat;
    };
    const healings = {
      "by resuming at once": async (chat) => {
        await within(20_000, "the resumed turn", chat.resumeStream());
        if (!finished(chat)) chat.messages = await history(running.server, chat.id);
      },
      "by reloading the history when resuming finds nothing": async (chat) => {
        await ended(chat);
        await chat.resumeStream();
        // The history shows the message a moment before the stream ends; in that moment the whole turn may still come.
        assert.ok([200, 204].includes(chat.wire.exchanges.at(-1).status));
        chat.messages = await history(running.server, chat.id);
      },
      "by asking for the turn after its end": async (chat) => {
        await ended(chat);
        const known = chat.lastMessage?.metadata?.turnId !== undefined;
        await within(20_000, "the resumed turn", chat.resumeStream());
        if (known) assert.equal(chat.wire.exchanges.at(-1).status, 200);
        else chat.messages = await history(running.server, chat.id);
      },
    };
    for (const [how, heal] of Object.entries(healings)) {
      // The ways through the history are the same code in all versions.
      if (!how.includes("at once") && !NEWEST.includes(version)) continue;
      test(`a cut after any frame is healed ${how}`, async () => {
        // So that the tool says the same each time.
        await writeFile(join(running.server.workspace, "told.txt"), "");
        const whole = open();
        await whole.send(story());
        const count = frames(whole.posts()[0].bytes).length;
        await Promise.all(Array.from({ length: count - 1 }, async (_, cut) => {
          const chat = how.includes("asking") ? byTurn() : open();
          chat.wire.cutAfter = cut + 1;
          await chat.send(story());
          await heal(chat);
          assert.deepEqual(shape(chat.lastMessage), shape(whole.lastMessage), `cut after frame ${cut + 1}`);
          await assertSameHistory(running.server, chat);
        }));
      });
    }
  });
}

describe("by cursor", { concurrency: false }, () => {
  let turn;
  const ask = (query = "", headers = {}) => running.server.request(`/agent/chat/${turn.session}/${turn.id}${query}`, { headers });

  test("each cursor gives exactly the rest, by query and by Last-Event-ID", async () => {
    const chat = openChat("ai-7", running.server, thinking);
    await chat.send(story());
    const exchange = chat.posts()[0];
    turn = { session: chat.id, id: exchange.headers.get("x-turn-id"), frames: frames(exchange.bytes) };
    const replayed = frames(await (await ask()).text());
    assert.deepEqual(chunks(replayed.map(({ id, data }) => `${id ? `id: ${id}\n` : ""}data: ${data}\n\n`).join("")).at(-1).type, "finish");
    turn.frames = replayed;
    for (let index = 0; index < replayed.length - 2; index += 1) {
      const number = replayed[index].id.split(":")[1];
      const rest = replayed.slice(index + 1);
      assert.deepEqual(frames(await (await ask(`?cursor=${number}`)).text()), rest, `cursor ${number}`);
      assert.deepEqual(frames(await (await ask("", { "last-event-id": replayed[index].id })).text()), rest, `Last-Event-ID ${number}`);
    }
  });

  test("the end, beyond the end, another turn's id and unknown turns have their own answers", async () => {
    const last = Number(turn.frames.at(-2).id.split(":")[1]);
    assert.equal((await ask(`?cursor=${last}`)).status, 204);
    assert.equal((await ask(`?cursor=${last + 1}`)).status, 416);
    assert.equal((await ask("", { "last-event-id": "turn_other:1" })).status, 400);
    assert.equal((await ask("?cursor=x")).status, 400);
    assert.equal((await running.server.request(`/agent/chat/${turn.session}/turn_unknown`)).status, 404);
  });

  test("a finished turn is replayed to the SDK by its id", async () => {
    const response = await running.server.request(`/agent/chat/${turn.session}/stream?turn=${turn.id}`);
    assert.deepEqual(frames(await response.text()), turn.frames);
    assert.equal((await running.server.request(`/agent/chat/${turn.session}/stream?turn=turn_unknown`)).status, 204);
  });

  test("the log outlives the process", async () => {
    await running.server.restart("SIGTERM");
    assert.deepEqual(frames(await (await ask()).text()), turn.frames);
  });
});

describe("history of a running turn", { concurrency: false }, () => {
  test("leaves the unfinished message out unless asked for it", async () => {
    const chat = openChat(NEWEST[0], running.server);
    const sending = chat.send(scripted("Go.", [{ text: "a b c d e f g h", chunks: 8, delayMs: 60 }]));
    await until("text", () => chat.lastMessage?.role === "assistant" && texts(chat.lastMessage).join("") !== "");
    assert.deepEqual((await history(running.server, chat.id)).map((message) => message.role), ["user"]);
    const { body } = await running.server.json(`/agent/chat/${chat.id}/messages?partial=1`);
    assert.deepEqual((body.messages ?? body).map((message) => message.role), ["user", "assistant"]);
    await sending;
  });
});
