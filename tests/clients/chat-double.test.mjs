// The provider's own client library judges the model double's chat completions: what it streams is what the library
// expects, what the library sends is accepted, and each wrong use is refused with the provider's error and recorded.

import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import OpenAI from "openai";
import { scripted, startDouble, until, within } from "./harness.mjs";

const MODEL = "scripted-model";
const BASH = { type: "function", function: { name: "bash", description: "Runs a command", parameters: { type: "object", properties: { command: { type: "string" } } } } };
const WRITE = { type: "function", function: { name: "write", parameters: { type: "object" } } };

let double;
let client;
before(async () => {
  double = await startDouble();
  client = new OpenAI({ apiKey: "a-good-key", baseURL: `${double.url}/v1`, maxRetries: 0 });
});
after(() => double.stop());

const user = (content) => ({ role: "user", content });
const call = (messages, more = {}) => ({ model: MODEL, messages, ...more });
const create = (messages, more) => client.chat.completions.create(call(messages, more));
const stream = (messages, more) => client.chat.completions.stream({ ...call(messages, more), stream_options: { include_usage: true } });

describe("right use", () => {
  afterEach(async () => assert.deepEqual(await double.takeFailures(), [], "the double found no fault"));

  test("text streams in the asked number of deltas and the final completion holds it whole, with its counts", async () => {
    const text = "One, two, three and four.";
    const running = stream([user(scripted("Say it.", [{ text, chunks: 5 }]))]);
    const deltas = [];
    running.on("content", (delta) => deltas.push(delta));
    const completion = await running.finalChatCompletion();
    assert.equal(deltas.length, 5);
    assert.equal(deltas.join(""), text);
    assert.equal(completion.choices[0].message.content, text);
    assert.equal(completion.choices[0].finish_reason, "stop");
    assert.equal(completion.usage.completion_tokens, 5);
    assert.equal(completion.usage.total_tokens, completion.usage.prompt_tokens + 5);
  });

  test("chunks come in the provider's order, counts last and only when asked for", async () => {
    const prompt = [user(scripted("Go.", [{ thinking: "Hm." }, { text: "Yes." }, { tool: "bash", input: { command: "ls" }, chunkBytes: 8 }]))];
    const seen = async (more) => {
      const chunks = [];
      for await (const chunk of await create(prompt, { stream: true, reasoning_effort: "low", tools: [BASH], ...more })) chunks.push(chunk);
      return chunks;
    };
    const kinds = (chunks) => chunks.map(({ choices: [choice], usage }) => {
      if (!choice) return Object.keys(usage).sort().join();
      const call = choice.delta.tool_calls?.[0];
      return choice.finish_reason ?? (call ? (call.id ? `call ${call.function.name}` : "arguments") : Object.keys(choice.delta).sort().join());
    });
    const answer = ["content,role", "reasoning_content", "content", "call bash", "arguments", "arguments", "tool_calls"];
    const counted = await seen({ stream_options: { include_usage: true } });
    assert.deepEqual(kinds(counted), [...answer, "completion_tokens,completion_tokens_details,prompt_tokens,prompt_tokens_details,total_tokens"]);
    assert.ok(counted.slice(0, -1).every((chunk) => chunk.usage === null));
    assert.deepEqual(kinds(await seen()), answer);
  });

  test("calls, results and reasoning go round over two model calls", async () => {
    for (const [model, field] of [[MODEL, "reasoning_content"], ["scripted-plain-reasoning", "reasoning"]]) {
      const prompt = scripted(
        "Look.",
        [{ thinking: "I look first." }, { text: "Looking." }, { tool: "bash", input: { command: "ls" } }, { tool: "bash", input: { command: "pwd" } }],
        [{ text: "It says: {{lastToolResult}}" }],
      );
      const options = { model, reasoning_effort: "low", tools: [BASH] };
      const messages = [user(prompt)];
      const { message } = (await create(messages, options)).choices[0];
      assert.deepEqual([message[field], message.content], ["I look first.", "Looking."]);
      assert.deepEqual(message.tool_calls.map((call) => JSON.parse(call.function.arguments)), [{ command: "ls" }, { command: "pwd" }]);
      messages.push({ role: "assistant", content: message.content, tool_calls: message.tool_calls, [field]: message[field] });
      for (const { id, function: { arguments: input } } of message.tool_calls) messages.push({ role: "tool", tool_call_id: id, content: `ran ${JSON.parse(input).command}` });
      const second = (await create(messages, options)).choices[0].message;
      assert.equal(second.content, "It says: ran pwd");
      delete messages[1][field];
      messages.push({ role: "assistant", content: second.content }, user("And without a script?"));
      assert.match((await create(messages, options)).choices[0].message.content, /^You said: "And without a script\?"/);
    }
  });

  test("images of results behind the results leave the loop as it is", async () => {
    const messages = [user(scripted("Look.", [{ tool: "bash", input: {} }], [{ text: "Seen: {{lastToolResult}}" }]))];
    const { message } = (await create(messages, { tools: [BASH] })).choices[0];
    const url = "data:image/png;base64,iVBORw0KGgo=";
    messages.push({ role: "assistant", content: null, tool_calls: message.tool_calls }, { role: "tool", tool_call_id: message.tool_calls[0].id, content: "a picture" });
    messages.push(user([{ type: "text", text: "Images:" }, { type: "image_url", image_url: { url } }]));
    assert.equal((await create(messages, { tools: [BASH] })).choices[0].message.content, "Seen: a picture");
  });

  test("a large argument streams in small pieces and arrives whole", async () => {
    const prompt = scripted("Write.", [{ tool: "write", input: { path: "a", content: "{{repeat:5000:0123456789äöü€🙂\n}}" }, chunkBytes: 100 }]);
    const running = stream([user(prompt)], { tools: [WRITE] });
    let pieces = 0;
    running.on("tool_calls.function.arguments.delta", () => { pieces += 1; });
    const completion = await running.finalChatCompletion();
    assert.deepEqual(JSON.parse(completion.choices[0].message.tool_calls[0].function.arguments), { path: "a", content: "0123456789äöü€🙂\n".repeat(5000) });
    assert.ok(pieces > 1_000, `${pieces} pieces`);
  });

  test("a longer conversation reads what the shorter one left in the cache", async () => {
    const messages = [{ role: "system", content: "Be brief and kind." }, user("Cached question one")];
    const first = await create(messages);
    messages.push({ role: "assistant", content: first.choices[0].message.content }, user("And two"));
    const second = await create(messages);
    assert.equal(first.usage.prompt_tokens_details.cached_tokens, 0);
    assert.equal(second.usage.prompt_tokens_details.cached_tokens, first.usage.prompt_tokens);
  });

  test("finish reasons are as scripted, in the words of either wire", async () => {
    for (const [word, reason] of [["max_tokens", "length"], ["refusal", "content_filter"], ["length", "length"], ["end_turn", "stop"]]) {
      const completion = await create([user(scripted("Go.", [{ text: "x" }, { stop: word }]))]);
      assert.equal(completion.choices[0].finish_reason, reason);
    }
  });

  test("each error status is the library's own class, with headers", async () => {
    for (const [status, shown, kind] of [
      [400, 400, OpenAI.BadRequestError], [403, 403, OpenAI.PermissionDeniedError], [429, 429, OpenAI.RateLimitError],
      [500, 500, OpenAI.InternalServerError], [529, 503, OpenAI.InternalServerError],
    ]) {
      const prompt = user(scripted("Go.", [{ error: { status, retryAfter: 7 } }, { text: "ok" }]));
      await assert.rejects(create([prompt], { stream: true }), (error) => {
        assert.ok(error instanceof kind, `${status}: ${error.constructor.name}`);
        assert.deepEqual([error.status, error.headers.get("retry-after")], [shown, "7"]);
        assert.match(error.requestID, /^req_/);
        return true;
      });
    }
  });

  test("the library's own retry gets past errors that wear off", async () => {
    const patient = new OpenAI({ apiKey: "a-good-key", baseURL: `${double.url}/v1`, maxRetries: 2 });
    const prompt = user(scripted("Be patient.", [{ error: { status: 503, retryAfter: 0.05 } }, { error: { status: 429, retryAfter: 0.05 } }, { text: "Here." }]));
    const before = (await double.requests()).counters.requests;
    const completion = await patient.chat.completions.create(call([prompt]));
    assert.equal(completion.choices[0].message.content, "Here.");
    assert.equal((await double.requests()).counters.requests - before, 3);
  });

  test("a rejected key, an unknown model and a prompt beyond the window are the provider's errors", async () => {
    const stranger = new OpenAI({ apiKey: "invalid-key", baseURL: `${double.url}/v1`, maxRetries: 0 });
    await assert.rejects(stranger.chat.completions.create(call([user("hi")])), (error) => error instanceof OpenAI.AuthenticationError && error.code === "invalid_api_key");
    await assert.rejects(create([user("hi")], { model: "no-such-model" }), (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
    await assert.rejects(create([user("word ".repeat(200_001))]), (error) => error instanceof OpenAI.BadRequestError && error.code === "context_length_exceeded");
  });

  test("an error in mid-stream is an error after the text before it, and a cut is a broken connection", async () => {
    for (const end of [[{ errorEvent: "overloaded_error" }], [{ sleep: 100 }, { cut: true }]]) {
      let text = "";
      const read = async () => {
        const chunks = await create([user(scripted("Go.", [{ text: "So far" }, ...end]))], { stream: true });
        for await (const chunk of chunks) text += chunk.choices[0]?.delta.content ?? "";
      };
      await assert.rejects(read());
      assert.equal(text, "So far");
    }
  });

  test("a reader that leaves ends its stream at once", async () => {
    const before = (await double.requests()).counters;
    const running = stream([user(scripted("Go.", [{ text: "a b c d e f g h i j", chunks: 10, delayMs: 10_000 }]))]);
    await within(30_000, "the start", new Promise((resolve) => running.on("chunk", resolve)));
    running.abort();
    await assert.rejects(running.finalChatCompletion(), OpenAI.APIUserAbortError);
    await until("the double notes it", async () => (await double.requests()).counters.abandoned === before.abandoned + 1, 30_000);
  });

  test("a double told so answers without a key", async () => {
    const open = await startDouble("--keyless");
    try {
      const response = await fetch(`${open.url}/v1/chat/completions`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(call([user("hi")])) });
      assert.equal(response.status, 200);
      assert.deepEqual(await open.takeFailures(), []);
    } finally {
      await open.stop();
    }
  });
});

describe("wrong use is refused and recorded", () => {
  const use = (id, name = "bash", input = "{}") => ({ id, type: "function", function: { name, arguments: input } });
  const assistant = (content, ...calls) => ({ role: "assistant", content, ...(calls.length > 0 ? { tool_calls: calls } : {}) });
  const result = (id, content = "out") => ({ role: "tool", tool_call_id: id, content });
  const system = { role: "system", content: "Be brief." };
  const tools = { tools: [BASH] };
  const cases = [
    ["no messages", "messages", []],
    ["an assistant first", "roles", [assistant("hi"), user("x")]],
    ["two users in a row", "roles", [user("a"), user("b")]],
    ["an assistant last", "roles", [user("a"), assistant("b")]],
    ["an unknown role", "roles", [{ role: "robot", content: "a" }]],
    ["a late system message", "roles", [user("a"), system]],
    ["an empty system message", "system", [{ role: "system", content: " " }, user("a")]],
    ["an empty text", "content", [user("")]],
    ["no parts", "content", [user([])]],
    ["an empty part", "content", [user([{ type: "text", text: "" }])]],
    ["a part of the other wire", "content", [user([{ type: "image", source: {} }])]],
    ["an unknown key in a message", "content", [{ ...user("a"), id: "m1" }]],
    ["an image that is none", "source", [user([{ type: "image_url", image_url: { url: "data:image/bmp;base64,AAAA" } }])]],
    ["an assistant without anything", "content", [user("a"), assistant(null), user("b")]],
    ["an empty list of calls", "tool-calls", [user("a"), { role: "assistant", content: "b", tool_calls: [] }, user("c")]],
    ["a call without a result", "missing-tool-result", [user("a"), assistant(null, use("call_A")), user("b")], tools],
    ["one result for two calls", "missing-tool-result", [user("a"), assistant(null, use("call_A"), use("call_B")), result("call_A"), user("b")], tools],
    ["an end before all results", "roles", [user("a"), assistant(null, use("call_A"), use("call_B")), result("call_A")], tools],
    ["a result without a call", "roles", [user("a"), result("call_A")], tools],
    ["a result of another call", "orphan-tool-result", [user("a"), assistant(null, use("call_A")), result("call_B")], tools],
    ["two results for one call", "orphan-tool-result", [user("a"), assistant(null, use("call_A")), result("call_A"), result("call_A")], tools],
    ["results in another order", "tool-result-order", [user("a"), assistant(null, use("call_A"), use("call_B")), result("call_B"), result("call_A")], tools],
    ["an empty result", "tool-result", [user("a"), assistant(null, use("call_A")), result("call_A", "")], tools],
    ["a result in parts", "tool-result", [user("a"), assistant(null, use("call_A")), result("call_A", [{ type: "text", text: "x" }])], tools],
    ["a repeated call id", "tool-call-id", [user("a"), assistant(null, use("call_A")), result("call_A"), assistant(null, use("call_A")), result("call_A")], tools],
    ["a call of an undeclared tool", "tool-name", [user("a"), assistant(null, use("call_A", "nosuch")), result("call_A")], tools],
    ["arguments that are no object", "tool-arguments", [user("a"), assistant(null, use("call_A", "bash", "ls")), result("call_A")], tools],
    ["reasoning of a finished turn", "reasoning-kept", [user("a"), { ...assistant("b"), reasoning_content: "Hm." }, user("c")]],
    ["reasoning under another name", "content", [user("a"), { ...assistant(null, use("call_A")), reasoning: "Hm." }, result("call_A")], tools],
    ["an unknown effort", "reasoning-effort", [user("a")], { reasoning_effort: "most" }],
    ["options of a stream without one", "stream-options", [user("a")], { stream_options: { include_usage: true } }],
    ["an empty model", "model", [user("a")], { model: "" }],
    ["an empty list of tools", "tools", [user("a")], { tools: [] }],
    ["two tools of one name", "tools", [user("a")], { tools: [BASH, BASH] }],
    ["a tool of the other wire", "tools", [user("a")], { tools: [{ name: "bash", input_schema: {} }] }],
    ["a tool name with a dot", "tools", [user("a")], { tools: [{ type: "function", function: { ...BASH.function, name: "a.b" } }] }],
    ["a field of the other wire", "fields", [user("a")], { thinking: {} }],
    ["a script with a mistake", "model-script", [user(scripted("Go.", [{ txt: "a" }]))]],
  ];
  for (const [name, invariant, messages, more] of cases) {
    test(name, async () => {
      await assert.rejects(create(messages, more), OpenAI.BadRequestError);
      assert.deepEqual((await double.takeFailures()).map((failure) => failure.invariant), [invariant]);
    });
  }

  test("reasoning left out in a tool loop", async () => {
    const messages = [user(scripted("Think.", [{ thinking: "One." }, { tool: "bash", input: {} }], [{ text: "ok" }]))];
    const { message } = (await create(messages, { reasoning_effort: "low", ...tools })).choices[0];
    messages.push({ role: "assistant", content: null, tool_calls: message.tool_calls }, result(message.tool_calls[0].id));
    await assert.rejects(create(messages, { reasoning_effort: "low", ...tools }), OpenAI.BadRequestError);
    assert.deepEqual((await double.takeFailures()).map((failure) => failure.invariant), ["reasoning-kept"]);
  });

  for (const [name, invariant, status, headers, body] of [
    ["no key", "authorization", 401, { authorization: "" }, "{}"],
    ["a key of the other wire", "authorization", 401, { authorization: "", "x-api-key": "k" }, "{}"],
    ["another content type", "content-type", 400, { "content-type": "text/plain" }, "{}"],
    ["no JSON", "json", 400, {}, "{"],
    ["no object", "body", 400, {}, "[]"],
  ]) {
    test(name, async () => {
      const good = { authorization: "Bearer a-good-key", "content-type": "application/json" };
      const response = await fetch(`${double.url}/v1/chat/completions`, { method: "POST", headers: { ...good, ...headers }, body });
      const { error } = await response.json();
      assert.deepEqual([response.status, error.type], [status, "invalid_request_error"]);
      assert.deepEqual((await double.takeFailures()).map((failure) => failure.invariant), [invariant]);
    });
  }

  test("a key is never shown", async () => {
    const shown = JSON.stringify([await double.requests(), await double.failures()]) + double.log();
    assert.ok(!shown.includes("a-good-key"));
  });
});
